"""The context of channels: ids, limits and counters that those of one node share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from random import Random

import msgspec

from millpond.actors.channels.settings import NodeLimits
from millpond.actors.clock_jump import ClockJump
from millpond.actors.histogram import Histogram
from millpond.actors.ids import IdSource
from millpond.actors.messages import Mode
from millpond.actors.queue_settings import QueueTable
from millpond.actors.queue_stats import JOB_SECONDS, QueueStats
from millpond.actors.store.interface import Health, Usage


class DeliveryCounters(msgspec.Struct):
    """Counts of all channels since the start.

    `kept`: messages that were stored, dead letters among them. `pushes`: messages sent to a
    connection; `redeliveries` are those after a failed attempt. A push ends with one of `acks`, of
    `nacks`, of `timeouts` (no ack came in time) or of `lost` (its connection went), or its message
    goes. `expired` messages reached their deadline; `dead_letters` were given up. `late_acks`: of
    messages not there (PA-16). `teed`: appended to a stream that the channel feeds; `tee_refusals`:
    times that such a stream took nothing; `tee_missed`: messages that left meanwhile.
    """

    late_acks: int = 0
    kept: int = 0
    pushes: int = 0
    redeliveries: int = 0
    acks: int = 0
    nacks: int = 0
    timeouts: int = 0
    lost: int = 0
    expired: int = 0
    dead_letters: int = 0
    teed: int = 0
    tee_refusals: int = 0
    tee_missed: int = 0


QUEUES_COUNTED_MAX = 1000
"""The queues that have counters of their own: the first since the start."""


class QueueCounters:
    """The counters of each queue. Other channels count in `shared`, and so do queues beyond the
    first `QUEUES_COUNTED_MAX`. They stay until the node stops, whatever becomes of the queue."""

    def __init__(self, shared: DeliveryCounters) -> None:
        self.shared = shared
        self.by_name: dict[bytes, DeliveryCounters] = {}
        self.durations: dict[bytes, Histogram] = {}
        """Of attempts, from the push of a job until its worker has ended it."""

    def of(self, name: bytes, mode: Mode) -> DeliveryCounters:
        """The counters for a channel of this mode."""
        if mode is not Mode.QUEUE:
            return self.shared
        found = self.by_name.get(name)
        if found is None and len(self.by_name) < QUEUES_COUNTED_MAX:
            found = self.by_name[name] = DeliveryCounters()
            self.durations[name] = Histogram(JOB_SECONDS)
        return found or self.shared

    def stats_of(self, name: bytes) -> QueueStats | None:
        """The counts of a queue; None if it has none of its own."""
        counters = self.by_name.get(name)
        return None if counters is None else _stats([counters], [self.durations[name]])

    @property
    def stats(self) -> QueueStats:
        """The counts of all queues that are counted by themselves."""
        return _stats(self.by_name.values(), self.durations.values())

    @property
    def total(self) -> DeliveryCounters:
        """The counts of all channels."""
        every = [self.shared, *self.by_name.values()]
        return DeliveryCounters(
            *(
                sum(getattr(each, name) for each in every)
                for name in DeliveryCounters.__struct_fields__
            )
        )


def _stats(counters: Collection[DeliveryCounters], durations: Collection[Histogram]) -> QueueStats:
    return QueueStats(
        put=sum(each.kept for each in counters),
        done=sum(each.acks for each in counters),
        failed=sum(each.nacks for each in counters),
        lost=sum(each.timeouts + each.lost for each in counters),
        dead=sum(each.dead_letters for each in counters),
        durations=tuple(map(sum, zip(*(each.counts for each in durations), strict=True)))
        or QueueStats().durations,
        seconds=sum(each.total for each in durations),
    )


class TeeContext(msgspec.Struct):
    """State that tees share. `node_run`: a number of this run of the node, once one is needed.
    `logged_at`: the time of the last log line about a stream that refuses, by its cell."""

    node_run: int = 0
    logged_at: dict[bytes, float] = msgspec.field(default_factory=dict)


def _no_time() -> float:
    return inf


class ChannelContext(msgspec.Struct, frozen=True):
    """The parts that the channels of one node share. `now` is asked where a channel is built.

    `uncorrected` has the channels that may have deadlines of a time that was set back, until they
    are loaded. `created` has the modes of channels that were created, and `queue_table`
    the settings of queues; their catalog changes both.
    """

    ids: IdSource
    rng: Random
    usage: Usage
    limits: NodeLimits = NodeLimits()
    counters: DeliveryCounters = msgspec.field(default_factory=DeliveryCounters)
    health: Health = msgspec.field(default_factory=Health)
    tees: TeeContext = msgspec.field(default_factory=TeeContext)
    jump: ClockJump = msgspec.field(default_factory=ClockJump)
    now: Callable[[], float] = _no_time
    uncorrected: set[bytes] = msgspec.field(default_factory=set)
    created: dict[bytes, Mode] = msgspec.field(default_factory=dict)
    queues: QueueCounters | None = None
    durations: Histogram | None = None
    """The durations of attempts, of a queue that has counters of its own."""
    queue_table: QueueTable = msgspec.field(default_factory=QueueTable)

    def of_mode(self, name: bytes, mode: Mode) -> ChannelContext:
        """The context for a channel of this mode: a queue has its own counters."""
        if self.queues is None:
            return self
        counters = self.queues.of(name, mode)
        if counters is self.counters:
            return self
        durations = None if counters is self.queues.shared else self.queues.durations[name]
        return msgspec.structs.replace(self, counters=counters, durations=durations)


class ChannelInfo(msgspec.Struct, frozen=True):
    """A channel as the command `info` shows it."""

    name: bytes
    mode: str
    messages: int
    bytes: int
    keys: int
    leased: int
    connections: int
    credit: int
    subscribers: int = 0
    """Identities that get messages that are put while they are away (fanout)."""
