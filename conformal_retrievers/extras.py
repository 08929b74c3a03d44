"""Optional dependencies: the one message about those that are not installed, and a progress bar."""

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TypeVar

T = TypeVar("T")


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, unless all modules are there.

    The command installs the libraries alone, so it works beside a checkout and a release alike.
    """
    if wanted := absent(*modules):
        raise ModuleNotFoundError(
            f"{', '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} not installed. "
            f"Type: pip install {' '.join(wanted)} "
            f"(part of the extra {extra!r} of conformal-retrievers)"
        )


def absent(*modules: str) -> list[str]:
    """Return the names that pip has for those modules that are not there."""
    return [re.sub("[_.]", "-", module) for module in modules if not installed(module)]


def installed(module: str) -> bool:
    """Return whether a module is there."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def with_bar(items: Sequence[T], description: str) -> Iterable[T]:
    """Return the items with a progress bar on stderr, which needs the extra `cli`."""
    require("cli", "rich")
    from rich.console import Console
    from rich.progress import track

    return track(items, description, console=Console(stderr=True), transient=True)
