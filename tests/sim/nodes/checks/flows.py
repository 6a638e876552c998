"""Checks of flows: a step runs when it may, once it is done it does not run again, and its result
is what others get. In worlds whose queue loses jobs with the process, what is done may run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from millpond.actors.messages import Durability
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import RECOVERS_S, ChannelHistory, History, troubles_of
from tests.sim.nodes.plan import FlowsPlan

Place = tuple[int, int]
"""A flow of the plan, and a step of it."""

SOON_S = 1.0
"""So soon after a flow is cancelled no job of it begins, where nothing fails."""
SLACK_S = 0.01


@dataclass
class Facts:
    """The events of a queue of flows, by step and by job."""

    plan: FlowsPlan
    channel: ChannelHistory
    begins: dict[Place, list[ce.StepBegins]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[Place, list[ce.StepEnds]] = field(default_factory=lambda: defaultdict(list))
    place_of: dict[int, Place] = field(default_factory=dict)
    """By job."""
    done_at: dict[Place, float] = field(default_factory=dict)
    """When the end of a step was told to the worker that did it."""
    settled: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The times at which a job was told done, by job."""
    flows: dict[int, int] = field(default_factory=dict)
    """Numbers of flows, by their place in the plan."""
    cancelled: dict[int, list[ce.FlowCancelled]] = field(default_factory=lambda: defaultdict(list))
    retried_at: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    cancelling_at: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, ce.FlowEnded] = field(default_factory=dict)
    results: list[ce.KeptResult] = field(default_factory=list)

    @cached_property
    def place_of_flow(self) -> dict[int, int]:
        return {flow: place for place, flow in self.flows.items()}

    @property
    def is_durable(self) -> bool:
        return self.plan.durability is Durability.DISK

    def begins_of(self, begins: ce.StepBegins) -> list[ce.StepBegins]:
        """The starts of the same step."""
        return self.begins[begins.place, begins.step]

    def after(self, at: Place) -> list[Place]:
        """The steps that a step waits for."""
        return [(at[0], each) for each in self.plan.flows[at[0]][at[1]].after]

    def on_failure(self, at: Place) -> str:
        return self.plan.flows[at[0]][at[1]].on_failure


def check(history: History) -> Iterator[str]:
    """docs/guides/jobs.md, "Flows" and "Results"."""
    for plan in history.plan.flows:
        facts = _facts(history, plan)
        for findings in (
            _check_begins(facts),
            _check_ends(facts),
            _check_cancelled(history, facts),
            _check_results(facts),
        ):
            for text in findings:
                yield f"{plan.node}/jobs/{plan.name}: {text}"


def _facts(history: History, plan: FlowsPlan) -> Facts:
    facts = Facts(plan, history.channels[plan.node, f"jobs/{plan.name}"])
    for event in history.client_events:
        if getattr(event, "queue", "") != plan.name:
            continue
        match event:
            case ce.FlowPut(place=place, flow=flow):
                facts.flows[place] = flow
            case ce.StepBegins(place=place, step=step):
                facts.begins[place, step].append(event)
                facts.place_of[event.id] = place, step
            case ce.StepEnds(place=place, step=step):
                facts.ends[place, step].append(event)
            case ce.JobSettled(what="done") if event.id in facts.place_of:
                facts.done_at.setdefault(facts.place_of[event.id], event.at)
                facts.settled[event.id].append(event.at)
            case ce.FlowRequested(what=what, flow=flow):
                asked = facts.retried_at if what == "retry" else facts.cancelling_at
                asked[flow].append(event.at)
            case ce.FlowCancelled(flow=flow):
                facts.cancelled[flow].append(event)
            case ce.FlowEnded(flow=flow):
                facts.ended[flow] = event
            case ce.KeptResult():
                facts.results.append(event)
            case _:
                pass
    return facts


def _check_begins(facts: Facts) -> Iterator[str]:
    for place, begins in facts.begins.items():
        retries = len(facts.retried_at[facts.flows.get(place[0], 0)])
        ids = {each.id for each in begins}
        if facts.is_durable and len(ids) > 1 + retries:
            yield f"step {place} has the jobs {sorted(ids)} after {retries} retries"
        done_at = facts.done_at.get(place, inf)
        for each in begins:
            is_over = facts.is_durable and each.at > done_at
            if is_over and not _may_come_again(facts, done_at, each):
                yield f"{each.at:.3f} step {place} begins, and is done since {done_at:.3f}"
            yield from _check_before(facts, place, each)


def _may_come_again(facts: Facts, done_at: float, begins: ce.StepBegins) -> bool:
    """May a job run again that was done? A power failure can undo its removal from the queue, for
    which nobody waited, but not its outcome."""
    channel = facts.channel
    is_same = any(each.id == begins.id and each.at <= done_at for each in facts.begins_of(begins))
    return is_same and any(
        done_at <= halt.at <= begins.at and channel.soft_may_be_lost(done_at, halt)
        for halt in channel.of(e.Halt)
    )


def _check_before(facts: Facts, place: Place, begins: ce.StepBegins) -> Iterator[str]:
    """The steps before one that begins: each has ended so that it may."""
    befores = facts.after(place)
    if len(begins.results) != len(befores):
        yield f"{begins.at:.3f} step {place} has {len(begins.results)} results"
        return
    for before, result in zip(befores, begins.results, strict=True):
        hows = [each.how for each in facts.ends[before] if each.at <= begins.at]
        if result == f"{before[0]}/{before[1]}":
            if "done" not in hows:
                yield f"{begins.at:.3f} step {place} has a result of {before}, which has none"
        elif result != "failed":
            yield f"{begins.at:.3f} step {place} has {result!r} of {before}"
        elif facts.on_failure(before) != "ignore":
            yield f"{begins.at:.3f} step {place} begins, and {before} failed"
        elif _is_taken_for_failed(facts, before, begins.at):
            yield f"{begins.at:.3f} step {place} takes {before} for failed, which is done"
        elif not hows and not _may_end_unseen(facts, before):
            yield f"{begins.at:.3f} step {place} begins before {before}"
    if facts.plan.flows[place[0]][place[1]].feeds and "failed" not in begins.results:
        values = begins.results
        wanted = values[0] if len(values) == 1 else str(list(values))
        if begins.payload != wanted:
            yield f"{begins.at:.3f} step {place} has the payload {begins.payload}, not {wanted}"


def _is_taken_for_failed(facts: Facts, place: Place, at: float) -> bool:
    """Was a step done before? After a retry it may have been done behind the put of this job."""
    was_retried = bool(facts.retried_at[facts.flows.get(place[0], 0)])
    return facts.is_durable and not was_retried and facts.done_at.get(place, inf) <= at


def _may_end_unseen(facts: Facts, place: Place) -> bool:
    """May a step fail or be skipped, although no worker was seen to run it?"""
    was_cancelled = bool(facts.cancelling_at[facts.flows.get(place[0], 0)])
    return was_cancelled or bool(facts.after(place)) or not facts.is_durable


def _check_ends(facts: Facts) -> Iterator[str]:
    for place, flow in facts.flows.items():
        ended = facts.ended.get(flow)
        if ended is None:
            continue
        for step, state in enumerate(ended.steps):
            yield from _check_state(facts, ended, (place, step), state)
        if ended.state == "done":
            followed = {each for step in facts.plan.flows[place] for each in step.after}
            last = [n for n in range(len(ended.steps)) if n not in followed]
            wanted = tuple(f"{place}/{step}" for step in last)
            if ended.results != wanted:
                yield f"flow {place} has the results {ended.results}, not {wanted}"


def _check_state(facts: Facts, ended: ce.FlowEnded, at: Place, state: str) -> Iterator[str]:
    befores = [(facts.on_failure(each), ended.steps[each[1]]) for each in facts.after(at)]
    was_cancelled = bool(facts.cancelling_at[ended.flow])
    match state:
        case "done":
            if all(each.how != "done" for each in facts.ends[at]):
                yield f"step {at} is done, and nobody did it"
        case "skipped":
            is_due = any(how == "fail" and end in ("failed", "skipped") for how, end in befores)
            if not is_due and not was_cancelled:
                yield f"step {at} is skipped after {befores}"
        case "failed":
            if facts.is_durable and at in facts.done_at:
                yield f"step {at} failed, and was done at {facts.done_at[at]:.3f}"
        case _:
            yield f"step {at} is {state} in a flow that is {ended.state}"


def _check_cancelled(history: History, facts: Facts) -> Iterator[str]:
    own = [each for each in history.seen if getattr(each, "node", "") == facts.plan.node]
    troubles = troubles_of(own, RECOVERS_S)
    halts = [each.at for each in own if isinstance(each, e.Halt)]
    for flow, cancels in facts.cancelled.items():
        place = facts.place_of_flow[flow]
        for cancelled in cancels:
            since, at = cancelled.asked_at, cancelled.at
            until = min((each for each in facts.retried_at[flow] if each >= since), default=inf)
            is_calm = not any(began <= at + SOON_S and over >= since for began, over in troubles)
            for step in range(len(facts.plan.flows[place])):
                for begins in facts.begins[place, step]:
                    if not at < begins.at < until:
                        continue
                    is_quiet = is_calm and not any(
                        since - SOON_S <= each <= begins.at for each in halts
                    )
                    if is_quiet and begins.at > at + SOON_S and facts.is_durable:
                        yield f"{begins.at:.3f} step {place, step} begins, cancelled at {at:.3f}"
                    for before in facts.after((place, step)):
                        if not any(each.at <= at for each in facts.ends[before]):
                            if not _may_end_unseen(facts, before):
                                text = f"step {place, step} begins behind {before}"
                                yield f"{begins.at:.3f} {text}, cancelled at {at:.3f}"


def _check_results(facts: Facts) -> Iterator[str]:
    for found in facts.results:
        place = facts.place_of.get(found.id)
        if place is None:
            continue  # of a schedule
        keep_s = facts.plan.flows[place[0]][place[1]].keep_s
        done = [each.at for each in facts.ends[place] if each.how == "done" and each.id == found.id]
        text = f"{found.at:.3f} the result of {found.id}, step {place}, kept for {keep_s} s"
        if found.value not in (f"{place[0]}/{place[1]}", "gone"):
            yield f"{text}: {found.value!r}"
        elif found.value == "gone":
            if keep_s and facts.is_durable and found.at < min(done) + keep_s - SLACK_S:
                yield f"{text}: it is gone, and was there from {min(done):.3f} on"
        elif found.asked_at > max(facts.settled[found.id]) + keep_s + SLACK_S:
            ends = Counter(each.how for each in facts.ends[place])
            if ends["done"] == len(facts.settled[found.id]):
                yield f"{text}: it is there since {min(done):.3f}"
