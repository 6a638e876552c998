"""A subscription wakes a worker for every record, and one worker at a time has its lease."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from millpond.actors.messages import Durability
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.checks.streams import is_lossy
from tests.sim.nodes.history import History
from tests.sim.nodes.plan import StreamPlan

SLACK_S = 0.002


def check(history: History) -> Iterator[str]:
    """docs/internals/streams.md: no wake is lost, and no two leases live at a time."""
    for plan in history.plan.streams:
        if plan.workers:
            events = [
                each for each in history.client_events if getattr(each, "stream", "") == plan.name
            ]
            for text in _check(history, plan, events):
                yield f"{plan.node}/sub-{plan.name}: {text}"


def _check(history: History, plan: StreamPlan, events: list[ce.ClientEvent]) -> Iterator[str]:
    yield from _check_leases(history, plan, events)
    if plan.durability is Durability.DISK and not is_lossy(history, plan):
        yield from _check_acks(events)
        yield from _check_wakes(plan, events)


def _check_leases(
    history: History, plan: StreamPlan, events: list[ce.ClientEvent]
) -> Iterator[str]:
    """Each claim has a generation of its own; one that comes before the end of the lease before it
    comes after its worker has asked to end it."""
    clock = history.clocks[plan.node]
    generation, until, whose = 0, -inf, ""
    for event in events:
        match event:
            case ce.Claimed():
                if event.generation <= generation:
                    yield f"{event.who} has generation {event.generation} after {generation}"
                if clock.high(event.at) + SLACK_S < until:
                    over_s = until - clock.high(event.at)
                    yield f"{event.who} has the lease that {whose} has for {over_s:.3f} s"
                generation, whose = event.generation, event.who
                until = clock.low(event.asked_at) + plan.lease_s
            case ce.Settling(generation=of, ends=True) if of == generation:
                until = -inf
            case _:
                pass


def _check_acks(events: list[ce.ClientEvent]) -> Iterator[str]:
    """Acknowledged offsets stay acknowledged."""
    acked = 0
    for event in events:
        match event:
            case ce.Subscribed():
                acked = max(acked, event.acked)
            case ce.Settled():
                acked = max(acked, event.position)
            case ce.Claimed() if event.acked < acked:
                yield f"{event.who} is to begin at {event.acked}, where {acked} was acknowledged"
            case _:
                pass


def _check_wakes(plan: StreamPlan, events: list[ce.ClientEvent]) -> Iterator[str]:
    """Every record that was kept behind the subscription's begin was shown to a worker."""
    subscribed = [each for each in events if isinstance(each, ce.Subscribed)]
    last = [each for each in events if isinstance(each, ce.Read) and each.is_all]
    if not subscribed or not last or not last[-1].records:
        return
    tail = last[-1].records[-1][0] + 1
    shown = max((each.tail for each in events if isinstance(each, ce.Claimed)), default=0)
    begun = min(subscribed, key=lambda each: each.at)
    if tail > max(shown, begun.acked):
        yield f"the last records of {tail} woke nobody: {shown} was shown, {begun.acked} the begin"
