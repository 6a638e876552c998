"""Names in order, for lists in pages: sorted when they are asked for, then kept so for a while."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

FORGET_AFTER = 1000
"""So many changes without a list: whoever listed has gone."""


class SortedNames:
    """The names of something that changes. `add` and `remove` cost next to nothing while nobody
    lists, and a look for the place while somebody does."""

    __slots__ = ("_changes", "_names")

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._changes = 0

    def add(self, name: str) -> None:
        """There is a new name."""
        if self._names is not None and self._is_listed():
            insort(self._names, name)

    def remove(self, name: str) -> None:
        """A name is gone."""
        names = self._names
        if names is not None and self._is_listed():
            del names[bisect_left(names, name)]

    def clear(self) -> None:
        """All are gone."""
        self._names = None

    def behind(self, names: Iterable[str], after: str | None) -> tuple[list[str], int]:
        """All names in order, and the place of the first one behind `after`; `names` are those that
        there are."""
        self._changes = 0
        if self._names is None:
            self._names = sorted(names)
        return self._names, 0 if after is None else bisect_right(self._names, after)

    def _is_listed(self) -> bool:
        self._changes += 1
        if self._changes > FORGET_AFTER:
            self._names = None
        return self._names is not None
