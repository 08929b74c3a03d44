"""Names of a package that load their module when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package, given the names in each of its modules.

    The names of a module stand in one string, with spaces between them. None may be a module of
    the package: once that is loaded, it would stand in the name's place.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def getattr_(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return getattr_, dir_
