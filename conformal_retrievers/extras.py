"""Optional dependencies: the one message about those that are not installed, and a progress bar."""

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TypeVar

T = TypeVar("T")


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, unless all modules are there.

    Pip takes the package that is there, a checkout or a release, and adds what the extra needs.
    """
    if wanted := absent(*modules):
        raise ModuleNotFoundError(
            f"{', '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} not installed. "
            f'Type: pip install "conformal-retrievers[{extra}]"'
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
