"""How a layer gets into a partition: one transaction, or several if it is a large one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from millpond.actors.store.partitions.metadata import FileMetadata, write_metadata

T = TypeVar("T")

SLICE_BYTES = 4 * 2**20
"""About how much goes into a transaction."""


class Flush:
    """A transaction that was begun, and those that follow it; `meta` is what each commits."""

    __slots__ = ("_spent", "connection", "meta", "total")

    def __init__(self, connection: sqlite3.Connection, meta: FileMetadata) -> None:
        self.connection = connection
        self.meta = meta
        self.total = 0
        self._spent = 0

    def spend(self, size: int) -> None:
        """So many bytes were written: may commit, and begin the next transaction."""
        self.total += size
        self._spent += size
        if self._spent >= SLICE_BYTES:
            self._spent = 0
            write_metadata(self.connection, self.meta)
            self.connection.execute("COMMIT")
            self.connection.execute("BEGIN IMMEDIATE")


def batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists that are each about a transaction's worth."""
    parcel: list[T] = []
    size = 0
    for item in items:
        parcel.append(item)
        size += size_of(item)
        if size >= SLICE_BYTES:
            yield parcel
            parcel, size = [], 0
    if parcel:
        yield parcel
