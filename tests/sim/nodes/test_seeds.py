"""Worlds of several nodes, clients and workers by chance: nothing that was promised is broken.

MILLPOND_SEEDS=10000 python -m pytest tests/sim/nodes/test_seeds.py      tries more of them
scripts/simulate --seeds 10000                                           the same, over processes
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.nodes.runner import simulate
from tests.sim.nodes.tee_plans import FROM

SEEDS = int(os.environ.get("MILLPOND_SEEDS", "200"))
BLOCK = 20
TEES = 6


def found_in(seeds: range) -> dict[str, list[tuple[str, str]]]:
    outcomes = {f"scripts/simulate --seed {seed} --trace": simulate(seed) for seed in seeds}
    return {name: each.findings for name, each in outcomes.items() if each.findings}


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_promise_is_broken_whatever_fails(first: int) -> None:
    """P2P-12, P2P-14, P2P-15, P2P-30, PA-18, PS-02, PS-14: what the checks say of each history."""
    assert found_in(range(first, min(first + BLOCK, SEEDS))) == {}


def test_streams_get_what_channels_keep_whatever_fails() -> None:
    assert found_in(range(FROM, FROM + TEES)) == {}


def test_the_seeds_do_what_they_are_for() -> None:
    """All kinds of worlds and of faults, and messages that come again."""
    outcomes = [simulate(seed) for seed in range(40)]
    injected = sum((outcome.injected for outcome in outcomes), Counter[str]())
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    assert {outcome.kind for outcome in outcomes} == {
        "channels",
        "jobs",
        "streams",
        "mail",
        "mixed",
    }
    for fault in ("partition", "reset", "stall", "disk", "hang", "crash", "power", "stop", "skew"):
        assert injected[fault] > 0, fault
    for seen in ("receipt", "again", "acked", "jobends", "appended", "read", "mailread"):
        assert counts[seen] > 20, seen
