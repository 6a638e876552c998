"""Reads what can still be read of the damaged file of a partition, row by row."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from millpond.actors.store.changes import Chunk, PartitionKind, Snapshot, StoredKey, StoredMessage
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.partitions import attribute_tables as attributes
from millpond.actors.store.partitions import subscriber_tables
from millpond.actors.store.partitions.log_tables import chunks_between, metadata_left
from millpond.actors.store.partitions.metadata import FileHeader, read_header
from millpond.actors.store.partitions.queue_tables import keys_left, rows_between
from millpond.actors.store.partitions.sqlite import Damaged
from millpond.actors.store.queue_memtable import snapshot_of

T = TypeVar("T")

NUMBER_MAX = 2**63 - 1
TRIES_MAX = 1000
"""Ranges that are looked into; unreadable pages are stepped over by halving what is left."""


class Salvaged(msgspec.Struct):
    """A queue. `lost` are ids whose message is not what was written; of unreadable pages none are
    known."""

    snapshot: Snapshot
    lost: list[int]


class SalvagedLog(msgspec.Struct):
    """A log: chunks ascend; `header` is None if it cannot be read."""

    chunks: list[Chunk]
    metadata: dict[bytes, bytes]
    header: FileHeader | None


def salvage(path: Path, disk: Disk) -> Salvaged:
    """The content of a queue's file whose checksums are right; nothing if it is no database at
    all."""
    try:
        connection = disk.connect(path)
    except sqlite3.Error:
        return Salvaged(Snapshot(), [])
    with closing(connection):
        connection.text_factory = bytes
        found, lost = _read_around(partial(rows_between, connection), 1)
        header = _header(connection)
        # Anything above was never acknowledged, or the journal has it.
        last_id = NUMBER_MAX if header is None else header.last_id
        rows: dict[int, StoredMessage] = {}
        attempts: dict[int, int] = {}
        for message_id, (row, tried) in found.items():
            if message_id <= last_id:
                rows[message_id] = row
                if tried:
                    attempts[message_id] = tried
        mode = None if header is None else header.mode
        found_keys, subscribers = _keys(connection), subscriber_tables.salvage(connection)
        besides = attributes.salvage(connection)
        snapshot = snapshot_of(rows, found_keys, attempts, mode, subscribers, besides)
        return Salvaged(snapshot, sorted(lost))


def salvage_log(path: Path, disk: Disk) -> SalvagedLog:
    """The content of a log's file whose checksums are right; nothing if it is no database at
    all."""
    try:
        connection = disk.connect(path)
    except sqlite3.Error:
        return SalvagedLog([], {}, None)
    with closing(connection):
        connection.text_factory = bytes
        found, _ = _read_around(partial(chunks_between, connection), 0)
        header = _header(connection)
        # Anything above was never acknowledged, or the journal has it.
        tail = NUMBER_MAX if header is None else header.tail
        chunks = [chunk for first, chunk in sorted(found.items()) if first < tail and chunk.data]
        notes: dict[bytes, bytes] = {}
        with suppress(sqlite3.Error):
            notes.update(metadata_left(connection))
        return SalvagedLog(chunks, notes, header)


def kind_in(path: Path, disk: Disk) -> PartitionKind | None:
    """The kind of partition in a damaged file; None if that cannot be told."""
    try:
        connection = disk.connect(path)
    except sqlite3.Error:
        return None
    with closing(connection):
        connection.text_factory = bytes
        header = _header(connection)
        if header is not None:
            return header.kind
        for table, kind in (("messages", PartitionKind.QUEUE), ("chunks", PartitionKind.LOG)):
            with suppress(sqlite3.Error):
                connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
                return kind
    return None


def _header(connection: sqlite3.Connection) -> FileHeader | None:
    try:
        return read_header(connection)
    except (Damaged, sqlite3.Error):
        return None


def _keys(connection: sqlite3.Connection) -> dict[int, StoredKey]:
    keys: dict[int, StoredKey] = {}
    with suppress(sqlite3.Error):
        keys.update(keys_left(connection))
    return keys


def _read_around(
    read: Callable[..., Iterator[tuple[int, T | None]]], low: int
) -> tuple[dict[int, T], set[int]]:
    """Rows by number, and the numbers of those that are not what was written. A range is read from
    both ends up to what cannot be read, and what remains in its middle is halved."""
    found: dict[int, T] = {}
    lost: set[int] = set()
    ranges = deque([(low, NUMBER_MAX)])
    for _ in range(TRIES_MAX):
        if not ranges:
            break
        low, high = ranges.popleft()
        for newest_first in (False, True):
            try:
                for number, row in read(low, high, newest_first=newest_first):
                    if row is None:
                        lost.add(number)
                    else:
                        found[number] = row
                    if newest_first:
                        high = number - 1
                    else:
                        low = number + 1
            except sqlite3.Error:
                continue
            break
        else:
            if low < high:
                middle = (low + high) // 2
                ranges += ((low, middle), (middle + 1, high))
    return found, lost
