"""Checks of schedules: each moment puts one job, whatever fails, and none after the deletion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from millpond.actors.messages import Durability
from millpond.node.testing.time.world_clock import START_S
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.history import History
from tests.sim.nodes.plan import FlowsPlan, SchedulePlan

SLACK_MS = 5


def check(history: History) -> Iterator[str]:
    """docs/guides/jobs.md, "Schedules"."""
    for plan in history.plan.flows:
        for schedule in plan.schedules:
            for text in _check(history, plan, schedule):
                yield f"{plan.node}/jobs/{plan.name} schedule {schedule.name}: {text}"


def _check(history: History, plan: FlowsPlan, schedule: SchedulePlan) -> Iterator[str]:
    first_ms, gone = 0, None
    ticks: dict[int, set[int]] = defaultdict(set)
    for event in history.client_events:
        match event:
            case ce.ScheduleSet(queue=plan.name, name=schedule.name, next_ms=next_ms):
                first_ms = next_ms
            case ce.ScheduleGone(queue=plan.name, name=schedule.name):
                gone = event
            case ce.TickBegins(queue=plan.name, name=schedule.name, moment_ms=moment_ms):
                ticks[moment_ms].add(event.id)
                if moment_ms > (START_S + event.at) * 1000 + SLACK_MS:
                    yield f"{event.at:.3f} the job of {moment_ms} begins before it"
            case _:
                pass
    if gone is None:
        return
    every_ms = schedule.every_s * 1000
    is_durable = plan.durability is Durability.DISK
    for moment_ms, jobs in sorted(ticks.items()):
        if (moment_ms - first_ms) % every_ms:
            yield f"{moment_ms} is no moment, as {first_ms} is one"
        if is_durable and len(jobs) > 1:
            yield f"{moment_ms} has the jobs {sorted(jobs)}"
        if moment_ms > (START_S + gone.at) * 1000:
            yield f"{moment_ms} has a job, and the schedule was deleted at {gone.at:.3f}"
    if is_durable and gone.last_ms and schedule.missed == "all":
        wanted = range(first_ms, gone.last_ms + 1, every_ms)
        if missing := [each for each in wanted if each not in ticks]:
            yield f"no job for {missing[:3]}, of {len(wanted)} moments"
        put = len([each for each in ticks if each <= gone.last_ms])
        if put != gone.jobs:
            yield f"it says that it has put {gone.jobs} jobs, and {put} ran"
