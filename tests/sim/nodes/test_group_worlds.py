"""Three members of a group that reach one another by way of a hostile relay, by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.nodes.group_worlds import HALTS, live
from tests.sim.seeds import blocks, play

pytestmark = pytest.mark.usefixtures("looks_rarely")
RETRY_S, RETRY_S_MAX = 30.0, 900.0
DEEDS = ("drop", "delay", "replay", "alter", "withhold", "misdirect")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else worlds would last for days.
    monkeypatch.setattr("millpond.node.outbox.deliveries.RETRY_S_MIN", RETRY_S)
    monkeypatch.setattr("millpond.node.outbox.deliveries.RETRY_S_MAX", RETRY_S_MAX)


@pytest.mark.parametrize("seeds", blocks(usual=2, full=40, size=2))
def test_no_relay_gets_a_text_of_a_group_shown_twice_lost_or_after_a_removal(seeds: range) -> None:
    play(live, seeds)


@pytest.mark.full
def test_the_seeds_do_what_they_are_for() -> None:
    counts = sum(play(live, range(20)), Counter[str]())
    assert all(counts[each] for each in (*DEEDS, *HALTS, "removed", "shown")), counts
