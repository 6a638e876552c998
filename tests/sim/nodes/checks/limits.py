"""Checks of limits and pauses of queues: no job starts beyond a limit, or in a paused queue.

A push is the start of a job. Settings count from the reply that tells them until the next request
to change them; what is lost with a reply may hold or not. Leases whose end is not certain count as
ended, so what is found here is wrong, and some of what is wrong is not found. Jobs that are held
for ever keep a simulation from ending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millpond.node.jobs.limits import QueueState, queue_state
from millpond.node.jobs.payload import decode_job
from tests.sim.nodes import events as e
from tests.sim.nodes.checks.leases import Holder, is_early, shortest_s
from tests.sim.nodes.history import ChannelHistory, History

SET_QUEUE = 21
ENDS = (4, 5, 9)
"""Operations that end a lease: retry, cancel, reject."""
SLACK_S = 0.01


@dataclass
class Known:
    """The certain state of a queue. `settings`: None while they may be others."""

    settings: QueueState | None = None
    since: float = 0.0
    held: dict[int, Holder] = field(default_factory=dict)
    full_at: float = 0.0
    """The time at which the bucket of the rate is full again, at the earliest."""


def check(history: History) -> Iterator[str]:
    """docs/guides/jobs.md, Limits and priorities; Pause."""
    for plan in history.plan.jobs:
        if plan.is_operated and len(plan.ttls) == 1:  # a ttl ends leases at its own time
            yield from _check(history.channels[plan.node, f"jobs/{plan.name}"])


def _check(channel: ChannelHistory) -> Iterator[str]:
    known = Known()
    for event in channel.events:
        match event:
            case e.JobRequested(operation=operation) if operation == SET_QUEUE:
                known.settings = None
            case e.JobReplied(operation=operation, body=body) if operation == SET_QUEUE:
                _learn(known, body, event.at)
            case e.Push(id=id, conn=conn):
                yield from _starts(channel, known, event)
                until = channel.clock.low(event.at) + shortest_s(channel, event.attempt)
                known.held[id] = Holder(conn, event.at, until)
            case e.Ack(id=id) | e.Nack(id=id) | e.Missed(id=id):
                known.held.pop(id, None)
            case e.JobRequested(operation=operation, body={"id": id}) if operation in ENDS:
                known.held.pop(id, None)
            case e.Closed(conn=conn) | e.Bye(conn=conn):
                for id in [id for id, holder in known.held.items() if holder.conn == conn]:
                    del known.held[id]
            case e.Halt(how=how):
                known.held.clear()
                known.full_at = 0.0
                if how != "stop":
                    known.settings = None
            case _:
                pass


def _learn(known: Known, body: dict[str, Any], at: float) -> None:
    settings = queue_state(body)
    known.settings, known.since, known.full_at = settings, at, at


def _starts(channel: ChannelHistory, known: Known, push: e.Push) -> Iterator[str]:
    """A job starts: does it have to wait?"""
    settings = known.settings
    if settings is None or push.at <= known.since or channel.has_trouble(known.since, push.at):
        return
    if settings.paused:
        yield channel.say(push, f"{push.id} starts while the queue is paused")
    running = [
        id
        for id, holder in known.held.items()
        if id != push.id and is_early(channel, holder, push.at)
    ]
    if settings.concurrency and len(running) >= settings.concurrency:
        yield channel.say(push, f"{push.id} starts beside {running}")
    key = _limit_key(push)
    if key and settings.key_concurrency:
        same = [id for id in running if _key_of(channel, id) == key]
        if len(same) >= settings.key_concurrency:
            yield channel.say(push, f"{push.id} of the key {key!r} starts beside {same}")
    if settings.rate is not None:
        rate = settings.rate
        interval_s = rate.per / rate.count
        known.full_at = max(known.full_at, push.at) + interval_s
        most_s = (rate.burst or rate.count) * interval_s + SLACK_S + channel.oversleep_s
        if known.full_at - push.at > most_s:
            yield channel.say(push, f"{push.id} starts too early for the rate {rate}")


def _limit_key(push: e.Push) -> bytes:
    return decode_job(push.data).limit_key


def _key_of(channel: ChannelHistory, id: int) -> bytes:
    pushes = channel.pushes.get(id)
    return _limit_key(pushes[-1]) if pushes else b""
