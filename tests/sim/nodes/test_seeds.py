"""Worlds of several nodes, clients and workers by chance: nothing that was promised is broken.

MILLPOND_SEEDS=10000 python -m pytest tests/sim/nodes/test_seeds.py      tries more of them
scripts/simulate --seeds 10000                                           the same, over processes
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.sim.nodes.flow_plans import FLOWS_FROM
from tests.sim.nodes.runner import Outcome, simulate
from tests.sim.nodes.tee_plans import FROM
from tests.sim.seeds import blocks

TEES = 6
FLOWS = 8
SEEDS_TO_COUNT = 40
outcome = cache(simulate)
"""A seed has one outcome, which several tests look at."""


def found_in(seeds: range) -> dict[str, list[tuple[str, str]]]:
    outcomes = {f"scripts/simulate --seed {seed} --trace": outcome(seed) for seed in seeds}
    return {name: each.findings for name, each in outcomes.items() if each.findings}


@pytest.mark.parametrize("seeds", blocks(usual=40, full=400))
def test_no_promise_is_broken_whatever_fails(seeds: range) -> None:
    """P2P-12, P2P-14, P2P-15, P2P-30, PA-18, PS-02, PS-14: what the checks say of each history."""
    assert found_in(seeds) == {}


def test_streams_get_what_channels_keep_whatever_fails() -> None:
    assert found_in(range(FROM, FROM + TEES)) == {}


def test_flows_and_schedules_run_what_they_should_once_whatever_fails() -> None:
    """docs/guides/jobs.md, "Flows", "Results" and "Schedules"."""
    seeds = range(FLOWS_FROM, FLOWS_FROM + FLOWS)
    assert found_in(seeds) == {}
    counts = sum((outcome(seed).counts for seed in seeds), Counter[str]())
    for seen in ("stepends", "tickbegins", "keptresult", "flowended", "schedulegone"):
        assert counts[seen] > 5, seen
    injected = sum((outcome(seed).injected for seed in seeds), Counter[str]())
    assert injected["full"] and injected["crash"] + injected["power"] > 1


def test_the_seeds_do_what_they_are_for() -> None:
    """All kinds of worlds and of faults, and messages that come again."""
    outcomes: list[Outcome] = [outcome(seed) for seed in range(SEEDS_TO_COUNT)]
    injected = sum((each.injected for each in outcomes), Counter[str]())
    counts = sum((each.counts for each in outcomes), Counter[str]())
    assert {each.kind for each in outcomes} == {
        "channels",
        "jobs",
        "streams",
        "mail",
        "mixed",
    }
    for fault in ("partition", "reset", "stall", "disk", "hang", "crash", "power", "stop", "skew"):
        assert injected[fault] > 0, fault
    clients = ("receipt", "again", "acked", "jobends", "appended", "read", "mailread", "claimed")
    for seen in clients:
        assert counts[seen] > 20, seen
