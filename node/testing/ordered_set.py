"""Ordered sets for anyio's cancel scopes: tasks are cancelled in the order of their start.

On asyncio, anyio keeps tasks and inner scopes of a `CancelScope` in sets, whose order depends on
memory addresses. While a world exists, scopes have ordered sets, so that a node's end is the same
in every process. Trio shuffles tasks by itself.
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
        """Remove an item. Raises KeyError if it is missing."""
        del self._items[value]


@contextmanager
def ordered_cancellation() -> Generator[None]:
    """Give new scopes ordered sets, for the block."""
    global _worlds
    backend: Any = sys.modules.get(BACKEND)  # None: this process has only trio
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
            # Another version of anyio may differ; worlds work without order, too.
            if getattr(self, name, None) == set():
                setattr(self, name, OrderedSet())

    return ordered
