"""What a stream is asked, and what it answers.

Sequences, timestamps (milliseconds) and the parts of ids are u64. `number` is the asker's own: an
answer carries that of its request, so that answers of several streams can be put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from actors.errors import Code
from actors.messages import StreamReply, StreamRequest
from actors.positions import Position, Seek

U64_MAX = 2**64 - 1

Headers = list[tuple[bytes, bytes]]


class Settings(msgspec.Struct, frozen=True, gc=False):
    """What a stream was created with; None: what the node's configuration says.

    Records go when they are older than `age_s`, and the oldest ones when there are more than
    `bytes_max`. `content_type` is Durable Streams'; None: made elsewhere.
    """

    age_s: int | None = None
    bytes_max: int | None = None
    content_type: bytes | None = None


class View(msgspec.Struct, frozen=True, gc=False):
    """What a protocol can express; other records are skipped on its reads, and counted."""

    empty: bool = True
    commands: bool = True
    body_bytes_max: int = U64_MAX


FULL_VIEW = View()


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


class Read(StreamRequest, frozen=True, gc=False):
    """Records from `start` on. Answered by `Records`.

    At most `count` of them, and about `bytes_max` bytes of bodies, but at least one if there is
    any. Where there is none, wait for one until the node's time `wait_until`. `from_start`: refuse
    with TRIMMED instead of skipping what is trimmed (sequences only).
    """

    start: Seek
    count: int
    bytes_max: int
    wait_until: float = 0.0
    view: View = FULL_VIEW
    from_start: bool = False


class Cancel(StreamRequest, frozen=True, gc=False):
    """The asker does not wait for the `Read` of this number any more. No answer."""


class Conclude(StreamRequest, frozen=True, gc=False):
    """The `Read` of this number waits no longer: it is answered with what there is. No answer of
    its own."""


class Describe(StreamRequest, frozen=True, gc=False):
    """Answered by `Described`."""


class Trim(StreamRequest, frozen=True, gc=False):
    """Remove records below a sequence, or below an id. Answered by `Done`."""

    below: int | Position


class Delete(StreamRequest, frozen=True, gc=False):
    """Remove the stream with all it has; waiting reads are answered. Answered by `Done`."""


class Configure(StreamRequest, frozen=True, gc=False):
    """Change the settings. Answered by `Done`."""

    settings: Settings


class Commit(StreamRequest, frozen=True, gc=False):
    """A consumer group got as far as `offset` (exclusive). Answered by `Done`."""

    group: bytes
    offset: int


class Committed(StreamRequest, frozen=True, gc=False):
    """How far did a group get? Answered by `GroupOffset`."""

    group: bytes


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


class Span(msgspec.Struct, frozen=True, gc=False):
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


class Form(Protocol):
    """How a protocol writes records, one behind the other. What was written is kept under it."""

    def write(self, span: Span) -> bytes:
        """The records of a span."""

    def ends(self, span: Span) -> Sequence[int]:
        """Where in that each record ends."""


class Excerpt(Protocol):
    """Consecutive records; what was written of them for one reader may serve another."""

    def written(self, form: Form) -> bytes:
        """The records as `form` writes them."""


class Records(StreamReply, frozen=True, gc=False):
    """What was found, ascending. Go on at sequence `next`; `tail` is the stream's, with the
    timestamp of its last record. `excerpts`, if there are any, are the same as `spans`."""

    spans: Sequence[Span]
    next: int
    tail: int
    last_timestamp: int
    excerpts: Sequence[Excerpt] = ()


class Described(StreamReply, frozen=True, gc=False):
    """A stream's outline: records from `trim_point` to before `tail`, `bytes` of bodies."""

    settings: Settings
    created_ms: int
    trim_point: int
    tail: int
    last_id: Position
    last_timestamp: int
    segments: int
    waiting: int
    fencing_token: bytes
    groups: dict[bytes, int]
    bytes: int


class GroupOffset(StreamReply, frozen=True, gc=False):
    """What the group committed; None: nothing ever."""

    offset: int | None


class StreamFailed(StreamReply, frozen=True, gc=False):
    """Refused. What the asker may want to know besides: the range there is, and the last id."""

    code: Code
    trim_point: int = 0
    tail: int = 0
    last_id: Position = Position(0, 0)
    fencing_token: bytes = b""


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


class Vacated(StreamRequest, frozen=True, gc=False):
    """A partition of a removed topic to the catalogue: nothing is left of it."""

    stream: bytes
