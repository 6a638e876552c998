"""Nodes on damaged folders, by seed: each cell refuses in its protocol's form, or is right."""

from __future__ import annotations

import pytest

from tests.sim.nodes.damaged_folders import live
from tests.sim.seeds import blocks, play


@pytest.mark.parametrize("seeds", blocks(usual=10, full=100, size=10))
def test_a_damaged_cell_refuses_or_is_right(seeds: range) -> None:
    worlds = play(live, seeds)
    if 0 in seeds:  # the seeds do what they are for
        assert sum(bool(each.damages) for each in worlds) > len(worlds) // 3
        assert any(each.refused for each in worlds)
        assert any(each.damages and len(each.refused) < 6 for each in worlds)
