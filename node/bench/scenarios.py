"""The rows of `millpond bench p2p`, and their choice by name."""

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
    """What the connections of a row do."""

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
    """What costs memory although nothing happens."""

    CHANNEL = "memory-channel"
    WAITING = "memory-waiting"
    CONNECTION = "memory-connection"


class MemoryRow(msgspec.Struct, frozen=True):
    """The node's memory for `count` idle things, each with a message of `size` bytes or none."""

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
    """The rows whose names match a shell pattern; a shape that is given replaces the usual ones."""
    shapes = product(Kind, _either(connections, CONNECTIONS), _either(pipeline, PIPELINES))
    loads = [Load(*shape, each) for shape in shapes for each in _either(size, SIZES)]
    footprints = [
        MemoryRow(Idle.CHANNEL, channels),
        MemoryRow(Idle.WAITING, channels, size or WAITING_SIZE),
        MemoryRow(Idle.CONNECTION, connections or IDLE_CONNECTIONS),
    ]
    everything: list[Row] = [*loads, *footprints]
    return [row for row in everything if fnmatchcase(row.name, pattern)]


def _either(given: int | None, usual: Sequence[int]) -> Sequence[int]:
    return usual if given is None else (given,)
