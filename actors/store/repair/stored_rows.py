"""Rows of partition files by their columns alone: the checksum says of which table a row is.

The columns are those of the tables' schemas, in their order; a table's INTEGER PRIMARY KEY is its
rowid, and NULL among the columns. A REAL that is a whole number may be stored as an integer. From
version 4 on a checksum is from the seed of the file, so it says of which file a row is as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple, assert_never

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    Chunk,
    ColdChunk,
    Origin,
    PartitionKind,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.partitions.log_tables import COLD
from millpond.actors.store.partitions.metadata import (
    COLUMN_COUNT,
    FileHeader,
    PropertyCount,
    RowSums,
    sums_of,
)
from millpond.actors.store.partitions.sqlite import crc_of, seed_from, unsigned
from millpond.actors.store.repair.sqlite_pages import Value
from millpond.actors.store.subscribers import Subscriber

MESSAGE_COLUMNS, NOTE_COLUMNS = 10, 3


class MessageRow(NamedTuple):
    """A row of `messages`. Its attempts have no checksum."""

    message: StoredMessage
    attempts: int
    crc: int


class KeyRow(NamedTuple):
    """A row of `keys`."""

    key: int
    left: StoredKey
    crc: int


class SubscriberRow(NamedTuple):
    """A row of `members`."""

    subscriber: Subscriber
    floor: int
    crc: int


class AckRow(NamedTuple):
    """A row of `acks`."""

    message_id: int
    number: int
    crc: int


class DueRow(NamedTuple):
    """A row of `dues`."""

    message_id: int
    due: float
    crc: int


class UniqueRow(NamedTuple):
    """A row of `uniques`."""

    message_id: int
    name: bytes
    crc: int


class NoteRow(NamedTuple):
    """A row of `notes`; of two with the same name the one with the higher number is newer."""

    number: int
    name: bytes
    value: bytes
    crc: int


class ForeignRow(NamedTuple):
    """A row of another partition's file: its CRC is from the seed of that."""


StoredRow = (
    FileHeader
    | MessageRow
    | KeyRow
    | SubscriberRow
    | AckRow
    | DueRow
    | UniqueRow
    | Chunk
    | NoteRow
    | ForeignRow
)


class _Candidate(NamedTuple):
    """A row that columns may be, and the values and the CRC which decide it."""

    values: tuple[object, ...]
    crc: int
    row: StoredRow


def decode_row(
    rowid: int | None,
    columns: tuple[Value, ...],
    seed: int = 0,
    other_seeds: AbstractSet[int] = frozenset(),
) -> StoredRow | None:
    """The row of any table of a partition's file with this seed; None if its checksum is wrong. It
    is a ForeignRow if it is right from one of the other seeds."""
    if len(columns) in (COLUMN_COUNT, COLUMN_COUNT + 2):
        return None if rowid is None else _header(columns)
    candidates = list(_candidates(rowid, columns))
    for each in candidates:
        if crc_of(each.values, seed) == each.crc:
            return each.row
    if other_seeds and any(seed_from(each.values, each.crc) in other_seeds for each in candidates):
        return ForeignRow()
    return None


def _candidates(rowid: int | None, columns: tuple[Value, ...]) -> Iterator[_Candidate]:
    if rowid is None:
        match columns:
            case (int(message_id), int(number), int(crc)):
                of_ack = message_id, number
                yield _Candidate(of_ack, crc, AckRow(message_id, number, crc))
        return
    match columns:
        case (None, bytes(name), int(crc)):
            yield _Candidate((rowid, name), crc, UniqueRow(rowid, name, crc))
        case (None, float() | int() as at, int(crc)):
            yield _Candidate((rowid, float(at)), crc, DueRow(rowid, float(at), crc))
        case (bytes(name), bytes(value), int(crc)):
            yield _Candidate((name, value), crc, NoteRow(rowid, name, value, crc))
        case (None, int(message_id), int(ttl), float() | int() as at, bytes(digest), int(crc)):
            left = StoredKey(message_id, ttl, float(at), digest)
            of_key = rowid, message_id, ttl, float(at), digest
            yield _Candidate(of_key, crc, KeyRow(unsigned(rowid), left, crc))
        case (
            None,
            bytes(identity),
            float() | int() as at,
            int() | None as since,
            int(floor),
            int(crc),
        ):
            subscriber = Subscriber(rowid, identity, float(at), since)
            of_subscriber = rowid, identity, float(at), since, floor
            yield _Candidate(of_subscriber, crc, SubscriberRow(subscriber, floor, crc))
        case (None, int(), bytes(), bytes(), bytes(), bytes(), int(), bytes()):
            yield from _chunk(rowid, columns)
        case (None, int(), int(), float() | int(), _, _, _, _, int(), bytes()):
            yield from _message(rowid, columns)


def _message(rowid: int, columns: tuple[Value, ...]) -> Iterator[_Candidate]:
    match columns:
        case (
            None,
            int(key),
            int(ttl),
            float() | int() as at,
            tried,
            *origin,
            int(crc),
            bytes(data),
        ):
            expires_at = float(at)
            dead: Origin | None = None
            match origin:
                case (int(origin_id), int(attempts), bytes(reason)):
                    dead = Origin(origin_id, attempts, reason.decode(errors="replace"))
            message = StoredMessage(rowid, unsigned(key), ttl, expires_at, data, 0, dead)
            count = tried if isinstance(tried, int) and 0 <= tried < 2**32 else 0
            values = rowid, key, ttl, expires_at, *origin, data
            yield _Candidate(values, crc, MessageRow(message, count, crc))


def _chunk(rowid: int, columns: tuple[Value, ...]) -> Iterator[_Candidate]:
    match columns:
        case (
            None,
            int(count),
            bytes(at),
            bytes(end),
            bytes(first),
            bytes(last),
            int(crc),
            bytes(data),
        ):
            is_whole = len(at) == len(end) == 8 and len(first) == len(last) == 16
            if is_whole and rowid >= 0 and count >= 1:
                times = int.from_bytes(at), int.from_bytes(end)
                found = rowid, count, *times, _position(first), _position(last), data
                values = rowid, count, at, end, first, last, data
                yield _Candidate(values, crc, Chunk(*found))
                yield _Candidate((*values, COLD), crc, ColdChunk(*found))


def _position(packed: bytes) -> Position:
    return Position(int.from_bytes(packed[:8]), int.from_bytes(packed[8:]))


def _header(columns: tuple[Value, ...]) -> FileHeader | None:
    """The row of `meta`, as `read_header` gives it."""
    match columns:
        case (
            bytes() | None as name,
            int(kind),
            int(applied),
            int(frozen_at),
            int(messages),
            int(size),
            int(keys),
            float() | int() as deadline,
            int(last_id),
            int() | None as mode,
            int(tail),
            int(trim_point),
            int(end_ms),
            int(end_seq),
            int(end_timestamp),
            crc,
            *sums,
        ):
            values = (*columns[:7], float(deadline), *columns[8:15], *sums)
            if crc_of(values) != crc or kind not in (0, 1) or mode not in (None, 0, 1, 2):
                return None
            return FileHeader(
                name,
                PartitionKind(kind),
                applied,
                frozen_at,
                messages,
                size,
                keys,
                float(deadline),
                last_id,
                None if mode is None else Mode(mode),
                unsigned(tail),
                unsigned(trim_point),
                Position(unsigned(end_ms), unsigned(end_seq)),
                unsigned(end_timestamp),
                *_sums(PartitionKind(kind), sums),
            )
    return None


def _sums(kind: PartitionKind, columns: list[Value]) -> tuple[PropertyCount | None, RowSums | None]:
    """Those of a log and of a queue."""
    match columns:
        case [int(one), int(other)]:
            if kind is PartitionKind.LOG:
                return PropertyCount(one, other), None
            return None, RowSums(one, other)
    return None, None


def columns_of(row: StoredRow) -> int:
    """The number of columns that a row has in its table."""
    match row:
        case FileHeader():
            return COLUMN_COUNT + len(sums_of(row))
        case MessageRow():
            return MESSAGE_COLUMNS
        case Chunk():
            return 8
        case KeyRow() | SubscriberRow():
            return 6
        case AckRow() | DueRow() | UniqueRow() | NoteRow():
            return NOTE_COLUMNS
        case ForeignRow():
            return 0
        case _:
            assert_never(row)
