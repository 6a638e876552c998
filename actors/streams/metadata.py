"""What is noted of a stream besides its records: that it was created and how, token, groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from millpond.actors.store.changes import MetadataSet
from millpond.actors.streams.durable.metadata import DurableMetadata
from millpond.actors.streams.messages import Settings, StreamOptions
from millpond.actors.streams.tee_notes import TeeProgress

CREATED = b"created"
FENCE = b"fence"
EMPTIED = b"emptied"
_GROUP = b"group\0"
_WRITER = b"writer\0"
GROUP_BYTES_MAX = 256
"""Of the name of a group."""
_SERIAL_BITS = 20


class Created(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The note `created`, as MessagePack."""

    ms: int
    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None
    traits: StreamOptions | None = None
    serial: int = 0
    """Of the streams that a node made since its start: two may be of one millisecond."""

    @property
    def settings(self) -> Settings:
        return Settings(self.age_s, self.bytes_max, self.content_type, self.traits)


class WriterState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The note of a writer, as MessagePack: its last batch, and how much of it is there.

    `ms` is when it wrote last; a `once` writer is forgotten some time after that.
    """

    batch: int
    rows: int
    plan: bytes
    is_done: bool
    ms: int
    once: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Created)
_WRITING = msgspec.msgpack.Decoder(WriterState)


class GroupProgress:
    """How far a stream's groups got, and its tail. It outlives the cell, so that lag can be told of
    streams that nobody uses; nothing changes while they rest."""

    __slots__ = ("offsets", "tail")

    def __init__(self, offsets: dict[bytes, int]) -> None:
        self.offsets = offsets
        self.tail = 0

    def lags(self) -> list[int]:
        """How many records each group is behind."""
        return [max(self.tail - offset, 0) for offset in self.offsets.values()]


class StreamMetadata:
    """The notes of a stream; what changes one gives the change for the store."""

    __slots__ = (
        "_serials",
        "created",
        "durable",
        "emptied_ms",
        "fence",
        "groups",
        "progress",
        "tees",
        "writers",
    )

    def __init__(self, notes: Mapping[bytes, bytes], serials: Iterator[int]) -> None:
        self._serials = serials
        created = notes.get(CREATED)
        self.created = None if created is None else _DECODER.decode(created)
        self.fence = notes.get(FENCE, b"")
        self.emptied_ms = int.from_bytes(notes.get(EMPTIED, b""))
        """When its last record went; 0: unknown, or it never had one."""
        self.groups = {
            name[len(_GROUP) :]: int.from_bytes(value)
            for name, value in notes.items()
            if name.startswith(_GROUP)
        }
        self.writers = {
            name[len(_WRITER) :]: _WRITING.decode(value)
            for name, value in notes.items()
            if name.startswith(_WRITER)
        }
        self.progress = GroupProgress(self.groups)
        self.durable = DurableMetadata(notes)
        self.tees = TeeProgress(notes)

    @property
    def settings(self) -> Settings:
        """Its own; nothing but the node's configuration if it was not created by anyone."""
        return Settings() if self.created is None else self.created.settings

    @property
    def incarnation(self) -> int:
        """Unlike that of a stream that was here before, or will be; 0: it was not created yet."""
        created = self.created
        if created is None:
            return 0
        return created.ms << _SERIAL_BITS | created.serial % (1 << _SERIAL_BITS)

    def is_it(self, incarnation: int) -> bool:
        """Is this the stream that an asker means (`Read`)?"""
        return incarnation in (0, self.incarnation)

    def forget(self) -> None:
        """The stream is deleted, and nothing of it stays."""
        self.created = None
        self.fence = b""
        self.emptied_ms = 0
        self.groups.clear()
        self.writers = {}
        self.durable = DurableMetadata({})
        self.tees = TeeProgress({})

    def create(self, now_ms: int, settings: Settings) -> MetadataSet:
        """The stream is there, with these settings from now on."""
        before = self.created
        ms = now_ms if before is None else before.ms
        serial = next(self._serials) if before is None else before.serial
        traits = (
            before.traits if settings.traits is None and before is not None else settings.traits
        )
        created = Created(
            ms, settings.age_s, settings.bytes_max, settings.content_type, traits, serial
        )
        self.created = created
        return MetadataSet(CREATED, _ENCODER.encode(created))

    def set_emptied(self, now_ms: int) -> MetadataSet:
        """The last record went."""
        self.emptied_ms = now_ms
        return MetadataSet(EMPTIED, now_ms.to_bytes(8))

    def set_fence(self, token: bytes) -> MetadataSet:
        """Appends that name a token have to name this one; b"" is that of a new stream."""
        self.fence = token
        return MetadataSet(FENCE, token or None)

    def commit(self, group: bytes, offset: int) -> MetadataSet:
        """A consumer group got so far."""
        self.groups[group] = offset
        return MetadataSet(_GROUP + group, offset.to_bytes(8))

    def write(self, writer: bytes, writing: WriterState) -> MetadataSet:
        """A writer got so far."""
        self.writers[writer] = writing
        return MetadataSet(_WRITER + writer, _ENCODER.encode(writing))

    def forget_writer(self, writer: bytes) -> MetadataSet:
        """It is as if it had never written."""
        del self.writers[writer]
        return MetadataSet(_WRITER + writer, None)
