"""The keys of a partition in Redis, and changes as the arguments of one script.

    PREFIX:partitions             set of the names of all partitions
    PREFIX:format                 version of the keys and values
    PREFIX:facts                  hash of facts of the node, such as its instance
    PREFIX:epoch                  counts the processes that have owned the prefix
    PREFIX:owner                  the process that owns it, for a time
    PREFIX:{NAME}:meta            hash: kind, epoch and lsn of the last write, counts, bounds
    PREFIX:{NAME}:messages        hash: message id -> the change that stored it
    PREFIX:{NAME}:keys            hash: idempotency key -> its retained key
    PREFIX:{NAME}:attributes      hash: attempts, deadline, due time and unique key of messages
    PREFIX:{NAME}:subscribers     hash: subscribers and their floors
    PREFIX:{NAME}:acks            hash: message id -> numbers of the subscribers that acked it
    PREFIX:{NAME}:bounds          stream with an entry FIRST-COUNT for each chunk
    PREFIX:{NAME}:data            hash: first sequence -> records of a chunk
    PREFIX:{NAME}:metadata        hash: properties of a log

NAME is percent-encoded. The braces are a hash tag, so the keys of a partition are in one slot of a
cluster, and a write is atomic there. Values are changes as the journal has them
(docs/reference/on-disk-format.md). Sans-I/O; docs/reference/redis-store.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import assert_never
from urllib.parse import quote_from_bytes

import msgspec

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
    PartitionKind,
    Position,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.journal.change_codec import BadChange, decode, encode
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.redis.commands import PackedCommand, packed_words
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)

META, MESSAGES, KEYS, ATTRIBUTES, SUBSCRIBERS, ACKS, BOUNDS, DATA, METADATA = "123456789"
"""The keys of a partition, as the script counts them."""
_PARTS = (
    *("meta", "messages", "keys", "attributes", "subscribers", "acks"),
    *("bounds", "data", "metadata"),
)
_BOUNDS = Struct(">QQQQQQQ")  # timestamps, ids, length of the data
_BOUNDS_FIELD = b"b"
_pack_length = Struct(">I").pack
SEQUENCE_MAX = 2**64 - 1

APPLIED, DROPPED, OUT_OF_ORDER, FENCED = 1, 2, 0, -1
"""The answers of a write. DROPPED: applied, and the partition is empty. OUT_OF_ORDER: the write
before it is not there, so nothing of this one is. FENCED: another process owns the prefix."""
NEW = -1
"""In place of the lsn of the write before: the partition is new. Keys that a former owner left
without a name are removed."""

_WRITE = """
local packed = cmsgpack.unpack(ARGV[1])
local own_epoch, own_lsn, before, kind, is_new, fields = unpack(packed, 1, 6)
local meta = KEYS[1]
local kept = redis.call('HMGET', meta, 'epoch', 'lsn')
local epoch, lsn = kept[1], kept[2]
local function is_empty()
  if kind == 'queue' then
    return redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[5]) == 0
  end
  return is_new == '1' and redis.call('EXISTS', KEYS[7], KEYS[9]) == 0
end
if epoch and tonumber(epoch) > tonumber(own_epoch) then return -1 end
if epoch == own_epoch and tonumber(lsn) >= tonumber(own_lsn) then
  return lsn == own_lsn and is_empty() and 2 or 1
end
if before == '-1' then redis.call('DEL', unpack(KEYS, 2))
elseif epoch ~= own_epoch or lsn ~= before then return 0 end
local function split(number)
  return tonumber(string.sub(number, 1, -11)) or 0, tonumber(string.sub(number, -10))
end
local function ends_by(first, count, point)
  local high, low = split(first)
  local count_high, count_low = split(count)
  local point_high, point_low = split(point)
  high, low = high + count_high, low + count_low
  if low >= 1e10 then high, low = high + 1, low - 1e10 end
  return high < point_high or high == point_high and low <= point_low
end
for at = 7, #packed do
  local operation = packed[at]
  local what, a, b, c, d = unpack(operation)
  if what == 'set' then
    redis.call('HSET', KEYS[tonumber(a)], b, c)
  elseif what == 'del' then
    redis.call('HDEL', KEYS[tonumber(a)], unpack(operation, 3))
  elseif what == 'ack' then
    local numbers = redis.call('HGET', KEYS[6], a) or ' '
    if not string.find(numbers, ' ' .. b .. ' ', 1, true) then
      redis.call('HSET', KEYS[6], a, numbers .. b .. ' ')
    end
  elseif what == 'unack' then
    local acks = redis.call('HGETALL', KEYS[6])
    for i = 1, #acks, 2 do
      local from, till = string.find(acks[i + 1], ' ' .. a .. ' ', 1, true)
      if from then
        local left = string.sub(acks[i + 1], 1, from) .. string.sub(acks[i + 1], till + 1)
        if left == ' ' then redis.call('HDEL', KEYS[6], acks[i])
        else redis.call('HSET', KEYS[6], acks[i], left) end
      end
    end
  elseif what == 'add' then
    redis.call('XADD', KEYS[7], a .. '-' .. b, 'b', c)
    redis.call('HSET', KEYS[8], a, d)
  elseif what == 'trim' then
    repeat
      local entries = redis.call('XRANGE', KEYS[7], '-', '+', 'COUNT', 100)
      local gone = 0
      for _, entry in ipairs(entries) do
        local first, count = string.match(entry[1], '^(%d+)-(%d+)$')
        if not ends_by(first, count, a) then break end
        redis.call('XDEL', KEYS[7], entry[1])
        redis.call('HDEL', KEYS[8], first)
        gone = gone + 1
      end
    until gone < 100
  elseif what == 'drop' then
    redis.call('DEL', KEYS[7], KEYS[8], KEYS[9])
  end
end
local is_dropped = is_empty()
if is_dropped then redis.call('DEL', unpack(KEYS, 2)) end
redis.call('HSET', meta, 'kind', kind, 'epoch', own_epoch, 'lsn', own_lsn, unpack(fields))
return is_dropped and 2 or 1
"""
"""Numbers of logs are up to 2**64, and those of Lua exact up to 2**53, so they are split."""

WRITE_SCRIPT = "#!lua\n" + _WRITE
"""Apply a write: KEYS are those of a partition, the argument is of `write_argument`."""
FREEING_WRITE_SCRIPT = "#!lua flags=allow-oom\n" + _WRITE
"""The same for writes that no client waits for: acks have to go through where Redis is full."""
FORGET_SCRIPT = """#!lua flags=allow-oom
if redis.call('HGET', KEYS[1], 'lsn') ~= ARGV[2] then return 0 end
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
"""Remove the meta of a partition that this write has emptied."""
CLAIM_SCRIPT = """#!lua flags=allow-oom
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'lsn', '0')
return epoch and redis.call('HGETALL', KEYS[1])
"""
"""Take a partition over: the epoch of the new owner; gives its meta (false: there was none)."""
EPOCH_SCRIPT = """#!lua flags=allow-oom
return redis.call('INCR', KEYS[1])
"""
"""The epoch of a new owner."""
RENEW_SCRIPT = """#!lua flags=allow-oom
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""Own the prefix for so many ms more; 0: another process owns it."""
RELEASE_SCRIPT = """#!lua flags=allow-oom
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

Operation = tuple[str | msgspec.Raw, ...]


class PartitionKeys:
    """The keys of one partition. `packed` are all of them as words of a command."""

    __slots__ = ("_stem", "packed")

    def __init__(self, prefix: str, name: bytes) -> None:
        tag = quote_from_bytes(name, safe="/!$&'()*,:;=@+ ")
        self._stem = f"{prefix}:{{{tag}}}:"
        self.packed = packed_words([f"{self._stem}{part}" for part in _PARTS])

    def __getitem__(self, part: str) -> str:
        return self._stem + _PARTS[int(part) - 1]

    def write(self, script: str, argument: bytes) -> PackedCommand:
        """The call of a script with all keys and one argument."""
        head = b"*13\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n9\r\n" % script.encode()
        end = b"$%d\r\n" % len(argument)
        return PackedCommand(self._stem, b"".join((head, self.packed, end, argument, b"\r\n")))


class LogBounds(msgspec.Struct):
    """The bounds of a log, as its meta has them besides counts."""

    trim_point: int = 0
    tail: int = 0
    last_id: Position = Position(0, 0)
    last_timestamp: int = 0

    @property
    def is_new(self) -> bool:
        """True: no record was ever appended or trimmed."""
        return not self.tail and not self.trim_point

    def fields(self) -> list[str]:
        """As fields of the meta."""
        return [
            *("trim", str(self.trim_point), "tail", str(self.tail)),
            *("ms", str(self.last_id.ms), "seq", str(self.last_id.seq)),
            *("timestamp", str(self.last_timestamp)),
        ]

    @staticmethod
    def of(meta: Mapping[bytes, bytes]) -> LogBounds:
        """From the meta of a log."""
        return LogBounds(
            int(meta.get(b"trim", 0)),
            int(meta.get(b"tail", 0)),
            Position(int(meta.get(b"ms", 0)), int(meta.get(b"seq", 0))),
            int(meta.get(b"timestamp", 0)),
        )

    def applied(self, changes: Iterable[Change]) -> LogBounds:
        """The bounds after these changes."""
        bounds = msgspec.structs.replace(self)
        for change in changes:
            match change:
                case Chunk():
                    bounds.tail = change.end
                    bounds.last_id, bounds.last_timestamp = change.last_id, change.last_timestamp
                case LogTrimmed(point=point):
                    bounds.trim_point = max(bounds.trim_point, point)
                case LogDeleted():
                    bounds = LogBounds()
                case _:
                    pass
        return bounds


def write_argument(
    epoch: str,
    lsn: int,
    before: int,
    kind: PartitionKind,
    meta: Sequence[str],
    changes: Sequence[Change],
    *,
    is_new: bool,
) -> bytes:
    """The argument of the script for a write, with the `meta` after it, as MessagePack: the package
    redis takes 2 us for each argument of a command. Numbers are text, as Lua's are inexact.

    `before` is the lsn of the write that it follows (0: the last one of former owners; NEW: none).
    `is_new`: of a log no record was ever there."""
    head = (epoch, str(lsn), str(before), kind.name.lower(), "1" if is_new else "0", meta)
    return _encode_argument([*head, *(each for change in changes for each in _operations(change))])


_encode_argument = msgspec.msgpack.Encoder().encode


def _text(data: bytes) -> msgspec.Raw:
    """Bytes as text of MessagePack: scripts do not know its binary values."""
    return msgspec.Raw(b"\xdb" + _pack_length(len(data)) + data)


def _operations(change: Change) -> Iterator[Operation]:
    match change:
        case StoredMessage():
            yield "set", MESSAGES, str(change.id), _text(encode([change]))
            yield "del", KEYS, str(change.key)
        case MessageRemoved():
            message_id = str(change.id)
            yield "del", MESSAGES, message_id
            yield "del", ATTRIBUTES, *(f"{kind}{message_id}" for kind in "nedu")
            yield "del", ACKS, message_id
            if change.left is not None:
                retained = _text(encode([KeyRetained(change.key, change.left)]))
                yield "set", KEYS, str(change.key), retained
        case KeyRetained(key=key):
            yield "set", KEYS, str(key), _text(encode([change]))
        case KeyExpired(key=key):
            yield "del", KEYS, str(key)
        case AttemptsSet(id=message_id):
            yield "set", ATTRIBUTES, f"n{message_id}", _text(encode([change]))
        case DeadlineSet(id=message_id):
            yield "set", ATTRIBUTES, f"e{message_id}", _text(encode([change]))
        case DueAt(id=message_id, at=at):
            if at:
                yield "set", ATTRIBUTES, f"d{message_id}", _text(encode([change]))
            else:
                yield "del", ATTRIBUTES, f"d{message_id}"
        case UniqueKey(id=message_id):
            yield "set", ATTRIBUTES, f"u{message_id}", _text(encode([change]))
        case ModeSet():
            pass  # a field of the meta
        case Subscriber(number=number):
            yield "set", SUBSCRIBERS, f"s{number}", _text(encode([change]))
            yield "del", SUBSCRIBERS, f"t{number}"
        case SubscriberTouched(number=number):
            yield "set", SUBSCRIBERS, f"t{number}", _text(encode([change]))
        case SubscriberRemoved(number=number):
            yield "del", SUBSCRIBERS, f"s{number}", f"t{number}", f"f{number}"
            yield "unack", str(number)
        case Acked(number=number, id=message_id):
            yield "ack", str(message_id), str(number)
        case AckedUpTo(number=number):
            yield "set", SUBSCRIBERS, f"f{number}", _text(encode([change]))
        case Chunk():
            yield (
                "add",
                str(change.first),
                str(change.count),
                _text(_bounds(change)),
                _text(change.data),
            )
        case LogTrimmed(point=point):
            yield "trim", str(point)
        case MetadataSet(name=name, value=value):
            if value is None:
                yield "del", METADATA, _text(name)
            else:
                yield "set", METADATA, _text(name), _text(value)
        case LogDeleted():
            yield ("drop",)
        case _:
            assert_never(change)


def _bounds(chunk: Chunk) -> bytes:
    first, last = chunk.first_id, chunk.last_id
    stamps = chunk.first_timestamp, chunk.last_timestamp
    return _BOUNDS.pack(*stamps, first.ms, first.seq, last.ms, last.seq, len(chunk.data))


class QueueContent(msgspec.Struct, frozen=True):
    """The hashes of a queue, as Redis gives them."""

    messages: Mapping[bytes, bytes]
    keys: Mapping[bytes, bytes]
    attributes: Mapping[bytes, bytes]
    subscribers: Mapping[bytes, bytes]
    acks: Mapping[bytes, bytes]

    def snapshot(self) -> Snapshot:
        """The queue, without its mode. Raises BadChange for values that are no changes."""
        table = QueueMemtable(is_oldest=True)
        for values in (self.messages, self.keys, self.attributes):
            for value in values.values():
                table.fold(decode(value))  # type: ignore[arg-type]  # a queue has no others
        # A subscriber comes before what is told of it: `s`, `t` and `f`, in the order of `stf`.
        for _, value in sorted(
            self.subscribers.items(), key=lambda item: b"stf".index(item[0][:1])
        ):
            table.fold(decode(value))  # type: ignore[arg-type]
        try:
            for message_id, numbers in self.acks.items():
                table.fold(Acked(int(number), int(message_id)) for number in numbers.split())
        except ValueError as error:
            raise BadChange(f"acks: {error}") from error
        return table.apply_to(Snapshot())


class ChunkBounds(msgspec.Struct, frozen=True):
    """An entry of `bounds`: a chunk without its data."""

    first: int
    count: int
    first_timestamp: int
    last_timestamp: int
    first_id: Position
    last_id: Position
    size: int

    @property
    def end(self) -> int:
        """The sequence after the last record."""
        return self.first + self.count

    def chunk(self, data: bytes) -> Chunk:
        """The chunk with its data."""
        stamps = self.first_timestamp, self.last_timestamp
        return Chunk(self.first, self.count, *stamps, self.first_id, self.last_id, data)


def read_bounds(entry: tuple[bytes, Sequence[bytes]]) -> ChunkBounds:
    """An entry of the stream `bounds`. Raises BadChange."""
    try:
        entry_id, (field, value) = entry
        first, count = map(int, entry_id.split(b"-"))
        if field != _BOUNDS_FIELD:
            raise BadChange(f"bounds of a chunk: {field!r} is no field of them")
        stamp, last, ms, seq, last_ms, last_seq, size = _BOUNDS.unpack(value)
    except (ValueError, TypeError, StructError) as error:
        raise BadChange(f"bounds of a chunk: {error}") from error
    ids = Position(ms, seq), Position(last_ms, last_seq)
    return ChunkBounds(first, count, stamp, last, *ids, size)
