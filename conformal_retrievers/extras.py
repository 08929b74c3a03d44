"""The one message about an optional dependency that is not installed."""

from importlib.util import find_spec


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, naming the extra to install, unless all modules are there."""
    absent = [name for name in modules if find_spec(name) is None]
    if absent:
        raise ModuleNotFoundError(
            f"{', '.join(absent)} not found; install with: "
            f"pip install 'conformal-retrievers[{extra}]'"
        )
