"""The history of a run in order: of each channel, each node's clock, and each message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TypeVar

from millpond.actors.channels.settings import TTL_UNLIMITED
from millpond.actors.messages import Durability, Mode
from millpond.node.clock import CONFIRM_S, JUMP_S_MAX, STEP_S_MIN
from millpond.node.testing.time.world_clock import START_S
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.plan import OVERSLEEP_S, TTL_DEFAULT_S, ChannelPlan, Plan

Kind = TypeVar("Kind", bound=e.Event)

SYNCED_S = 1.6
"""Writes that nobody waits for are on the disk after this time (docs/internals/storage.md), with a
margin."""
RECOVERS_S = 2.0
"""After a failure of its disk a node needs so long until everything is as ever."""
FOLLOWS_S = 45.0
"""A node follows a clock that was set ahead within this time."""
STORES_S = 35.0
"""A node stores its time at least as often."""
LATE_S = 2.5
"""Bytes may be under way so long, and one end knows so much later than the other."""
ROUNDING_S = 1e-3
"""Times are numbers of seconds since 1970 in the nodes, and since the start in a history."""
PRODUCER, REJECT = 1, 0x31


class NodeClock:
    """The bounds of a node's time, ahead of the world's.

    A node goes on with its time when it starts again. After a boot of its machine that is the time
    that it stored last. It follows a wall clock that is ahead by little, and one that is far ahead
    after `confirm_s`; until then this is a jump, by which nothing may expire.
    """

    def __init__(self, confirm_s: float = CONFIRM_S) -> None:
        self._confirm_s = confirm_s
        self._at: list[float] = [-1.0]
        self._bounds: list[tuple[float, float]] = [(0.0, 0.0)]
        self._jumps: list[tuple[float, float, float]] = []
        """Jumps that may be pending: from when, to when, and seconds."""
        self._confirmed_at, self._skew = inf, 0.0
        self._halted_at: float | None = None

    def halt(self, at: float) -> None:
        """It is stopped, or its machine is."""
        self._halted_at = at

    def boot(self, at: float, skew: float, *, is_reboot: bool = False) -> None:
        """It looks at the clock on the wall."""
        self._confirm(at)
        low, high = self._bounds[-1]
        if self._halted_at is None:
            low = high = skew
        elif is_reboot:
            low -= at - self._halted_at + STORES_S
        self._set(at, (low, high))
        if skew - low <= JUMP_S_MAX:
            self._set(at, (max(low, skew - STEP_S_MIN), max(high, skew)))
        else:
            self._jump(at, skew)

    def skewed(self, at: float, skew: float) -> None:
        """It follows, but never back."""
        self._confirm(at)
        self._jump(at, skew)

    def low(self, at: float) -> float:
        """The node's time is at least this, in seconds since the world began."""
        return at + self._bounds[bisect_right(self._at, at) - 1][0]

    def high(self, at: float) -> float:
        """And at most this."""
        self._confirm(at)
        return at + self._bounds[bisect_right(self._at, at) - 1][1]

    def highest(self, until: float) -> float:
        """The latest time that it showed: a clock that was ahead may have been set back since."""
        self._confirm(until)
        changes = zip(self._at, [*self._at[1:], inf], self._bounds, strict=True)
        return max(min(end, until) + high for at, end, (_, high) in changes if at <= until)

    def deadline_high(self, at: float) -> float:
        """Deadlines count at most from this: during a jump they are later by it."""
        jumps = [jump for since, until, jump in self._jumps if since <= at <= until]
        return self.high(at) + max(jumps, default=0.0)

    @property
    def is_steady(self) -> bool:
        """Was it never set?"""
        return not self._jumps and len(set(self._bounds)) == 1

    def _jump(self, at: float, skew: float) -> None:
        low, high = self._bounds[-1]
        may_follow = skew - high <= JUMP_S_MAX
        self._set(at, (low, max(high, skew) if may_follow else high))
        self._jumps = [
            (since, min(until, at + FOLLOWS_S), jump) for since, until, jump in self._jumps
        ]
        if skew - low > JUMP_S_MAX:
            self._jumps.append((at, inf, skew - low))
            self._confirmed_at, self._skew = at + self._confirm_s, skew
        else:
            self._confirmed_at = inf

    def _confirm(self, at: float) -> None:
        """From here on it may have been confirmed."""
        if at >= self._confirmed_at:
            low, high = self._bounds[-1]
            self._set(self._confirmed_at, (low, max(high, self._skew)))
            self._confirmed_at = inf

    def _set(self, at: float, bounds: tuple[float, float]) -> None:
        self._at.append(at)
        self._bounds.append(bounds)


def troubles_of(
    events: Iterable[e.Event | ce.ClientEvent], recovers_s: float = RECOVERS_S
) -> list[tuple[float, float]]:
    """The spans of time with disk faults, and shortly after; from the events of one node."""
    found: list[tuple[float, float]] = []
    began: float | None = None
    for event in events:
        match event:
            case e.Trouble():
                began = event.at if began is None else began
            case e.Sound() if began is not None:
                found.append((began, event.at + recovers_s))
                began = None
            case _:
                pass
    if began is not None:
        found.append((began, inf))
    return found


@dataclass(eq=False)
class Connection:
    """A client's connection. `until`: when the node knew that it was gone."""

    conn: int
    who: str
    role: int
    identity: bytes
    boot: int
    window: int = 0
    ready_at: float = inf
    until: float = inf

    @property
    def receives(self) -> bool:
        """May it be pushed anything?"""
        return self.role != PRODUCER


@dataclass(eq=False)
class Message:
    """A message that was put. Deadlines are in the node's time (`NodeClock`)."""

    data: bytes
    ids: dict[int, None] = field(default_factory=dict)
    puts: list[e.Put] = field(default_factory=list)
    kept: list[e.Kept] = field(default_factory=list)
    expires_low: float = inf
    expires_high: float = 0.0


@dataclass(eq=False)
class ChannelHistory:
    """The history of one channel. `plan` is None for dead letters and for channels of jobs."""

    node: str
    name: str
    mode: Mode
    durability: Durability
    lease_s: float
    attempts_max: int
    ttl_s: int
    clock: NodeClock
    plan: ChannelPlan | None
    events: list[e.Event] = field(default_factory=list)
    connections: dict[int, Connection] = field(default_factory=dict)
    messages: dict[bytes, Message] = field(default_factory=dict)
    by_id: dict[int, Message] = field(default_factory=dict)
    dead: ChannelHistory | None = None
    pushes: dict[int, list[e.Push]] = field(default_factory=dict)
    first_seen: dict[int, float] = field(default_factory=dict)
    """The time at which an id was first seen."""
    by_key: dict[int, Message] = field(default_factory=dict)
    oversleep_s: float = 0.0
    """Where the process oversleeps, everything may be so much later than it should."""

    def of(self, kind: type[Kind]) -> Iterator[Kind]:
        """Its events of one kind."""
        return (event for event in self.events if isinstance(event, kind))

    def say(self, event: e.Event, text: str) -> str:
        """A finding."""
        return f"{event.at:.3f} {self.node}/{self.name}: {text}"

    @property
    def synced_s(self) -> float:
        return SYNCED_S + self.oversleep_s

    @property
    def recovers_s(self) -> float:
        return RECOVERS_S + self.oversleep_s

    def may_be_lost(self, since: float, until: float = inf) -> bool:
        """May what was promised at `since` be gone since some stop up to `until`?"""
        troubled = False
        for event in self.events:
            match event:
                case e.Trouble(at=at):
                    troubled = True
                case e.Sound(at=at) if at < since:
                    troubled = False
                case e.Halt(at=at, how=how) if since <= at <= until:
                    if self.durability is Durability.MEMORY:
                        return True
                    if self.durability is Durability.OS and how != "stop":
                        if troubled or (how == "power" and at <= since + self.synced_s):
                            return True
                case _:
                    pass
        return False

    def soft_may_be_lost(self, since: float, halt: e.Halt) -> bool:
        """May what nobody waited for, said at `since`, be unknown after this stop?"""
        if self.durability is Durability.MEMORY:
            return True
        if halt.how == "stop":
            return self.has_trouble(since - self.synced_s, halt.at)
        return halt.at < since + self.synced_s or self.has_trouble(since - self.synced_s, halt.at)

    @cached_property
    def troubles(self) -> list[tuple[float, float]]:
        """The spans of time with faults of the node's disk, and shortly after."""
        return troubles_of(self.events, self.recovers_s)

    @cached_property
    def refused_reads(self) -> set[tuple[int, float]]:
        """By connection and time: what came in one read with a put that could not be kept was
        refused with it (docs/internals/storage.md)."""
        put_at: dict[tuple[int, int], float] = {}
        found = set()
        for event in self.events:
            match event:
                case e.Put(conn=conn, key=key, at=at):
                    put_at[conn, key] = at
                case e.Refused(type=6, code=0xE1, conn=conn, correlation=key):
                    found.add((conn, put_at[conn, key]))
                case _:
                    pass
        return found

    def may_have_expired(self, data: bytes) -> bool:
        """May the dead letter with this data be one because its deadline had passed?"""
        assert self.dead is not None
        seen = [self.dead.first_seen[id] for id in self.dead.messages[data].ids]
        at = self.clock.highest(max(seen, default=0.0)) + ROUNDING_S
        return at >= self.messages[data].expires_low

    def has_trouble(self, since: float, until: float) -> bool:
        """Did the disk fail, or hang, in this time?"""
        return any(began <= until and since <= over for began, over in self.troubles)

    def meant_at(self, at: float) -> float:
        """When, at the earliest, the node decided on what it said at this time: what waits for a
        commit is held up by a disk that hangs."""
        return min([began for began, over in self.troubles if began <= at <= over], default=at)


class History:
    """The history of a world, channel by channel. `end`: when no client was left."""

    def __init__(self, plan: Plan, seen: Iterable[e.Event | ce.ClientEvent]) -> None:
        self.plan = plan
        self.seen = list(seen)
        self.client_events = [each for each in self.seen if isinstance(each, ce.ClientEvent)]
        confirm_s: float = plan.settings.get("clock_confirm_s", CONFIRM_S)
        self.clocks = {name: NodeClock(confirm_s) for name in plan.nodes}
        self.channels: dict[tuple[str, str], ChannelHistory] = {}
        self.end = self.seen[-1].at if self.seen else 0.0
        self.oversleep_s = OVERSLEEP_S if plan.oversleeps else 0.0
        self.late_s = LATE_S + self.oversleep_s
        self._conns: dict[int, ChannelHistory] = {}
        self._boots = dict.fromkeys(plan.nodes, 0)
        self._life: dict[str, list[e.Event]] = {name: [] for name in plan.nodes}
        for channel in plan.channels:
            channel_history = self._plan_channel(channel)
            dead = self._channel(
                channel.node, f"{channel.name}!dead", Mode.PAIR, channel_history.durability
            )
            channel_history.dead = dead
        for jobs in (*plan.jobs, *plan.flows):
            name = f"jobs/{jobs.name}"
            channel_history = self._channel(jobs.node, name, Mode.QUEUE, jobs.durability)
            channel_history.dead = self._channel(
                jobs.node, f"{name}!dead", Mode.PAIR, jobs.durability
            )
        self._tell_all()

    def _plan_channel(self, channel: ChannelPlan) -> ChannelHistory:
        channel_history = self._channel(
            channel.node, channel.name, channel.mode, channel.durability
        )
        channel_history.plan = channel
        channel_history.lease_s = channel.rule.lease or 30.0
        channel_history.attempts_max = channel.rule.attempts or 10
        channel_history.ttl_s = channel.rule.ttl or channel_history.ttl_s
        return channel_history

    def _channel(self, node: str, name: str, mode: Mode, durability: Durability) -> ChannelHistory:
        clock = self.clocks[node]
        ttl_s = self.plan.settings.get("ttl_default_s", TTL_DEFAULT_S)
        if mode is Mode.QUEUE:
            ttl_s = TTL_UNLIMITED
        channel = ChannelHistory(node, name, mode, durability, 30.0, 10, ttl_s, clock, None)
        channel.oversleep_s = self.oversleep_s
        self.channels[node, name] = channel
        return channel

    def _tell_all(self) -> None:
        for each in self.seen:
            match each:
                case e.Boot():
                    self._boots[each.node] += 1
                    self.clocks[each.node].boot(each.at, each.skew, is_reboot=each.is_reboot)
                    self._tell_node(each)
                case e.Skewed():
                    self.clocks[each.node].skewed(each.at, each.skew)
                    self._tell_node(each)
                case e.Halt():
                    self.clocks[each.node].halt(each.at)
                    self._tell_node(each)
                    self._end_connections(each)
                case e.Trouble() | e.Sound():
                    self._tell_node(each)
                case e.Hello():
                    self._enter(each)
                case e.Wired():
                    self._tell_wired(each)
                case _:
                    pass

    def _tell_node(self, event: e.Event) -> None:
        for (node, _), channel in self.channels.items():
            if node == event.node:
                channel.events.append(event)

    def _end_connections(self, halt: e.Halt) -> None:
        for conn, channel in list(self._conns.items()):
            if channel.node == halt.node:
                connection = channel.connections[conn]
                connection.until = min(connection.until, halt.at)
                del self._conns[conn]

    def _enter(self, hello: e.Hello) -> None:
        channel = self.channels.get((hello.node, hello.channel.decode("latin-1")))
        if channel is None or hello.conn in self._conns:
            return
        self._conns[hello.conn] = channel
        channel.connections[hello.conn] = Connection(
            hello.conn, hello.who, hello.role, hello.identity, self._boots[hello.node]
        )
        channel.events.append(hello)

    def _tell_wired(self, event: e.Wired) -> None:
        channel = self._conns.get(event.conn)
        if channel is None and isinstance(event, e.Missed):
            self._miss(event)
        if channel is None:
            return
        channel.events.append(event)
        connection = channel.connections[event.conn]
        match event:
            case e.Ready():
                connection.window, connection.ready_at = event.window, event.at
            case e.Closed():
                connection.until = event.at
                del self._conns[event.conn]
            case e.Put():
                message = channel.messages.setdefault(event.data, Message(event.data))
                message.puts.append(event)
                channel.by_key[event.key] = message
                self._bound(channel, message, event)
            case e.Kept():
                self._kept(channel, event)
            case e.Push():
                self._pushed(channel, event)
                channel.pushes.setdefault(event.id, []).append(event)
            case _:
                pass

    def _miss(self, missed: e.Missed) -> None:
        for channel in self.channels.values():
            if missed.conn in channel.connections:
                channel.events.append(missed)
                self._pushed(channel, missed)

    def _pushed(self, channel: ChannelHistory, push: e.Push | e.Missed) -> None:
        message = channel.messages.setdefault(push.data, Message(push.data))
        message.ids[push.id] = None
        channel.by_id[push.id] = message
        channel.first_seen.setdefault(push.id, push.at)

    def _bound(self, channel: ChannelHistory, message: Message, put: e.Put) -> None:
        ttl = put.ttl or channel.ttl_s
        due = put.due - START_S if put.due else 0.0
        message.expires_low = min(message.expires_low, max(channel.clock.low(put.at), due) + ttl)
        message.expires_high = max(
            message.expires_high, max(channel.clock.deadline_high(put.at), due) + ttl
        )

    def _kept(self, channel: ChannelHistory, kept: e.Kept) -> None:
        message = channel.by_key[kept.key]
        message.ids[kept.id] = None
        message.kept.append(kept)
        channel.by_id[kept.id] = message
        channel.first_seen.setdefault(kept.id, kept.at)
