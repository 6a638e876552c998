"""Regressions between the parts of a channel and its runtime."""

from __future__ import annotations

from math import inf

from millpond.actors.channels.settings import NodeLimits
from millpond.actors.messages import Attached, Mode
from millpond.actors.runtime.scheduler import SchedulerSettings
from tests.actors.channels.harness import ChannelHarness


def test_ps_05_a_queue_that_was_empty_for_long_is_still_one_after_a_rebuild() -> None:
    harness = ChannelHarness(runtime=SchedulerSettings(passivate_after_s=0))
    producer = harness.producer(mode=Mode.QUEUE)
    worker = harness.join()
    worker.ack(producer.put().id)
    harness.advance(700)
    producer.put()
    for peer in (producer, worker):
        peer.leave()
    harness.advance(1)
    assert harness.scheduler.counters.passivations >= 1
    assert harness.join().joined == Attached(Mode.QUEUE, 8)


def test_pa_09_at_the_nodes_limit_of_keys_a_quiet_channel_keeps_its_own() -> None:
    harness = ChannelHarness(limits=NodeLimits(keys_max=40))
    busy = harness.producer(b"busy")
    for _ in range(60):
        busy.ack(busy.put().id)
    quiet = harness.producer(b"quiet")
    first = quiet.put(key=1)
    quiet.put(key=2)
    assert quiet.put(key=1) == first


class Sleeper:
    def __init__(self, *, fails: bool) -> None:
        self.deadline = inf
        self.fails = fails
        self.woken = 0

    def wake(self, now: float) -> None:
        self.woken += 1
        if self.fails:
            raise RuntimeError("wakes badly")


def test_a_deadline_that_fails_leaves_the_others_armed() -> None:
    harness = ChannelHarness()
    bad, good = Sleeper(fails=True), Sleeper(fails=False)
    for each in (bad, good):
        harness.scheduler.timers.arm(each, harness.now + 1)
    for _ in range(2):
        try:
            harness.scheduler.turn(harness.now + 2)
        except RuntimeError:
            continue
    assert (bad.woken, good.woken) == (1, 1)


def test_pa_16_acks_of_unknown_messages_are_ignored_and_counted() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put()
    for _ in range(3):
        consumer.ack(receipt.id)
    assert harness.shared.counters.late_acks == 2 and harness.info().messages == 0
