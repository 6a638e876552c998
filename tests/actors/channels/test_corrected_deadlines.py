"""Deadlines that a wrong clock gave: a channel corrects them, and has the store do so."""

from __future__ import annotations

import msgspec

from millpond.actors.channels.channel import CORRECTIONS_MAX
from millpond.actors.store.changes import StoredMessage
from tests.actors.channels.harness import NAME, ChannelHarness

TTL_S = 60
AHEAD_S = 100_000.0
COUNT = 2 * CORRECTIONS_MAX + 1


def harness_with_clock() -> ChannelHarness:
    harness = ChannelHarness()
    harness.shared = msgspec.structs.replace(harness.shared, now=lambda: harness.now)
    return harness


def deadlines(harness: ChannelHarness) -> set[float]:
    return {row.expires_at for row in harness.store.load(NAME).rows}


def late(harness: ChannelHarness, count: int) -> list[StoredMessage]:
    expires_at = harness.now + AHEAD_S + TTL_S
    return [StoredMessage(each, each, TTL_S, expires_at, b"x") for each in range(1, count + 1)]


def test_many_deadlines_are_corrected_in_slices() -> None:
    harness = harness_with_clock()
    harness.store.write(NAME, late(harness, COUNT))
    harness.shared.uncorrected.add(NAME)
    harness.scheduler.adopt(NAME, harness.now)
    harness.scheduler.turn(harness.now)
    assert len(deadlines(harness)) == 2, "not all with one wake"
    assert harness.shared.uncorrected == {NAME}
    harness.run_due()
    assert deadlines(harness) == {harness.now + TTL_S}
    assert not harness.shared.uncorrected
    harness.advance(TTL_S + 2)
    assert harness.kept() == []


def test_a_message_that_left_before_its_correction_was_stored_stays_away() -> None:
    harness = harness_with_clock()
    harness.store.write(NAME, late(harness, COUNT))
    peer = harness.join(push=False)
    peer.ack(COUNT)
    harness.run_due()
    assert len(harness.kept()) == COUNT - 1
    assert deadlines(harness) == {harness.now + TTL_S}


def test_while_a_jump_waits_it_may_be_right() -> None:
    harness = harness_with_clock()
    harness.shared.jump.seconds = AHEAD_S
    harness.store.write(NAME, late(harness, 1))
    harness.shared.uncorrected.add(NAME)
    harness.scheduler.adopt(NAME, harness.now)
    harness.run_due()
    harness.join()
    assert deadlines(harness) == {harness.now + AHEAD_S + TTL_S}
    assert harness.shared.uncorrected == {NAME}, "nothing tells yet whether it is too late"
    harness.shared.jump.seconds = 0.0
    harness.scheduler.clock_jump_withdrawn(harness.now)
    harness.run_due()
    assert deadlines(harness) == {harness.now + TTL_S}
    assert not harness.shared.uncorrected
