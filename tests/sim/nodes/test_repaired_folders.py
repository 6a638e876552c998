"""Repairs of damaged folders, by seed: they print what is lost, and all else is served."""

from __future__ import annotations

import pytest

from tests.sim.nodes.repaired_folders import live
from tests.sim.seeds import blocks, play


@pytest.mark.parametrize("seeds", blocks(usual=10, full=100, size=10))
def test_a_repair_prints_what_is_lost_and_serves_all_else(seeds: range) -> None:
    worlds = play(live, seeds)
    if 0 in seeds:  # the seeds do what they are for
        repairs = [each for world in worlds for each in world.repairs]
        assert sum(bool(each.lines) for each in repairs) > len(repairs) // 3
        assert any(each.interruptions for each in repairs)
        assert any(each.lines and not each.code for each in repairs)
        assert sum(world.lost for world in worlds) > 0
