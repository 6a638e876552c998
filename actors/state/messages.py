"""Requests to state cells, and replies. Values are JSON, as they were written.

A reply shows every record that was stored in the stream when the request came.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millpond.actors.messages import StreamReply, StreamRequest

ENTRY_BYTES = 160
"""The size of a value besides its own bytes and those of its key, about
(docs/reference/state.md)."""
TYPE_BYTES = 400
"""The size of a type besides that."""
TYPES_MAX = 1000
"""A description names so many types."""


class DescribeState(StreamRequest, frozen=True, gc=False):
    """A request for the description. Answered by `StateDescribed`."""


class GetValue(StreamRequest, frozen=True, gc=False):
    """A request for one value. Answered by `Value`."""

    kind: str
    key: str


class ListValues(StreamRequest, frozen=True, gc=False):
    """Values in the order of their types and keys, from behind `after` on. Answered by `Values`.

    At most `count` of them and about `bytes_max` bytes, but at least one if there is any; `kind`:
    of this type only.
    """

    kind: str | None = None
    after: tuple[str, str] | None = None
    count: int = 1000
    bytes_max: int = 256 * 1024


class Value(StreamReply, frozen=True, gc=False):
    """One value; None: there is none. `position` is the sequence behind the last record read."""

    position: int
    value: bytes | None


Row = tuple[str, str, bytes]
"""Type, key and value."""


def size_of(rows: Iterable[Row]) -> int:
    """The bytes of the keys and values of rows; those of their types are few."""
    return sum([len(key) + len(value) for _, key, value in rows])


class Values(StreamReply, frozen=True, gc=False):
    """Rows of type, key and value; ask again behind the last one while there is `more`."""

    position: int
    rows: list[Row]
    more: bool


class StateInfo(msgspec.Struct, frozen=True):
    """A state by its counts. `position` is the sequence after its last record, `first` that of its
    first one. `types` has the number of keys of the first 1000 of `type_count` types; `bytes` is
    the memory that the state takes in the node. P2P sends it as a map.

    `rejected` counts records by reason. `unmatched` counts ends and beginnings of snapshots without
    the other, `missed` records that were trimmed before they were read.
    """

    position: int
    first: int
    types: dict[str, int]
    type_count: int
    bytes: int
    changes: int
    controls: int
    resets: int
    snapshots: int
    unmatched: int
    missed: int
    in_snapshot: bool
    rejected: dict[str, int]


class StateDescribed(StreamReply, frozen=True, gc=False):
    """The reply to `DescribeState`."""

    info: StateInfo


class CheckpointLoaded(StreamRequest, frozen=True, gc=False):
    """The checkpoint that was loaded for `port`; None: there is none."""

    port: object
    saved: object


class StateLimits(msgspec.Struct, frozen=True):
    """Limits of states. A state has `bytes_max` bytes at most, all of a node `node_bytes_max`; a
    larger one is given up, and refused for `retry_s` seconds. A state without queries for
    `idle_s` is given up as well. A query waits `wait_s` at most, and `waiting_max` of them do.
    All checkpoints have `disk_bytes_max` bytes (0: none are written), each is written after
    `save_every` records at least."""

    bytes_max: int = 64 * 2**20
    node_bytes_max: int = 256 * 2**20
    idle_s: float = 600.0
    retry_s: float = 60.0
    wait_s: float = 30.0
    waiting_max: int = 1000
    disk_bytes_max: int = 2**30
    save_every: int = 20_000
