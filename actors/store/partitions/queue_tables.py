"""The tables of a queue: the seed's `messages`, extended, and the keys of messages that are gone.

Rows above the `last_id` of meta are of a flush that did not come to its end. They are as good as
not there: the journal still has them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

import msgspec

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
from millpond.actors.store.partitions.metadata import (
    FileHeader,
    RowSums,
    make_sum_columns,
    write_header,
)
from millpond.actors.store.partitions.sqlite import (
    CRCS,
    Damaged,
    check_trees,
    crc_of,
    signed,
    transaction,
    unsigned,
)
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
_SELECT_ROW = f"SELECT {_ROW_COLUMNS} FROM messages WHERE message_id = ?"
_SET_DEADLINE = "UPDATE messages SET expires_at = ?, crc = ? WHERE message_id = ?"
_AMONG = "message_id IN (SELECT value FROM json_each(?))"
_SUM_ROWS = f"SELECT count(*), coalesce(sum(length(data)), 0), {CRCS} FROM messages WHERE "
_SUM_KEYS = f"SELECT count(*), {CRCS} FROM keys WHERE "
_SELECT_TRIED = "SELECT message_id, attempts FROM messages WHERE attempts IS NOT 0 AND "
_SET_ATTEMPTS = "UPDATE messages SET attempts = ? WHERE message_id = ?"
_AMONG_KEYS = "key IN (SELECT value FROM json_each(?))"
_OLDER_KEY = "key = ? AND message_id < ?"

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
    if header.row_sums is None:
        make_sum_columns(flush.connection, header.kind)
        header.row_sums = _sums_of_rows(flush.connection, header)
    gone = iter(memtable.removed)
    while some := list(islice(gone, _BATCH_IDS)):
        _remove_rows(flush, some)
    keys = iter([*((key, None) for key in memtable.expired_keys), *memtable.keys.items()])
    while pairs := list(islice(keys, _BATCH_IDS)):
        _change_keys(flush, pairs)
    ordered = sorted(memtable.rows.values(), key=_row_id)
    new = [row for row in ordered if row.id > header.last_id]
    added = sum(len(row.data) for row in new)
    new_crcs = 0
    for batch in batches(new, _row_size):
        new_crcs += _add_rows(flush, batch)
        flush.spend(sum(map(_row_size, batch)))
    # From here on nothing is committed before all is done.
    _replace_rows(flush, ordered[: len(ordered) - len(new)])
    header.messages += len(new)
    header.bytes += added
    _add_to_sums(header, rows=new_crcs)
    _set_attempts(flush, memtable.attempts)
    _set_deadlines(flush, memtable.deadlines)
    if ordered:
        header.last_id = max(header.last_id, ordered[-1].id)
    if memtable.mode is not None:
        header.mode = memtable.mode
    if memtable.subscribers:
        added, crcs = subscriber_tables.apply(flush.connection, memtable.subscribers, header.seed)
        header.keys += added
        _add_to_sums(header, delivery=crcs)
    if memtable.attributes:
        subscriber_tables.make_tables(flush.connection)
        crcs = attribute_tables.apply(flush.connection, memtable.attributes, header.seed)
        _add_to_sums(header, delivery=crcs)
    header.deadline = _deadline(flush.connection)


def _add_to_sums(header: FileHeader, *, rows: int = 0, delivery: int = 0) -> None:
    """Count the CRCs of rows that were added; negative ones were removed."""
    header.row_sums = (header.row_sums or RowSums()).plus(rows=rows, delivery=delivery)


def _sums_of_rows(connection: sqlite3.Connection, header: FileHeader) -> RowSums:
    """The sums of the CRCs of all rows that count."""
    counted = (header.last_id,)
    *_, rows = connection.execute(_SUM_ROWS + "message_id <= ?", counted).fetchone()
    *_, keys = connection.execute(_SUM_KEYS + "TRUE").fetchone()
    tried = _attempt_crcs(connection, "message_id <= ?", header.last_id)
    return RowSums().plus(rows=rows + keys, delivery=tried + _lesser_crcs(connection))


def _lesser_crcs(connection: sqlite3.Connection) -> int:
    """The sum of the CRCs of all tables but those of messages and keys."""
    if not subscriber_tables.has_tables(connection):
        return 0
    return subscriber_tables.sum_of_rows(connection) + attribute_tables.sum_of_rows(connection)


def _attempt_crcs(connection: sqlite3.Connection, which: str, *values: int | str) -> int:
    """The sum of the CRCs of the attempts of messages."""
    return sum(attempts_crc(*each) for each in connection.execute(_SELECT_TRIED + which, values))


def attempts_crc(message_id: int, attempts: int) -> int:
    """The CRC of the attempts of a message, in the sum of the header alone. They change more often
    than the rest of the row, whose data would have to be read for a CRC of both."""
    return crc_of((message_id, attempts)) if attempts != 0 else 0


def _remove_rows(flush: Flush, ids: list[int]) -> None:
    among = json.dumps(ids)
    count, size, crcs = flush.connection.execute(_SUM_ROWS + _AMONG, (among,)).fetchone()
    if count:
        lesser = _attempt_crcs(flush.connection, _AMONG, among)
        flush.connection.execute(f"DELETE FROM messages WHERE {_AMONG}", (among,))
        if subscriber_tables.has_tables(flush.connection):
            lesser += subscriber_tables.forget_messages(flush.connection, ids)
            lesser += attribute_tables.forget_messages(flush.connection, ids)
        flush.header.messages -= count
        flush.header.bytes -= size
        _add_to_sums(flush.header, rows=-crcs, delivery=-lesser)
    flush.spend(count * ROW_BYTES)


def _change_keys(flush: Flush, pairs: list[tuple[int, StoredKey | None]]) -> None:
    among = json.dumps([signed(key) for key, _ in pairs])
    count, crcs = flush.connection.execute(_SUM_KEYS + _AMONG_KEYS, (among,)).fetchone()
    if count:
        flush.connection.execute(f"DELETE FROM keys WHERE {_AMONG_KEYS}", (among,))
    seed = flush.header.seed
    left = [_encode_key(key, row, seed) for key, row in pairs if row is not None]
    flush.connection.executemany(_INSERT_KEY, left)
    flush.header.keys += len(left) - count
    _add_to_sums(flush.header, rows=sum(each[-1] for each in left) - crcs)
    flush.spend(len(pairs) * KEY_BYTES)


def _add_rows(flush: Flush, rows: list[StoredMessage]) -> int:
    """Gives the sum of the CRCs of the rows, which do not count yet."""
    crcs = 0

    def encoded() -> Iterator[_RowValues]:
        nonlocal crcs
        for row in rows:
            values = _encode_row(row, flush.header.seed)
            crcs += values[-1]
            yield values

    flush.connection.executemany(_INSERT_ROW, encoded())
    if flush.header.keys:
        # A key that was used again stands for the younger message.
        for row in rows:
            older = signed(row.key), row.id
            count, removed = flush.connection.execute(_SUM_KEYS + _OLDER_KEY, older).fetchone()
            if count:
                flush.connection.execute(f"DELETE FROM keys WHERE {_OLDER_KEY}", older)
                flush.header.keys -= count
                _add_to_sums(flush.header, rows=-removed)
    return crcs


def _replace_rows(flush: Flush, rows: list[StoredMessage]) -> None:
    if rows:
        among = json.dumps([row.id for row in rows])
        count, size, crcs = flush.connection.execute(_SUM_ROWS + _AMONG, (among,)).fetchone()
        added = _add_rows(flush, rows)
        _add_to_sums(flush.header, rows=added - crcs)
        flush.header.messages += len(rows) - count
        flush.header.bytes += sum(len(row.data) for row in rows) - size


def _set_attempts(flush: Flush, attempts: Mapping[int, int]) -> None:
    """Give rows that are in the file other attempts."""
    pairs = iter(attempts.items())
    while some := list(islice(pairs, _BATCH_IDS)):
        among = json.dumps([message_id for message_id, _ in some])
        before = _attempt_crcs(flush.connection, _AMONG, among)
        changed = ((count, message_id) for message_id, count in some)
        flush.connection.executemany(_SET_ATTEMPTS, changed)
        after = _attempt_crcs(flush.connection, _AMONG, among)
        _add_to_sums(flush.header, delivery=after - before)


def _set_deadlines(flush: Flush, deadlines: Mapping[int, float]) -> None:
    """Give rows that are in the file other deadlines. One at a time: their data may be large."""
    connection, seed = flush.connection, flush.header.seed
    for message_id, expires_at in deadlines.items():
        record = connection.execute(_SELECT_ROW, (message_id,)).fetchone()
        if record is not None:
            row = msgspec.structs.replace(_decode_row(record, seed), expires_at=expires_at)
            values = _encode_row(row, seed)
            connection.execute(_SET_DEADLINE, (values[3], values[-1], message_id))
            if message_id <= flush.header.last_id:
                _add_to_sums(flush.header, rows=values[-1] - record[8])


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
                if header.row_sums is not None:
                    header.row_sums = RowSums()
                write_header(connection, header)


def load(connection: sqlite3.Connection, header: FileHeader) -> Snapshot:
    """Everything. Raises Damaged for the first row that is not what was written."""
    attempts: dict[int, int] = {}
    rows: dict[int, StoredMessage] = {}
    size = crcs = lesser = 0
    for record in connection.execute(_SELECT_ROWS):
        row = rows[record[0]] = _decode_row(record, header.seed)
        size += len(row.data)
        crcs += record[8]
        if record[9] != 0:
            attempts[row.id] = record[9]
            lesser += attempts_crc(row.id, record[9])
    keys: dict[int, StoredKey] = {}
    for record in connection.execute(_SELECT_KEYS):
        key, left = _decode_key(record, header.seed)
        keys[key] = left
        crcs += record[5]
    subscribers = subscriber_tables.load(connection, header.seed)
    remembered = len(keys) + (0 if subscribers is None else len(subscribers.by_number))
    attributes = None
    if subscriber_tables.has_tables(connection):
        attributes = attribute_tables.load(connection, header.seed)
    sums = RowSums().plus(rows=crcs, delivery=lesser + _lesser_crcs(connection))
    if wrong := _wrong_counts(header, len(rows), size, remembered, sums):
        raise Damaged("; ".join(wrong))
    # Else a message that is acked might not be found, and come back with the next start.
    check_trees(connection)
    return snapshot_of(rows, keys, attempts, header.mode, subscribers, attributes)


def check_rows(
    connection: sqlite3.Connection, header: FileHeader, after: int, bytes_max: int
) -> tuple[int, int, int, RowSums]:
    """Check about `bytes_max` bytes of messages with ids above `after`. Gives the last id, the
    number of messages, their bytes and the sums of their CRCs. Raises Damaged."""
    count = size = crcs = lesser = 0
    query = f"{_SELECT_ROWS_BETWEEN} ORDER BY message_id"
    for record in connection.execute(query, (after + 1, 2**63 - 1)):
        row = _decode_row(record, header.seed)
        after, count, size, crcs = row.id, count + 1, size + len(row.data), crcs + record[8]
        lesser += attempts_crc(row.id, record[9])
        if size + count * ROW_BYTES >= bytes_max:
            break
    return after, count, size, RowSums().plus(rows=crcs, delivery=lesser)


def check_keys(connection: sqlite3.Connection, header: FileHeader) -> RowSums:
    """Check the rows of all other tables, and that rows are found. Gives the sums of their CRCs.
    Raises Damaged."""
    crcs = 0
    for record in connection.execute(_SELECT_KEYS):
        _decode_key(record, header.seed)
        crcs += record[5]
    _, wrong = subscriber_tables.verify(connection, header.seed)
    if subscriber_tables.has_tables(connection):
        wrong = [*wrong, *attribute_tables.verify(connection, header.seed)]
    if wrong:
        raise Damaged("; ".join(wrong[:10]))
    check_trees(connection)
    return RowSums().plus(rows=crcs, delivery=_lesser_crcs(connection))


def verify(connection: sqlite3.Connection, header: FileHeader) -> Iterator[str]:
    """Texts of what is wrong."""
    messages = size = keys = crcs = lesser = 0
    for record in connection.execute(_SELECT_ROWS):
        messages += 1
        crcs += record[8] if isinstance(record[8], int) else 0
        lesser += attempts_crc(record[0], record[9])
        size += len(record[7]) if isinstance(record[7], bytes) else 0
        try:
            _decode_row(record, header.seed)
        except Damaged as exc:
            yield str(exc)
    for record in connection.execute(_SELECT_KEYS):
        keys += 1
        crcs += record[5] if isinstance(record[5], int) else 0
        try:
            _decode_key(record, header.seed)
        except Damaged as exc:
            yield str(exc)
    known, wrong = subscriber_tables.verify(connection, header.seed)
    yield from wrong
    if subscriber_tables.has_tables(connection):
        yield from attribute_tables.verify(connection, header.seed)
    sums = RowSums().plus(rows=crcs, delivery=lesser + _lesser_crcs(connection))
    yield from _wrong_counts(header, messages, size, keys + known, sums)


def check_counts(header: FileHeader, messages: int, size: int, sums: RowSums) -> None:
    """Compare what a scrub found, slice by slice, with the header. Raises Damaged."""
    if wrong := _wrong_counts(header, messages, size, header.keys, sums):
        raise Damaged("; ".join(wrong))


def _wrong_counts(
    header: FileHeader, messages: int, size: int, keys: int, sums: RowSums
) -> list[str]:
    counts = (
        ("messages", messages, header.messages),
        ("bytes of data", size, header.bytes),
        ("keys and members", keys, header.keys),
    )
    wrong = [
        f"{found} {what}, and meta says {stated}"
        for what, found, stated in counts
        if found != stated
    ]
    expected = header.row_sums
    if wrong or expected is None:
        return wrong
    if sums.rows != expected.rows:
        wrong.append("some messages or keys are older than meta says (sum of crc)")
    if sums.delivery != expected.delivery:
        what = "members, acks, attempts or attributes"
        wrong.append(f"some {what} are older than meta says (sum of crc)")
    return wrong


def _encode_row(row: StoredMessage, seed: int) -> _RowValues:
    head = (row.id, signed(row.key), row.ttl, float(row.expires_at))
    origin = row.origin
    if origin is None:
        values = (*head, None, None, None, row.data)
        return (*values, crc_of(values, seed))
    dead = (*head, origin.id, origin.attempts, origin.reason.encode(), row.data)
    return (*dead, crc_of(dead, seed))


def _decode_row(record: tuple[object, ...], seed: int) -> StoredMessage:
    if crc_of(record[:8], seed) != record[8]:
        raise Damaged(f"message {record[0]} is not what was written (crc)")
    values: _RowValues = record[:9]  # type: ignore[assignment]  # the crc says so
    message_id, key, ttl, expires_at, origin_id, attempts, reason, data, _ = values
    origin = None
    if origin_id is not None and attempts is not None and reason is not None:
        origin = Origin(origin_id, attempts, reason.decode())
    return StoredMessage(message_id, unsigned(key), ttl, expires_at, data, 0, origin)


def _encode_key(key: int, row: StoredKey, seed: int) -> tuple[int, int, int, float, bytes, int]:
    values = (signed(key), row.id, row.ttl, float(row.until), row.digest)
    return (*values, crc_of(values, seed))


def _decode_key(
    record: tuple[int, int, int, float, bytes, int], seed: int
) -> tuple[int, StoredKey]:
    key, message_id, ttl, until, digest, crc = record
    if crc_of(record[:5], seed) != crc:
        raise Damaged(f"key {unsigned(key)} is not what was written (crc)")
    return unsigned(key), StoredKey(message_id, ttl, until, digest)


def _row_id(row: StoredMessage) -> int:
    return row.id


def _row_size(row: StoredMessage) -> int:
    return len(row.data) + ROW_BYTES
