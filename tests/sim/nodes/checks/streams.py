"""A stream has every record that was told to be kept, once, in its place; readers see just that.

Where appends trim, the stream has the end of that, and its followers got all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from millpond.actors.messages import Durability
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import RECOVERS_S, History, troubles_of
from tests.sim.nodes.plan import GRACE_S_MAX, StreamPlan
from tests.sim.nodes.stream_clients import is_trim


def check(history: History) -> Iterator[str]:
    """docs/internals/streams.md: dense sequences, atomic appends."""
    for plan in history.plan.streams:
        client_events = [
            each for each in history.client_events if getattr(each, "stream", "") == plan.name
        ]
        last = [each for each in client_events if isinstance(each, ce.Read) and each.is_all]
        if not last:
            continue
        twice = _maybe_twice(history, plan, client_events)
        may_lose = is_lossy(history, plan)
        if plan.ends:
            texts = _check_generations(history, plan, last[-1], client_events, may_lose)
        else:
            texts = _check(plan, last[-1], client_events, may_lose, twice)
        for text in texts:
            yield f"{plan.node}/{plan.name}: {text}"


def _check_generations(
    history: History,
    plan: StreamPlan,
    whole: ce.Read,
    client_events: list[ce.ClientEvent],
    may_lose: bool,
) -> Iterator[str]:
    """S2X-70 to S2X-73: records go by trims alone, and followers get them before."""
    if may_lose:
        return
    sequences = [sequence for sequence, _, _ in whole.records]
    start = sequences[0] if sequences else 0
    if sequences != list(range(start, start + len(sequences))):
        yield f"its sequences are {sequences}"
    known = {record[0]: record for record in whole.records}
    for event in client_events:
        match event:
            case ce.Read(is_all=False, records=seen):
                for record in seen:
                    if known.setdefault(record[0], record) != record:
                        yield f"{event.who} was shown {record[0]} {record[2][:30]!r}"
            case _:
                pass
    if start - 1 in known and not is_trim(known[start - 1][2]):
        yield f"it begins behind {known[start - 1][2][:30]!r}, which is no trim"
    for event in client_events:
        if isinstance(event, ce.Appended):
            for at, body in enumerate(event.bodies, event.position[0]):
                if at >= start and at not in known:
                    yield f"{at} {body[:30]!r} was kept, and is not there"
                elif at in known and known[at][2] != body:
                    yield f"{body[:30]!r} was kept at {at}, where {known[at][2][:30]!r} is"
    if _keeps_grace(history, plan):
        yield from _check_readers(plan, start + len(sequences), client_events)


def _keeps_grace(history: History, plan: StreamPlan) -> bool:
    """True: nothing ended a grace early, and it was long enough for every follower."""
    seen = [each for each in history.seen if getattr(each, "node", "") == plan.node]
    boots = sum(isinstance(each, e.Boot) for each in seen)
    if boots != 1 or history.plan.oversleeps:
        return False
    if any(isinstance(each, e.Trouble | e.Skewed) for each in seen):
        return False
    faults = history.plan.faults
    is_long = history.plan.settings["s2_trim_grace_s"] == GRACE_S_MAX
    return is_long or not any(plan.node in (fault.a, fault.b) for fault in faults)


def is_lossy(history: History, plan: StreamPlan) -> bool:
    """May anything have been lost that was told to be kept?"""
    if plan.durability is Durability.DISK:
        return False
    stops = [each for each in history.seen if isinstance(each, e.Halt) and each.node == plan.node]
    if plan.durability is Durability.MEMORY:
        return len(stops) > 1
    bad = any(isinstance(each, e.Trouble) and each.node == plan.node for each in history.seen)
    return any(stop.how == "power" or (bad and stop.how == "crash") for stop in stops)


def _maybe_twice(
    history: History, plan: StreamPlan, client_events: list[ce.ClientEvent]
) -> set[bytes]:
    """Refused appends that a restart finds: the process ended before the disk worked again, and
    who appended it did so once more (docs/internals/storage.md)."""
    events = [each for each in history.seen if getattr(each, "node", "") == plan.node]
    troubles = troubles_of(events, RECOVERS_S + history.oversleep_s)
    ends = [
        each.at
        for each in events
        if isinstance(each, e.Halt) and any(at <= each.at <= over for at, over in troubles)
    ]
    told = {
        body: event.at
        for event in client_events
        if isinstance(event, ce.Appended)
        for body in event.bodies
    }
    return {
        body
        for event in client_events
        if isinstance(event, ce.Appending)
        for body in event.bodies
        if any(event.at <= end <= told.get(body, inf) for end in ends)
    }


def _check(
    plan: StreamPlan,
    whole: ce.Read,
    client_events: list[ce.ClientEvent],
    may_lose: bool,
    twice: set[bytes],
) -> Iterator[str]:
    records = whole.records
    if [sequence for sequence, _, _ in records] != list(range(len(records))):
        yield f"its sequences are {[sequence for sequence, _, _ in records]}"
    ids = [id for _, id, _ in records]
    if ids != sorted(set(ids)):
        yield "its ids do not ascend"
    bodies = [body for _, _, body in records]
    for body in dict.fromkeys(bodies):
        if bodies.count(body) > 1 + (body in twice):
            yield f"{body[:30]!r} is there {bodies.count(body)} times"
    yield from _check_writers(bodies, client_events)
    if may_lose:
        return
    for event in client_events:
        match event:
            case ce.Appended():
                yield from _check_appended(records, event)
            case ce.Appending(bodies=appended):
                there = sum(body in bodies for body in appended)
                if there not in (0, len(appended)):
                    yield f"{there} of {len(appended)} records of an append are there"
            case ce.Read(is_all=False, records=seen):
                for record in seen:
                    if record[0] >= len(records) or records[record[0]] != record:
                        yield f"{event.who} was shown {record[0]} {record[2][:30]!r}"
            case _:
                pass
    yield from _check_readers(plan, len(records), client_events)


def _check_writers(bodies: list[bytes], client_events: list[ce.ClientEvent]) -> Iterator[str]:
    """The records of one writer are in the order of its appends."""
    position = {body: at for at, body in enumerate(bodies)}
    tops: dict[str, int] = {}
    for event in client_events:
        if isinstance(event, ce.Appending):
            for body in event.bodies:
                at = position.get(body)
                if at is not None and at < tops.get(event.who, -1):
                    yield f"{body[:30]!r} is before what was appended before it"
                if at is not None:
                    tops[event.who] = at


def _check_appended(
    records: tuple[tuple[int, tuple[int, int], bytes], ...], event: ce.Appended
) -> Iterator[str]:
    count = len(event.bodies)
    if event.protocol == "s3p":
        ends = [at for at, (_, id, _) in enumerate(records) if id == event.position]
        first = ends[0] + 1 - count if ends else len(records)
    else:
        first = event.position[0]
    found = tuple(body for _, _, body in records[first : first + count])
    if found != event.bodies:
        yield f"{event.bodies[0][:30]!r} was kept at {event.position}, where {found[:1]!r} is"


def _check_readers(
    plan: StreamPlan, count: int, client_events: list[ce.ClientEvent]
) -> Iterator[str]:
    """Every reader got everything, in order, once."""
    for number in range(plan.readers):
        who = f"r-{plan.name}-{number}"
        seen = [
            record[0]
            for event in client_events
            if isinstance(event, ce.Read) and event.who == who
            for record in event.records
        ]
        if seen != list(range(count)):
            yield f"{who} got {seen[:50]}, and there are {count}"
