"""The one message about an optional dependency that is not installed."""

from importlib.util import find_spec


def missing(extra: str, *modules: str) -> str | None:
    """Return what to install if one of the modules is not there, None if all are."""
    absent = [name for name in modules if find_spec(name) is None]
    if not absent:
        return None
    names = ", ".join(absent)
    return f"{names} not found; install with: pip install 'conformal-retrievers[{extra}]'"


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, naming the extra to install, unless all modules are there."""
    message = missing(extra, *modules)
    if message is not None:
        raise ModuleNotFoundError(message)
