"""The requests to a stream and their replies.

Sequences, timestamps (milliseconds) and the parts of ids are u64. `number` is the client's own: a
reply carries that of its request, so that replies of several streams can be put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar, Protocol, final

import msgspec

from millpond.actors.messages import StreamFailed as StreamFailed
from millpond.actors.messages import StreamReply, StreamRequest
from millpond.actors.positions import Position, Seek
from millpond.actors.streams.durable.messages import NO_EXPIRY, Lifetime

U64_MAX = 2**64 - 1

Headers = list[tuple[bytes, bytes]]


class Timestamping(IntEnum):
    """The source of a record's timestamp. PREFERRED: the client if it gives one, else the arrival.
    REQUIRED: the client, and appends that lack one are refused. ARRIVAL: the arrival."""

    PREFERRED = 0
    REQUIRED = 1
    ARRIVAL = 2


class StreamOptions(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The options that S2 sets on a stream (docs/reference/s2.md).

    `is_capped`: a timestamp from the client is never later than the arrival. The stream is deleted
    when it was empty and nothing was appended for `empty_s` seconds (0: never). `labels` are a
    protocol's own metadata, which mean nothing here. `is_encrypted`: records are encrypted and
    decrypted by S2, with the keys of its clients; to all others they are refused with ENCRYPTED.
    """

    timestamping: Timestamping = Timestamping.PREFERRED
    is_capped: bool = False
    empty_s: int = 0
    labels: dict[str, bytes] = {}
    is_encrypted: bool = False


DEFAULT_OPTIONS = StreamOptions()


class Settings(msgspec.Struct, frozen=True, gc=False):
    """The settings of a stream; None: the node's configuration decides.

    Records are removed when they are older than `age_s` (0: never), and the oldest ones when there
    are more than `bytes_max`. `content_type` is Durable Streams'; None: created by another
    protocol. `options` None: no S2 client created the stream; in `Configure`: leave them as they
    are.
    """

    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None
    options: StreamOptions | None = None


class RecordFilter(msgspec.Struct, frozen=True, gc=False):
    """The records that a protocol can express; others are skipped by its reads, and counted."""

    empty: bool = True
    commands: bool = True
    body_bytes_max: int = U64_MAX


ALL_RECORDS = RecordFilter()


# Requests.


class Create(StreamRequest, frozen=True, gc=False):
    """Create a stream; STREAM_EXISTS if there is one. Answered by `Done`."""

    settings: Settings = Settings()


@final
class PackedBodies(msgspec.Struct, frozen=True, gc=False):
    """The bodies of an append as a chunk keeps them: `count` MessagePack strings of bytes, one
    behind the other, of `size` bytes without their heads."""

    count: int
    size: int
    data: bytes

    def __len__(self) -> int:
        return self.count


class Append(StreamRequest, frozen=True, gc=False):
    """Append records, all or none; at least one. Answered by `Appended`.

    `ms` is S3P's ID option. `headers` and `timestamps` are None or have an element for each body; a
    timestamp of None is the arrival. The stream's fencing token must be `fencing_token`, and its
    tail `match_sequence`, where they are given. Packed bodies have no headers.
    """

    is_encrypted: ClassVar[bool] = False
    """Whether its records are in the form of encrypted streams; others are refused."""

    bodies: list[bytes] | PackedBodies
    ms: int | None = None
    headers: list[Headers] | None = None
    timestamps: list[int | None] | None = None
    fencing_token: bytes | None = None
    match_sequence: int | None = None


class EncryptedAppend(Append, frozen=True, gc=False):
    """Records that were encrypted for this `incarnation` of a stream (see `Read`)."""

    is_encrypted: ClassVar[bool] = True

    incarnation: int = 0


class SessionAppend(Append, frozen=True, gc=False):
    """An append of a session: refused, as all later ones from the same port, once one of them was.
    So the appends that a client sends ahead of replies are done up to a point, or all of them.

    `incarnation`: see `Read`. `previous`: the number of the append before it, unless that was known
    to be done when this one was sent; this one is done only where that was.
    """

    incarnation: int = 0
    previous: int | None = None


class EncryptedSessionAppend(SessionAppend, frozen=True, gc=False):
    """An append of a session, with records that were encrypted for this incarnation."""

    is_encrypted: ClassVar[bool] = True


class MeasureBodies(Protocol):
    """A look at the data of a chunk, which does not take it apart."""

    def __call__(
        self, data: bytes, count: int, begin: int, end: int, size_max: int, /
    ) -> tuple[int, int, int] | None:
        """Measure the bodies from number `begin` to before `end`, of the `count` in `data`.

        Returns the offset of the first one in `data`, the number of those that have a size of
        `size_max` together at most, and that size, as the protocol counts it. None: a body is
        empty, a record has more than a body, or the data are not plainly right.
        """


class Read(StreamRequest, frozen=True, gc=False):
    """Read records from `start` on. Answered by `Records`.

    At most `count` of them, and about `bytes_max` bytes of bodies, but at least one if there is
    any. Where there is none, wait for one until the node's time `wait_until`. `from_start`: refuse
    with TRIMMED instead of skipping trimmed records (sequences only). `incarnation`: read only the
    stream that `StreamDescription` described with this number, now or while the read waits
    (UNKNOWN_STREAM); 0: any stream of this name. `ends_closed`: do not wait for records that a
    closed stream will not get. `one_append`: only records that were appended together with the
    first one shown, and all of them. `by_chunk`: the last chunk is shown to its end, also beyond
    `bytes_max`. `measure`: the client writes records as chunks keep them, so they are `packed`
    where this can measure all of them (not by timestamp, without empty records and command
    records; the filter passes every other record that `bytes_max` has room for).
    """

    is_encrypted: ClassVar[bool] = False
    """Whether it can read encrypted records, and no others."""

    start: Seek
    count: int
    bytes_max: int
    wait_until: float = 0.0
    record_filter: RecordFilter = ALL_RECORDS
    from_start: bool = False
    incarnation: int = 0
    ends_closed: bool = False
    one_append: bool = False
    by_chunk: bool = False
    measure: MeasureBodies | None = None

    @property
    def is_repeatable(self) -> bool:
        return self.wait_until > 0


class EncryptedRead(Read, frozen=True, gc=False):
    """A read of an encrypted stream: its records come as they are stored."""

    is_encrypted: ClassVar[bool] = True


class CancelRead(StreamRequest, frozen=True, gc=False):
    """The end of the wait of the `Read` of this number. Neither of them is answered."""

    is_answered: ClassVar[bool] = False

    @property
    def is_repeatable(self) -> bool:
        return True


class FinishRead(StreamRequest, frozen=True, gc=False):
    """The `Read` of this number waits no longer: it is answered with the records there are. No
    answer of its own."""

    is_answered: ClassVar[bool] = False

    @property
    def is_repeatable(self) -> bool:
        return True


class Describe(StreamRequest, frozen=True, gc=False):
    """Answered by `StreamDescription`."""


class Trim(StreamRequest, frozen=True, gc=False):
    """Remove records below a sequence, or below an id. Answered by `Done`."""

    below: int | Position


class Delete(StreamRequest, frozen=True, gc=False):
    """Delete the stream with all records; waiting reads are answered. Answered by `Done`."""


class Configure(StreamRequest, frozen=True, gc=False):
    """Change the settings. Answered by `Done`; SEQUENCE_MISMATCH if they are not `expected` any
    more.

    Records that are there keep the age that they had (S2X-61), unless `is_for_all`.
    """

    settings: Settings
    expected: Settings | None = None
    is_for_all: bool = False


class CommitOffset(StreamRequest, frozen=True, gc=False):
    """Set the offset of a consumer group (exclusive). Answered by `Done`."""

    group: bytes
    offset: int


class GetGroupOffset(StreamRequest, frozen=True, gc=False):
    """Get the offset of a consumer group. Answered by `GroupOffset`."""

    group: bytes


class WriterAppend(Append, frozen=True, gc=False):
    """A slice of an idempotent writer's batch: each is appended once, however often it is sent.

    `at`: the number of records of the batch before it. `plan` describes the whole batch; the node
    that takes the first slice has decided for it. `is_last`: the batch ends with this slice.
    `once`: the writer has one batch and no other. `unnamed`: its name was made for this batch, so
    only a lost answer makes a client repeat it. Answered by `WriterStatus`, the progress after it;
    GROUPS_FULL where the stream knows too many writers.
    """

    writer: bytes = b""
    batch: int = 0
    at: int = 0
    plan: bytes = b""
    is_last: bool = True
    once: bool = False
    unnamed: bool = False


class GetWriter(StreamRequest, frozen=True, gc=False):
    """Get the progress of an idempotent writer. Answered by `WriterStatus`."""

    writer: bytes


# Answers.


class Done(StreamReply, frozen=True, gc=False):
    """The change is made, as durably as the stream promises."""


class Appended(StreamReply, frozen=True, gc=False):
    """The records are stored, as durably as the stream promises. `id` and `timestamp` are those of
    the last record, `first_timestamp` of the first; the tail is `first + count`. `options` are
    those of the stream."""

    first: int
    count: int
    id: Position
    first_timestamp: int
    timestamp: int
    options: StreamOptions = DEFAULT_OPTIONS


class RecordColumns(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records, by columns.

    Where `timestamps` is None, `timestamp` is that of every record. Where `ids` is None, record i
    has the id `(id.ms, id.seq + i)`. `headers` None: no record has any.
    """

    first: int
    bodies: list[bytes]
    timestamp: int
    id: Position
    timestamps: list[int] | None = None
    ids: list[Position] | None = None
    headers: list[Headers] | None = None


class RecordFormat(Protocol):
    """The encoding of records in a protocol, one after the other. The encoded bytes are cached by
    it."""

    def encode(self, span: RecordColumns) -> bytes:
        """The records of a span."""

    def ends(self, span: RecordColumns) -> Sequence[int]:
        """The ends of the records within the encoded bytes."""


class RecordSlice(Protocol):
    """Consecutive records whose encoding for one reader may serve another."""

    def encoded(self, record_format: RecordFormat) -> bytes:
        """The records as `record_format` writes them."""


class PackedSlice(msgspec.Struct, frozen=True, gc=False):
    """`count` consecutive records of a chunk as it keeps them: their bodies stand at `offset` of
    its `data`. `first` is the sequence of the first one, `<ms>-<seq>` its id; both go up by one.
    `timestamp` is that of each, `size` that of all as `Read.measure` counts it."""

    data: bytes
    offset: int
    count: int
    size: int
    first: int
    timestamp: int
    ms: int
    seq: int


class Records(StreamReply, frozen=True, gc=False):
    """Records that were found, ascending. Continue at sequence `next`; `tail` and `last_timestamp`
    are the stream's. `slices`, if there are any, are the same as `spans`. The stream `is_closed`
    after its tail. `packed`, if there are any, are in place of `spans` (`Read.measure`)."""

    spans: Sequence[RecordColumns]
    next: int
    tail: int
    last_timestamp: int
    slices: Sequence[RecordSlice] = ()
    is_closed: bool = False
    packed: Sequence[PackedSlice] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of all bodies; of packed ones, as they were measured."""
        if self.packed:
            return sum([each.size for each in self.packed])
        return sum([sum(map(len, span.bodies)) for span in self.spans])


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream: records from sequence `trim_point` to before `tail`, `bytes_kept` of bodies.

    `age_s` and `bytes_max` None: the node's configuration decides. `waiting` is the number of reads
    that wait for a record, `groups` the offset of each consumer group. P2P sends it as a map.
    """

    age_s: int | None
    bytes_max: int | None
    content_type: bytes | None
    created_ms: int
    trim_point: int
    tail: int
    last_id: Position
    last_timestamp: int
    bytes_kept: int
    segments: int
    waiting: int
    fence: bytes
    groups: dict[bytes, int]


class StreamDescription(StreamReply, frozen=True, gc=False):
    """The reply to `Describe`.

    `incarnation`: a number that no earlier or later stream of this name has; 0: a partition of a
    topic that has no records yet. `options`: the options that S2 sets, if it created the stream.
    """

    info: StreamInfo
    options: StreamOptions | None = None
    incarnation: int = 0
    is_closed: bool = False
    lifetime: Lifetime = NO_EXPIRY

    @property
    def settings(self) -> Settings:
        """The settings that the stream was created with."""
        info = self.info
        return Settings(info.age_s, info.bytes_max, info.content_type, self.options)


class GroupOffset(StreamReply, frozen=True, gc=False):
    """The offset that the group committed; None: none."""

    offset: int | None


class WriterStatus(StreamReply, frozen=True, gc=False):
    """A writer's last batch: `rows` of it are stored, by this plan. `batch` -1: it never wrote."""

    batch: int
    rows: int
    plan: bytes
    is_done: bool


# Notices to subscriptions.


class StreamGrew(StreamRequest, frozen=True, gc=False):
    """Records were appended to a stream, and stored: its tail is `tail` now, or beyond."""

    is_answered: ClassVar[bool] = False

    stream: bytes
    incarnation: int
    tail: int


class StreamGone(StreamRequest, frozen=True, gc=False):
    """A stream was deleted, or has expired."""

    is_answered: ClassVar[bool] = False

    stream: bytes
    incarnation: int


class TellSubscriptions(StreamReply, frozen=True, gc=False):
    """The notice of a stream for the cells of the subscriptions that follow it."""

    cells: tuple[bytes, ...]
    notice: StreamGrew | StreamGone


# The catalog of topics.


class CreateTopic(StreamRequest, frozen=True, gc=False):
    """Create a topic, sent to the cell TOPICS; STREAM_EXISTS if it or a stream it needs exists.
    Answered by `Done`. A topic of one partition is the stream of that name."""

    topic: bytes
    partitions: int


class DeleteTopic(StreamRequest, frozen=True, gc=False):
    """Delete a topic with all its partitions; UNKNOWN_STREAM. Answered by `Done`."""

    topic: bytes


class ShowTopic(StreamRequest, frozen=True, gc=False):
    """The creation of a topic of several partitions is durable: others may see it. The catalog
    tells itself, and answers `CreateTopic` by it."""

    topic: bytes


class CommitEarlyOffset(StreamRequest, frozen=True, gc=False):
    """Set the offset of a consumer group in a partition that does not exist; it counts once the
    partition does. Answered by `Done`; MALFORMED, GROUPS_FULL."""

    topic: bytes
    partition: int
    group: bytes
    offset: int


class ShowEarlyOffset(StreamRequest, frozen=True, gc=False):
    """The commit of an early offset is durable: others may see it. The catalog tells itself, and
    answers `CommitEarlyOffset` by it."""

    topic: bytes
    partition: int
    group: bytes
    offset: int


class ForgetEarlyOffsets(StreamRequest, frozen=True, gc=False):
    """A partition has an offset of the group itself, or was deleted (`group` None: all groups)."""

    topic: bytes
    partition: int
    group: bytes | None = None


class PartitionDeleted(StreamRequest, frozen=True, gc=False):
    """A partition of a deleted topic tells the catalog that it is deleted."""

    stream: bytes


# The catalog of basins.


class CreateBasin(StreamRequest, frozen=True, gc=False):
    """Create a basin, sent to the cell BASINS; STREAM_EXISTS. Answered by `Done`. `metadata` is
    S2's own, and means nothing here."""

    basin: bytes
    metadata: bytes


class ConfigureBasin(StreamRequest, frozen=True, gc=False):
    """Replace the metadata of a basin; UNKNOWN_STREAM. Answered by `Done`."""

    basin: bytes
    metadata: bytes


class DeleteBasin(StreamRequest, frozen=True, gc=False):
    """Delete a basin with all its streams; UNKNOWN_STREAM. Answered by `Done`, before all of them
    are deleted."""

    basin: bytes


class BasinStreamDeleted(StreamRequest, frozen=True, gc=False):
    """A stream of a deleted basin tells the catalog that it is deleted."""

    basin: bytes
    stream: bytes


# The catalog of access tokens.


class IssueToken(StreamRequest, frozen=True, gc=False):
    """Store an access token by its id, sent to the cell TOKENS; STREAM_EXISTS. Answered by `Done`.

    `digest` is the SHA-256 of the token, which itself is not stored; it expires at `expires_ms`
    (None: never). `metadata` is S2's own, and means nothing here.
    """

    id: bytes
    digest: bytes
    expires_ms: int | None
    metadata: bytes


class RevokeToken(StreamRequest, frozen=True, gc=False):
    """Revoke an access token; UNKNOWN_STREAM. Answered by `Done`."""

    id: bytes
