"""Batches of a flush: a memtable goes to its file in one transaction, or in several if it is
large."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from millpond.actors.store.partitions.metadata import FileHeader, write_header

T = TypeVar("T")

SLICE_BYTES = 4 * 2**20
"""About how much goes into a transaction."""


class Flush:
    """A transaction that was begun, and those that follow it; `header` is what each writes."""

    __slots__ = ("_spent", "connection", "header", "total")

    def __init__(self, connection: sqlite3.Connection, header: FileHeader) -> None:
        self.connection = connection
        self.header = header
        self.total = 0
        self._spent = 0

    def spend(self, size: int) -> None:
        """So many bytes were written: may commit, and begin the next transaction."""
        self.total += size
        self._spent += size
        if self._spent >= SLICE_BYTES:
            self._spent = 0
            write_header(self.connection, self.header)
            self.connection.execute("COMMIT")
            self.connection.execute("BEGIN IMMEDIATE")


def batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists that are each about a transaction's worth."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= SLICE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
