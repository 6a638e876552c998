"""The tables of attributes of messages, in files of format 2.

They are made together with those of subscribers, when a queue needs any of them first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import TypeVar

from millpond.actors.store.message_attributes import MessageAttributes
from millpond.actors.store.partitions.sqlite import Damaged, crc_of

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
_DELETE = "DELETE FROM {} WHERE message_id IN (SELECT value FROM json_each(?))"
_SELECT_DUES = "SELECT message_id, due, crc FROM dues"
_SELECT_UNIQUES = "SELECT message_id, name, crc FROM uniques"


def apply(connection: sqlite3.Connection, attributes: MessageAttributes) -> None:
    """Bring in what a memtable says, within its transaction."""
    over = [message_id for message_id, at in attributes.due.items() if not at]
    if over:
        connection.execute(_DELETE.format("dues"), (json.dumps(over),))
    dues = ((message_id, float(at)) for message_id, at in attributes.due.items() if at)
    connection.executemany(_INSERT.format("dues"), map(_signed_off, dues))
    connection.executemany(_INSERT.format("uniques"), map(_signed_off, attributes.names.items()))


def forget_messages(connection: sqlite3.Connection, ids: list[int]) -> None:
    """Messages are gone, and with them what they had besides."""
    among = json.dumps(ids)
    for table in _TABLES:
        connection.execute(_DELETE.format(table), (among,))


def load(connection: sqlite3.Connection) -> MessageAttributes:
    """Everything. Raises Damaged."""
    dues = dict(map(_checked, connection.execute(_SELECT_DUES)))
    return MessageAttributes(dues, dict(map(_checked, connection.execute(_SELECT_UNIQUES))))


def verify(connection: sqlite3.Connection) -> list[str]:
    """Texts of what is wrong."""
    wrong: list[str] = []
    for query in (_SELECT_DUES, _SELECT_UNIQUES):
        records: Iterator[tuple[int, bytes, int]] = connection.execute(query)
        for record in records:
            try:
                _checked(record)
            except Damaged as exc:
                wrong.append(str(exc))
    return wrong


def _signed_off(values: tuple[int, float | bytes]) -> tuple[int, float | bytes, int]:
    return (*values, crc_of(values))


def _checked(record: tuple[int, Value, int]) -> tuple[int, Value]:
    message_id, value, crc = record
    if crc_of((message_id, value)) != crc:
        raise Damaged(f"what message {message_id} has besides is not what was written (crc)")
    return message_id, value
