"""Changes as bytes, for the journal: one byte for the kind of change, fixed fields, then data.

Numbers are little-endian; docs/reference/on-disk-format.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError
from typing import assert_never

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    LogDeleted,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    Origin,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.actors.store.subscribers import (
    SUBSCRIBER_CHANGES,
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberChange,
    SubscriberRemoved,
    SubscriberTouched,
)

ROW, DEAD, GONE, GONE_LEFT, KEY_LEFT, KEY_GONE, TRIED, MODE = range(1, 9)
MEMBER, MEMBER_SEEN, MEMBER_GONE, ACKED, ACKED_UP_TO, DUE, UNIQUE = range(9, 16)
CHUNK, TRIMMED, NOTED, UNNOTED, DROPPED = range(16, 21)
DEADLINE = 21

_ROW = Struct("<BQQIdI")  # op, id, key, ttl, expires_at, length of the data that follows
_ORIGIN = Struct("<QIH")  # id, attempts, length of the reason that follows
_GONE = Struct("<BQQI")  # op, id, key, size
_LEFT = Struct("<Id32s")  # ttl, until, digest
_KEY_LEFT = Struct("<BQQ")  # op, key, id
_KEY_GONE = Struct("<BQ?")
_TRIED = Struct("<BQI")
_MODE = Struct("<BB")
_MEMBER = Struct("<BI32sdQ")  # op, number, identity, until, since
_MEMBER_SEEN = Struct("<BIdQ")
_MEMBER_GONE = Struct("<BI")
_ACKED = Struct("<BIQ")  # op, number, id
_DUE = Struct("<BQd")
_DEADLINE = Struct("<BQd")
_UNIQUE = Struct("<BQB")  # op, id, length of the name that follows
_NEVER = 2**64 - 1
"""The id of producers, which are not subscribed since any id."""
_CHUNK = Struct("<BQIQQQQQQI")  # op, first, count, timestamps, ids, length of the data
_TRIMMED = Struct("<BQ")
_NOTED = Struct("<BHI")  # op, length of the name, length of the value
_UNNOTED = Struct("<BH")

_pack_row, _pack_gone, _pack_left = _ROW.pack, _GONE.pack, _LEFT.pack


class BadChange(ValueError):
    """Bytes that are not changes, although their checksum is right: of another version?"""


def encode(changes: Iterable[Change]) -> bytes:
    """Changes, one after the other."""
    parts: list[bytes] = []
    for change in changes:
        if type(change) is StoredMessage and change.origin is None:
            data = change.data
            head = _pack_row(ROW, change.id, change.key, change.ttl, change.expires_at, len(data))
            parts += (head, data)
        elif type(change) is MessageRemoved and (left := change.left) is not None:
            head = _pack_gone(GONE_LEFT, change.id, change.key, change.size)
            parts += (head, _pack_left(left.ttl, left.until, left.digest))
        elif type(change) is Chunk:
            parts += _encode_chunk(change)
        else:
            parts += _encode(change)
    return b"".join(parts)


def _encode(change: Change) -> tuple[bytes, ...]:
    match change:
        case StoredMessage(
            id=id_, key=key, ttl=ttl, expires_at=expires_at, data=data, origin=origin
        ):
            assert origin is not None, "a row without origin is encoded where it arrives"
            reason = origin.reason.encode()
            head = _ROW.pack(DEAD, id_, key, ttl, expires_at, len(data))
            return head, data, _ORIGIN.pack(origin.id, origin.attempts, len(reason)), reason
        case MessageRemoved(id=id_, key=key, left=left, size=size):
            assert left is None, "a removal with a key is encoded where it arrives"
            return (_pack_gone(GONE, id_, key, size),)
        case KeyRetained(key=key, left=left):
            head = _KEY_LEFT.pack(KEY_LEFT, key, left.id)
            return head, _pack_left(left.ttl, left.until, left.digest)
        case KeyExpired(key=key, was_left=was_left):
            return (_KEY_GONE.pack(KEY_GONE, key, was_left),)
        case AttemptsSet(id=id_, attempts=attempts):
            return (_TRIED.pack(TRIED, id_, attempts),)
        case DeadlineSet(id=id_, expires_at=expires_at):
            return (_DEADLINE.pack(DEADLINE, id_, expires_at),)
        case ModeSet(mode=mode):
            return (_MODE.pack(MODE, mode),)
        case DueAt(id=id_, at=at):
            return (_DUE.pack(DUE, id_, at),)
        case UniqueKey(id=id_, name=name):
            return _UNIQUE.pack(UNIQUE, id_, len(name)), name
        case _ if isinstance(change, SUBSCRIBER_CHANGES):
            return (_encode_subscriber(change),)
        case Chunk():
            raise AssertionError("a chunk is encoded where it arrives")
        case LogTrimmed(point=point):
            return (_TRIMMED.pack(TRIMMED, point),)
        case MetadataSet(name=name, value=value):
            if value is None:
                return _UNNOTED.pack(UNNOTED, len(name)), name
            return _NOTED.pack(NOTED, len(name), len(value)), name, value
        case LogDeleted():
            return (bytes((DROPPED,)),)
        case _:
            assert_never(change)


def _encode_subscriber(change: SubscriberChange) -> bytes:
    match change:
        case Subscriber(number=number, identity=identity, until=until, since=since):
            return _MEMBER.pack(MEMBER, number, identity, until, _NEVER if since is None else since)
        case SubscriberTouched(number=number, until=until, since=since):
            return _MEMBER_SEEN.pack(MEMBER_SEEN, number, until, _NEVER if since is None else since)
        case SubscriberRemoved(number=number):
            return _MEMBER_GONE.pack(MEMBER_GONE, number)
        case Acked(number=number, id=id_):
            return _ACKED.pack(ACKED, number, id_)
        case AckedUpTo(number=number, id=id_):
            return _ACKED.pack(ACKED_UP_TO, number, id_)
        case _:
            assert_never(change)


def _encode_chunk(chunk: Chunk) -> tuple[bytes, bytes]:
    head = _CHUNK.pack(
        CHUNK,
        chunk.first,
        chunk.count,
        chunk.first_timestamp,
        chunk.last_timestamp,
        chunk.first_id.ms,
        chunk.first_id.seq,
        chunk.last_id.ms,
        chunk.last_id.seq,
        len(chunk.data),
    )
    return head, chunk.data


def decode(body: bytes) -> Iterator[Change]:
    """The changes that `encode` was given. Raises BadChange."""
    at = 0
    while at < len(body):
        try:
            change, at = _decode(body, at)
        except (StructError, UnicodeDecodeError, ValueError) as exc:
            raise BadChange(f"no change at byte {at} of a record") from exc
        if at > len(body):
            raise BadChange("the last change of a record is cut off")
        yield change


def _decode(body: bytes, at: int) -> tuple[Change, int]:
    op = body[at]
    if op == ROW:
        _, id_, key, ttl, expires_at, size = _ROW.unpack_from(body, at)
        start = at + _ROW.size
        return StoredMessage(id_, key, ttl, expires_at, body[start : start + size]), start + size
    match op:
        case 2:
            return _decode_dead(body, at)
        case 3:
            _, id_, key, size = _GONE.unpack_from(body, at)
            return MessageRemoved(id_, key, None, size), at + _GONE.size
        case 4:
            _, id_, key, size = _GONE.unpack_from(body, at)
            left, end = _decode_left(id_, body, at + _GONE.size)
            return MessageRemoved(id_, key, left, size), end
        case 5:
            _, key, id_ = _KEY_LEFT.unpack_from(body, at)
            left, end = _decode_left(id_, body, at + _KEY_LEFT.size)
            return KeyRetained(key, left), end
        case 6:
            _, key, was_left = _KEY_GONE.unpack_from(body, at)
            return KeyExpired(key, was_left), at + _KEY_GONE.size
        case 7:
            _, id_, attempts = _TRIED.unpack_from(body, at)
            return AttemptsSet(id_, attempts), at + _TRIED.size
        case 8:
            _, mode = _MODE.unpack_from(body, at)
            return ModeSet(Mode(mode)), at + _MODE.size
        case 9 | 10 | 11 | 12 | 13:
            return _decode_subscriber(op, body, at)
        case 14:
            _, id_, due = _DUE.unpack_from(body, at)
            return DueAt(id_, due), at + _DUE.size
        case 15:
            _, id_, size = _UNIQUE.unpack_from(body, at)
            start = at + _UNIQUE.size
            return UniqueKey(id_, body[start : start + size]), start + size
        case 21:
            _, id_, expires_at = _DEADLINE.unpack_from(body, at)
            return DeadlineSet(id_, expires_at), at + _DEADLINE.size
        case _:
            return _decode_log(op, body, at)


def _decode_subscriber(op: int, body: bytes, at: int) -> tuple[Change, int]:
    match op:
        case 9:
            _, number, identity, until, since = _MEMBER.unpack_from(body, at)
            subscribed = None if since == _NEVER else since
            return Subscriber(number, identity, until, subscribed), at + _MEMBER.size
        case 10:
            _, number, until, since = _MEMBER_SEEN.unpack_from(body, at)
            subscribed = None if since == _NEVER else since
            return SubscriberTouched(number, until, subscribed), at + _MEMBER_SEEN.size
        case 11:
            return SubscriberRemoved(_MEMBER_GONE.unpack_from(body, at)[1]), at + _MEMBER_GONE.size
        case _:
            _, number, id_ = _ACKED.unpack_from(body, at)
            change = Acked(number, id_) if op == ACKED else AckedUpTo(number, id_)
            return change, at + _ACKED.size


def _decode_dead(body: bytes, at: int) -> tuple[StoredMessage, int]:
    _, id_, key, ttl, expires_at, size = _ROW.unpack_from(body, at)
    start = at + _ROW.size
    data = body[start : start + size]
    origin_id, attempts, length = _ORIGIN.unpack_from(body, start + size)
    text = start + size + _ORIGIN.size
    reason = body[text : text + length].decode()
    origin = Origin(origin_id, attempts, reason)
    return StoredMessage(id_, key, ttl, expires_at, data, 0, origin), text + length


def _decode_left(message_id: int, body: bytes, at: int) -> tuple[StoredKey, int]:
    ttl, until, digest = _LEFT.unpack_from(body, at)
    return StoredKey(message_id, ttl, until, digest), at + _LEFT.size


def _decode_log(op: int, body: bytes, at: int) -> tuple[Change, int]:
    match op:
        case 16:
            _, first, count, since, until, ms, seq, last_ms, last_seq, size = _CHUNK.unpack_from(
                body, at
            )
            start = at + _CHUNK.size
            data = body[start : start + size]
            ids = Position(ms, seq), Position(last_ms, last_seq)
            return Chunk(first, count, since, until, *ids, data), start + size
        case 17:
            return LogTrimmed(_TRIMMED.unpack_from(body, at)[1]), at + _TRIMMED.size
        case 18:
            _, name_size, size = _NOTED.unpack_from(body, at)
            start = at + _NOTED.size
            middle = start + name_size
            return MetadataSet(body[start:middle], body[middle : middle + size]), middle + size
        case 19:
            _, name_size = _UNNOTED.unpack_from(body, at)
            start = at + _UNNOTED.size
            return MetadataSet(body[start : start + name_size], None), start + name_size
        case 20:
            return LogDeleted(), at + 1
        case _:
            raise BadChange(f"unknown change {op}")
