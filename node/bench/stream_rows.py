"""The rows of `millpond bench s3p` and `bench rustlog`, and their choice by name."""

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


USUAL = {
    StreamKind.APPEND: PIPELINES,
    StreamKind.BATCH: PIPELINES[:1],
    StreamKind.READ: PIPELINES[:1],
    StreamKind.TAIL: PIPELINES[:1],
}
"""Pipelines: where a request brings 100 records, or time is what counts, one is under way."""


class StreamLoad(msgspec.Struct, frozen=True):
    """A load: `pipeline` requests under way per connection, each connection with a stream of its
    own. In TAIL rows `connections` are pairs, one that appends and one that follows."""

    kind: StreamKind
    connections: int
    pipeline: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-c{self.connections}-p{self.pipeline}-{self.size}"

    @property
    def batch(self) -> int:
        """Records of a request."""
        return BATCH if self.kind in (StreamKind.BATCH, StreamKind.READ) else 1


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
        for kind in StreamKind
        for shape in product(
            _either(connections, CONNECTIONS), _either(pipeline, USUAL[kind]), _either(size, SIZES)
        )
    ]
    return [load for load in loads if fnmatchcase(load.name, pattern)]


def _either(given: int | None, usual: Sequence[int]) -> Sequence[int]:
    return usual if given is None else (given,)
