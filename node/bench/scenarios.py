"""The rows of `millpond bench p2p`, `s3p`, `rustlog` and `s2`, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product

import msgspec

CONNECTIONS, PIPELINES, SIZES = (1, 50), (1, 16), (100, 1024)
CHANNELS, IDLE_CONNECTIONS, WAITING_SIZE = 10_000, 200, 100
PIPELINE_MAX = 2**16 - 1


class Kind(StrEnum):
    """The work of the connections of a row."""

    PUT = "put"
    PUSH = "push"
    FANOUT = "fanout"


class Load(msgspec.Struct, frozen=True):
    """A load: `pipeline` messages of `size` bytes in flight, per connection that puts.

    `connections` put in PUT, are pairs in PUSH, and subscribe to one channel in FANOUT.
    """

    kind: Kind
    connections: int
    pipeline: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-c{self.connections}-p{self.pipeline}-{self.size}"


class Idle(StrEnum):
    """An idle thing that costs memory."""

    CHANNEL = "memory-channel"
    WAITING = "memory-waiting"
    CONNECTION = "memory-connection"


class MemoryRow(msgspec.Struct, frozen=True):
    """A row of memory: `count` idle things, each with a message of `size` bytes or none."""

    idle: Idle
    count: int
    size: int = 0

    @property
    def name(self) -> str:
        return self.idle.value


Row = Load | MemoryRow


def rows(
    pattern: str = "*",
    *,
    connections: int | None = None,
    pipeline: int | None = None,
    size: int | None = None,
    channels: int = CHANNELS,
) -> list[Row]:
    """The rows of P2P whose names match a shell pattern; a given shape replaces the usual ones."""
    shapes = product(Kind, _either(connections, CONNECTIONS), _either(pipeline, PIPELINES))
    loads = [Load(*shape, each) for shape in shapes for each in _either(size, SIZES)]
    footprints = [
        MemoryRow(Idle.CHANNEL, channels),
        MemoryRow(Idle.WAITING, channels, size or WAITING_SIZE),
        MemoryRow(Idle.CONNECTION, connections or IDLE_CONNECTIONS),
    ]
    everything: list[Row] = [*loads, *footprints]
    return [row for row in everything if fnmatchcase(row.name, pattern)]


STREAM_CONNECTIONS, STREAM_PIPELINES, STREAM_SIZES = (1, 50), (1, 16, 64), (100, 1024)
BATCH = 100
"""Records of a large append, and at most those of a read."""


class StreamKind(StrEnum):
    """The work of the connections of a row."""

    APPEND = "append"
    BATCH = "batch"
    READ = "read"
    TAIL = "tail"
    SESSION = "session"
    CATCHUP = "catchup"


KINDS = (StreamKind.APPEND, StreamKind.BATCH, StreamKind.READ, StreamKind.TAIL)
"""The kinds of every protocol; the others need sessions."""

USUAL = {
    StreamKind.APPEND: STREAM_PIPELINES,
    StreamKind.BATCH: STREAM_PIPELINES[:1],
    StreamKind.READ: STREAM_PIPELINES[:1],
    StreamKind.TAIL: STREAM_PIPELINES[:1],
}
"""Pipelines by kind: one request under way where it has 100 records or its latency counts."""


class StreamLoad(msgspec.Struct, frozen=True):
    """A load: `pipeline` requests under way per connection, each connection with its own stream.

    In TAIL rows `connections` are pairs, one that appends and one that follows. `records` are those
    of a request, where its kind does not say so.
    """

    kind: StreamKind
    connections: int
    pipeline: int
    size: int
    records: int = 0

    @property
    def name(self) -> str:
        many = f"x{self.records}-" if self.records else ""
        return f"{self.kind}-c{self.connections}-p{self.pipeline}-{many}{self.size}"

    @property
    def batch(self) -> int:
        """Records of a request."""
        usual = BATCH if self.kind in (StreamKind.BATCH, StreamKind.READ) else 1
        return self.records or usual


def stream_rows(
    pattern: str = "*",
    *,
    connections: int | None = None,
    pipeline: int | None = None,
    size: int | None = None,
) -> list[StreamLoad]:
    """The rows of S3P and RustLog whose names match a shell pattern."""
    loads = [
        StreamLoad(kind, *shape)
        for kind in KINDS
        for shape in product(
            _either(connections, STREAM_CONNECTIONS),
            _either(pipeline, USUAL[kind]),
            _either(size, STREAM_SIZES),
        )
    ]
    return [load for load in loads if fnmatchcase(load.name, pattern)]


SESSION_PIPELINE = 32
"""Appends that a session of S2 has under way."""
SESSION_RECORDS, CATCHUP_RECORDS = (10, 100), 2000
S2_CONNECTIONS = {
    StreamKind.APPEND: (1, 50),
    StreamKind.BATCH: (1, 10),
    StreamKind.READ: (1, 10),
    StreamKind.SESSION: (1, 10),
    StreamKind.CATCHUP: (1, 20),
    StreamKind.TAIL: (1, 20),
}


def s2_rows(
    pattern: str = "*",
    *,
    connections: int | None = None,
    pipeline: int | None = None,
    size: int | None = None,
) -> list[StreamLoad]:
    """The rows of S2. HTTP/1.1 has only one request under way on a connection."""
    loads: list[StreamLoad] = []
    for kind, usual in S2_CONNECTIONS.items():
        pipelines: Sequence[int] = (1,)
        if kind in (StreamKind.SESSION, StreamKind.TAIL):
            pipelines = _either(pipeline, (SESSION_PIPELINE if kind is StreamKind.SESSION else 1,))
        sizes = (
            STREAM_SIZES if kind in (StreamKind.APPEND, StreamKind.CATCHUP) else STREAM_SIZES[1:]
        )
        many = {StreamKind.SESSION: SESSION_RECORDS, StreamKind.CATCHUP: (CATCHUP_RECORDS,)}
        shapes = product(_either(connections, usual), pipelines, _either(size, sizes))
        loads += [
            StreamLoad(kind, *shape, records)
            for shape in shapes
            for records in many.get(kind, (0,))
        ]
    return [load for load in loads if fnmatchcase(load.name, pattern)]


def _either(given: int | None, usual: Sequence[int]) -> Sequence[int]:
    return usual if given is None else (given,)
