"""A node that drains pushes nothing more, whatever becomes of its cells meanwhile (PA-36)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from millpond.actors.messages import Put
from millpond.actors.runtime.scheduler import SchedulerSettings
from millpond.actors.store.interface import Fault
from tests.actors.channels.harness import ChannelHarness
from tests.actors.runtime.harness import LateStore


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def puts(count: int, key: int = 1) -> list[Put]:
    return [Put(key + each, 3600, b"hi") for each in range(count)]


def crash(harness: ChannelHarness) -> None:
    harness.crash()


def crash_for_long(harness: ChannelHarness) -> None:
    for _ in range(6):
        harness.crash()
        harness.advance(1)
    assert harness.scheduler.counters.quarantines == 1


@pytest.mark.parametrize("befalls", [crash, crash_for_long])
def test_pa_36_a_cell_that_is_rebuilt_still_pushes_nothing(
    befalls: Callable[[ChannelHarness], None],
) -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(window=0)
    receipt = producer.put()
    harness.scheduler.drain()
    befalls(harness)
    harness.advance(400)
    consumer.port.take()
    consumer.credit(5)
    assert consumer.pushed() == [] and harness.info().messages == 1
    consumer.ack(receipt.id)
    assert harness.info().messages == 0, "acks still count"


def test_pa_36_a_channel_that_restarts_during_the_drain_pushes_nothing() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(window=0)
    producer.put()
    crash_for_long(harness)
    harness.scheduler.drain()
    consumer.port.take()
    harness.advance(400)
    consumer.credit(5)
    assert consumer.pushed() == [] and harness.info().messages == 1


def test_pa_36_a_commit_that_fails_during_the_drain_leads_to_no_push() -> None:
    harness = ChannelHarness(store=(store := LateStore()))
    producer, consumer = harness.producer(), harness.join(window=1)
    producer.send(*puts(2))
    store.commits[0].finish(None)
    (first,) = consumer.pushed()
    harness.scheduler.drain()
    producer.send(*puts(1, key=3))
    store.commits[-1].finish(Fault.NOT_STORED)
    harness.advance(1)
    consumer.ack(first.id)
    assert consumer.pushed() == []


def test_pa_36_a_connection_during_the_drain_gets_no_push() -> None:
    harness = ChannelHarness(runtime=SchedulerSettings(passivate_after_s=10))
    asleep, awake = harness.producer(b"asleep"), harness.producer(b"awake")
    for producer in (asleep, awake):
        producer.put()
    asleep.leave()
    harness.advance(20)
    assert harness.scheduler.view(b"asleep") is None
    awake.leave()
    harness.scheduler.drain()
    for name in (b"asleep", b"awake", b"new"):
        consumer = harness.join(name)
        harness.producer(name).put()
        assert consumer.pushed() == [], name


def test_pa_36_a_channel_that_takes_another_mode_remembers_it() -> None:
    """Without messages and connections, the next connection sets the mode."""
    harness = ChannelHarness()
    producer = harness.producer()
    producer.ack(producer.put().id)
    producer.leave()
    harness.scheduler.drain()
    consumer = harness.join()
    harness.producer().put()
    assert consumer.pushed() == []
