"""The tables of a queue: the seed's `messages`, extended, and the keys of messages that are gone.

Rows above the `last_id` of meta are of a flush that did not come to its end. They are as good as
not there: the journal still has them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from itertools import islice
from math import inf

from millpond.actors.store.changes import (
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    Origin,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.partitions import attribute_tables as attribute_tables
from millpond.actors.store.partitions import subscriber_tables
from millpond.actors.store.partitions.flush_batches import Flush, batches
from millpond.actors.store.partitions.metadata import FileHeader, write_header
from millpond.actors.store.partitions.sqlite import Damaged, crc_of, signed, transaction, unsigned
from millpond.actors.store.queue_memtable import KEY_BYTES, ROW_BYTES, QueueMemtable, snapshot_of

# The same arithmetic as `StoredMessage.until`, so that the result is the same to the last bit.
_DEADLINE = f"min(expires_at, expires_at - ttl + max({WINDOW_S_MIN}, min(ttl, {WINDOW_S_MAX})))"

SCHEMA = f"""
CREATE TABLE messages (
    message_id INTEGER PRIMARY KEY,
    expiry INTEGER GENERATED ALWAYS AS (CAST(expires_at AS INTEGER)) VIRTUAL,
    key INTEGER NOT NULL,
    ttl INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    origin_id INTEGER,
    origin_attempts INTEGER,
    origin_reason TEXT,
    crc INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX messages_deadline ON messages ({_DEADLINE});
CREATE TABLE keys (
    key INTEGER PRIMARY KEY,
    message_id INTEGER NOT NULL,
    ttl INTEGER NOT NULL,
    until REAL NOT NULL,
    digest BLOB NOT NULL,
    crc INTEGER NOT NULL
);
CREATE INDEX keys_until ON keys (until);
"""

_ROW_COLUMNS = (
    "message_id, key, ttl, expires_at, origin_id, origin_attempts, origin_reason, data, crc"
)
_INSERT_ROW = f"""
INSERT INTO messages ({_ROW_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?)
ON CONFLICT (message_id) DO UPDATE SET key = excluded.key, ttl = excluded.ttl,
    expires_at = excluded.expires_at, origin_id = excluded.origin_id,
    origin_attempts = excluded.origin_attempts, origin_reason = excluded.origin_reason,
    data = excluded.data, crc = excluded.crc
"""
_SELECT_ROWS = f"SELECT {_ROW_COLUMNS}, attempts FROM messages ORDER BY message_id"
_SELECT_ROWS_BETWEEN = (
    f"SELECT {_ROW_COLUMNS}, attempts FROM messages WHERE message_id BETWEEN ? AND ?"
)
_AMONG = "message_id IN (SELECT value FROM json_each(?))"
_WEIGH_ROWS = "SELECT count(*), coalesce(sum(length(data)), 0) FROM messages WHERE "

_KEY_COLUMNS = "key, message_id, ttl, until, digest, crc"
_INSERT_KEY = f"INSERT OR REPLACE INTO keys ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_SELECT_KEYS = f"SELECT {_KEY_COLUMNS} FROM keys"

_BATCH_IDS = 2048
"""Ids or keys in a statement; each may touch a page of its own."""

_RowValues = tuple[int, int, int, float, int | None, int | None, bytes | None, bytes, int]


def apply(flush: Flush, memtable: QueueMemtable) -> None:
    """Bring a memtable into the tables. Removals of what the file has go first, and harm
    nothing alone: the memtable, which is still in the journal, says the same again."""
    header = flush.header
    gone = iter(memtable.removed)
    while some := list(islice(gone, _BATCH_IDS)):
        _remove_rows(flush, some)
    keys = iter([*((key, None) for key in memtable.expired_keys), *memtable.keys.items()])
    while pairs := list(islice(keys, _BATCH_IDS)):
        _change_keys(flush, pairs)
    ordered = sorted(memtable.rows.values(), key=_row_id)
    new = [row for row in ordered if row.id > header.last_id]
    added = sum(len(row.data) for row in new)
    for batch in batches(new, _row_size):
        _add_rows(flush, batch)
        flush.spend(sum(map(_row_size, batch)))
    # From here on nothing is committed before all is done.
    _replace_rows(flush, ordered[: len(ordered) - len(new)])
    header.messages += len(new)
    header.bytes += added
    flush.connection.executemany(
        "UPDATE messages SET attempts = ? WHERE message_id = ?",
        ((count, message_id) for message_id, count in memtable.attempts.items()),
    )
    if ordered:
        header.last_id = max(header.last_id, ordered[-1].id)
    if memtable.mode is not None:
        header.mode = memtable.mode
    if memtable.subscribers:
        header.keys += subscriber_tables.apply(flush.connection, memtable.subscribers)
    if memtable.attributes:
        subscriber_tables.make_tables(flush.connection)
        attribute_tables.apply(flush.connection, memtable.attributes)
    header.deadline = _deadline(flush.connection)


def _remove_rows(flush: Flush, ids: list[int]) -> None:
    among = json.dumps(ids)
    count, size = flush.connection.execute(_WEIGH_ROWS + _AMONG, (among,)).fetchone()
    if count:
        flush.connection.execute(f"DELETE FROM messages WHERE {_AMONG}", (among,))
        if subscriber_tables.has_tables(flush.connection):
            subscriber_tables.forget_messages(flush.connection, ids)
            attribute_tables.forget_messages(flush.connection, ids)
        flush.header.messages -= count
        flush.header.bytes -= size
    flush.spend(count * ROW_BYTES)


def _change_keys(flush: Flush, pairs: list[tuple[int, StoredKey | None]]) -> None:
    among = json.dumps([signed(key) for key, _ in pairs])
    deleted = flush.connection.execute(
        "DELETE FROM keys WHERE key IN (SELECT value FROM json_each(?))", (among,)
    ).rowcount
    left = [_encode_key(key, row) for key, row in pairs if row is not None]
    flush.connection.executemany(_INSERT_KEY, left)
    flush.header.keys += len(left) - deleted
    flush.spend(len(pairs) * KEY_BYTES)


def _add_rows(flush: Flush, rows: list[StoredMessage]) -> None:
    flush.connection.executemany(_INSERT_ROW, map(_encode_row, rows))
    if flush.header.keys:
        # A key that was used again stands for the younger message.
        flush.header.keys -= flush.connection.executemany(
            "DELETE FROM keys WHERE key = ? AND message_id < ?",
            ((signed(row.key), row.id) for row in rows),
        ).rowcount


def _replace_rows(flush: Flush, rows: list[StoredMessage]) -> None:
    if rows:
        among = json.dumps([row.id for row in rows])
        count, size = flush.connection.execute(_WEIGH_ROWS + _AMONG, (among,)).fetchone()
        _add_rows(flush, rows)
        flush.header.messages += len(rows) - count
        flush.header.bytes += sum(len(row.data) for row in rows) - size


def _deadline(connection: sqlite3.Connection) -> float:
    (rows,) = connection.execute(f"SELECT min({_DEADLINE}) FROM messages").fetchone()
    (keys,) = connection.execute("SELECT min(until) FROM keys").fetchone()
    dates = (inf if each is None else float(each) for each in (rows, keys))
    return min(*dates, subscriber_tables.deadline(connection))


def discard_unfinished(connection: sqlite3.Connection, header: FileHeader) -> None:
    """Remove what a flush left that did not come to its end."""
    (last,) = connection.execute("SELECT max(message_id) FROM messages").fetchone()
    is_first = not header.applied and header.keys > 0
    if is_first or (last is not None and last > header.last_id):
        with transaction(connection):
            connection.execute("DELETE FROM messages WHERE message_id > ?", (header.last_id,))
            if is_first:
                # No caller knows of a file whose first flush failed: nothing lies over its keys.
                connection.execute("DELETE FROM keys")
                header.keys = 0
                write_header(connection, header)


def load(connection: sqlite3.Connection, header: FileHeader) -> Snapshot:
    """Everything. Raises Damaged for the first row that is not what was written."""
    attempts: dict[int, int] = {}
    rows: dict[int, StoredMessage] = {}
    size = 0
    for record in connection.execute(_SELECT_ROWS):
        row = rows[record[0]] = _decode_row(record)
        size += len(row.data)
        if record[9]:
            attempts[row.id] = record[9]
    keys = dict(map(_decode_key, connection.execute(_SELECT_KEYS)))
    subscribers = subscriber_tables.load(connection)
    remembered = len(keys) + (0 if subscribers is None else len(subscribers.by_number))
    if wrong := _wrong_counts(header, len(rows), size, remembered):
        raise Damaged("; ".join(wrong))
    attributes = (
        attribute_tables.load(connection) if subscriber_tables.has_tables(connection) else None
    )
    return snapshot_of(rows, keys, attempts, header.mode, subscribers, attributes)


def check_rows(connection: sqlite3.Connection, after: int, bytes_max: int) -> tuple[int, int, int]:
    """Check about `bytes_max` bytes of messages with ids above `after`. Gives the last id, the
    number of messages and their bytes. Raises Damaged."""
    count = size = 0
    query = f"{_SELECT_ROWS_BETWEEN} ORDER BY message_id"
    for record in connection.execute(query, (after + 1, 2**63 - 1)):
        row = _decode_row(record)
        after, count, size = row.id, count + 1, size + len(row.data)
        if size + count * ROW_BYTES >= bytes_max:
            break
    return after, count, size


def check_keys(connection: sqlite3.Connection) -> None:
    """Check the rows of all other tables. Raises Damaged."""
    for record in connection.execute(_SELECT_KEYS):
        _decode_key(record)
    _, wrong = subscriber_tables.verify(connection)
    if subscriber_tables.has_tables(connection):
        wrong = [*wrong, *attribute_tables.verify(connection)]
    if wrong:
        raise Damaged("; ".join(wrong[:10]))


def verify(connection: sqlite3.Connection, header: FileHeader) -> Iterator[str]:
    """Texts of what is wrong."""
    messages = size = keys = 0
    for record in connection.execute(_SELECT_ROWS):
        messages += 1
        size += len(record[7]) if isinstance(record[7], bytes) else 0
        try:
            _decode_row(record)
        except Damaged as exc:
            yield str(exc)
    for record in connection.execute(_SELECT_KEYS):
        keys += 1
        try:
            _decode_key(record)
        except Damaged as exc:
            yield str(exc)
    known, wrong = subscriber_tables.verify(connection)
    yield from wrong
    if subscriber_tables.has_tables(connection):
        yield from attribute_tables.verify(connection)
    yield from _wrong_counts(header, messages, size, keys + known)


def _wrong_counts(header: FileHeader, messages: int, size: int, keys: int) -> list[str]:
    counts = (
        ("messages", messages, header.messages),
        ("bytes of data", size, header.bytes),
        ("keys and members", keys, header.keys),
    )
    return [
        f"{found} {what}, and meta says {said}" for what, found, said in counts if found != said
    ]


def _encode_row(row: StoredMessage) -> _RowValues:
    head = (row.id, signed(row.key), row.ttl, float(row.expires_at))
    origin = row.origin
    if origin is None:
        values = (*head, None, None, None, row.data)
        return (*values, crc_of(values))
    dead = (*head, origin.id, origin.attempts, origin.reason.encode(), row.data)
    return (*dead, crc_of(dead))


def _decode_row(record: tuple[object, ...]) -> StoredMessage:
    if crc_of(record[:8]) != record[8]:
        raise Damaged(f"message {record[0]} is not what was written (crc)")
    values: _RowValues = record[:9]  # type: ignore[assignment]  # the crc says so
    message_id, key, ttl, expires_at, origin_id, attempts, reason, data, _ = values
    origin = None
    if origin_id is not None and attempts is not None and reason is not None:
        origin = Origin(origin_id, attempts, reason.decode())
    return StoredMessage(message_id, unsigned(key), ttl, expires_at, data, 0, origin)


def _encode_key(key: int, row: StoredKey) -> tuple[object, ...]:
    values = (signed(key), row.id, row.ttl, float(row.until), row.digest)
    return (*values, crc_of(values))


def _decode_key(record: tuple[int, int, int, float, bytes, int]) -> tuple[int, StoredKey]:
    key, message_id, ttl, until, digest, crc = record
    if crc_of(record[:5]) != crc:
        raise Damaged(f"key {unsigned(key)} is not what was written (crc)")
    return unsigned(key), StoredKey(message_id, ttl, until, digest)


def _row_id(row: StoredMessage) -> int:
    return row.id


def _row_size(row: StoredMessage) -> int:
    return len(row.data) + ROW_BYTES
