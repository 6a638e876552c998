"""The state table of one message (docs/reference/wire-protocol.md), row by row."""

from __future__ import annotations

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Get, GetAck, Mode, Msg, NackReason, Put, PutAck
from tests.actors.channels.harness import NAME, START_S, ChannelHarness, fanout, pair, queue

DEAD = NAME + b"!dead"
MODES = [pair(), fanout(), queue()]
BY_MODE = pytest.mark.parametrize("settings", MODES, ids=lambda each: each.mode.name.lower())


@BY_MODE
def test_new_put_new_key_is_kept_acked_and_pushed(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi", key=1, ttl=60)
    assert receipt == PutAck(1, 60, receipt.id)
    assert harness.kept() == [b"hi"]
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]


def test_new_put_is_ready_without_a_consumer() -> None:
    harness = ChannelHarness()
    receipt = harness.producer().put(b"hi")
    assert harness.info().leased == 0
    assert harness.join().pushed_ids() == [receipt.id]


def gone_by_ack(harness, receipt, consumer) -> None:
    consumer.ack(receipt.id)


def gone_by_expiry(harness, receipt, consumer) -> None:
    harness.advance(receipt.ttl)
    assert harness.kept() == []


def still_leased(harness, receipt, consumer) -> None:
    assert harness.info().leased == 1


@pytest.mark.parametrize("then", [still_leased, gone_by_ack, gone_by_expiry])
def test_any_state_put_known_key_same_digest_gets_the_same_ack(then) -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi", key=7, ttl=10)
    assert consumer.pushed_ids() == [receipt.id]
    then(harness, receipt, consumer)
    kept = harness.kept()
    assert producer.put(b"hi", key=7, ttl=61) == receipt
    assert harness.kept() == kept and consumer.pushed() == []


@pytest.mark.parametrize("then", [still_leased, gone_by_ack, gone_by_expiry])
def test_any_state_put_known_key_other_digest_is_refused(then) -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi", key=7, ttl=10)
    assert consumer.pushed_ids() == [receipt.id]
    then(harness, receipt, consumer)
    kept, put = harness.kept(), Put(7, 60, b"other")
    assert producer.request(put) == [Failed(put, Code.KEY_REUSED)]
    assert harness.kept() == kept and consumer.pushed() == []


@BY_MODE
def test_ready_window_opens_leased(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=0)
    receipt = producer.put(b"hi")
    assert consumer.pushed() == [] and harness.info().leased == 0
    consumer.credit(1)
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]
    assert harness.info().leased == 1 and harness.info().credit == 0


@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_ready_or_leased_get_answers_and_changes_nothing(window) -> None:
    harness = ChannelHarness(queue())
    producer, _holder = harness.producer(), harness.join(window=window)
    receipt = producer.put(b"hi")
    before = harness.info()
    assert harness.producer().get(receipt.id) == GetAck(receipt.id, b"hi")
    assert harness.info().leased == before.leased and harness.kept() == [b"hi"]


@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_ready_or_leased_ack_ends_it_and_returns_credit_to_the_holder(window) -> None:
    harness = ChannelHarness(queue())
    producer, other = harness.producer(), harness.producer()
    harness.join(window=window)
    receipt = producer.put(b"hi")
    other.ack(receipt.id)
    assert harness.kept() == [] and harness.info().keys == 1
    assert harness.info().leased == 0 and harness.info().credit == window
    assert other.get(receipt.id) == Failed(Get(receipt.id), Code.NOT_FOUND)


def test_leased_ack_timeout_delayed_then_ready_again() -> None:
    harness = ChannelHarness(queue(ack_timeout_s=30))
    producer, consumer = harness.producer(), harness.join(window=1)
    receipt = producer.put(b"hi")
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]
    harness.advance(24 - 0.1)
    assert harness.info().leased == 1
    while harness.info().leased:
        harness.advance(0.1)
    assert 24 <= harness.now - START_S <= 36.1 and harness.info().credit == 1
    assert consumer.pushed() == []
    harness.advance(36 / 10)
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]


def test_leased_ack_timeouts_beyond_the_last_attempt_dead_letter_in_queue_mode() -> None:
    harness = ChannelHarness(queue(ack_timeout_s=1, attempts_max=3))
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi")
    harness.advance(60)
    assert [each.attempt for each in consumer.pushed()] == [1, 2, 3]
    assert harness.kept() == [] and harness.kept(DEAD) == [b"hi"]
    (row,) = harness.store.load(DEAD).rows
    assert row.origin is not None and row.id != receipt.id
    assert (row.origin.id, row.origin.attempts) == (receipt.id, 3)


def test_leased_ack_timeouts_never_end_in_pair_mode() -> None:
    harness = ChannelHarness(pair(ack_timeout_s=1))
    producer, consumer = harness.producer(), harness.join()
    producer.put(b"hi", ttl=36_000)
    harness.advance(3 * 3600)
    attempts = [each.attempt for each in consumer.pushed()]
    assert len(attempts) > 20 and attempts == list(range(1, len(attempts) + 1))
    assert harness.kept() == [b"hi"] and harness.kept(DEAD) == []


@pytest.mark.parametrize(("settings", "attempt"), [(pair(), 1), (queue(), 2)])
def test_leased_connection_ends_ready_at_once(settings, attempt) -> None:
    harness = ChannelHarness(settings)
    producer, first = harness.producer(), harness.join(window=1)
    receipt = producer.put(b"hi")
    assert first.pushed_ids() == [receipt.id]
    second = harness.join() if settings.mode is Mode.QUEUE else None
    first.leave()
    second = second or harness.join()
    assert second.pushed() == [Msg(receipt.id, attempt, b"hi")]


@pytest.mark.parametrize("ms", [0, 1, 5_000, 3_600_000])
def test_leased_nack_later_is_ready_after_the_delay(ms) -> None:
    harness = ChannelHarness(queue())
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi", ttl=36_000)
    assert consumer.pushed_ids() == [receipt.id]
    consumer.nack(receipt.id, NackReason.LATER, ms)
    assert harness.info().leased == 0
    harness.advance(ms / 1000 - 0.0005)
    if ms:
        assert consumer.pushed() == []
    harness.advance(0.0005)
    harness.run_due()
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]


def test_leased_nack_later_delays_an_hour_at_most() -> None:
    harness = ChannelHarness(queue())
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi", ttl=36_000)
    consumer.pushed()
    consumer.nack(receipt.id, NackReason.LATER, 2**32 - 1)
    harness.advance(3600)
    assert consumer.pushed_ids() == [receipt.id]


def test_leased_nack_reject_buries_in_queue_mode() -> None:
    harness = ChannelHarness(queue())
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi")
    consumer.nack(receipt.id, NackReason.REJECT)
    harness.run_due()
    assert harness.kept() == [] and harness.kept(DEAD) == [b"hi"]
    (row,) = harness.store.load(DEAD).rows
    assert row.origin is not None and row.origin.reason == "reject"
    assert harness.info().credit == consumer.joined.window


def test_leased_nack_reject_ends_it_in_pair_mode() -> None:
    harness = ChannelHarness(pair())
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put(b"hi")
    consumer.nack(receipt.id, NackReason.REJECT)
    harness.run_due()
    assert harness.kept() == [] and harness.kept(DEAD) == []


@BY_MODE
@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_deadline_ends_ready_and_leased(settings, window) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=window)
    receipt = producer.put(b"hi", ttl=5)
    consumer.pushed()
    harness.advance(5)
    assert harness.info().messages == 0 and harness.kept() == []
    assert harness.info().leased == 0 and harness.info().credit == window
    consumer.ack(receipt.id)
    assert producer.get(receipt.id) == Failed(Get(receipt.id), Code.NOT_FOUND)
    harness.advance(3600)
    assert consumer.pushed() == []


def test_gone_key_window_over_makes_the_key_new_again() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    first = producer.put(b"hi", key=7, ttl=60)
    consumer.ack(first.id)
    consumer.pushed()
    harness.advance(602)
    assert harness.info().keys == 0
    second = producer.put(b"other", key=7, ttl=60)
    assert second.id > first.id
    assert consumer.pushed() == [Msg(second.id, 1, b"other")]


def test_restart_leased_is_ready_and_attempts_are_kept() -> None:
    harness = ChannelHarness(queue(ack_timeout_s=1))
    producer, consumer = harness.producer(), harness.join(window=1)
    receipt = producer.put(b"hi")
    harness.advance(1.5)
    assert [each.attempt for each in consumer.pushed()] == [1, 2]
    harness.crash()
    harness.advance(0.2)
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]
