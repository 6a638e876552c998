"""Plans of worlds with flows and schedules: seeds from `FLOWS_FROM` on, so no other seed changes.

Their clocks are right: worlds with wrong clocks have tests of their own.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from millpond.actors.messages import Durability
from tests.sim.nodes.fault_plans import draw_faults
from tests.sim.nodes.plan import (
    ClientNames,
    Fault,
    FaultPlan,
    FlowsPlan,
    FlowStepPlan,
    Plan,
    SchedulePlan,
)
from tests.sim.nodes.tee_plans import UNTIL

FLOWS_FROM = UNTIL
"""The first seed of such worlds."""

STEPS_MAX = 6
FULL_SHARE = 0.5
"""The share of worlds whose channels have room for a few messages."""
MEMORY_SHARE = 0.2
"""The share of worlds whose queue loses its jobs with the process."""


def has_flows(seed: int) -> bool:
    """Is it a seed of such a world?"""
    return seed >= FLOWS_FROM


def with_flows(seed: int, plan: Plan) -> Plan:
    """A world of one node with a queue for flows and schedules, and faults of its own."""
    rng = Random(f"flows {seed}")
    node = plan.nodes[0]
    lasts_s = rng.choice((10.0, 20.0, 40.0))
    names = ClientNames(rng)
    flows = _draw(names, node, lasts_s)
    faults = (*draw_faults(names, (node,), False, lasts_s), *_draw_outages(rng, node, lasts_s))
    settings = dict(plan.settings)
    if rng.random() < FULL_SHARE:
        settings["channel_messages_max"] = rng.choice((1, 2, 5))
    return replace(
        plan,
        kind="flows",
        nodes=(node,),
        linked=False,
        settings=settings,
        channels=(),
        jobs=(),
        streams=(),
        mail=(),
        flows=(flows,),
        faults=_in_order(faults),
        lasts_s=lasts_s,
        oversleeps=False,
    )


def _draw_outages(rng: Random, node: str, lasts_s: float) -> list[FaultPlan]:
    """In most worlds the process or the machine ends now and then."""
    ends: tuple[Fault, ...] = ("crash", "power", "stop")
    return [
        FaultPlan(rng.uniform(0.0, lasts_s), rng.choice(ends), "", node, rng.choice((0.05, 2.0)))
        for _ in range(rng.choice((0, 1, 2, 4)))
    ]


def _in_order(faults: tuple[FaultPlan, ...]) -> tuple[FaultPlan, ...]:
    right = (each for each in faults if each.kind != "skew")
    return tuple(sorted(right, key=lambda each: each.at))


def _draw(names: ClientNames, node: str, lasts_s: float) -> FlowsPlan:
    rng, name = names.rng, "f0"
    workers = rng.choice((1, 2, 2))
    programs = [f"boss-{name}", f"cron-{name}", f"reader-{name}"]
    programs += [f"w-{name}-{number}" for number in range(workers)]
    names.pairs += [(who, node) for who in programs]

    def sometimes(value: float) -> float:
        return value if rng.random() < 0.4 else 0.0

    memory = rng.random() < MEMORY_SHARE
    return FlowsPlan(
        node=node,
        name=name,
        durability=Durability.MEMORY if memory else Durability.DISK,
        flows=tuple(_draw_flow(rng) for _ in range(rng.randint(1, 4))),
        schedules=tuple(
            SchedulePlan(
                f"s{n}",
                rng.choice((1, 3, 7)),
                rng.choice(("all", "all", "one", "skip")),
                rng.choice((None, None, lasts_s / 2)),
            )
            for n in range(rng.choice((0, 1, 2)))
        ),
        gap_s=rng.choice((0.0, lasts_s / 6)),
        workers=workers,
        concurrency=rng.choice((1, 2, 4)),
        lease_s=rng.choice((1.5, 3.0)),
        attempts=rng.choice((1, 2, 4)),
        fails=sometimes(0.3),
        rejects=sometimes(0.15),
        hangs=sometimes(0.1),
        work_s=rng.choice((0.0, 0.3, 2.0)),
        restarts=sometimes(0.05),
        cancels=sometimes(0.4),
        retries=sometimes(0.5),
    )


def _draw_flow(rng: Random) -> tuple[FlowStepPlan, ...]:
    steps: list[FlowStepPlan] = []
    for place in range(rng.randint(1, STEPS_MAX)):
        after = tuple(sorted(rng.sample(range(place), rng.randint(0, min(place, 3)))))
        step = FlowStepPlan(
            after=after,
            on_failure=rng.choice(("fail", "fail", "ignore", "wait")),
            feeds=bool(after) and rng.random() < 0.4,
            keep_s=rng.choice((0, 5, 3600)),
        )
        steps.append(step)
    return tuple(steps)
