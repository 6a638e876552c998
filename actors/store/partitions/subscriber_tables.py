"""The tables of a queue's subscribers and of their acks, in those files that have any (format 2).

Most queues have none, and their files are spared four pages: the tables are made when they are
needed first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from math import inf

from millpond.actors.store.partitions import attribute_tables as attributes
from millpond.actors.store.partitions.sqlite import FORMAT, Damaged, crc_of
from millpond.actors.store.subscribers import Subscriber, SubscriberTable

SCHEMA = """
CREATE TABLE members (
    number INTEGER PRIMARY KEY,
    identity BLOB NOT NULL,
    until REAL NOT NULL,
    since INTEGER,
    floor INTEGER NOT NULL,
    crc INTEGER NOT NULL
);
CREATE TABLE acks (
    message_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (message_id, number)
) WITHOUT ROWID;
"""

_SUBSCRIBER_COLUMNS = "number, identity, until, since, floor, crc"
_INSERT_SUBSCRIBER = (
    f"INSERT OR REPLACE INTO members ({_SUBSCRIBER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
)
_SELECT_SUBSCRIBERS = f"SELECT {_SUBSCRIBER_COLUMNS} FROM members ORDER BY number"
_INSERT_ACK = "INSERT OR REPLACE INTO acks (message_id, number, crc) VALUES (?, ?, ?)"
_SELECT_ACKS = "SELECT message_id, number, crc FROM acks"

_SubscriberRecord = tuple[int, bytes, float, int | None, int, int]


def has_tables(connection: sqlite3.Connection) -> bool:
    """True: the file has the tables of subscribers and of attributes."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(version >= 2)


def make_tables(connection: sqlite3.Connection) -> None:
    """From here on the file is one of format 2; nothing if it is already."""
    if not has_tables(connection):
        for statement in filter(str.strip, (SCHEMA + attributes.SCHEMA).split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def apply(connection: sqlite3.Connection, subscribers: SubscriberTable) -> int:
    """Apply a memtable's changes, within its transaction. Gives the number of subscribers added.

    Raises Damaged if what is there is not what was written.
    """
    make_tables(connection)
    before = dict(_subscribers(connection))
    for number in subscribers.removed:
        connection.execute("DELETE FROM members WHERE number = ?", (number,))
        connection.execute("DELETE FROM acks WHERE number = ?", (number,))
    older = SubscriberTable(
        {number: subscriber for number, (subscriber, _) in before.items()},
        {number: floor for number, (_, floor) in before.items()},
    )
    after = subscribers.apply_to(older)
    touched = {
        *subscribers.by_number,
        *subscribers.seen,
        *subscribers.floors,
    } & after.by_number.keys()
    connection.executemany(
        _INSERT_SUBSCRIBER,
        (
            _encode(after.by_number[number], after.floors.get(number, 0))
            for number in sorted(touched)
        ),
    )
    connection.executemany(
        _INSERT_ACK,
        (
            (message_id, number, crc_of((message_id, number)))
            for number, ids in subscribers.acked.items()
            for message_id in sorted(ids)
        ),
    )
    return len(after.by_number) - len(before)


def forget_messages(connection: sqlite3.Connection, ids: list[int]) -> None:
    """Remove the acks of removed messages."""
    connection.execute(
        "DELETE FROM acks WHERE message_id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
    )


def load(connection: sqlite3.Connection) -> SubscriberTable | None:
    """The subscribers and their acks; None if the file has no subscribers. Raises Damaged."""
    if not has_tables(connection):
        return None
    subscribers = SubscriberTable()
    for number, (subscriber, floor) in _subscribers(connection):
        subscribers.by_number[number] = subscriber
        if floor:
            subscribers.floors[number] = floor
    _fill_acks(subscribers, map(_decode_ack, connection.execute(_SELECT_ACKS)))
    return subscribers or None


def verify(connection: sqlite3.Connection) -> tuple[int, list[str]]:
    """The number of subscribers, and texts of errors."""
    if not has_tables(connection):
        return 0, []
    count, wrong = 0, []
    for record in connection.execute(_SELECT_SUBSCRIBERS):
        count += 1
        try:
            _decode(record)
        except Damaged as exc:
            wrong.append(str(exc))
    for ack in connection.execute(_SELECT_ACKS):
        try:
            _decode_ack(ack)
        except Damaged as exc:
            wrong.append(str(exc))
    return count, wrong


def deadline(connection: sqlite3.Connection) -> float:
    """The time at which the first subscriber may be forgotten."""
    if not has_tables(connection):
        return inf
    (until,) = connection.execute("SELECT min(until) FROM members").fetchone()
    return inf if until is None else float(until)


def _fill_acks(subscribers: SubscriberTable, acks: Iterable[tuple[int, int]]) -> None:
    for message_id, number in acks:
        subscribers.acked.setdefault(number, set()).add(message_id)


def _subscribers(connection: sqlite3.Connection) -> Iterator[tuple[int, tuple[Subscriber, int]]]:
    return map(_decode, connection.execute(_SELECT_SUBSCRIBERS))


def _encode(subscriber: Subscriber, floor: int) -> _SubscriberRecord:
    values = (
        subscriber.number,
        subscriber.identity,
        float(subscriber.until),
        subscriber.since,
        floor,
    )
    return (*values, crc_of(values))


def _decode(record: _SubscriberRecord) -> tuple[int, tuple[Subscriber, int]]:
    number, identity, until, since, floor, crc = record
    if crc_of(record[:5]) != crc:
        raise Damaged(f"member {number} is not what was written (crc)")
    return number, (Subscriber(number, identity, until, since), floor)


def _decode_ack(record: tuple[int, int, int]) -> tuple[int, int]:
    message_id, number, crc = record
    if crc_of(record[:2]) != crc:
        raise Damaged(f"an ack of message {message_id} is not what was written (crc)")
    return message_id, number
