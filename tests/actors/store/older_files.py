"""Partition files as the version before wrote them: the CRCs of their rows are from 0."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.partitions.metadata import RowSums, read_header, write_header
from millpond.actors.store.partitions.metadata import property_count as count_of
from millpond.actors.store.partitions.queue_tables import attempts_crc
from millpond.actors.store.partitions.sqlite import SUMS_FORMAT, crc_of

COLUMNS = {
    "messages": "message_id, key, ttl, expires_at, origin_id, origin_attempts, origin_reason, data",
    "keys": "key, message_id, ttl, until, digest",
    "members": "number, identity, until, since, floor",
    "acks": "message_id, number",
    "dues": "message_id, due",
    "uniques": "message_id, name",
    "chunks": "first, count, first_timestamp, last_timestamp, first_id, last_id, data",
    "notes": "name, value",
}
"""Those that a CRC covers, in its order. The first ones are the primary key."""


def without_seed(path: Path) -> None:
    """Make a file of this version one of version 3."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = bytes
        connection.execute("BEGIN")
        sums = {table: _change_crcs(connection, table) for table in _tables(connection)}
        header = read_header(connection)
        if header.kind is PartitionKind.LOG:
            header.properties = count_of(sums["notes"])
        else:
            tried = connection.execute("SELECT message_id, attempts FROM messages").fetchall()
            rows = sum(sums.pop("messages")) + sum(sums.pop("keys"))
            lesser = sum(map(sum, sums.values())) + sum(attempts_crc(*each) for each in tried)
            header.row_sums = RowSums().plus(rows=rows, delivery=lesser)
        write_header(connection, header)
        connection.execute(f"PRAGMA user_version = {SUMS_FORMAT}")
        connection.execute("COMMIT")


def _tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [table for table in COLUMNS if (table.encode(),) in found]


def _change_crcs(connection: sqlite3.Connection, table: str) -> list[int]:
    """Gives the new ones."""
    columns = COLUMNS[table]
    rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    crcs = [crc_of(row) for row in rows]
    names = columns.split(", ")[: 2 if table == "acks" else 1]
    which = " AND ".join(f"{name} = ?" for name in names)
    connection.executemany(
        f"UPDATE {table} SET crc = ? WHERE {which}",
        ((crc, *row[: len(names)]) for crc, row in zip(crcs, rows, strict=True)),
    )
    return crcs
