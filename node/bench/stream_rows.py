"""The rows of `millpond bench s3p`, `bench rustlog` and `bench s2`, and their choice by name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import product

import msgspec

CONNECTIONS, PIPELINES, SIZES = (1, 50), (1, 16, 64), (100, 1024)
BATCH = 100
"""Records of an append that brings many, and at most those of a read."""


class StreamKind(StrEnum):
    """What the connections of a row do."""

    APPEND = "append"
    BATCH = "batch"
    READ = "read"
    TAIL = "tail"
    SESSION = "session"
    CATCHUP = "catchup"


KINDS = (StreamKind.APPEND, StreamKind.BATCH, StreamKind.READ, StreamKind.TAIL)
"""Those of every protocol; the others need sessions."""

USUAL = {
    StreamKind.APPEND: PIPELINES,
    StreamKind.BATCH: PIPELINES[:1],
    StreamKind.READ: PIPELINES[:1],
    StreamKind.TAIL: PIPELINES[:1],
}
"""Pipelines: where a request brings 100 records, or time is what counts, one is under way."""


class StreamLoad(msgspec.Struct, frozen=True):
    """A load: `pipeline` requests under way per connection, each connection with a stream of its
    own. In TAIL rows `connections` are pairs, one that appends and one that follows. `records`:
    how many a request has where its kind does not say so."""

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
    """The rows whose names match a shell pattern; a shape that is given replaces the usual ones."""
    loads = [
        StreamLoad(kind, *shape)
        for kind in KINDS
        for shape in product(
            _either(connections, CONNECTIONS), _either(pipeline, USUAL[kind]), _either(size, SIZES)
        )
    ]
    return [load for load in loads if fnmatchcase(load.name, pattern)]


WINDOW = 32
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
    """The same for S2. Of requests only one is under way on a connection: that is HTTP/1.1."""
    loads: list[StreamLoad] = []
    for kind, usual in S2_CONNECTIONS.items():
        windows: Sequence[int] = (1,)
        if kind in (StreamKind.SESSION, StreamKind.TAIL):
            windows = _either(pipeline, (WINDOW if kind is StreamKind.SESSION else 1,))
        sizes = SIZES if kind in (StreamKind.APPEND, StreamKind.CATCHUP) else SIZES[1:]
        many = {StreamKind.SESSION: SESSION_RECORDS, StreamKind.CATCHUP: (CATCHUP_RECORDS,)}
        shapes = product(_either(connections, usual), windows, _either(size, sizes))
        loads += [
            StreamLoad(kind, *shape, records)
            for shape in shapes
            for records in many.get(kind, (0,))
        ]
    return [load for load in loads if fnmatchcase(load.name, pattern)]


def _either(given: int | None, usual: Sequence[int]) -> Sequence[int]:
    return usual if given is None else (given,)
