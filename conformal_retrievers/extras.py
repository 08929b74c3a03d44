"""The one message about an optional dependency that is not installed."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, naming the extra to install, unless all modules are there."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{' and '.join(missing)} not found; install with: "
            f"pip install 'conformal-retrievers[{extra}]'",
            name=missing[0],
        )
