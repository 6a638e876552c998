"""The plan of one seed: nodes, clients, faults and their times. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from millpond.actors.messages import Durability, Mode
from millpond.node.config_rules import ChannelRule, StreamRule

Kind = Literal["channels", "jobs", "streams", "mail", "mixed", "tees", "flows"]
Fault = Literal[
    "partition", "reset", "stall", "latency", "split", "disk", "full", "hang", "crash", "power",
    "stop", "skew", "flaw",
]  # fmt: skip
Protocol = Literal["stream", "s3p", "rustlog"]

TTL_DEFAULT_S = 86_400
GRACE_S_MAX = 60.0
"""The longest grace of trims: no connection is cut for so long."""
OVERSLEEP_S = 3.0
"""The longest pause of an overloaded process, in seconds."""
KEPT = "kept"
"""In place of a call: right when the node has told somebody that it keeps a message."""


@dataclass(frozen=True)
class Habits:
    """The behaviour of a consumer. Chances are for each message, `think_s` is at most.

    `sleeps`: keeps messages without a word. `hangs_up`: says goodbye; `dies`: does not.
    `puts`: puts one of its own, which it is not handed itself.
    """

    think_s: float = 0.0
    nacks: float = 0.0
    delay_s: float = 0.0
    rejects: float = 0.0
    touches: float = 0.0
    sleeps: float = 0.0
    hangs_up: float = 0.0
    dies: float = 0.0
    puts: float = 0.0
    batch: int = 1


@dataclass(frozen=True)
class ConsumerPlan:
    """`known`: it has an identity. `credits`: window 0, and grants credit by and by."""

    who: str
    window: int
    habits: Habits
    known: bool
    credits: bool = False


@dataclass(frozen=True)
class ProducerPlan:
    """Puts `count` messages, `gap_s` apart at most; `burst` at a time without waiting.

    `sizes`: how many bytes each may be long, besides its name.
    """

    who: str
    count: int
    gap_s: float
    burst: int
    ttls: tuple[int, ...]
    again: float
    known: bool
    sizes: tuple[int, ...] = (0, 0, 100, 3000)


@dataclass(frozen=True)
class ChannelPlan:
    """A channel at one node, with its clients."""

    node: str
    name: str
    rule: ChannelRule
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    is_inspected: bool

    @property
    def mode(self) -> Mode:
        assert self.rule.mode is not None
        return self.rule.mode

    @property
    def durability(self) -> Durability:
        assert self.rule.durability is not None
        return self.rule.durability


@dataclass(frozen=True)
class JobsPlan:
    """A queue, its workers and what its handlers do."""

    node: str
    name: str
    durability: Durability
    jobs: int
    gap_s: float
    workers: int
    concurrency: int
    lease_s: float
    attempts: int
    fails: float
    retries: float
    rejects: float
    hangs: float
    work_s: float
    restarts: float
    waits: float
    due: float
    unique: float
    cancels: float
    ttls: tuple[int, ...] = (0,)
    is_operated: bool = False
    """Jobs have priorities and limit keys; limits and pauses of the queue change."""


@dataclass(frozen=True)
class FlowStepPlan:
    """A step, which waits for the steps at these places. `feeds`: their results are its payload.
    `keep_s`: so long the node keeps its result for others."""

    after: tuple[int, ...]
    on_failure: Literal["fail", "ignore", "wait"]
    feeds: bool
    keep_s: int


@dataclass(frozen=True)
class SchedulePlan:
    """A schedule with an interval. `ends_s`: it is deleted then, whatever fails; None: when
    everything works again."""

    name: str
    every_s: int
    missed: Literal["skip", "one", "all"]
    ends_s: float | None = None


@dataclass(frozen=True)
class FlowsPlan:
    """A queue with flows and schedules, its workers and what its handlers do."""

    node: str
    name: str
    durability: Durability
    flows: tuple[tuple[FlowStepPlan, ...], ...]
    schedules: tuple[SchedulePlan, ...]
    gap_s: float
    workers: int
    concurrency: int
    lease_s: float
    attempts: int
    fails: float
    rejects: float
    hangs: float
    work_s: float
    restarts: float
    cancels: float
    retries: float


@dataclass(frozen=True)
class StreamPlan:
    """A stream, with its writers and followers.

    `age_s` 0: records do not expire. `is_stamped`: writers give timestamps, long ago or far ahead.
    `ends`: the share of appends that end with a trim of all before it and with a fence. `workers`
    claim the wakes of a subscription to it, which names it or has a pattern.
    """

    node: str
    name: str
    protocol: Protocol
    durability: Durability
    writers: int
    appends: int
    batch: int
    gap_s: float
    readers: int
    age_s: int | None = None
    is_stamped: bool = False
    ends: float = 0.0
    workers: int = 0
    lease_s: float = 2.0
    is_pattern: bool = False


@dataclass(frozen=True)
class MailPlan:
    """Sealed messages from one node to another."""

    source: str
    target: str
    count: int
    gap_s: float


@dataclass(frozen=True)
class FaultPlan:
    """`b` where two are concerned; `much` is seconds of latency or skew; of a flaw, that the disk
    hangs before it fails."""

    at: float
    kind: Fault
    a: str
    b: str
    lasts_s: float
    much: float = 0.0
    call: str = ""


@dataclass(frozen=True)
class Plan:
    """A world."""

    kind: Kind
    nodes: tuple[str, ...]
    linked: bool
    settings: dict[str, Any]
    channels: tuple[ChannelPlan, ...] = ()
    jobs: tuple[JobsPlan, ...] = ()
    flows: tuple[FlowsPlan, ...] = ()
    streams: tuple[StreamPlan, ...] = ()
    mail: tuple[MailPlan, ...] = ()
    faults: tuple[FaultPlan, ...] = ()
    lasts_s: float = 30.0
    split: bool = False
    latency_s: float = 0.0
    forgets: bool = False
    oversleeps: bool = False
    """Now and then the whole process oversleeps, while messages are under way."""

    @property
    def queues(self) -> list[tuple[str, str]]:
        """Node and name of the channels in queue mode, those of jobs among them."""
        found = [(each.node, each.name) for each in self.channels if each.mode is Mode.QUEUE]
        return found + [(each.node, f"jobs/{each.name}") for each in (*self.jobs, *self.flows)]

    def mode_of(self, node: str, channel: str) -> Mode | None:
        """The mode of a channel of the plan."""
        for each in self.channels:
            if (each.node, each.name) == (node, channel):
                return each.mode
        return None

    def rules(self, node: str) -> tuple[ChannelRule, ...]:
        """Of the channels of a node."""
        queues = [
            ChannelRule(f"jobs/{each.name}", Mode.QUEUE, durability=each.durability)
            for each in (*self.jobs, *self.flows)
            if each.node == node
        ]
        return (*(each.rule for each in self.channels if each.node == node), *queues)

    def stream_rules(self, node: str) -> tuple[StreamRule, ...]:
        """Of its streams."""
        return tuple(
            StreamRule(each.name, durability=each.durability)
            for each in self.streams
            if each.node == node
        )


@dataclass
class ClientNames:
    """The names of client programs, and the node of each."""

    rng: Random
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def name(self, stem: str, node: str) -> str:
        """A new name."""
        who = f"{stem}{len(self.pairs)}"
        self.pairs.append((who, node))
        return who
