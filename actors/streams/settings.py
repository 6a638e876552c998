"""Limits of a stream, and the parts that all streams of a node share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import msgspec

from millpond.actors.clock_jump import ClockJump
from millpond.actors.messages import CellMessage
from millpond.actors.store.interface import Health, LogStore, Usage
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.record_cache import RecordCache
from millpond.actors.streams.subscription_index import SubscriptionIndex
from millpond.actors.streams.takeovers import Takeovers


class StreamLimits(msgspec.Struct, frozen=True):
    """Limits of a stream, where it was created with nothing else; docs/reference/limits.md.

    Records go when they are older than `age_s`, and the oldest ones when there are more than
    `keep_bytes` (0: never). A trim by a command record takes effect after `trim_grace_s` (0: at
    once). Above `bytes_max`, or above `node_bytes_max` of all streams together, appends are
    refused. `is_durable`: the store of this stream is a disk, which may fail.
    """

    age_s: int = 0
    keep_bytes: int = 0
    bytes_max: int = 2**30
    node_bytes_max: int = 2**32
    groups_max: int = 1000
    node_groups_max: int = 100_000
    trim_grace_s: float = 10.0
    is_durable: bool = False

    def take_group(self, groups: int, node_groups: int) -> bool:
        """True: one more group fits, of the stream and of the node."""
        return groups < self.groups_max and node_groups < self.node_groups_max


class StreamCounters(msgspec.Struct):
    """Counts of all streams since the start. `skipped`: records that a filter did not pass."""

    appended: int = 0
    skipped: int = 0
    trims: int = 0
    trimmed_bytes: int = 0


class StreamContext(msgspec.Struct, frozen=True):
    """The parts that the streams of a node share. `post` sends a message to a cell, in a later
    turn if that cell is at work."""

    store: LogStore
    post: Callable[[bytes, CellMessage], None]
    directory: Directory
    usage: Usage
    health: Health
    counters: StreamCounters = msgspec.field(default_factory=StreamCounters)
    record_cache: RecordCache = msgspec.field(default_factory=RecordCache)
    serials: Iterator[int] = msgspec.field(default_factory=partial(count, 1))
    jump: ClockJump = msgspec.field(default_factory=ClockJump)
    takeovers: Takeovers = msgspec.field(default_factory=Takeovers)
    subscriptions: SubscriptionIndex = msgspec.field(default_factory=SubscriptionIndex)
