"""The tables of a queue's subscribers and of their acks, in those files that have any.

Most queues have none, and their files are spared four pages: the tables are made when they are
needed first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from math import inf

from millpond.actors.store.partitions import attribute_tables as attributes
from millpond.actors.store.partitions.sqlite import CRCS, SUBSCRIBERS_FORMAT, Damaged, crc_of
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
_OF_NUMBERS = "number IN (SELECT value FROM json_each(?))"
_OF_MESSAGES = "message_id IN (SELECT value FROM json_each(?))"

_SubscriberRecord = tuple[int, bytes, float, int | None, int, int]


def has_tables(connection: sqlite3.Connection) -> bool:
    """True: the file has the tables of subscribers and of attributes."""
    query = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'members')"
    return bool(connection.execute(query).fetchone()[0])


def make_tables(connection: sqlite3.Connection) -> None:
    """From here on the file has them, and is one of format 2 at least."""
    if not has_tables(connection):
        for statement in filter(str.strip, (SCHEMA + attributes.SCHEMA).split(";")):
            connection.execute(statement)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {max(version, SUBSCRIBERS_FORMAT)}")


def apply(
    connection: sqlite3.Connection, subscribers: SubscriberTable, seed: int
) -> tuple[int, int]:
    """Apply a memtable's changes, within its transaction. Gives the number of subscribers added,
    and what is added to the sum of the CRCs.

    Raises Damaged if what is there is not what was written.
    """
    make_tables(connection)
    before, crcs = dict(_subscribers(connection, seed)), -_crcs_of(connection, "members")
    if subscribers.removed:
        numbers = json.dumps(sorted(subscribers.removed))
        crcs -= _crcs_of(connection, "acks", _OF_NUMBERS, numbers)
        connection.execute(f"DELETE FROM members WHERE {_OF_NUMBERS}", (numbers,))
        connection.execute(f"DELETE FROM acks WHERE {_OF_NUMBERS}", (numbers,))
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
            _encode(after.by_number[number], after.floors.get(number, 0), seed)
            for number in sorted(touched)
        ),
    )
    crcs += _crcs_of(connection, "members")
    for number, ids in subscribers.acked.items():
        crcs += _add_acks(connection, number, sorted(ids), seed)
    return len(after.by_number) - len(before), crcs


def _add_acks(connection: sqlite3.Connection, number: int, ids: list[int], seed: int) -> int:
    """Gives what is added to the sum of the CRCs: an ack may be there already."""
    which = f"number = ? AND {_OF_MESSAGES}"
    before = _crcs_of(connection, "acks", which, number, json.dumps(ids))
    acks = ((message_id, number, crc_of((message_id, number), seed)) for message_id in ids)
    connection.executemany(_INSERT_ACK, acks)
    return _crcs_of(connection, "acks", which, number, json.dumps(ids)) - before


def forget_messages(connection: sqlite3.Connection, ids: list[int]) -> int:
    """Remove the acks of removed messages. Gives the sum of their CRCs."""
    among = json.dumps(ids)
    crcs = _crcs_of(connection, "acks", _OF_MESSAGES, among)
    connection.execute(f"DELETE FROM acks WHERE {_OF_MESSAGES}", (among,))
    return crcs


def sum_of_rows(connection: sqlite3.Connection) -> int:
    """The sum of the CRCs of all rows."""
    return _crcs_of(connection, "members") + _crcs_of(connection, "acks")


def _crcs_of(
    connection: sqlite3.Connection, table: str, which: str = "TRUE", *values: int | str
) -> int:
    """The sum of the CRCs of some rows."""
    query = f"SELECT {CRCS} FROM {table} WHERE {which}"
    return int(connection.execute(query, values).fetchone()[0])


def load(connection: sqlite3.Connection, seed: int) -> SubscriberTable | None:
    """The subscribers and their acks; None if the file has no subscribers. Raises Damaged."""
    if not has_tables(connection):
        return None
    subscribers = SubscriberTable()
    for number, (subscriber, floor) in _subscribers(connection, seed):
        subscribers.by_number[number] = subscriber
        if floor:
            subscribers.floors[number] = floor
    acks = connection.execute(_SELECT_ACKS)
    _fill_acks(subscribers, (_decode_ack(each, seed) for each in acks))
    return subscribers or None


def verify(connection: sqlite3.Connection, seed: int) -> tuple[int, list[str]]:
    """The number of subscribers, and texts of errors."""
    if not has_tables(connection):
        return 0, []
    count, wrong = 0, []
    for record in connection.execute(_SELECT_SUBSCRIBERS):
        count += 1
        try:
            _decode(record, seed)
        except Damaged as exc:
            wrong.append(str(exc))
    for ack in connection.execute(_SELECT_ACKS):
        try:
            _decode_ack(ack, seed)
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


def _subscribers(
    connection: sqlite3.Connection, seed: int
) -> Iterator[tuple[int, tuple[Subscriber, int]]]:
    return (_decode(each, seed) for each in connection.execute(_SELECT_SUBSCRIBERS))


def _encode(subscriber: Subscriber, floor: int, seed: int) -> _SubscriberRecord:
    values = (
        subscriber.number,
        subscriber.identity,
        float(subscriber.until),
        subscriber.since,
        floor,
    )
    return (*values, crc_of(values, seed))


def _decode(record: _SubscriberRecord, seed: int) -> tuple[int, tuple[Subscriber, int]]:
    number, identity, until, since, floor, crc = record
    if crc_of(record[:5], seed) != crc:
        raise Damaged(f"member {number} is not what was written (crc)")
    return number, (Subscriber(number, identity, until, since), floor)


def _decode_ack(record: tuple[int, int, int], seed: int) -> tuple[int, int]:
    message_id, number, crc = record
    if crc_of(record[:2], seed) != crc:
        raise Damaged(f"an ack of message {message_id} is not what was written (crc)")
    return message_id, number
