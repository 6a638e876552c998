"""The state of a stream in a node: JSON as it was written, with its size, listed in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any, Self

from msgspec import UNSET, Raw

from millpond.actors.state.events import (
    ChangeEvent,
    Control,
    ControlEvent,
    Operation,
    decode_raw,
)
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.messages import ENTRY_BYTES, TYPE_BYTES
from millpond.actors.state.stats import EventStats

FORGET_AFTER = 1000
"""After so many changes without a list, names are not kept in order any more."""


class SortedNames:
    """Names in order, for lists in pages: sorted by the first list, and then kept in order for a
    while. Without lists, `add` and `remove` cost next to nothing."""

    __slots__ = ("_changes", "_names")

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._changes = 0

    def add(self, name: str) -> None:
        """Add a new name."""
        if self._names is not None and self._is_listed():
            insort(self._names, name)

    def remove(self, name: str) -> None:
        """Remove a name."""
        names = self._names
        if names is not None and self._is_listed():
            del names[bisect_left(names, name)]

    def clear(self) -> None:
        """Remove all names."""
        self._names = None

    def behind(self, names: Iterable[str], after: str | None) -> tuple[list[str], int]:
        """All names in order, and the index of the first one behind `after`. `names` are the
        current names."""
        self._changes = 0
        if self._names is None:
            self._names = sorted(names)
        return self._names, 0 if after is None else bisect_right(self._names, after)

    def _is_listed(self) -> bool:
        self._changes += 1
        if self._changes > FORGET_AFTER:
            self._names = None
        return self._names is not None


class StateTable:
    """The state of one stream. `size` is what it takes in bytes, about."""

    __slots__ = ("_keys", "_types", "size", "state", "stats")

    def __init__(self) -> None:
        self.state = MaterializedState()
        self.stats = EventStats()
        self.size = 0
        self._types = SortedNames()
        self._keys: dict[str, SortedNames] = {}
        """The keys of types that were listed."""

    @classmethod
    def resumed(cls, state: MaterializedState, stats: EventStats, size: int) -> Self:
        """The state of a checkpoint."""
        table = cls()
        table.state, table.stats, table.size = state, stats, size
        return table

    def take(self, body: bytes) -> None:
        """Apply the next record, whatever it is."""
        event = decode_raw(body)
        match event:
            case ChangeEvent():
                self._change(event)
            case ControlEvent():
                if self.stats.count_control(event) is Control.RESET:
                    self.clear()
            case _:
                self.stats.reject(event)

    def _change(self, event: ChangeEvent[Any]) -> None:
        self.stats.changes += 1
        kind, key = event.type, event.key
        if event.headers.operation is Operation.DELETE:
            self._remove(kind, key)
            return
        written = event.value
        assert isinstance(written, Raw), "values are left as they were written"
        value, types = bytes(written), self.state.type_count
        before = self.state.put(kind, key, value)
        if before is not UNSET:
            self.size += len(value) - len(before)
            return
        self.size += _entry_size(key, value)
        if self.state.type_count > types:
            self.size += TYPE_BYTES + len(kind)
            self._types.add(kind)
        elif self._keys and kind in self._keys:
            self._keys[kind].add(key)

    def _remove(self, kind: str, key: str) -> None:
        types = self.state.type_count
        before = self.state.remove(kind, key)
        if before is UNSET:
            return
        self.size -= _entry_size(key, before)
        if self.state.type_count < types:
            self.size -= TYPE_BYTES + len(kind)
            self._types.remove(kind)
            self._keys.pop(kind, None)
        elif self._keys and kind in self._keys:
            self._keys[kind].remove(key)

    def clear(self) -> None:
        """Remove everything but the counts."""
        self.state.clear()
        self._types.clear()
        self._keys.clear()
        self.size = 0

    def page(
        self, kind: str | None, after: tuple[str, str] | None, count: int, bytes_max: int
    ) -> tuple[list[tuple[str, str, bytes]], bool]:
        """Rows behind `after`, and whether there are more."""
        rows: list[tuple[str, str, bytes]] = []
        size = 0
        for row in self._rows(kind, after):
            size += len(row[1]) + len(row[2])
            if rows and (len(rows) >= count or size > bytes_max):
                return rows, True
            rows.append(row)
        return rows, False

    def _rows(
        self, kind: str | None, after: tuple[str, str] | None
    ) -> Iterator[tuple[str, str, bytes]]:
        if kind is not None:
            yield from self._rows_of(kind, after[1] if after is not None else None)
            return
        kinds, index = self._types.behind(self.state.types, after and after[0])
        if after is not None:
            yield from self._rows_of(*after)
        for at in range(index, len(kinds)):
            yield from self._rows_of(kinds[at], None)

    def _rows_of(self, kind: str, after: str | None) -> Iterator[tuple[str, str, bytes]]:
        values = self.state.get_type(kind)
        if not values:
            return
        order = SortedNames() if len(values) == 1 else self._keys.setdefault(kind, SortedNames())
        keys, index = order.behind(values, after)
        for at in range(index, len(keys)):
            yield kind, keys[at], values[keys[at]]


def size_of(state: MaterializedState) -> int:
    """The size of a state in bytes, about."""
    size = 0
    for kind in state.types:
        size += TYPE_BYTES + len(kind)
        size += sum(_entry_size(key, value) for key, value in state.get_type(kind).items())
    return size


def _entry_size(key: str, value: bytes) -> int:
    return ENTRY_BYTES + len(key) + len(value)
