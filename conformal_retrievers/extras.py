"""The one message about an optional dependency that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec


def require(extra: str, *modules: str) -> None:
    """Raise ModuleNotFoundError, with the command that installs them, unless all modules are there.

    The command installs the libraries alone, so it works beside a checkout and a release alike.
    """
    absent = [name for name in modules if find_spec(name) is None]
    if absent:
        wanted = " ".join(f'"{_requirement(extra, name)}"' for name in absent)
        raise ModuleNotFoundError(
            f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed. "
            f"Install {'it' if len(absent) == 1 else 'them'}: pip install {wanted} "
            f"(part of the extra {extra!r} of conformal-retrievers)"
        )


def _requirement(extra: str, module: str) -> str:
    """Return what the extra requires for a module, such as "bm25s>=0.3"."""
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
