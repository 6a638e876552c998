"""The state table of one message (wire.md 3j), row by row."""

from __future__ import annotations

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Get, GetAck, Mode, Msg, NackReason, Put, PutAck
from tests.actors.pond import NAME, START_S, Pond, fanout, pair, queue

DEAD = NAME + b"!dead"
MODES = [pair(), fanout(), queue()]
BY_MODE = pytest.mark.parametrize("settings", MODES, ids=lambda each: each.mode.name.lower())


@BY_MODE
def test_new_put_new_key_is_kept_acked_and_pushed(settings) -> None:
    pond = Pond(settings)
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi", key=1, ttl=60)
    assert receipt == PutAck(1, 60, receipt.id)
    assert pond.kept() == [b"hi"]
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]


def test_new_put_is_ready_without_a_consumer() -> None:
    pond = Pond()
    receipt = pond.producer().put(b"hi")
    assert pond.info().leased == 0
    assert pond.join().pushed_ids() == [receipt.id]


def gone_by_ack(pond, receipt, consumer) -> None:
    consumer.ack(receipt.id)


def gone_by_expiry(pond, receipt, consumer) -> None:
    pond.advance(receipt.ttl)
    assert pond.kept() == []


def still_leased(pond, receipt, consumer) -> None:
    assert pond.info().leased == 1


@pytest.mark.parametrize("then", [still_leased, gone_by_ack, gone_by_expiry])
def test_any_state_put_known_key_same_digest_gets_the_same_ack(then) -> None:
    pond = Pond()
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi", key=7, ttl=10)
    assert consumer.pushed_ids() == [receipt.id]
    then(pond, receipt, consumer)
    kept = pond.kept()
    assert producer.put(b"hi", key=7, ttl=61) == receipt
    assert pond.kept() == kept and consumer.pushed() == []


@pytest.mark.parametrize("then", [still_leased, gone_by_ack, gone_by_expiry])
def test_any_state_put_known_key_other_digest_is_refused(then) -> None:
    pond = Pond()
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi", key=7, ttl=10)
    assert consumer.pushed_ids() == [receipt.id]
    then(pond, receipt, consumer)
    kept, put = pond.kept(), Put(7, 60, b"other")
    assert producer.ask(put) == [Failed(put, Code.KEY_REUSED)]
    assert pond.kept() == kept and consumer.pushed() == []


@BY_MODE
def test_ready_window_opens_leased(settings) -> None:
    pond = Pond(settings)
    producer, consumer = pond.producer(), pond.join(window=0)
    receipt = producer.put(b"hi")
    assert consumer.pushed() == [] and pond.info().leased == 0
    consumer.credit(1)
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]
    assert pond.info().leased == 1 and pond.info().credit == 0


@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_ready_or_leased_get_answers_and_changes_nothing(window) -> None:
    pond = Pond(queue())
    producer, _holder = pond.producer(), pond.join(window=window)
    receipt = producer.put(b"hi")
    before = pond.info()
    assert pond.producer().get(receipt.id) == GetAck(receipt.id, b"hi")
    assert pond.info().leased == before.leased and pond.kept() == [b"hi"]


@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_ready_or_leased_ack_ends_it_and_returns_credit_to_the_holder(window) -> None:
    pond = Pond(queue())
    producer, other = pond.producer(), pond.producer()
    pond.join(window=window)
    receipt = producer.put(b"hi")
    other.ack(receipt.id)
    assert pond.kept() == [] and pond.info().keys == 1
    assert pond.info().leased == 0 and pond.info().credit == window
    assert other.get(receipt.id) == Failed(Get(receipt.id), Code.NOT_FOUND)


def test_leased_ack_timeout_rests_then_ready_again() -> None:
    pond = Pond(queue(ack_timeout_s=30))
    producer, consumer = pond.producer(), pond.join(window=1)
    receipt = producer.put(b"hi")
    assert consumer.pushed() == [Msg(receipt.id, 1, b"hi")]
    pond.advance(24 - 0.1)
    assert pond.info().leased == 1
    while pond.info().leased:
        pond.advance(0.1)
    assert 24 <= pond.now - START_S <= 36.1 and pond.info().credit == 1
    assert consumer.pushed() == []
    pond.advance(36 / 10)
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]


def test_leased_ack_timeouts_beyond_the_last_attempt_bury_in_queue_mode() -> None:
    pond = Pond(queue(ack_timeout_s=1, attempts_max=3))
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi")
    pond.advance(60)
    assert [each.attempt for each in consumer.pushed()] == [1, 2, 3]
    assert pond.kept() == [] and pond.kept(DEAD) == [b"hi"]
    (row,) = pond.store.load(DEAD).rows
    assert row.origin is not None and row.id != receipt.id
    assert (row.origin.id, row.origin.attempts) == (receipt.id, 3)


def test_leased_ack_timeouts_never_end_in_pair_mode() -> None:
    pond = Pond(pair(ack_timeout_s=1))
    producer, consumer = pond.producer(), pond.join()
    producer.put(b"hi", ttl=36_000)
    pond.advance(3 * 3600)
    attempts = [each.attempt for each in consumer.pushed()]
    assert len(attempts) > 20 and attempts == list(range(1, len(attempts) + 1))
    assert pond.kept() == [b"hi"] and pond.kept(DEAD) == []


@pytest.mark.parametrize(("settings", "attempt"), [(pair(), 1), (queue(), 2)])
def test_leased_connection_ends_ready_at_once(settings, attempt) -> None:
    pond = Pond(settings)
    producer, first = pond.producer(), pond.join(window=1)
    receipt = producer.put(b"hi")
    assert first.pushed_ids() == [receipt.id]
    second = pond.join() if settings.mode is Mode.QUEUE else None
    first.leave()
    second = second or pond.join()
    assert second.pushed() == [Msg(receipt.id, attempt, b"hi")]


@pytest.mark.parametrize("ms", [0, 1, 5_000, 3_600_000])
def test_leased_nack_later_is_ready_after_the_delay(ms) -> None:
    pond = Pond(queue())
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi", ttl=36_000)
    assert consumer.pushed_ids() == [receipt.id]
    consumer.nack(receipt.id, NackReason.LATER, ms)
    assert pond.info().leased == 0
    pond.advance(ms / 1000 - 0.0005)
    if ms:
        assert consumer.pushed() == []
    pond.advance(0.0005)
    pond.settle()
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]


def test_leased_nack_later_rests_an_hour_at_most() -> None:
    pond = Pond(queue())
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi", ttl=36_000)
    consumer.pushed()
    consumer.nack(receipt.id, NackReason.LATER, 2**32 - 1)
    pond.advance(3600)
    assert consumer.pushed_ids() == [receipt.id]


def test_leased_nack_reject_buries_in_queue_mode() -> None:
    pond = Pond(queue())
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi")
    consumer.nack(receipt.id, NackReason.REJECT)
    pond.settle()
    assert pond.kept() == [] and pond.kept(DEAD) == [b"hi"]
    (row,) = pond.store.load(DEAD).rows
    assert row.origin is not None and row.origin.reason == "reject"
    assert pond.info().credit == consumer.joined.window


def test_leased_nack_reject_ends_it_in_pair_mode() -> None:
    pond = Pond(pair())
    producer, consumer = pond.producer(), pond.join()
    receipt = producer.put(b"hi")
    consumer.nack(receipt.id, NackReason.REJECT)
    pond.settle()
    assert pond.kept() == [] and pond.kept(DEAD) == []


@BY_MODE
@pytest.mark.parametrize("window", [0, 1], ids=["ready", "leased"])
def test_deadline_ends_ready_and_leased(settings, window) -> None:
    pond = Pond(settings)
    producer, consumer = pond.producer(), pond.join(window=window)
    receipt = producer.put(b"hi", ttl=5)
    consumer.pushed()
    pond.advance(5)
    assert pond.info().messages == 0 and pond.kept() == []
    assert pond.info().leased == 0 and pond.info().credit == window
    consumer.ack(receipt.id)
    assert producer.get(receipt.id) == Failed(Get(receipt.id), Code.NOT_FOUND)
    pond.advance(3600)
    assert consumer.pushed() == []


def test_gone_key_window_over_makes_the_key_new_again() -> None:
    pond = Pond()
    producer, consumer = pond.producer(), pond.join()
    first = producer.put(b"hi", key=7, ttl=60)
    consumer.ack(first.id)
    consumer.pushed()
    pond.advance(602)
    assert pond.info().keys == 0
    second = producer.put(b"other", key=7, ttl=60)
    assert second.id > first.id
    assert consumer.pushed() == [Msg(second.id, 1, b"other")]


def test_restart_leased_is_ready_and_attempts_are_kept() -> None:
    pond = Pond(queue(ack_timeout_s=1))
    producer, consumer = pond.producer(), pond.join(window=1)
    receipt = producer.put(b"hi")
    pond.advance(1.5)
    assert [each.attempt for each in consumer.pushed()] == [1, 2]
    pond.crash()
    pond.advance(0.2)
    assert consumer.pushed() == [Msg(receipt.id, 2, b"hi")]
