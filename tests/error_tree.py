"""The tree of public errors, drawn: the docstring of `millpond.errors` has it."""

from __future__ import annotations

from collections.abc import Iterator

from millpond import errors

WIRE = "millpond.transports.errors"
"""The module of errors of the other end, which are not public."""


def drawn_tree() -> str:
    """Each error below its first public base, in the order of the names; `+` names further ones."""
    return "\n".join(_draw(errors.MillpondError, 4))


def public_errors() -> list[type[Exception]]:
    """The errors of `millpond.errors`, each once, by its own name."""
    found = (getattr(errors, name) for name in errors.__all__)
    kinds = {each for each in found if isinstance(each, type) and issubclass(each, Exception)}
    return sorted(kinds, key=lambda each: each.__name__)


def _draw(error: type[Exception], indent: int) -> Iterator[str]:
    more = [
        base.__name__
        for base in error.__bases__[1:]
        if base.__module__ != "millpond.transports.errors"
    ]
    yield " " * indent + error.__name__ + "".join(f" + {name}" for name in more)
    for each in public_errors():
        if _parent(each) is error:
            yield from _draw(each, indent + 2)


def _parent(error: type[Exception]) -> type[Exception] | None:
    public = set(public_errors())
    return next((base for base in error.__bases__ if base in public), None)
