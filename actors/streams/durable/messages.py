"""The requests of Durable Streams besides reads, and their replies
(docs/reference/durable-streams.md)."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

import msgspec

from millpond.actors.messages import StreamReply, StreamRequest

OCTET_STREAM = b"application/octet-stream"
"""The content type of a stream that was told of none."""

_WORD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE = re.compile(_WORD + rb"/" + _WORD + rb"[ \t]*(;[\t -~\x80-\xff]*)?")


def is_content_type(text: bytes) -> bool:
    """True: this may be a content type; it has nothing that would end a header's line."""
    return _CONTENT_TYPE.fullmatch(text) is not None


@lru_cache(maxsize=64)
def media_type(content_type: bytes | None) -> bytes:
    """The comparable part of a content type: no parameters, in lower case."""
    return (content_type or OCTET_STREAM).partition(b";")[0].strip().lower()


class Producer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A producer's id, and its number for what it appends (B.3)."""

    id: bytes
    epoch: int
    seq: int


class Lifetime(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The lifetime of a stream: `ttl_s` after its last use, or until a time; `expires` is the
    client's text for that. All None: never."""

    ttl_s: int | None = None
    expires_ms: int | None = None
    expires: bytes = b""


NO_EXPIRY = Lifetime()


class ForkSource(msgspec.Struct, frozen=True, gc=False):
    """From where a fork is to be made, in the client's words: the source's name, a sequence (None:
    the tail), and how far behind it."""

    source: bytes
    at: int | None
    sub: int


class CreateSpec(msgspec.Struct, frozen=True, gc=False):
    """The properties of a stream to be created. None: what its source has, or the default."""

    content_type: bytes | None
    lifetime: Lifetime | None
    closes: bool
    bodies: list[bytes]
    fork: ForkSource | None = None


class ForkParent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of the key `fork`: the source of a fork, which knows it by the number `ref`. Its
    records below `point` are those of `chain`: cells, and up to which sequence each counts. Its own
    ones begin at `first`, which is higher where a lost stream of its name may have had the
    sequences between."""

    source: bytes
    cell: bytes
    ref: int
    at: int
    sub: int
    point: int
    last_ms: int
    last_seq: int
    last_timestamp: int
    chain: list[tuple[bytes, int]]
    above: int = 0

    @property
    def first(self) -> int:
        """The sequence of the first record of its own."""
        return max(self.point, self.above)


# Requests.


class DurableRequest(StreamRequest, frozen=True, gc=False):
    """Base of all of them."""


class DurableAppend(DurableRequest, frozen=True, gc=False):
    """Append, or close, or both in one step. Answered by `DurableAppended`, `DurableRefused`,
    `StreamFailed`.

    No bodies: only close; `content_type` counts only with some. `stream_seq` is `Stream-Seq`.
    """

    bodies: list[bytes]
    content_type: bytes | None = None
    stream_seq: bytes | None = None
    producer: Producer | None = None
    closes: bool = False


class DurableCreate(DurableRequest, frozen=True, gc=False):
    """Have a stream like this. Answered by `DurableCreated`, `DurableRefused`, `StreamFailed`;
    MISSING where
    it was to be a fork and is not there."""

    spec: CreateSpec


class Fork(DurableRequest, frozen=True, gc=False):
    """To the source: make the stream of the cell `cell` a fork of this one, up to `point` (None:
    the tail), and then with the records `prefix`. Answered like `DurableCreate`.

    `incarnation`: of the source, as the asker knows it.
    """

    cell: bytes
    spec: CreateSpec
    point: int | None
    prefix: list[bytes]
    incarnation: int


class CreateFork(DurableRequest, frozen=True, gc=False):
    """From a source to its fork: begin like this."""

    spec: CreateSpec
    parent: ForkParent
    prefix: list[bytes]


class CheckFork(DurableRequest, frozen=True, gc=False):
    """From a source that is to go: are you its fork of this number?"""

    cell: bytes
    ref: int


class ReleaseFork(DurableRequest, frozen=True, gc=False):
    """To a source: its fork of this number is gone, or never was."""

    cell: bytes
    ref: int


# Answers.


class DurableAppended(StreamReply, frozen=True, gc=False):
    """Kept. `is_new` False: it was before, and nothing was done. `seq`: the producer's highest."""

    tail: int
    is_closed: bool
    is_new: bool = True
    epoch: int = 0
    seq: int = 0


class DurableCreated(StreamReply, frozen=True, gc=False):
    """There is such a stream. `is_new`: now."""

    is_new: bool
    tail: int
    is_closed: bool
    content_type: bytes | None
    lifetime: Lifetime


class RefusalReason(Enum):
    """The reason for which a request was refused."""

    MISSING = auto()
    DELETED = auto()
    CLOSED = auto()
    CONTENT_TYPE_MISMATCH = auto()
    OUT_OF_ORDER = auto()
    STALE_EPOCH = auto()
    EPOCH_BEGINS_AT_ZERO = auto()
    GAP = auto()
    CONFLICT = auto()
    SOURCE_MISSING = auto()
    SOURCE_DELETED = auto()
    BEYOND_SOURCE = auto()


class DurableRefused(StreamReply, frozen=True, gc=False):
    """Nothing was done. `epoch` is the producer's current one, `expected` its next sequence."""

    reason: RefusalReason
    tail: int = 0
    epoch: int = 0
    expected: int = 0
