"""Two machines and one object store, by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.nodes.mutate import ROOT
from tests.sim.nodes.replica_mutants import REPLICA_MUTANTS, ReplicaMutant, found
from tests.sim.nodes.replica_worlds import EVENTS, live
from tests.sim.seeds import blocks, play


@pytest.mark.parametrize("seeds", blocks(usual=2, full=200, one_in=10, size=2))
def test_no_takeover_loses_doubles_or_repeats_anything(seeds: range) -> None:
    counts = sum(play(live, seeds), Counter[str]())
    assert counts["acknowledged"]


@pytest.mark.full
def test_the_seeds_do_what_they_are_for() -> None:
    counts = sum(play(live, range(1000, 1020)), Counter[str]())
    wanted = (*EVENTS, "takeovers", "restored", "damage named")
    assert all(counts[each] for each in wanted), counts


@pytest.mark.parametrize("mutant", REPLICA_MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_mistake_is_in_its_file_once(mutant: ReplicaMutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.text) == 1


@pytest.mark.full
@pytest.mark.parametrize("mutant", REPLICA_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found(mutant: ReplicaMutant) -> None:
    assert found(mutant, seeds=30)
