"""Counters of deliveries, and the lag of subscribers."""

from __future__ import annotations

import logging

import msgspec
import pytest

from millpond.actors.channels import queries
from millpond.actors.channels.channel import Channel
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs.messages import RejectJob
from millpond.actors.messages import Ack, Mode, NackReason, Put
from tests.actors.channels.harness import NAME, ChannelHarness, fanout, pair, queue

ANN, BOB = b"a" * 32, b"b" * 32


def changed(harness: ChannelHarness) -> dict[str, int]:
    """All counters that are not 0."""
    counts = msgspec.structs.asdict(harness.shared.counters)
    return {name: value for name, value in counts.items() if value}


def lags(harness: ChannelHarness) -> list[int]:
    channel = harness.scheduler.view(NAME)
    assert isinstance(channel, Channel)
    return sorted(channel.lags)


@pytest.mark.parametrize("settings", [pair(), fanout(), queue()], ids=lambda each: each.mode.name)
def test_a_message_that_is_pushed_and_acknowledged(settings: ChannelSettings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put()
    producer.request(Put(receipt.key, 3600, b"hi"))  # a retry is no other message
    consumer.ack(receipt.id)
    consumer.request(Ack(receipt.id), Ack(receipt.id))
    assert changed(harness) == {"kept": 1, "pushes": 1, "acks": 1, "late_acks": 2}


def test_a_batch_counts_each_of_its_messages() -> None:
    harness = ChannelHarness(queue(window=8))
    producer, worker = harness.producer(), harness.join(window=8)
    producer.send(*(Put(key, 3600, b"x") for key in range(5)))
    worker.send(*map(Ack, worker.pushed_ids()))
    assert changed(harness) == {"kept": 5, "pushes": 5, "acks": 5}


def test_redeliveries_are_counted() -> None:
    harness = ChannelHarness(queue(ack_timeout_s=10.0))
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put(ttl=36_000)
    worker.nack(receipt.id, NackReason.LATER, 0)
    harness.run_due()
    assert changed(harness) == {"kept": 1, "pushes": 2, "redeliveries": 1, "nacks": 1}
    harness.advance(60)  # nobody acknowledges it: it comes back, and is handed out again
    counted = changed(harness)
    assert counted["timeouts"] >= 1 and counted["redeliveries"] == counted["timeouts"] + 1
    harness.advance(0.5)
    assert harness.info().leased == 1
    worker.leave()
    assert changed(harness) == counted | {"lost": 1}


def test_a_job_that_was_not_begun_is_lost_and_not_redelivered() -> None:
    harness = ChannelHarness(queue(ack_timeout_s=10.0))
    producer, worker = harness.producer(), harness.join(reports_start=True)
    producer.put(ttl=36_000)
    while harness.info().leased:
        harness.advance(0.5)
    assert changed(harness) == {"kept": 1, "pushes": 1, "timeouts": 1}
    harness.advance(5)
    assert changed(harness) == {"kept": 1, "pushes": 2, "timeouts": 1}
    worker.leave()
    assert changed(harness) == {"kept": 1, "pushes": 2, "timeouts": 1, "lost": 1}


@pytest.mark.parametrize("is_job", [False, True])
def test_a_rejected_message_is_a_dead_letter_which_is_kept(is_job: bool) -> None:
    harness = ChannelHarness(queue())
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put()
    worker.pushed()
    if is_job:
        worker.request(RejectJob(1, receipt.id, "bad"))
    else:
        worker.nack(receipt.id, NackReason.REJECT)
    harness.run_due()
    assert changed(harness) == {"kept": 2, "pushes": 1, "nacks": 1, "dead_letters": 1}


def test_a_rejected_message_of_a_pair_counts_as_nack_alone() -> None:
    harness = ChannelHarness(pair())
    producer, consumer = harness.producer(), harness.join()
    consumer.nack(producer.put().id, NackReason.REJECT)
    assert harness.kept() == [] and changed(harness) == {"kept": 1, "pushes": 1, "nacks": 1}


def test_a_message_that_a_consumer_cannot_read_is_given_back_once() -> None:
    harness = ChannelHarness(pair())
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put()
    for _ in range(2):
        consumer.nack(receipt.id, NackReason.CANNOT_DECRYPT)
    assert changed(harness) == {"kept": 1, "pushes": 1, "nacks": 1}


@pytest.mark.parametrize("is_dead_lettered", [False, True])
def test_a_message_that_expires(is_dead_lettered: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    harness = ChannelHarness(ChannelSettings(mode=Mode.QUEUE, dead_letter_expired=is_dead_lettered))
    harness.producer().put(ttl=5)
    harness.advance(60)
    dead = {"kept": 2, "dead_letters": 1} if is_dead_lettered else {"kept": 1}
    assert changed(harness) == {"expired": 1} | dead


def test_the_lag_of_a_subscriber_is_its_missing_acks() -> None:
    harness = ChannelHarness(fanout())
    producer, quick, slow = harness.producer(), harness.join(), harness.join()
    ids = [producer.put().id for _ in range(5)]
    assert lags(harness) == [5, 5]
    quick.ack(*ids)
    slow.ack(ids[2])
    assert lags(harness) == [0, 4]
    late = harness.join()
    assert lags(harness) == [0, 0, 4], "what was put before it came is not owed to it"
    for each in (quick, late):
        each.leave()
    assert lags(harness) == [4]


def test_an_identity_that_is_away_falls_behind_and_owes_itself_nothing() -> None:
    harness = ChannelHarness(fanout())
    ann, producer = harness.join(identity=ANN), harness.producer()
    ids = [producer.put().id for _ in range(3)]
    ann.put()
    ann.ack(ids[1])
    assert lags(harness) == [2]
    ann.leave()
    producer.put()
    assert lags(harness) == [3]
    bob = harness.join(identity=BOB)
    assert lags(harness) == [0, 3]
    bob.put()
    assert lags(harness) == [0, 4]


@pytest.mark.parametrize("settings", [pair(), queue()], ids=lambda each: each.mode.name)
def test_channels_of_other_modes_have_no_lags(settings: ChannelSettings) -> None:
    harness = ChannelHarness(settings)
    harness.join()
    harness.producer().put()
    assert lags(harness) == []


def test_the_lag_of_a_large_channel_is_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "STEP_ROWS", 3)
    harness = ChannelHarness(fanout(window=100))
    first, second = harness.join(window=100), harness.join(window=100)
    for _ in range(10):
        first.put()
    channel = harness.scheduler.view(NAME)
    assert isinstance(channel, Channel)
    steps = channel.lags_in_steps()
    found, count = list[int](), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        count += 1
        second.put()  # what comes meanwhile is not counted
    assert sorted(found) == [0, 10]
    assert count == 3
    assert lags(harness) == [count, 10]


def test_the_lag_of_a_small_channel_is_that_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = ChannelHarness(fanout(window=100))
    first, second = harness.join(window=100), harness.join(window=100)
    for _ in range(4):
        first.put()
        second.put()
    first.ack(first.pushed_ids()[0])
    channel = harness.scheduler.view(NAME)
    assert isinstance(channel, Channel)
    found = channel.small_lags()
    assert found is not None and sorted(found) == [3, 4]
    monkeypatch.setattr(queries, "SMALL_ROWS", 6)
    assert channel.small_lags() is None
    assert sorted(lags(harness)) == [3, 4]
