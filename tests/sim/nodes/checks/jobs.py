"""Jobs are done, or dead, and told so; one worker at a time has each, as often as it may.

A lost connection ends a lease. Node and worker hear of it at one moment of virtual time, and the
job may begin elsewhere before the old handler's cancellation had its turn in that moment. So two
handlers count as at one job only if they are at it for longer than a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millpond.node.testing.time.world_clock import START_S
from tests.sim.nodes import events as e
from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, Story
from tests.sim.nodes.plan import JobsPlan

SURE_S = 0.51
"""So long a worker takes the lease of a push for granted (docs/guides/jobs.md)."""
CANCEL = 5
SLACK_S = 0.002


@dataclass
class Life:
    """Of one job: handlers that run now, by worker, and how they ended."""

    running: dict[str, n.JobBegins] = field(default_factory=dict)
    beside: dict[str, n.JobBegins] = field(default_factory=dict)
    """By worker that has it still: who began it too."""
    ends: list[n.JobEnds] = field(default_factory=list)
    attempt: int = 0
    settled: list[n.JobSettled] = field(default_factory=list)


def check(history: History) -> Iterator[str]:
    """docs/guides/jobs.md, What is promised."""
    for plan in history.plan.jobs:
        story = history.stories[plan.node, f"jobs/{plan.name}"]
        lives: dict[int, Life] = {}
        for text in _check(history, plan, story, lives):
            yield f"{plan.node}/{story.name}: {text}"


def _check(history: History, plan: JobsPlan, story: Story, lives: dict[int, Life]) -> Iterator[str]:
    for note in history.notes:
        match note:
            case n.JobBegins() if note.queue == plan.name:
                yield from _begins(plan, story, lives.setdefault(note.id, Life()), note)
            case n.JobEnds() if note.queue == plan.name:
                life = lives.setdefault(note.id, Life())
                life.running.pop(note.who, None)
                yield from _leaves(life, note.who, note.at)
                life.ends.append(note)
            case n.JobSettled() if note.queue == plan.name:
                yield from _settles(lives.setdefault(note.id, Life()), note)
            case n.Result() if note.queue == plan.name:
                yield from _result(lives.get(note.id, Life()), note)
            case _:
                pass
    for life in lives.values():
        for who in list(life.beside):
            yield from _leaves(life, who, history.end)
    yield from _check_acks(story, lives)
    yield from _check_dead(plan, story, lives)
    yield from _check_due(story)
    yield from _check_unique(history, plan, story)


def _begins(plan: JobsPlan, story: Story, life: Life, note: n.JobBegins) -> Iterator[str]:
    for who, other in life.running.items():
        if story.clock.is_steady and note.at - other.at > SURE_S + story.doze_s:
            life.beside.setdefault(who, note)
    if note.attempt < life.attempt and not _has_halted(story, note.at):
        yield f"{note.at:.3f} {note.id} is begun for the {note.attempt}. time after {life.attempt}"
    if note.attempt > plan.attempts:
        yield f"{note.at:.3f} {note.id} is begun {note.attempt} times"
    life.attempt = note.attempt
    life.running[note.who] = note


def _leaves(life: Life, who: str, at: float) -> Iterator[str]:
    """A worker's handler came to its end: did another one run beside it?"""
    begun = life.beside.pop(who, None)
    if begun is not None and at > begun.at:
        yield f"{begun.at:.3f} {begun.id} is begun by {begun.who}, and {who} is still at it"


def _has_halted(story: Story, until: float) -> bool:
    return any(halt.at <= until for halt in story.of(e.Halt)) or story.has_trouble(0.0, until)


def _settles(life: Life, note: n.JobSettled) -> Iterator[str]:
    life.settled.append(note)
    if note.what == "done" and not any(
        end.how == "done" and (end.who, end.attempt) == (note.who, note.attempt)
        for end in life.ends
    ):
        yield f"{note.at:.3f} {note.id} is called done by {note.who}, and is not"


def _result(life: Life, note: n.Result) -> Iterator[str]:
    hows = {end.how for end in life.ends}
    match note.value.split(" "):
        case ["done", number]:
            if "done" not in hows or int(number) != note.payload:
                yield f"{note.at:.3f} {note.id}: {note.value!r} is not the result of {note.payload}"
        case ["failed", "not", *_]:
            if "reject" not in hows:
                yield f"{note.at:.3f} {note.id}: nobody rejected it"
        case _:
            pass


def _check_acks(story: Story, lives: dict[int, Life]) -> Iterator[str]:
    """A job is acknowledged once its handler has come to its end."""
    for ack in story.of(e.Ack):
        life = lives.get(ack.id, Life())
        if not any(end.how == "done" and end.at <= ack.at for end in life.ends):
            yield f"{ack.at:.3f} {ack.id} is acknowledged, and was not done"


def _check_dead(plan: JobsPlan, story: Story, lives: dict[int, Life]) -> Iterator[str]:
    assert story.dead is not None
    for data in story.dead.messages:
        message = story.messages.get(data)
        if message is None:
            continue
        found = [lives[id] for id in message.ids if id in lives]
        tried = {event.attempt for event in story.of(e.Push) if event.id in message.ids}
        was_rejected = any(end.how == "reject" for life in found for end in life.ends)
        if not was_rejected and max(tried, default=0) < min(plan.attempts, story.attempts_max):
            yield f"{data[:40]!r} was buried alive, after {tried}"


def _check_due(story: Story) -> Iterator[str]:
    due = {
        id: max(put.due for put in message.puts)
        for id, message in story.by_id.items()
        if message.puts
    }
    for push in story.of(e.Push):
        early_s = due.get(push.id, 0.0) - START_S - story.clock.high(push.at)
        if due.get(push.id) and early_s > SLACK_S:
            yield f"{push.at:.3f} {push.id} comes {early_s:.3f} s too early"


def _check_unique(history: History, plan: JobsPlan, story: Story) -> Iterator[str]:
    """While a job of a mark is in the queue there is no other one."""
    gone: dict[int, float] = {}
    for event in story.events:
        match event:
            case e.Ack(id=id):
                gone.setdefault(id, event.at)
            case e.JobAsked(body={"id": id}, operation=operation) if operation in (CANCEL, 9):
                gone.setdefault(id, event.at)
            case e.Nack(id=id, code=0x31):
                gone.setdefault(id, event.at)
            case _:
                pass
    last: dict[str, n.JobPut] = {}
    for note in history.notes:
        if not isinstance(note, n.JobPut) or note.queue != plan.name or not note.unique:
            continue
        before = last.get(note.unique)
        if not note.existing:
            kept_at = min((kept.at for kept in story.of(e.Kept) if kept.id == note.id), default=0.0)
            if before is not None and not _may_be_gone(story, gone, before, kept_at):
                yield f"{note.at:.3f} {note.id} is put while {before.id} of {note.unique} is there"
            last[note.unique] = note
        elif before is not None and before.id != note.id and not story.has_trouble(0.0, note.at):
            if not _has_halted(story, note.at):
                yield f"{note.at:.3f} {note.id} is called the one of {note.unique}, not {before.id}"


def _may_be_gone(story: Story, gone: dict[int, float], put: n.JobPut, until: float) -> bool:
    if gone.get(put.id, until + 1) <= until or story.may_be_lost(put.at, until):
        return True
    dead = set() if story.dead is None else set(story.dead.messages)
    message = story.by_id.get(put.id)
    return message is None or message.data in dead or story.has_trouble(put.at, until)
