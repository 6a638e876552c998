"""Module attributes that are imported when they are first used (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module.

    `homes` has for each name the module that defines it, or `MODULE:NAME` where it has another name
    there, or the name of a submodule.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, original = homes[name].partition(":")
        found = import_module(home)
        return found if home == f"{module}.{name}" else getattr(found, original or name)

    def names() -> list[str]:
        return sorted(homes)

    return load, names
