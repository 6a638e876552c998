"""Tasks are cancelled in the order in which they came, the same in every process.

anyio keeps the tasks and the inner scopes of a `CancelScope` on asyncio in sets, whose order is
that of addresses; so would be that of all the farewells when a node ends. As long as a world is
there, scopes have sets that keep their order. Trio shuffles tasks by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, MutableSet
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

Item = TypeVar("Item")

SETS = ("_tasks", "_child_scopes")
BACKEND = "anyio._backends._asyncio"

_lock = Lock()
_worlds = 0


class OrderedSet(MutableSet[Item]):
    """A set that iterates in the order in which its items were added."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Item) -> None:
        self._items[value] = None

    def discard(self, value: Item) -> None:
        self._items.pop(value, None)

    def remove(self, value: Item) -> None:
        """KeyError when it is not there."""
        del self._items[value]


@contextmanager
def ordered_cancellation() -> Generator[None]:
    """For the block, scopes that are made know the order of what is in them."""
    global _worlds
    backend: Any = sys.modules.get(BACKEND)  # none: there is nothing but trio in this process
    if backend is None:
        yield
        return
    scope = backend.CancelScope
    with _lock:
        if not _worlds:
            _ordinary[scope] = scope.__init__
            scope.__init__ = _ordered(scope.__init__)
        _worlds += 1
    try:
        yield
    finally:
        with _lock:
            _worlds -= 1
            if not _worlds:
                scope.__init__ = _ordinary.pop(scope)


_ordinary: dict[Any, Any] = {}


def _ordered(init: Any) -> Any:
    def ordered(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        for name in SETS:
            # What is not as we know it stays as it is: worlds work all the same.
            if getattr(self, name, None) == set():
                setattr(self, name, OrderedSet())

    return ordered
