"""Pages of another partition in the file of one: a write of the other went to the wrong place.

The CRCs of rows tell their file from version 4 on. Those of older files do not: where a page has
the header of another partition, the pages that came with it are known by their rows, which the file
of the other one has as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import assert_never

import msgspec

from millpond.actors.store.changes import Chunk
from millpond.actors.store.partitions.metadata import FileHeader
from millpond.actors.store.repair.sqlite_pages import FoundRow
from millpond.actors.store.repair.stored_rows import (
    AckRow,
    DueRow,
    ForeignRow,
    KeyRow,
    MessageRow,
    NoteRow,
    StoredRow,
    SubscriberRow,
    UniqueRow,
)


class KnownRows(msgspec.Struct, frozen=True):
    """Rows of one or several partitions. A `unique` one is of one partition alone; two partitions
    may have the same `common` one, such as a property."""

    unique: frozenset[Hashable] = frozenset()
    common: frozenset[Hashable] = frozenset()

    @property
    def without_common(self) -> KnownRows:
        """The unique ones."""
        return KnownRows(self.unique)

    def pages(self, rows: Iterable[FoundRow[StoredRow]]) -> set[int]:
        """The pages of these rows: those with one that is unique, or with common ones alone."""
        ours: set[int] = set()
        theirs: set[int] = set()
        common: set[int] = set()
        for each in rows:
            if unique_part(each.row) in self.unique:
                theirs.add(each.page)
            elif _common_part(each.row) in self.common:
                common.add(each.page)
            else:
                ours.add(each.page)
        return theirs | common - ours


def known_rows(rows: Iterable[FoundRow[StoredRow]]) -> KnownRows:
    """All of these rows, also older ones."""
    found = [each.row for each in rows]
    unique = {part for part in map(unique_part, found) if part is not None}
    common = {part for part in map(_common_part, found) if part is not None}
    return KnownRows(frozenset(unique), frozenset(common))


def unique_part(row: StoredRow) -> Hashable | None:
    """The part of a row that no other partition has; None: there may be another with the same."""
    match row:
        case MessageRow():
            return row.message
        case KeyRow() | AckRow() | DueRow() | UniqueRow():
            return type(row), *row[:-1]  # of a message, whose id is its own
        case Chunk():
            return row if row.data else None
        case FileHeader() | SubscriberRow() | NoteRow() | ForeignRow():
            return None
        case _:
            assert_never(row)


def _common_part(row: StoredRow) -> Hashable | None:
    match row:
        case SubscriberRow():
            return row.subscriber, row.floor
        case NoteRow():
            return row.name, row.value
    return None
