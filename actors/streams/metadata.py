"""Stream metadata: what the store keeps of a stream besides its records.

Settings, fencing token, consumer groups, idempotent writers, the tees that feed the stream, and the
state of Durable Streams. A method that changes something gives the change for the store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import msgspec

from millpond.actors.store.changes import Change, MetadataSet
from millpond.actors.streams.durable.metadata import DurableMetadata
from millpond.actors.streams.messages import Settings, StreamOptions
from millpond.actors.streams.names import basin_stream_of, stream_of

CREATED = b"created"
FENCE = b"fence"
EMPTIED = b"emptied"
TRIM = b"trim"
AGES = b"ages"
_GROUP = b"group\0"
_WRITER = b"writer\0"
_TEE = b"tee\0"
_TEE_FORMAT = struct.Struct(">QQQ")
TEE_CHANNELS_MAX = 10_000
"""The most channels that one stream remembers. Beyond, channels whose messages have all expired
are forgotten."""
GROUP_BYTES_MAX = 256
"""Of the name of a group."""
AGES_MAX = 32
"""The most changes of the age that a stream remembers; beyond, the two oldest become one."""
_SERIAL_BITS = 20


class Created(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of the key `created`, as MessagePack."""

    ms: int
    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None
    options: StreamOptions | None = None
    serial: int = 0
    """Of the streams that a node made since its start: two may be of one millisecond."""

    @property
    def settings(self) -> Settings:
        return Settings(self.age_s, self.bytes_max, self.content_type, self.options)


class FormerAge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The age of the records below `end`; 0: they do not grow too old.

    The key `ages` has those of a stream as MessagePack, ascending by `end`.
    """

    end: int
    age_s: int


class WriterState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of a writer's key, as MessagePack: its last batch, and how much of it is stored.

    `ms` is when it wrote last. A writer is forgotten some time after that: a `once` writer sooner
    than another, and one that is `unnamed` first.
    """

    batch: int
    rows: int
    plan: bytes
    is_done: bool
    ms: int
    once: bool = False
    unnamed: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_CREATED_DECODER = msgspec.msgpack.Decoder(Created)
_AGES_DECODER = msgspec.msgpack.Decoder(tuple[FormerAge, ...])
_WRITER_DECODER = msgspec.msgpack.Decoder(WriterState)


class GroupProgress:
    """The offsets of a stream's consumer groups, and its tail. It outlives the cell, so that the
    lag of streams that are not in memory is known; nothing changes while they are passivated."""

    __slots__ = ("offsets", "tail")

    def __init__(self, offsets: dict[bytes, int]) -> None:
        self.offsets = offsets
        self.tail = 0

    def lags(self) -> list[int]:
        """The number of records that each group has not read."""
        return [max(self.tail - offset, 0) for offset in self.offsets.values()]

    def by_group(self) -> list[tuple[bytes, int]]:
        """Each group with the number of records that it has not read."""
        return [(group, max(self.tail - offset, 0)) for group, offset in self.offsets.items()]

    def lag_of(self, group: bytes) -> int:
        """The number of records that a group has not read; 0: there is no such group."""
        return max(self.tail - self.offsets.get(group, self.tail), 0)


class TeePosition(msgspec.Struct, frozen=True, gc=False):
    """The progress of a channel: up to `id`. Its messages until then expire before `until_ms`."""

    node_run: int
    id: int
    until_ms: int


class TeeProgress:
    """The channels that feed a stream, and how far the stream has each. Each message of a channel
    is appended once, in the channel's order."""

    __slots__ = ("_positions",)

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        self._positions = {
            name[len(_TEE) :]: TeePosition(*_TEE_FORMAT.unpack(value))
            for name, value in values.items()
            if name.startswith(_TEE)
        }

    def confirmed_id(self, channel: bytes, node_run: int) -> int:
        """The id up to which the stream has everything of the channel; 0: nothing.

        Ids of a channel that a run of the node does not outlive may come again in the next one;
        those that were stored may not.
        """
        position = self._positions.get(channel)
        return position.id if position is not None and position.node_run in (node_run, 0) else 0

    def reserve(self, channel: bytes, now_ms: int, changes: list[Change]) -> bool:
        """True: one more channel fits. Positions that mean nothing any more are removed."""
        positions = self._positions
        if channel in positions or len(positions) < TEE_CHANNELS_MAX:
            return True
        for name in [name for name, position in positions.items() if position.until_ms < now_ms]:
            del positions[name]
            changes.append(MetadataSet(_TEE + name, None))
        return len(positions) < TEE_CHANNELS_MAX

    def advance(self, channel: bytes, node_run: int, message_id: int, until_ms: int) -> MetadataSet:
        """The stream has the channel's messages up to this one."""
        before = self._positions.get(channel)
        latest_ms = until_ms if before is None else max(until_ms, before.until_ms)
        self._positions[channel] = position = TeePosition(node_run, message_id, latest_ms)
        return MetadataSet(
            _TEE + channel, _TEE_FORMAT.pack(position.node_run, position.id, position.until_ms)
        )


def creation_of(cell: bytes, now_ms: int) -> MetadataSet | None:
    """The metadata of a stream that is created now with the node's settings, for a repair: without
    it clients are told that there is no such stream. None: the cell is none of a stream."""
    if stream_of(cell) is None and basin_stream_of(cell) is None:
        return None
    return MetadataSet(CREATED, _ENCODER.encode(Created(now_ms)))


class StreamMetadata:
    """The metadata of one stream."""

    __slots__ = (
        "_serials",
        "ages",
        "created",
        "durable",
        "emptied_ms",
        "fence",
        "groups",
        "progress",
        "tee_progress",
        "trim_point",
        "writers",
    )

    def __init__(self, values: Mapping[bytes, bytes], serials: Iterator[int]) -> None:
        self._serials = serials
        created = values.get(CREATED)
        self.created = None if created is None else _CREATED_DECODER.decode(created)
        self.fence = values.get(FENCE, b"")
        self.emptied_ms = int.from_bytes(values.get(EMPTIED, b""))
        """The time at which the last record was removed; 0: unknown, or there was none."""
        self.trim_point = int.from_bytes(values.get(TRIM, b""))
        """The point of trims that have not taken effect; 0: there are none."""
        ages = values.get(AGES)
        self.ages = () if ages is None else _AGES_DECODER.decode(ages)
        """The ages of records that were appended before the age was changed."""
        self.groups = {
            name[len(_GROUP) :]: int.from_bytes(value)
            for name, value in values.items()
            if name.startswith(_GROUP)
        }
        self.writers = {
            name[len(_WRITER) :]: _WRITER_DECODER.decode(value)
            for name, value in values.items()
            if name.startswith(_WRITER)
        }
        self.progress = GroupProgress(self.groups)
        self.durable = DurableMetadata(values)
        self.tee_progress = TeeProgress(values)

    @property
    def settings(self) -> Settings:
        """The stream's own settings; empty if it was not created explicitly."""
        return Settings() if self.created is None else self.created.settings

    @property
    def content_type(self) -> bytes | None:
        """The stream's content type; None: none was given."""
        return None if self.created is None else self.created.content_type

    @property
    def incarnation(self) -> int:
        """A number that no earlier or later stream of this name has; 0: not created yet."""
        created = self.created
        if created is None:
            return 0
        return created.ms << _SERIAL_BITS | created.serial % (1 << _SERIAL_BITS)

    def matches(self, incarnation: int) -> bool:
        """True: a request for this incarnation (0: any) means this stream."""
        return incarnation in (0, self.incarnation)

    def clear(self) -> None:
        """Forget everything: the stream is deleted."""
        self.created = None
        self.fence = b""
        self.emptied_ms = self.trim_point = 0
        self.ages = ()
        self.groups.clear()
        self.writers = {}
        self.durable = DurableMetadata({})
        self.tee_progress = TeeProgress({})

    def create(self, now_ms: int, settings: Settings) -> MetadataSet:
        """Create the stream, or change its settings."""
        before = self.created
        ms = now_ms if before is None else before.ms
        serial = next(self._serials) if before is None else before.serial
        options = (
            before.options if settings.options is None and before is not None else settings.options
        )
        created = Created(
            ms, settings.age_s, settings.bytes_max, settings.content_type, options, serial
        )
        self.created = created
        return MetadataSet(CREATED, _ENCODER.encode(created))

    def keep_age(self, age_s: int, trim_point: int, tail: int) -> MetadataSet | None:
        """The records that are there keep their age, which was `age_s` until now."""
        kept = [each for each in self.ages if each.end > trim_point]
        if tail > (kept[-1].end if kept else trim_point):
            kept.append(FormerAge(tail, age_s))
        if len(kept) > AGES_MAX:
            first, second = kept[:2]
            is_endless = not (first.age_s and second.age_s)
            longer_s = 0 if is_endless else max(first.age_s, second.age_s)
            kept[:2] = [FormerAge(second.end, longer_s)]
        return self._set_ages(tuple(kept))

    def forget_ages(self) -> MetadataSet | None:
        """The present age is that of all records."""
        return self._set_ages(())

    def _set_ages(self, ages: tuple[FormerAge, ...]) -> MetadataSet | None:
        if ages == self.ages:
            return None
        self.ages = ages
        return MetadataSet(AGES, _ENCODER.encode(ages) if ages else None)

    def set_emptied(self, now_ms: int) -> MetadataSet:
        """Remember when the last record was removed."""
        self.emptied_ms = now_ms
        return MetadataSet(EMPTIED, now_ms.to_bytes(8))

    def set_trim_point(self, point: int) -> MetadataSet:
        """Remember the point of the trims that have not taken effect; 0: all have."""
        self.trim_point = point
        return MetadataSet(TRIM, point.to_bytes(8) if point else None)

    def set_fence(self, token: bytes) -> MetadataSet:
        """Set the fencing token; that of a new stream is empty."""
        self.fence = token
        return MetadataSet(FENCE, token or None)

    def commit_offset(self, group: bytes, offset: int) -> MetadataSet:
        """Set the offset of a consumer group."""
        self.groups[group] = offset
        return MetadataSet(_GROUP + group, offset.to_bytes(8))

    def set_writer(self, writer: bytes, state: WriterState) -> MetadataSet:
        """Set the progress of an idempotent writer."""
        self.writers[writer] = state
        return MetadataSet(_WRITER + writer, _ENCODER.encode(state))

    def forget_writer(self, writer: bytes) -> MetadataSet:
        """Forget an idempotent writer."""
        del self.writers[writer]
        return MetadataSet(_WRITER + writer, None)
