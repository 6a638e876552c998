"""Nodes that reach one another by way of a hostile relay, by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.nodes.hostile_relay import DEEDS, DRAIN, GIVEN_DEEDS, KEY_DEEDS, ONE_TIME_DEEDS
from tests.sim.nodes.hostile_worlds import HALTS, live
from tests.sim.seeds import blocks, play

pytestmark = pytest.mark.usefixtures("looks_rarely")
RETRY_S, RETRY_S_MAX = 30.0, 900.0
WANTED = (
    *(*DEEDS, *KEY_DEEDS, *ONE_TIME_DEEDS, DRAIN, *GIVEN_DEEDS, *HALTS),
    *("destroyed a one-time key", "no one-time keys are left"),
    *("read", "DeliveryStatus.REFUSED", "DeliveryStatus.EXPIRED"),
    *("down for 1000 s", "interrupted", "left to be fetched", "shown", "shown of strangers"),
    "used a 65th channel",
    *("request: accept", "request: refuse", "request: block"),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else worlds would last for days.
    monkeypatch.setattr("millpond.node.outbox.deliveries.RETRY_S_MIN", RETRY_S)
    monkeypatch.setattr("millpond.node.outbox.deliveries.RETRY_S_MAX", RETRY_S_MAX)


@pytest.mark.parametrize("seeds", blocks(usual=5, full=100, size=5))
def test_no_relay_gets_a_message_read_twice_lost_or_where_it_may_not(seeds: range) -> None:
    play(live, seeds)


@pytest.mark.full
def test_the_seeds_do_what_they_are_for() -> None:
    counts = sum(play(live, range(60)), Counter[str]())
    assert all(counts[each] for each in WANTED), counts
