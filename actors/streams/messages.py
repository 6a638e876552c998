"""What a stream is asked, and what it answers.

Sequences, timestamps (milliseconds) and the parts of ids are u64. `number` is the asker's own: an
answer carries that of its request, so that answers of several streams can be put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar, Protocol

import msgspec

from millpond.actors.messages import StreamFailed as StreamFailed
from millpond.actors.messages import StreamReply, StreamRequest
from millpond.actors.positions import Position, Seek
from millpond.actors.streams.durable.messages import NO_EXPIRY, Lifetime

U64_MAX = 2**64 - 1

Headers = list[tuple[bytes, bytes]]


class Timestamping(IntEnum):
    """Whose word counts for a record's timestamp: the client's where it gives one, the client's
    and it has to give one, or the arrival."""

    PREFERRED = 0
    REQUIRED = 1
    ARRIVAL = 2


class StreamOptions(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What S2 says of a stream besides (http.md A.3, A.6).

    `is_capped`: a timestamp from the client is never later than the arrival. The stream is deleted
    when it was empty and nobody wrote to it for `empty_s` seconds (0: never). `labels` are a
    protocol's own notes, which mean nothing here.
    """

    timestamping: Timestamping = Timestamping.PREFERRED
    is_capped: bool = False
    empty_s: int = 0
    labels: dict[str, bytes] = {}


DEFAULT_OPTIONS = StreamOptions()


class Settings(msgspec.Struct, frozen=True, gc=False):
    """What a stream was created with; None: what the node's configuration says.

    Records go when they are older than `age_s` (0: never), and the oldest ones when there are more
    than `bytes_max`. `content_type` is Durable Streams'; None: made elsewhere. `traits` None: as a
    stream that no S2 client made; to `Configure`: those that it has.
    """

    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None
    traits: StreamOptions | None = None


class RecordFilter(msgspec.Struct, frozen=True, gc=False):
    """What a protocol can express; other records are skipped on its reads, and counted."""

    empty: bool = True
    commands: bool = True
    body_bytes_max: int = U64_MAX


ALL_RECORDS = RecordFilter()


# Requests.


class Create(StreamRequest, frozen=True, gc=False):
    """Make a stream; STREAM_EXISTS if there is one. Answered by `Done`."""

    settings: Settings = Settings()


class Append(StreamRequest, frozen=True, gc=False):
    """Add records at the end, all or none; at least one. Answered by `Appended`.

    `ms` is S3P's ID option. `headers` and `timestamps` are None or have an element for each body; a
    timestamp of None is the arrival. The stream's fencing token must be `fencing_token`, and its
    tail `match_sequence`, where they are given.
    """

    bodies: list[bytes]
    ms: int | None = None
    headers: list[Headers] | None = None
    timestamps: list[int | None] | None = None
    fencing_token: bytes | None = None
    match_sequence: int | None = None


class SessionAppend(Append, frozen=True, gc=False):
    """An append of a session: refused, as all that follow it from the same port, once one of them
    was. So what a session asks for ahead of its answers is done up to a point, or all of it.

    `incarnation`: see `Read`. `previous`: the number of the append before it, unless that was known
    to be done when this one was asked; this one is done only where that was.
    """

    incarnation: int = 0
    previous: int | None = None


class Read(StreamRequest, frozen=True, gc=False):
    """Records from `start` on. Answered by `Records`.

    At most `count` of them, and about `bytes_max` bytes of bodies, but at least one if there is
    any. Where there is none, wait for one until the node's time `wait_until`. `from_start`: refuse
    with TRIMMED instead of skipping what is trimmed (sequences only). `incarnation`: of that stream
    as `StreamDescription` has it and of no other of its name, now or while it waits
    (UNKNOWN_STREAM); 0: of
    whichever there is. `ends_closed`: do not wait for what a closed stream will not get.
    `one_append`: only what was appended together with the first one shown, and all of that.
    `by_chunk`: the last chunk is shown to its end, also beyond `bytes_max`.
    """

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

    @property
    def is_repeated(self) -> bool:
        return self.wait_until > 0


class CancelRead(StreamRequest, frozen=True, gc=False):
    """The end of the wait of the `Read` of this number. Neither of them is answered."""

    is_answered: ClassVar[bool] = False

    @property
    def is_repeated(self) -> bool:
        return True


class FinishRead(StreamRequest, frozen=True, gc=False):
    """The `Read` of this number waits no longer: it is answered with what there is. No answer of
    its own."""

    is_answered: ClassVar[bool] = False

    @property
    def is_repeated(self) -> bool:
        return True


class Describe(StreamRequest, frozen=True, gc=False):
    """Answered by `StreamDescription`."""


class Trim(StreamRequest, frozen=True, gc=False):
    """Remove records below a sequence, or below an id. Answered by `Done`."""

    below: int | Position


class Delete(StreamRequest, frozen=True, gc=False):
    """Remove the stream with all it has; waiting reads are answered. Answered by `Done`."""


class Configure(StreamRequest, frozen=True, gc=False):
    """Change the settings. Answered by `Done`; SEQUENCE_MISMATCH where they are not those that are
    `expected` any more."""

    settings: Settings
    expected: Settings | None = None


class CommitOffset(StreamRequest, frozen=True, gc=False):
    """A consumer group got as far as `offset` (exclusive). Answered by `Done`."""

    group: bytes
    offset: int


class GetGroupOffset(StreamRequest, frozen=True, gc=False):
    """How far did a group get? Answered by `GroupOffset`."""

    group: bytes


class WriterAppend(Append, frozen=True, gc=False):
    """A slice of a writer's batch: each is added once, whoever asks for it how often.

    `at`: so many records of the batch are before it. `plan` says what the whole batch is; the node
    that takes the first slice has decided for it. `is_last`: nothing of the batch comes behind.
    `once`: the writer has one batch and no other. Answered by `WriterStatus`, what is true
    afterwards;
    GROUPS_FULL where the stream knows too many writers.
    """

    writer: bytes = b""
    batch: int = 0
    at: int = 0
    plan: bytes = b""
    is_last: bool = True
    once: bool = False


class GetWriter(StreamRequest, frozen=True, gc=False):
    """How far did a writer get? Answered by `WriterStatus`."""

    writer: bytes


# Answers.


class Done(StreamReply, frozen=True, gc=False):
    """It is so, as durably as the stream promises."""


class Appended(StreamReply, frozen=True, gc=False):
    """Kept, as durably as the stream promises. `id` and `timestamp` are those of the last record,
    `first_timestamp` of the first; the tail is `first + count`."""

    first: int
    count: int
    id: Position
    first_timestamp: int
    timestamp: int


class RecordColumns(msgspec.Struct, frozen=True, gc=False):
    """Consecutive records, by columns.

    Where `timestamps` is None, `timestamp` is everybody's. Where `ids` is None, record i has the id
    `(id.ms, id.seq + i)`. `headers` None: no record has any.
    """

    first: int
    bodies: list[bytes]
    timestamp: int
    id: Position
    timestamps: list[int] | None = None
    ids: list[Position] | None = None
    headers: list[Headers] | None = None


class RecordFormat(Protocol):
    """How a protocol writes records, one behind the other. What was written is kept under it."""

    def write(self, span: RecordColumns) -> bytes:
        """The records of a span."""

    def ends(self, span: RecordColumns) -> Sequence[int]:
        """Where in that each record ends."""


class RecordSlice(Protocol):
    """Consecutive records; what was written of them for one reader may serve another."""

    def written(self, form: RecordFormat) -> bytes:
        """The records as `form` writes them."""


class Records(StreamReply, frozen=True, gc=False):
    """What was found, ascending. Go on at sequence `next`; `tail` is the stream's, with the
    timestamp of its last record. `slices`, if there are any, are the same as `spans`. The stream
    `is_closed` behind its tail."""

    spans: Sequence[RecordColumns]
    next: int
    tail: int
    last_timestamp: int
    slices: Sequence[RecordSlice] = ()
    is_closed: bool = False


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
    topic that has no records yet. `traits`: the options that S2 sets, if it created the stream.
    """

    info: StreamInfo
    traits: StreamOptions | None = None
    incarnation: int = 0
    is_closed: bool = False
    lifetime: Lifetime = NO_EXPIRY

    @property
    def settings(self) -> Settings:
        """The settings that the stream was created with."""
        info = self.info
        return Settings(info.age_s, info.bytes_max, info.content_type, self.traits)


class GroupOffset(StreamReply, frozen=True, gc=False):
    """What the group committed; None: nothing ever."""

    offset: int | None


class WriterStatus(StreamReply, frozen=True, gc=False):
    """A writer's last batch: `rows` of it are there, by this plan. `batch` -1: it never wrote."""

    batch: int
    rows: int
    plan: bytes
    is_done: bool


# The catalogue of topics.


class CreateTopic(StreamRequest, frozen=True, gc=False):
    """Make a topic, to the cell TOPICS; STREAM_EXISTS if it or a stream it needs is there.

    Answered by `Done`. A topic of one partition is the stream of that name.
    """

    topic: bytes
    partitions: int


class DeleteTopic(StreamRequest, frozen=True, gc=False):
    """Remove a topic with all its partitions; UNKNOWN_STREAM. Answered by `Done`."""

    topic: bytes


class PartitionDeleted(StreamRequest, frozen=True, gc=False):
    """A partition of a removed topic to the catalogue: nothing is left of it."""

    stream: bytes


# The catalogue of basins.


class CreateBasin(StreamRequest, frozen=True, gc=False):
    """Make a basin, to the cell BASINS; STREAM_EXISTS. Answered by `Done`.

    `metadata` are S2's own, which mean nothing here.
    """

    basin: bytes
    metadata: bytes


class ConfigureBasin(StreamRequest, frozen=True, gc=False):
    """Other notes for a basin that is there; UNKNOWN_STREAM. Answered by `Done`."""

    basin: bytes
    metadata: bytes


class DeleteBasin(StreamRequest, frozen=True, gc=False):
    """Remove a basin with all its streams; UNKNOWN_STREAM. Answered by `Done`, before all of them
    are gone."""

    basin: bytes


class BasinStreamDeleted(StreamRequest, frozen=True, gc=False):
    """A stream of a removed basin to the catalogue: nothing is left of it."""

    basin: bytes
    stream: bytes


# The catalogue of access tokens.


class IssueToken(StreamRequest, frozen=True, gc=False):
    """Note an access token by its id, to the cell TOKENS; STREAM_EXISTS. Answered by `Done`.

    `digest` is the SHA-256 of the token, which nobody keeps; it ends at `expires_ms` (None: never).
    `metadata` are S2's own, which mean nothing here.
    """

    id: bytes
    digest: bytes
    expires_ms: int | None
    metadata: bytes


class RevokeToken(StreamRequest, frozen=True, gc=False):
    """Forget an access token; UNKNOWN_STREAM. Answered by `Done`."""

    id: bytes
