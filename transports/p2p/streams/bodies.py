"""Bodies of packets 0x92 and 0x93: the operations about streams, requests and answers as maps.

All are MessagePack; docs/reference/wire-protocol.md has the table. Fields with a default may be
left out. Sequences, timestamps (milliseconds) and the parts of ids are u64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from millpond.actors.positions import Position
from millpond.actors.streams.durable.messages import is_content_type
from millpond.actors.streams.messages import Headers, RecordColumns, Settings

NAME_BYTES_MAX = 1024
RECORDS_MAX = 1000
HEADERS_MAX = 32_768
"""Headers of all records of an append."""
CONTENT_TYPE_BYTES_MAX = 1024
READ_BYTES = 256 * 1024
PAGE = 1000
WAIT_MS_MAX = 60_000

U64 = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[bytes, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
TopicName = Annotated[bytes, msgspec.Meta(min_length=1, max_length=255)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Group = Annotated[bytes, msgspec.Meta(max_length=NAME_BYTES_MAX)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE)]
Bodies = Annotated[list[bytes], msgspec.Meta(min_length=1)]
Timestamps = list[U64 | None]
NIL = msgspec.Raw(b"\xc0")


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


# Requests.


class CreateBody(_Body, frozen=True):
    """CREATE and CONFIGURE. None: the setting of the node's configuration."""

    stream: Name
    age_s: Positive | None = None
    bytes_max: Positive | None = None
    content_type: Annotated[bytes, msgspec.Meta(max_length=CONTENT_TYPE_BYTES_MAX)] | None = None

    def __post_init__(self) -> None:
        if self.content_type is not None and not is_content_type(self.content_type):
            raise ValueError(f"{self.content_type!r} is no content type")

    @property
    def settings(self) -> Settings:
        return Settings(self.age_s, self.bytes_max, self.content_type)


class AppendBody(_Body, frozen=True):
    """`headers` and `timestamps`: nil, or one for each body."""

    stream: Name
    bodies: Bodies
    ms: U64 | None = None
    headers: list[Headers] | None = None
    timestamps: Timestamps | None = None
    fence: bytes | None = None
    match: U64 | None = None


class EncodedAppendBody(_Body, frozen=True):
    """An AppendBody whose columns are not decoded yet: their lengths are checked before. A small
    part of a byte or two takes 60 bytes and more once it is decoded."""

    stream: Name
    bodies: msgspec.Raw
    ms: U64 | None = None
    headers: msgspec.Raw = NIL
    timestamps: msgspec.Raw = NIL
    fence: bytes | None = None
    match: U64 | None = None


def array_length(value: msgspec.Raw) -> int | None:
    """The number of elements of an encoded array; None: it is no array."""
    head = bytes(memoryview(value)[:5])
    match head[0]:
        case 0xDC:
            return int.from_bytes(head[1:3], "big")
        case 0xDD:
            return int.from_bytes(head[1:5], "big")
        case first if first & 0xF0 == 0x90:
            return first & 0x0F
        case _:
            return None


class ReadBody(_Body, frozen=True):
    """At most one of `timestamp` and `id`, which then count instead of `sequence`."""

    stream: Name
    sequence: U64 = 0
    timestamp: U64 | None = None
    id: Position | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=RECORDS_MAX)] = 100
    bytes_max: Positive = READ_BYTES
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 0


class StreamBody(_Body, frozen=True):
    """DESCRIBE and DELETE."""

    stream: Name


class TrimBody(_Body, frozen=True):
    """Below an id, if there is one, else below a sequence."""

    stream: Name
    sequence: U64 = 0
    id: Position | None = None


class CommitBody(_Body, frozen=True):
    """COMMIT."""

    stream: Name
    group: Group
    offset: U64


class CommittedBody(_Body, frozen=True):
    """COMMITTED."""

    stream: Name
    group: Group


class ListBody(_Body, frozen=True):
    """Names above `after` that begin with `prefix`."""

    prefix: bytes = b""
    after: bytes = b""
    limit: Limit = PAGE


class CreateTopicBody(_Body, frozen=True):
    """CREATE_TOPIC."""

    topic: TopicName
    partitions: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class DeleteTopicBody(_Body, frozen=True):
    """DELETE_TOPIC."""

    topic: TopicName


class ListTopicsBody(_Body, frozen=True):
    """Only `topic`, or all those above `after`."""

    topic: TopicName | None = None
    after: bytes = b""
    limit: Limit = PAGE


# Answers. An answer without fields is an empty map.


class AppendedBody(msgspec.Struct, frozen=True):
    """`id` and `timestamp` are the last record's."""

    first: int
    count: int
    id: Position
    first_timestamp: int
    timestamp: int


class RecordsBody(msgspec.Struct, frozen=True):
    """Go on at sequence `next`; `tail` and `last_timestamp` are the stream's."""

    spans: Sequence[RecordColumns]
    next: int
    tail: int
    last_timestamp: int


class OffsetBody(msgspec.Struct, frozen=True):
    """The offset that the group committed; nil: none."""

    offset: int | None


class NamesBody(msgspec.Struct, frozen=True):
    """A page of names, in their order."""

    names: list[bytes]
    more: bool


class TopicsBody(msgspec.Struct, frozen=True):
    """A page of topics with their partitions, in the order of their names."""

    topics: list[tuple[bytes, int]]
    more: bool


EMPTY = b"\x80"
"""The map without fields."""
