"""Pair mode, and what all modes share: credit, windows, leases, timeouts, rests
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Attach,
    Attached,
    Failed,
    Mode,
    Msg,
    NackReason,
    Put,
    Role,
    Touch,
    TouchAck,
    Writable,
)
from tests.actors.channels.harness import START_S, ChannelHarness, fanout, pair, queue

ALL_MODES = pytest.mark.parametrize(
    "settings", [pair(), fanout(), queue()], ids=["pair", "fanout", "queue"]
)


def push_times(
    harness: ChannelHarness, consumer, seconds: float, step: float = 0.05
) -> list[float]:
    """The times of pushes, in seconds from now."""
    start, times = harness.now, []
    while harness.now < start + seconds:
        harness.advance(step)
        times += [harness.now - start] * len(consumer.pushed())
    return times


def test_ps_02_everyone_else_is_pushed_and_the_first_ack_ends_it_for_all() -> None:
    harness = ChannelHarness()
    sender, one, two = harness.join(), harness.join(), harness.join()
    receipt = sender.put()
    assert one.pushed_ids() == two.pushed_ids() == [receipt.id] and sender.pushed() == []
    windows = sum(each.joined.window for each in (sender, one, two))
    assert (harness.info().leased, harness.info().credit) == (2, windows - 2)
    one.ack(receipt.id)
    assert harness.kept() == [] and (harness.info().leased, harness.info().credit) == (0, windows)
    harness.advance(120)
    assert two.pushed() == []


@ALL_MODES
def test_no_more_is_pushed_than_credit_allows(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=3)
    ids = [producer.put().id for _ in range(10)]
    assert consumer.joined.window == 3
    assert consumer.pushed_ids() == ids[:3]
    consumer.ack(ids[1])
    assert consumer.pushed_ids() == ids[3:4]
    consumer.ack(ids[0], ids[2])
    assert consumer.pushed_ids() == ids[4:6]


@ALL_MODES
def test_ps_03_window_zero_waits_for_credit_and_acks_give_it_back(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=0)
    ids = [producer.put().id for _ in range(5)]
    harness.advance(60)
    assert consumer.pushed() == []
    consumer.credit(2)
    assert consumer.pushed_ids() == ids[:2]
    consumer.ack(ids[0])
    assert consumer.pushed_ids() == ids[2:3]
    consumer.credit(1)
    assert consumer.pushed_ids() == ids[3:4]


@pytest.mark.parametrize(
    ("settings", "asked", "granted"),
    [
        (pair(), {}, 32),
        (pair(), {"window": 5000}, 1024),
        (pair(), {"role": Role.WORKER}, 1),
        (pair(), {"ordered": True}, 1),
        (pair(), {"ordered": True, "window": 0}, 0),
        (queue(), {}, 8),
        (queue(), {"window": 2}, 2),
        (queue(), {"window": 100}, 8),
        (queue(), {"role": Role.WORKER}, 1),
        (queue(), {"role": Role.WORKER, "window": 4}, 4),
    ],
)
def test_ps_03_ps_04_the_window_a_connection_gets(settings, asked, granted) -> None:
    assert ChannelHarness(settings).join(**asked).joined.window == granted


@ALL_MODES
def test_the_window_in_bytes_limits_pushes_within_credit(settings) -> None:
    settings = type(settings)(mode=settings.mode, delivery=type(settings.delivery)(window_bytes=20))
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join()
    ids = [producer.put(bytes(10)).id for _ in range(5)]
    assert consumer.pushed_ids() == ids[:2]
    consumer.ack(ids[0])
    assert consumer.pushed_ids() == ids[2:3]


def test_ps_04_producers_and_connections_without_push_get_no_pushes() -> None:
    harness = ChannelHarness()
    sender, quiet = harness.producer(), harness.join(push=False)
    producer = harness.join(role=Role.PRODUCER)
    sender.put()
    producer.credit(5), quiet.credit(5)
    harness.advance(100)
    assert producer.pushed() == [] and quiet.pushed() == []


def test_a_slow_connection_is_pushed_nothing_until_it_is_writable() -> None:
    harness = ChannelHarness()
    producer, slow, other = harness.producer(), harness.join(), harness.join()
    slow.port.writable = False
    receipt = producer.put()
    assert slow.pushed() == [] and other.pushed_ids() == [receipt.id]
    slow.port.writable = True
    slow.send(Writable())
    assert slow.pushed_ids() == [receipt.id]


def test_ordered_is_one_at_a_time_in_the_order_of_ids() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(ordered=True)
    ids = [producer.put().id for _ in range(4)]
    got = []
    while pushed := consumer.pushed_ids():
        assert len(pushed) == 1
        got += pushed
        consumer.ack(*pushed)
    assert got == ids


def test_pushes_ascend_among_ready_messages() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(window=4)
    ids = [producer.put().id for _ in range(6)]
    consumer.pushed()
    for each in (ids[2], ids[0]):
        consumer.nack(each, NackReason.LATER, 0)
    harness.run_due()
    # Later messages took the credit of the first two; the rest of it goes to the lowest.
    assert consumer.pushed_ids() == ids[4:6]
    consumer.ack(ids[1], ids[3])
    assert consumer.pushed_ids() == [ids[0], ids[2]]


def test_p2p_15_an_unacked_push_comes_again_at_growing_intervals() -> None:
    harness = ChannelHarness(pair(ack_timeout_s=30))
    producer, consumer = harness.producer(), harness.join()
    producer.put(ttl=7 * 86_400)
    consumer.pushed()
    times = [0.0, *push_times(harness, consumer, 9000, 0.5)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) > 12
    for attempt, gap in enumerate(gaps):
        timeout_s = min(30 * 1.5**attempt, 600)
        assert 0.8 * 1.1 * timeout_s <= gap <= 1.2 * 1.1 * timeout_s + 0.5
    assert len({round(gap / 660, 2) for gap in gaps[8:]}) > 1, "there is jitter"


@ALL_MODES
def test_an_expired_lease_returns_its_credit_in_the_same_step(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=1)
    producer.put()
    consumer.pushed()
    waiting = producer.put()
    while not (pushed := consumer.pushed_ids()):
        harness.now = harness.scheduler.timers.next_at
        harness.scheduler.turn(harness.now)
    assert pushed == [waiting.id] and harness.now - START_S <= 36


@pytest.mark.parametrize("settings", [pair(), fanout(), queue()])
def test_touch_holds_a_lease_from_now_on(settings) -> None:
    harness = ChannelHarness(settings)
    producer, worker = harness.producer(), harness.join(window=1)
    receipt = producer.put(ttl=36_000)
    worker.pushed()
    for _ in range(10):
        harness.advance(20)
        assert worker.touch(receipt.id, 25_000) == TouchAck(receipt.id, 25_000)
    assert worker.pushed() == [] and harness.info().leased == 1
    harness.advance(25)
    assert harness.info().leased == 0
    assert worker.touch(receipt.id, 1) == Failed(Touch(receipt.id, 1), Code.LEASE_LOST)


def test_touch_lasts_an_hour_at_most_and_says_so() -> None:
    harness = ChannelHarness(queue())
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put(ttl=36_000)
    assert worker.touch(receipt.id, 2**32 - 1) == TouchAck(receipt.id, 3_600_000)


@pytest.mark.parametrize("who", ["another", "unknown", "acked", "expired"])
def test_touch_without_a_lease_is_lease_lost(who: str) -> None:
    harness = ChannelHarness(queue())
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put(ttl=5)
    principal = harness.join() if who == "another" else worker
    if who == "acked":
        worker.ack(receipt.id)
    elif who == "expired":
        harness.now += 5
    touch = Touch(receipt.id + (who == "unknown"), 1000)
    principal.pushed()
    assert principal.request(touch) == [Failed(touch, Code.LEASE_LOST)]


@ALL_MODES
def test_busy_shrinks_the_window_down_to_one(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=3)
    for _ in range(3):
        producer.put(ttl=36_000)
    for window in (2, 1, 1):
        (first, *_) = consumer.pushed_ids() or [0]
        consumer.nack(first, NackReason.BUSY)
        assert harness.info().credit + harness.info().leased == window
        harness.advance(60)
    assert consumer.pushed_ids()


def test_pa_38_attempts_are_taken_back_when_the_connection_ends_in_pair_mode() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    producer.put()
    for _ in range(3):
        consumer = harness.join()
        assert [each.attempt for each in consumer.pushed()] == [1]
        consumer.leave()


def test_a_message_that_all_gave_back_comes_to_all_again() -> None:
    harness = ChannelHarness()
    producer, one, two = harness.producer(), harness.join(), harness.join()
    receipt = producer.put()
    for each in (one, two):
        assert each.pushed_ids() == [receipt.id]
        each.nack(receipt.id, NackReason.LATER, 1000)
    harness.advance(1)
    assert one.pushed_ids() == two.pushed_ids() == [receipt.id]


def test_a_delayed_message_is_not_pushed_to_a_new_consumer_before_its_time() -> None:
    harness = ChannelHarness()
    producer, one = harness.producer(), harness.join()
    receipt = producer.put()
    one.pushed()
    one.nack(receipt.id, NackReason.LATER, 10_000)
    two = harness.join()
    assert two.pushed() == [] and two.list() == [receipt.id]
    harness.advance(10)
    assert one.pushed_ids() == two.pushed_ids() == [receipt.id]


def test_ps_11_resume_after_skips_on_this_connection_only() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    a, b, c = (producer.put().id for _ in range(3))
    late, all_ = harness.join(resume_after=b), harness.join(resume_after=0)
    assert late.pushed_ids() == [c] and all_.pushed_ids() == [a, b, c]
    assert late.list() == [a, b, c]


def test_ps_11_a_skipped_message_stays_skipped_when_another_gives_it_back() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    skipped = producer.put().id
    late, other = harness.join(resume_after=skipped), harness.join()
    other.nack(skipped, NackReason.LATER, 1000)
    other.pushed()
    harness.advance(1)
    assert other.pushed_ids() == [skipped] and late.pushed() == []


def test_a_message_that_cannot_be_decrypted_stays_for_others() -> None:
    harness = ChannelHarness()
    producer, blind, other = harness.producer(), harness.join(), harness.join()
    receipt = producer.put(ttl=36_000)
    blind.pushed(), other.pushed()
    blind.nack(receipt.id, NackReason.CANNOT_DECRYPT)
    other.nack(receipt.id, NackReason.LATER, 1000)
    harness.advance(1)
    assert other.pushed_ids() == [receipt.id] and blind.pushed() == []
    harness.advance(600)
    assert blind.pushed() == [] and harness.kept() == [b"hi"]


def test_nacks_without_a_lease_are_ignored() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put()
    for reason in NackReason:
        producer.nack(receipt.id, reason)
        consumer.nack(receipt.id + 1, reason)
    assert harness.kept() == [b"hi"] and harness.info().leased == 1


def test_p2p_14_nothing_is_pushed_past_its_deadline() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(window=0)
    producer.put(ttl=5)
    harness.now += 5
    consumer.credit(1)
    assert consumer.pushed() == [] and harness.info().leased == 0


def test_pa_36_a_draining_node_pushes_nothing_more_and_still_takes_acks() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    first = producer.put()
    assert consumer.pushed_ids() == [first.id]
    harness.scheduler.drain()
    producer.put()
    consumer.ack(first.id)
    consumer.credit(5)
    harness.advance(100)
    assert consumer.pushed() == [] and len(harness.kept()) == 1


def test_after_a_crash_unacked_messages_are_pushed_again() -> None:
    harness = ChannelHarness()
    producer, stays, leaves = harness.producer(), harness.join(), harness.join()
    a, b = producer.put(), producer.put()
    stays.pushed(), leaves.pushed()
    stays.ack(a.id)
    harness.crash()
    leaves.leave()
    assert stays.pushed() == []
    harness.advance(0.1)
    assert stays.pushed_ids() == [b.id]
    stays.ack(b.id)
    assert harness.kept() == []


@ALL_MODES
def test_granted_credit_outlasts_a_crash(settings) -> None:
    harness = ChannelHarness(settings)
    producer, consumer = harness.producer(), harness.join(window=0)
    consumer.credit(2)
    harness.crash()
    harness.advance(1)
    ids = [producer.put().id for _ in range(3)]
    assert consumer.pushed_ids() == ids[:2]


@pytest.mark.parametrize(
    ("configured", "asked", "granted"),
    [
        (None, None, Mode.PAIR),
        (None, Mode.QUEUE, Mode.QUEUE),
        (None, Mode.FANOUT, Mode.FANOUT),
        (Mode.QUEUE, None, Mode.QUEUE),
        (Mode.QUEUE, Mode.PAIR, Mode.QUEUE),
        (Mode.PAIR, Mode.QUEUE, Mode.PAIR),
    ],
)
def test_ps_05_configuration_decides_the_mode_then_the_first_hello(
    configured, asked, granted
) -> None:
    settings = type(pair())(mode=configured)
    assert ChannelHarness(settings).join(mode=asked).joined.mode is granted


def test_ps_05_the_mode_stays_while_there_is_a_connection_or_a_message() -> None:
    harness = ChannelHarness()
    first = harness.join(mode=Mode.QUEUE)
    second = harness.join(mode=Mode.FANOUT)
    assert second.joined.mode is Mode.QUEUE
    first.leave()
    assert harness.join(mode=Mode.FANOUT).joined.mode is Mode.QUEUE
    receipt = second.put()
    for name in list(harness.scheduler.cells):
        for port in list(harness.scheduler.cells[name].attachments or {}):
            harness.scheduler.detach(name, port)
    harness.advance(120)
    third = harness.join(mode=Mode.FANOUT)
    assert third.joined.mode is Mode.QUEUE
    third.ack(receipt.id)
    third.leave()
    assert harness.join(mode=Mode.FANOUT).joined.mode is Mode.FANOUT


def test_ps_05_the_mode_outlasts_a_crash_of_a_channel_without_messages() -> None:
    harness = ChannelHarness()
    first, second = harness.join(mode=Mode.QUEUE), harness.join()
    first.leave()
    harness.crash()
    harness.advance(1)
    assert harness.info().mode == "queue" and second.joined.mode is Mode.QUEUE


def test_a_second_join_of_a_connection_changes_nothing() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join(window=2)
    producer.put()
    consumer.pushed()
    assert consumer.request(Attach(window=9)) == [Attached(Mode.PAIR, 2)]
    assert (harness.info().leased, harness.info().credit) == (1, 1)


def test_ports_that_are_not_attached_may_put_and_read_but_get_no_leases() -> None:
    harness = ChannelHarness()
    stranger = type(harness.join())(harness, b"orders", harness.port())
    (receipt,) = stranger.request(Put(1, 60, b"hi"))
    assert stranger.list() == [receipt.id]
    stranger.nack(receipt.id)
    assert stranger.touch(receipt.id, 1) == Failed(Touch(receipt.id, 1), Code.LEASE_LOST)
    stranger.credit(5)
    stranger.leave()


def test_a_connection_to_a_crashed_channel_is_attached_before_any_push() -> None:
    harness = ChannelHarness()
    receipt = harness.producer().put()
    harness.crash()
    late = harness.join()
    harness.advance(1)
    welcome, *pushes = late.port.take()
    assert welcome == Attached(Mode.PAIR, 32)
    assert [(type(each), each.id) for each in pushes] == [(Msg, receipt.id)]
