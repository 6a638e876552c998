"""One connection at a time holds a message of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from millpond.actors.messages import Mode
from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, History

GROWTH, JITTER_LOW, LONGEST_S = 1.5, 0.8, 600.0
RETRY, REJECT, CANCEL = 4, 9, 5
STORAGE_FAILED = 0xE1
SLACK_S = 0.002


@dataclass
class Holder:
    """A lease: its holder, and its earliest end in the node's time."""

    conn: int
    at: float
    until: float


def shortest_s(channel: ChannelHistory, attempt: int) -> float:
    """The shortest lease of an attempt (docs/reference/wire-protocol.md, Delivery: growing, with
    chance)."""
    lease_s = channel.lease_s * GROWTH ** min(max(attempt, 1) - 1, 20)
    return JITTER_LOW * min(lease_s, max(LONGEST_S, channel.lease_s))


def check(history: History) -> Iterator[str]:
    """PS-02: competing consumers; a nacked message waits for its retry delay."""
    for channel in history.channels.values():
        if channel.mode is not Mode.PAIR:  # there the others' leases on it end as well
            yield from _check_retry_delays(channel)
        if channel.mode is Mode.QUEUE:
            yield from _check(channel)
        yield from _check_missed(channel)


def _check_missed(channel: ChannelHistory) -> Iterator[str]:
    """Only what was decided before is handed to who is gone, and that is told in the same moment;
    behind a disk that hangs it waits."""
    for event in channel.of(e.Missed):
        gone_at = channel.connections[event.conn].until
        if event.at > gone_at and not channel.has_trouble(gone_at, event.at):
            gone_s = event.at - gone_at
            yield channel.say(event, f"{event.id} goes to {event.who}, gone for {gone_s:.3f} s")


def _check(channel: ChannelHistory) -> Iterator[str]:
    """A lease that is prolonged lasts from the request on: the answer may wait for the
    disk, and is then told as it was given; or refused, and the lease lasts for as long as its
    holder asked for all the same (docs/internals/storage.md)."""
    requested: dict[tuple[int, int], list[e.Touch]] = {}
    held: dict[int, Holder] = {}
    left: set[int] = set()
    settled: dict[tuple[int, int], float] = {}
    stale: dict[tuple[int, int], float] = {}
    clock = channel.clock
    for event in channel.events:
        match event:
            case e.Push(id=id, conn=conn) | e.Missed(id=id, conn=conn):
                holder = held.get(id)
                if holder is not None:
                    _shorten(channel, holder, requested.get((holder.conn, id), ()))
                if holder is not None and is_early(channel, holder, event.at):
                    whose = channel.connections[holder.conn].who
                    over_s = holder.until - clock.high(event.at)
                    text = f"{id} goes to {event.who} while {whose} has it for {over_s:.3f} s"
                    yield channel.say(event, text)
                until = clock.low(event.at) + shortest_s(channel, event.attempt)
                if conn not in left and stale.get((conn, id)) != event.at:
                    held[id] = Holder(conn, event.at, until)
                else:
                    held.pop(id, None)
            case e.Touch(id=id, conn=conn):
                requested.setdefault((conn, id), []).append(event)
            case e.Touched(id=id, ms=ms, conn=conn):
                holder, since = held.get(id), requested[conn, id].pop(0).at
                if holder is None or holder.conn != conn:
                    # Requested before it was settled, and answered behind that in one moment.
                    if settled.get((conn, id)) == event.at or channel.has_trouble(
                        event.at, event.at
                    ):
                        continue
                    yield channel.say(event, f"{event.who} may hold {id}, which it does not have")
                else:
                    holder.until = clock.low(since) + ms / 1000
            case e.Refused(type=0x86, correlation=id, conn=conn, code=code):
                waiting, holder = requested.get((conn, id)), held.get(id)
                if not waiting:
                    continue  # the word that a job was cancelled, which nobody asked for
                touch = waiting.pop(0)
                if code == STORAGE_FAILED and holder is not None and holder.conn == conn:
                    holder.until = min(holder.until, clock.low(touch.at) + touch.ms / 1000)
            case e.Ack(id=id, conn=conn):
                held.pop(id, None)
                settled[conn, id] = event.at
            case e.Nack(id=id, conn=conn):
                settled[conn, id] = event.at
                if id in held and held[id].conn == conn:
                    del held[id]
                else:  # what it had before; heard as of what is on its way in the same moment
                    stale[conn, id] = event.at
            case e.JobRequested(operation=4 | 5 | 9, body=body, conn=conn):
                held.pop(body["id"], None)
                settled[conn, body["id"]] = event.at
            case e.Closed(conn=conn) | e.Bye(conn=conn, by_node=False):
                left.add(conn)
                for id in [id for id, holder in held.items() if holder.conn == conn]:
                    del held[id]
            case e.Halt():
                held.clear()
            case _:
                pass


def _shorten(channel: ChannelHistory, holder: Holder, unanswered: Iterable[e.Touch]) -> None:
    """The lease may end as its holder asked for, though no answer was seen yet: what leaves in one
    moment is written connection by connection, so a push may come before an answer that was given
    long before it."""
    for touch in unanswered:
        if touch.at >= holder.at:
            holder.until = min(holder.until, channel.clock.low(touch.at) + touch.ms / 1000)


def _check_retry_delays(channel: ChannelHistory) -> Iterator[str]:
    """In a fanout channel each subscriber has a retry delay of its own; a stop ends it. A nack of
    what it does not hold any more is not heard: a lease is over as it was granted or, if the holder
    asked for another time (PS-03), as that was granted, which may be sooner."""
    retry_delays: dict[tuple[int, int], tuple[float, float]] = {}
    sure: dict[tuple[int, int], float] = {}
    clock = channel.clock
    for event in channel.events:
        match event:
            case e.Nack(id=id, code=0x30, delay_ms=delay_ms, conn=conn) if delay_ms:
                scope = conn if channel.mode is Mode.FANOUT else 0
                if clock.high(event.at) + SLACK_S < sure.get((conn, id), -inf):
                    until = clock.low(event.at) + min(delay_ms / 1000, 3600.0)
                    retry_delays.setdefault((scope, id), (event.at, until))
            case e.Push(id=id, conn=conn):
                scope = conn if channel.mode is Mode.FANOUT else 0
                at, until = retry_delays.pop((scope, id), (0.0, -inf))
                early_s = until - clock.high(event.at)
                if early_s > SLACK_S and not channel.has_trouble(at, event.at):
                    yield channel.say(
                        event, f"{id} comes {early_s:.3f} s before its retry delay is over"
                    )
                lease_s = shortest_s(channel, event.attempt)
                sure[conn, id] = clock.low(channel.meant_at(event.at)) + lease_s
            case e.Touched(id=id, ms=ms, conn=conn):
                sure[conn, id] = clock.low(channel.meant_at(event.at)) + ms / 1000
            case e.JobRequested() | e.Halt():
                retry_delays.clear()
            case _:
                pass


def is_early(channel: ChannelHistory, holder: Holder, at: float) -> bool:
    """Also where the disk hung or failed (docs/internals/storage.md)."""
    return channel.clock.high(at) + SLACK_S < holder.until
