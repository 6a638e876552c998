"""The damage of a simulated world's disk: what was done to it, and what may be refused for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field

from millpond.actors.store.partitions.sqlite import without_wal


@dataclass
class DamageLog:
    """Everything that was damaged so far.

    `names` are those whose own files were. `is_of_files`: nothing else was, so nothing else may be
    refused. `has_diverted`: a write of this boot was lost or went elsewhere. `is_proven`: the open
    segment tells of it, so it has to be reported. The file of a queue in `changed` has other rows
    than those that were written last, so it may not be served.
    """

    places: list[str] = field(default_factory=list)
    names: set[bytes] = field(default_factory=set)
    is_of_files: bool = True
    has_diverted: bool = False
    is_proven: bool = False
    changed: set[bytes] = field(default_factory=set)


def rows_of(file: bytes) -> dict[str, list[tuple[object, ...]]] | None:
    """The rows of a queue's file that count, by table, if it has any; None: SQLite cannot read
    them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        try:
            connection.deserialize(without_wal(file))
            ((last_id,),) = connection.execute("SELECT last_id FROM meta")
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = sorted(name.decode() for (name,) in tables if name != b"meta")
            found = {table: _rows(connection, table, last_id) for table in names}
            return {table: rows for table, rows in found.items() if rows}
        except (sqlite3.Error, ValueError):
            return None


def _rows(connection: sqlite3.Connection, table: str, last_id: int) -> list[tuple[object, ...]]:
    # Messages behind the last id are of a flush that did not come to its end.
    which = f"WHERE message_id <= {last_id}" if table == "messages" else ""
    rows = connection.execute(f"SELECT * FROM {table} NOT INDEXED {which}").fetchall()
    # An older page of the inside of a tree has the same rows in another order.
    return sorted(rows, key=repr)
