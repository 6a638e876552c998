"""Nodes with wrong clocks, machines that sleep and operators, by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.nodes.wrong_clocks import EVENTS, live
from tests.sim.seeds import blocks, play


@pytest.mark.usefixtures("looks_rarely")
@pytest.mark.parametrize("seeds", blocks(usual=10, full=100, size=10))
def test_no_clock_repeats_an_id_stops_a_put_or_expires_too_early(seeds: range) -> None:
    counts = sum(play(live, seeds), Counter[str]())
    if 0 in seeds:
        assert all(counts[each] for each in (*EVENTS, "expired")), "the seeds do what they are for"
