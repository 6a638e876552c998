"""The contents of a partition, and the changes that lead to them.

Two kinds of partition: a queue keeps messages until their ack or deadline (P2P channels), a log
keeps records in order until they are trimmed (streams). A change is a value; applying the same
changes again changes nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from millpond.actors.messages import Mode
from millpond.actors.positions import Position as Position
from millpond.actors.store.message_attributes import (
    ATTRIBUTE_CHANGES,
    AttributeChange,
    MessageAttributes,
)
from millpond.actors.store.subscribers import SUBSCRIBER_CHANGES, SubscriberChange, SubscriberTable

WINDOW_S_MIN = 600
WINDOW_S_MAX = 86_400
SENDER_SHIFT = 32
"""Keys of clients have 32 bits; above them stands the number of the subscriber that put the
message."""


def window_s(ttl: int) -> int:
    """The time in seconds for which the key of a message is remembered after its PUT (PA-08)."""
    if ttl < WINDOW_S_MIN:
        return WINDOW_S_MIN
    return ttl if ttl < WINDOW_S_MAX else WINDOW_S_MAX


class PartitionKind(IntEnum):
    """The kind of a partition."""

    QUEUE = 0
    LOG = 1


# A queue.


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The message that a dead letter was (PS-14)."""

    id: int
    attempts: int
    reason: str


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message (P2P-30, PA-33), and the change that stores it.

    `key` is the client's, of 32 bits, above `SENDER_SHIFT` times the number of the subscriber that
    put it (0: anonymous), so each sender has keys of its own; that of a dead letter is the id it
    had. `expires_at` is absolute; `source` is the number of the connection that put it, which means
    something only while that lives (0: none), and is not stored on disk.
    """

    id: int
    key: int
    ttl: int
    expires_at: float
    data: bytes
    source: int = 0
    origin: Origin | None = None

    @property
    def until(self) -> float:
        """The end of its key's window. Derived: a field would cost every message 32 bytes."""
        ttl = self.ttl
        in_between = WINDOW_S_MIN <= ttl <= WINDOW_S_MAX  # as most are: without another call
        return self.expires_at - ttl + (ttl if in_between else window_s(ttl))

    @property
    def sender(self) -> int:
        """The number of the subscriber that put it; 0: anonymous (PA-18)."""
        return self.key >> SENDER_SHIFT if self.origin is None else 0


class StoredKey(msgspec.Struct, frozen=True, gc=False):
    """The remainder of a message that is removed: its key, and the SHA-256 of its data."""

    id: int
    ttl: int
    until: float
    digest: bytes


class MessageRemoved(msgspec.Struct, frozen=True, gc=False):
    """The message is removed; `left` stays for its key (None: the key was removed before).

    `size` is that of its data in bytes, so that counting needs no look-up.
    """

    id: int
    key: int
    left: StoredKey | None
    size: int = 0


class KeyRetained(msgspec.Struct, frozen=True, gc=False):
    """A key whose message is removed, written again because its first record is to be reclaimed."""

    key: int
    left: StoredKey


class KeyExpired(msgspec.Struct, frozen=True, gc=False):
    """The window of a key is over: the same key is new again.

    `was_left`: its message was removed before; else the message is still stored, without its key.
    """

    key: int
    was_left: bool = True


class AttemptsSet(msgspec.Struct, frozen=True, gc=False):
    """The number of failed deliveries of a message."""

    id: int
    attempts: int


class DeadlineSet(msgspec.Struct, frozen=True, gc=False):
    """The deadline of a message that is stored, where a clock that was wrong gave it another."""

    id: int
    expires_at: float


class ModeSet(msgspec.Struct, frozen=True, gc=False):
    """The channel's mode, as long as it holds a message (PS-05)."""

    mode: Mode


QueueChange = (
    StoredMessage
    | MessageRemoved
    | KeyRetained
    | KeyExpired
    | AttemptsSet
    | DeadlineSet
    | ModeSet
    | SubscriberChange
    | AttributeChange
)


class Snapshot(msgspec.Struct):
    """The content that a channel is rebuilt from; `rows` ascend by id, `keys` by age.

    While a message is stored, its key stands for it. `subscribers` is None if there are none,
    `attributes` if no message has any.
    """

    rows: list[StoredMessage] = []
    keys: dict[int, StoredMessage | StoredKey] = {}
    attempts: dict[int, int] = {}
    mode: Mode | None = None
    subscribers: SubscriberTable | None = None
    attributes: MessageAttributes | None = None


# A log.


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Records appended together, stored as one row.

    `first` is the sequence of the first one, `count` how many there are; timestamps and ids are
    those of the first and the last. `data` is the stream's own encoding of the records; empty, it
    says that these records are lost. A repair writes such chunks, so that what comes behind keeps
    its sequences; readers step over them.
    """

    first: int
    count: int
    first_timestamp: int
    last_timestamp: int
    first_id: Position
    last_id: Position
    data: bytes

    @property
    def end(self) -> int:
        """The sequence after the last record."""
        return self.first + self.count

    @property
    def size(self) -> int:
        """The bytes of its data, wherever that is."""
        return len(self.data)


class ColdReference(NamedTuple):
    """The place of a chunk's data in the replica: `size` bytes at `offset` of the body of cold
    object `number` of an epoch. `crc` is that of the chunk's row in its file, with the data."""

    size: int
    epoch: int
    number: int
    offset: int
    crc: int

    @property
    def object(self) -> tuple[int, int]:
        """The epoch and the number of the object."""
        return self.epoch, self.number

    def encode(self) -> bytes:
        """The text that a partition's file has in the place of the data. It begins with the
        size."""
        return b"%d %d-%d %d %d" % self


class ColdChunk(Chunk, frozen=True, gc=False):
    """A chunk whose data is in the replica alone; `data` is the text of the reference."""

    @property
    def size(self) -> int:
        return self.reference.size

    @property
    def reference(self) -> ColdReference:
        size, name, offset, crc = self.data.split(b" ")
        epoch, _, number = name.partition(b"-")
        return ColdReference(int(size), int(epoch), int(number), int(offset), int(crc))


class LogTrimmed(msgspec.Struct, frozen=True, gc=False):
    """The records below `point` are removed; chunks wholly below it free their space.

    `size` is what that is worth in bytes, about; like that of `LogDeleted` it is not stored on
    disk."""

    point: int
    size: int = 0


class MetadataSet(msgspec.Struct, frozen=True, gc=False):
    """A property of the log, such as its content type; None removes it."""

    name: bytes
    value: bytes | None


class LogDeleted(msgspec.Struct, frozen=True, gc=False):
    """The log is deleted with all records; a new one begins at sequence 0."""

    size: int = 0


LogChange = Chunk | LogTrimmed | MetadataSet | LogDeleted


class LogSnapshot(msgspec.Struct):
    """The bounds and metadata of a log; its records are read in ranges, never all at once.

    `tail` is the sequence of the next record; `last_id` and `last_timestamp` are those of the last
    one ever appended, and survive trimming.
    """

    trim_point: int = 0
    tail: int = 0
    last_id: Position = Position(0, 0)
    last_timestamp: int = 0
    metadata: dict[bytes, bytes] = {}
    bytes: int = 0


Change = QueueChange | LogChange


# Tuples, because `isinstance` with a union makes the union anew at every call.
_LOG_CHANGES = (Chunk, LogTrimmed, MetadataSet, LogDeleted)
_UNAWAITED_CHANGES = (
    MessageRemoved,
    KeyRetained,
    KeyExpired,
    AttemptsSet,
    DeadlineSet,
    ModeSet,
    *SUBSCRIBER_CHANGES,
    *ATTRIBUTE_CHANGES,
)


def kind_of(change: Change) -> PartitionKind:
    """The kind of partition that a change belongs to."""
    return PartitionKind.LOG if isinstance(change, _LOG_CHANGES) else PartitionKind.QUEUE


def is_unawaited(change: Change) -> bool:
    """Changes that no caller waits for: a crash may undo them, which costs a duplicate (PS-13).

    They are part of the next commit, and are applied although the disk may be full.
    """
    return isinstance(change, _UNAWAITED_CHANGES)
