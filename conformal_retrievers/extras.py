"""The one message about optional dependencies that are not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, unless all modules are there.

    The command installs the libraries alone, so it works beside a checkout and a release alike.
    """
    if found := absent(extra, *modules):
        wanted = " ".join(f'"{requirement}"' for requirement in found.values())
        raise ModuleNotFoundError(
            f"{', '.join(found)} {'is' if len(found) == 1 else 'are'} not installed. "
            f"Install {'it' if len(found) == 1 else 'them'}: pip install {wanted} "
            f"(part of the extra {extra!r} of conformal-retrievers)"
        )


def absent(extra: str, *modules: str) -> dict[str, str]:
    """Return the modules that are not there, and what the extra requires: "bm25s>=0.3"."""
    return {name: _requirement(extra, name) for name in modules if not installed(name)}


def installed(module: str) -> bool:
    """Return whether a module is there."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def _requirement(extra: str, module: str) -> str:
    name = module.replace("_", "-")
    try:
        listed = requires("conformal-retrievers") or []
    except PackageNotFoundError:  # the code runs from a folder
        listed = []
    for text in listed:
        requirement, _, marker = text.partition(";")
        if re.split(r"[^\w.-]", requirement)[0] == name and re.search(
            rf"\bextra == ['\"]{extra}['\"]", marker
        ):
            return requirement.strip()
    return name
