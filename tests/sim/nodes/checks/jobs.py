"""Checks of job queues: each job is done or dead, its result is right, one worker has it at a time.

A lost connection ends a lease. Node and worker hear of it at one moment of virtual time, and the
job may begin elsewhere before the old handler's cancellation had its turn in that moment. So two
handlers count as at one job only if they are at it for longer than a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millpond.node.testing.time.world_clock import START_S
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, History
from tests.sim.nodes.plan import JobsPlan

SURE_S = 0.51
"""So long a worker takes the lease of a push for granted (docs/guides/jobs.md)."""
CANCEL = 5
SLACK_S = 0.002


@dataclass
class Life:
    """The handlers of one job: those that run now, by worker, and how the others ended."""

    running: dict[str, ce.JobBegins] = field(default_factory=dict)
    beside: dict[str, ce.JobBegins] = field(default_factory=dict)
    """By worker whose handler still runs: the attempt that began beside it."""
    ends: list[ce.JobEnds] = field(default_factory=list)
    attempt: int = 0
    settled: list[ce.JobSettled] = field(default_factory=list)


def check(history: History) -> Iterator[str]:
    """docs/guides/jobs.md, What is promised."""
    for plan in history.plan.jobs:
        channel = history.channels[plan.node, f"jobs/{plan.name}"]
        lives: dict[int, Life] = {}
        for text in _check(history, plan, channel, lives):
            yield f"{plan.node}/{channel.name}: {text}"


def _check(
    history: History, plan: JobsPlan, channel: ChannelHistory, lives: dict[int, Life]
) -> Iterator[str]:
    for event in history.client_events:
        match event:
            case ce.JobBegins() if event.queue == plan.name:
                yield from _begins(plan, channel, lives.setdefault(event.id, Life()), event)
            case ce.JobEnds() if event.queue == plan.name:
                life = lives.setdefault(event.id, Life())
                life.running.pop(event.who, None)
                yield from _leaves(life, event.who, event.at)
                life.ends.append(event)
            case ce.JobSettled() if event.queue == plan.name:
                yield from _settles(lives.setdefault(event.id, Life()), event)
            case ce.Result() if event.queue == plan.name:
                yield from _result(lives.get(event.id, Life()), event)
            case _:
                pass
    for life in lives.values():
        for who in list(life.beside):
            yield from _leaves(life, who, history.end)
    yield from _check_acks(channel, lives)
    yield from _check_dead(plan, channel, lives)
    yield from _check_due(channel)
    yield from _check_unique(history, plan, channel)


def _begins(
    plan: JobsPlan, channel: ChannelHistory, life: Life, event: ce.JobBegins
) -> Iterator[str]:
    for who, other in life.running.items():
        if channel.clock.is_steady and event.at - other.at > SURE_S + channel.oversleep_s:
            life.beside.setdefault(who, event)
    if event.attempt < life.attempt and not _has_halted(channel, event.at):
        text = f"{event.id} is begun for the {event.attempt}. time after {life.attempt}"
        yield f"{event.at:.3f} {text}"
    if event.attempt > plan.attempts:
        yield f"{event.at:.3f} {event.id} is begun {event.attempt} times"
    life.attempt = event.attempt
    life.running[event.who] = event


def _leaves(life: Life, who: str, at: float) -> Iterator[str]:
    """The end of a worker's handler: did another one run beside it?"""
    begun = life.beside.pop(who, None)
    if begun is not None and at > begun.at:
        yield f"{begun.at:.3f} {begun.id} is begun by {begun.who}, and {who} is still at it"


def _has_halted(channel: ChannelHistory, until: float) -> bool:
    return any(halt.at <= until for halt in channel.of(e.Halt)) or channel.has_trouble(0.0, until)


def _settles(life: Life, event: ce.JobSettled) -> Iterator[str]:
    life.settled.append(event)
    if event.what == "done" and not any(
        end.how == "done" and (end.who, end.attempt) == (event.who, event.attempt)
        for end in life.ends
    ):
        yield f"{event.at:.3f} {event.id} is called done by {event.who}, and is not"


def _result(life: Life, event: ce.Result) -> Iterator[str]:
    hows = {end.how for end in life.ends}
    match event.value.split(" "):
        case ["done", number]:
            if "done" not in hows or int(number) != event.payload:
                text = f"{event.value!r} is not the result of {event.payload}"
                yield f"{event.at:.3f} {event.id}: {text}"
        case ["failed", "not", *_]:
            if "reject" not in hows:
                yield f"{event.at:.3f} {event.id}: nobody rejected it"
        case _:
            pass


def _check_acks(channel: ChannelHistory, lives: dict[int, Life]) -> Iterator[str]:
    """A job is acknowledged once its handler has come to its end."""
    for ack in channel.of(e.Ack):
        life = lives.get(ack.id, Life())
        if not any(end.how == "done" and end.at <= ack.at for end in life.ends):
            yield f"{ack.at:.3f} {ack.id} is acknowledged, and was not done"


def _check_dead(plan: JobsPlan, channel: ChannelHistory, lives: dict[int, Life]) -> Iterator[str]:
    assert channel.dead is not None
    for data in channel.dead.messages:
        message = channel.messages.get(data)
        if message is None or channel.may_have_expired(data):
            continue
        found = [lives[id] for id in message.ids if id in lives]
        tried = {event.attempt for event in channel.of(e.Push) if event.id in message.ids}
        was_rejected = any(end.how == "reject" for life in found for end in life.ends)
        if not was_rejected and max(tried, default=0) < min(plan.attempts, channel.attempts_max):
            yield f"{data[:40]!r} became a dead letter after attempts {tried}"


def _check_due(channel: ChannelHistory) -> Iterator[str]:
    due = {
        id: max(put.due for put in message.puts)
        for id, message in channel.by_id.items()
        if message.puts
    }
    for push in channel.of(e.Push):
        early_s = due.get(push.id, 0.0) - START_S - channel.clock.high(push.at)
        if due.get(push.id) and early_s > SLACK_S:
            yield f"{push.at:.3f} {push.id} comes {early_s:.3f} s too early"


def _check_unique(history: History, plan: JobsPlan, channel: ChannelHistory) -> Iterator[str]:
    """Unique keys: while a job with one is in the queue, no second job with it is put."""
    gone: dict[int, float] = {}
    for event in channel.events:
        match event:
            case e.Ack(id=id):
                gone.setdefault(id, event.at)
            case e.JobRequested(body={"id": id}, operation=operation) if operation in (CANCEL, 9):
                gone.setdefault(id, event.at)
            case e.Nack(id=id, code=0x31):
                gone.setdefault(id, event.at)
            case _:
                pass
    last: dict[str, ce.JobPut] = {}
    for put in history.client_events:
        if not isinstance(put, ce.JobPut) or put.queue != plan.name or not put.unique:
            continue
        before = last.get(put.unique)
        if not put.existing:
            kept_at = min(
                (kept.at for kept in channel.of(e.Kept) if kept.id == put.id), default=0.0
            )
            if before is not None and not _may_be_gone(channel, gone, before, kept_at):
                yield f"{put.at:.3f} {put.id} is put while {before.id} of {put.unique} is there"
            last[put.unique] = put
        elif before is not None and before.id != put.id and not channel.has_trouble(0.0, put.at):
            if not _has_halted(channel, put.at):
                yield f"{put.at:.3f} {put.id} is called the one of {put.unique}, not {before.id}"


def _may_be_gone(
    channel: ChannelHistory, gone: dict[int, float], put: ce.JobPut, until: float
) -> bool:
    if gone.get(put.id, until + 1) <= until or channel.may_be_lost(put.at, until):
        return True
    dead = set() if channel.dead is None else set(channel.dead.messages)
    message = channel.by_id.get(put.id)
    return message is None or message.data in dead or channel.has_trouble(put.at, until)
