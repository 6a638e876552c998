"""Reads what can still be read of the damaged file of a queue, message by message."""

from __future__ import annotations

import sqlite3
from collections import deque
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from actors.messages import Mode
from actors.store.changes import KeyRow, Row, Snapshot
from actors.store.disk import Disk
from actors.store.partitions.outline import read_meta
from actors.store.partitions.queue import keys_left, rows_between
from actors.store.partitions.sqlite_file import Damaged
from actors.store.queue_layer import snapshot_of

ID_MAX = 2**63 - 1
TRIES_MAX = 1000
"""Ranges of ids that are looked into; unreadable pages are stepped over by halving what is left."""


class Salvaged(msgspec.Struct):
    """`lost` are ids whose message is not what was written; of unreadable pages none are known."""

    snapshot: Snapshot
    lost: list[int]


def salvage(path: Path, disk: Disk) -> Salvaged:
    """Everything in the file whose checksum is right; nothing if it is no database at all."""
    try:
        connection = disk.connect(path)
    except sqlite3.Error:
        return Salvaged(Snapshot(), [])
    with closing(connection):
        connection.text_factory = bytes
        rows, attempts, lost = _rows(connection)
        mode, last_id = _meta(connection)
        # What is above was never said to be kept, or the journal has it.
        rows = {each: row for each, row in rows.items() if each <= last_id}
        return Salvaged(snapshot_of(rows, _keys(connection), attempts, mode), sorted(lost))


def _meta(connection: sqlite3.Connection) -> tuple[Mode | None, int]:
    try:
        meta = read_meta(connection)
    except (Damaged, sqlite3.Error):
        return None, ID_MAX
    return meta.mode, meta.last_id


def _keys(connection: sqlite3.Connection) -> dict[int, KeyRow]:
    keys: dict[int, KeyRow] = {}
    with suppress(sqlite3.Error):
        keys.update(keys_left(connection))
    return keys


def _rows(connection: sqlite3.Connection) -> tuple[dict[int, Row], dict[int, int], set[int]]:
    """Messages, attempts, and ids that are lost. A range is read from both ends up to what cannot
    be read, and what remains in its middle is halved."""
    rows: dict[int, Row] = {}
    attempts: dict[int, int] = {}
    lost: set[int] = set()
    ranges = deque([(1, ID_MAX)])
    for _ in range(TRIES_MAX):
        if not ranges:
            break
        low, high = ranges.popleft()
        for newest_first in (False, True):
            try:
                for message_id, row, tried in rows_between(
                    connection, low, high, newest_first=newest_first
                ):
                    if row is None:
                        lost.add(message_id)
                    else:
                        rows[message_id] = row
                        attempts[message_id] = tried
                    if newest_first:
                        high = message_id - 1
                    else:
                        low = message_id + 1
            except sqlite3.Error:
                continue
            break
        else:
            if low < high:
                middle = (low + high) // 2
                ranges += ((low, middle), (middle + 1, high))
    return rows, {each: count for each, count in attempts.items() if count}, lost
