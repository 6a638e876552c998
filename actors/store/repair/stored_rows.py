"""Rows of partition files by their columns alone: the checksum says of which table a row is.

The columns are those of the tables' schemas, in their order; a table's INTEGER PRIMARY KEY is its
rowid, and NULL among the columns. A REAL that is a whole number may be stored as an integer.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    Chunk,
    Origin,
    PartitionKind,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.partitions.metadata import FileHeader
from millpond.actors.store.partitions.sqlite import crc_of, unsigned
from millpond.actors.store.repair.sqlite_pages import Value
from millpond.actors.store.subscribers import Subscriber

MESSAGE_COLUMNS, NOTE_COLUMNS = 10, 3


class MessageRow(NamedTuple):
    """A row of `messages`. Its attempts have no checksum."""

    message: StoredMessage
    attempts: int


class KeyRow(NamedTuple):
    """A row of `keys`."""

    key: int
    left: StoredKey


class SubscriberRow(NamedTuple):
    """A row of `members`."""

    subscriber: Subscriber
    floor: int


class AckRow(NamedTuple):
    """A row of `acks`."""

    message_id: int
    number: int


class DueRow(NamedTuple):
    """A row of `dues`."""

    message_id: int
    due: float


class UniqueRow(NamedTuple):
    """A row of `uniques`."""

    message_id: int
    name: bytes


class NoteRow(NamedTuple):
    """A row of `notes`; of two with the same name the one with the higher number is newer."""

    number: int
    name: bytes
    value: bytes


StoredRow = (
    FileHeader | MessageRow | KeyRow | SubscriberRow | AckRow | DueRow | UniqueRow | Chunk | NoteRow
)


def decode_row(rowid: int | None, columns: tuple[Value, ...]) -> StoredRow | None:
    """The row of any table of a partition's file; None if its checksum is wrong."""
    match columns:
        case (int(message_id), int(number), crc):
            good = rowid is None and _is_good((message_id, number), crc)
            return AckRow(message_id, number) if good else None
        case (None, bytes(name), crc) if rowid is not None:
            return UniqueRow(rowid, name) if _is_good((rowid, name), crc) else None
        case (None, float() | int() as due, crc) if rowid is not None:
            return DueRow(rowid, float(due)) if _is_good((rowid, float(due)), crc) else None
        case (bytes(name), bytes(value), crc) if rowid is not None:
            return NoteRow(rowid, name, value) if _is_good((name, value), crc) else None
    if rowid is None:
        return None
    match len(columns):
        case 6:
            return _key(rowid, columns) or _subscriber(rowid, columns)
        case 8:
            return _chunk(rowid, columns)
        case 10:
            return _message(rowid, columns)
        case 16:
            return _header(columns)
    return None


def _is_good(values: tuple[object, ...], crc: object) -> bool:
    return crc_of(values) == crc


def _key(rowid: int, columns: tuple[Value, ...]) -> KeyRow | None:
    match columns:
        case (None, int(message_id), int(ttl), float() | int() as until, bytes(digest), crc):
            if _is_good((rowid, message_id, ttl, float(until), digest), crc):
                return KeyRow(unsigned(rowid), StoredKey(message_id, ttl, float(until), digest))
    return None


def _subscriber(rowid: int, columns: tuple[Value, ...]) -> SubscriberRow | None:
    match columns:
        case (
            None,
            bytes(identity),
            float() | int() as until,
            int() | None as since,
            int(floor),
            _,
        ):
            if _is_good((rowid, identity, float(until), since, floor), columns[5]):
                return SubscriberRow(Subscriber(rowid, identity, float(until), since), floor)
    return None


def _message(rowid: int, columns: tuple[Value, ...]) -> MessageRow | None:
    match columns:
        case (None, int(key), int(ttl), float() | int() as at, attempts, *origin, crc, bytes(data)):
            expires_at = float(at)
            if not _is_good((rowid, key, ttl, expires_at, *origin, data), crc):
                return None
            dead: Origin | None = None
            match origin:
                case (int(origin_id), int(tried), bytes(reason)):
                    dead = Origin(origin_id, tried, reason.decode(errors="replace"))
            message = StoredMessage(rowid, unsigned(key), ttl, expires_at, data, 0, dead)
            is_sound = isinstance(attempts, int) and 0 <= attempts < 2**32
            return MessageRow(message, attempts if is_sound else 0)  # type: ignore[arg-type]
    return None


def _chunk(rowid: int, columns: tuple[Value, ...]) -> Chunk | None:
    match columns:
        case (None, int(count), bytes(at), bytes(end), bytes(first), bytes(last), crc, bytes(data)):
            is_whole = len(at) == len(end) == 8 and len(first) == len(last) == 16
            values = (rowid, count, at, end, first, last, data)
            if not is_whole or rowid < 0 or count < 1 or not _is_good(values, crc):
                return None
            times = int.from_bytes(at), int.from_bytes(end)
            return Chunk(rowid, count, *times, _position(first), _position(last), data)
    return None


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
        ):
            values = (*columns[:7], float(deadline), *columns[8:15])
            if not _is_good(values, crc) or kind not in (0, 1) or mode not in (None, 0, 1, 2):
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
            )
    return None


def columns_of(row: StoredRow) -> int:
    """The number of columns that a row has in its table."""
    match row:
        case FileHeader():
            return 16
        case MessageRow():
            return MESSAGE_COLUMNS
        case Chunk():
            return 8
        case KeyRow() | SubscriberRow():
            return 6
        case AckRow() | DueRow() | UniqueRow() | NoteRow():
            return NOTE_COLUMNS
        case _:
            assert_never(row)
