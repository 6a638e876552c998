"""The tables of attributes of messages, in files of format 2.

They are made together with those of subscribers, when a queue needs any of them first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import TypeVar

from millpond.actors.store.message_attributes import MessageAttributes
from millpond.actors.store.partitions.sqlite import CRCS, Damaged, crc_of

SCHEMA = """
CREATE TABLE dues (
    message_id INTEGER PRIMARY KEY,
    due REAL NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE uniques (
    message_id INTEGER PRIMARY KEY,
    name BLOB NOT NULL,
    crc INTEGER NOT NULL
);
"""

Value = TypeVar("Value", float, bytes)

_TABLES = ("dues", "uniques")
_INSERT = "INSERT OR REPLACE INTO {} VALUES (?, ?, ?)"
_AMONG = "message_id IN (SELECT value FROM json_each(?))"
_DELETE = f"DELETE FROM {{}} WHERE {_AMONG}"
_SELECT_DUES = "SELECT message_id, due, crc FROM dues"
_SELECT_UNIQUES = "SELECT message_id, name, crc FROM uniques"


def apply(connection: sqlite3.Connection, attributes: MessageAttributes, seed: int) -> int:
    """Bring in what a memtable says, within its transaction. Gives what is added to the sum of the
    CRCs."""
    changed = {"dues": json.dumps([*attributes.due]), "uniques": json.dumps([*attributes.names])}
    before = sum(_crcs_of(connection, table, _AMONG, ids) for table, ids in changed.items())
    over = [message_id for message_id, at in attributes.due.items() if not at]
    if over:
        connection.execute(_DELETE.format("dues"), (json.dumps(over),))
    dues = ((message_id, float(at)) for message_id, at in attributes.due.items() if at)
    names = attributes.names.items()
    connection.executemany(_INSERT.format("dues"), (_signed_off(each, seed) for each in dues))
    connection.executemany(_INSERT.format("uniques"), (_signed_off(each, seed) for each in names))
    after = sum(_crcs_of(connection, table, _AMONG, ids) for table, ids in changed.items())
    return after - before


def forget_messages(connection: sqlite3.Connection, ids: list[int]) -> int:
    """Messages are gone, and with them what they had besides. Gives the sum of its CRCs."""
    among = json.dumps(ids)
    crcs = sum(_crcs_of(connection, table, _AMONG, among) for table in _TABLES)
    for table in _TABLES:
        connection.execute(_DELETE.format(table), (among,))
    return crcs


def sum_of_rows(connection: sqlite3.Connection) -> int:
    """The sum of the CRCs of all rows."""
    return sum(_crcs_of(connection, table, "TRUE") for table in _TABLES)


def _crcs_of(connection: sqlite3.Connection, table: str, which: str, *values: str) -> int:
    """The sum of the CRCs of some rows."""
    query = f"SELECT {CRCS} FROM {table} WHERE {which}"
    return int(connection.execute(query, values).fetchone()[0])


def load(connection: sqlite3.Connection, seed: int) -> MessageAttributes:
    """Everything. Raises Damaged."""
    dues = dict(_checked(each, seed) for each in connection.execute(_SELECT_DUES))
    names = dict(_checked(each, seed) for each in connection.execute(_SELECT_UNIQUES))
    return MessageAttributes(dues, names)


def verify(connection: sqlite3.Connection, seed: int) -> list[str]:
    """Texts of what is wrong."""
    wrong: list[str] = []
    for query in (_SELECT_DUES, _SELECT_UNIQUES):
        records: Iterator[tuple[int, bytes, int]] = connection.execute(query)
        for record in records:
            try:
                _checked(record, seed)
            except Damaged as exc:
                wrong.append(str(exc))
    return wrong


def _signed_off(values: tuple[int, float | bytes], seed: int) -> tuple[int, float | bytes, int]:
    return (*values, crc_of(values, seed))


def _checked(record: tuple[int, Value, int], seed: int) -> tuple[int, Value]:
    message_id, value, crc = record
    if crc_of((message_id, value), seed) != crc:
        raise Damaged(f"what message {message_id} has besides is not what was written (crc)")
    return message_id, value
