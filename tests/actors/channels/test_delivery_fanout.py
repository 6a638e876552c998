"""Fanout mode: everyone who was subscribed must ack (PS-06)."""

from __future__ import annotations

import pytest

from millpond.actors.messages import NackReason
from tests.actors.channels.harness import ChannelHarness, fanout


@pytest.fixture
def harness() -> ChannelHarness:
    return ChannelHarness(fanout())


def test_a_message_is_removed_when_all_subscribers_have_acked(harness: ChannelHarness) -> None:
    producer, one, two = harness.producer(), harness.join(), harness.join()
    receipt = producer.put()
    assert one.pushed_ids() == two.pushed_ids() == [receipt.id]
    one.ack(receipt.id, receipt.id)
    assert harness.kept() == [b"hi"] and harness.info().leased == 1
    two.ack(receipt.id)
    assert harness.kept() == [] and harness.info().leased == 0


def test_each_subscriber_has_its_own_pace(harness: ChannelHarness) -> None:
    producer, fast, slow = harness.producer(), harness.join(window=1), harness.join(window=1)
    ids = [producer.put().id for _ in range(3)]
    for each in ids:
        assert fast.pushed_ids() == [each]
        fast.ack(each)
    assert slow.pushed_ids() == ids[:1]


def test_without_a_subscriber_it_stays_until_its_deadline(harness: ChannelHarness) -> None:
    receipt = harness.producer().put(ttl=60)
    late = harness.join()
    assert late.pushed() == []
    late.ack(receipt.id)
    assert harness.kept() == [b"hi"]
    harness.advance(60)
    assert harness.kept() == []


@pytest.mark.parametrize(("after", "count"), [(None, 0), (0, 3), (1, 2), (3, 0)])
def test_a_new_subscriber_gets_later_messages_and_stored_ones_after_tag_0c(
    harness: ChannelHarness, after: int | None, count: int
) -> None:
    producer, early = harness.producer(), harness.join()
    ids = [producer.put().id for _ in range(3)]
    early.pushed()
    resume_after = after if not after else ids[after - 1]
    newcomer = harness.join(resume_after=resume_after)
    assert newcomer.pushed_ids() == ids[3 - count :]
    later = producer.put()
    assert newcomer.pushed_ids() == [later.id]


def test_an_ack_of_a_message_from_before_the_subscription_does_not_count(
    harness: ChannelHarness,
) -> None:
    producer, early = harness.producer(), harness.join()
    receipt = producer.put()
    newcomer = harness.join(resume_after=0)
    newcomer.ack(receipt.id)
    assert newcomer.list() == [] and harness.kept() == [b"hi"]
    early.ack(receipt.id)
    assert harness.kept() == []


def test_acks_of_the_sender_and_of_too_small_consumers_are_not_needed(
    harness: ChannelHarness,
) -> None:
    sender, small, reader = harness.join(), harness.join(data_max=1024), harness.join()
    receipt = sender.put(bytes(2000))
    assert sender.pushed() == small.pushed() == []
    sender.ack(receipt.id), small.ack(receipt.id)
    assert harness.kept() != []
    reader.ack(receipt.id)
    assert harness.kept() == []


def test_a_subscriber_that_left_without_an_ack_keeps_it_until_its_deadline(
    harness: ChannelHarness,
) -> None:
    producer, leaves, stays = harness.producer(), harness.join(), harness.join()
    receipt = producer.put(ttl=60)
    leaves.leave()
    stays.ack(receipt.id)
    assert harness.kept() == [b"hi"]
    harness.advance(60)
    assert harness.kept() == []


def test_a_nack_delays_the_message_for_this_subscriber_alone(harness: ChannelHarness) -> None:
    producer, one, two = harness.producer(), harness.join(), harness.join()
    receipt = producer.put()
    one.pushed(), two.pushed()
    one.nack(receipt.id, NackReason.LATER, 10_000)
    two.nack(receipt.id, NackReason.LATER, 1_000)
    harness.advance(1)
    assert one.pushed() == [] and two.pushed_ids() == [receipt.id]
    harness.advance(9)
    assert one.pushed_ids() == [receipt.id] and two.pushed() == []


@pytest.mark.parametrize("reason", [NackReason.LATER, NackReason.REJECT, NackReason.BUSY])
def test_acked_and_rejected_messages_are_not_pushed_here_again(
    harness: ChannelHarness, reason: NackReason
) -> None:
    producer, one, two = harness.producer(), harness.join(), harness.join()
    receipt = producer.put(ttl=36_000)
    one.pushed()
    one.nack(receipt.id, reason)
    if reason is not NackReason.REJECT:
        one.ack(receipt.id)
    harness.advance(3600)
    assert one.pushed() == [] and two.pushed() != []
    two.ack(receipt.id)
    assert harness.kept() == []


def test_a_message_acked_before_its_push_is_not_pushed(harness: ChannelHarness) -> None:
    producer, one, _two = harness.producer(), harness.join(window=0), harness.join()
    receipt = producer.put()
    one.ack(receipt.id)
    one.credit(1)
    assert one.pushed() == []


def test_a_late_ack_after_the_lease_ended_stops_the_redelivery(harness: ChannelHarness) -> None:
    producer, one, _two = harness.producer(), harness.join(), harness.join()
    receipt = producer.put()
    one.pushed()
    while harness.info().leased == 2:
        harness.advance(0.5)
    one.ack(receipt.id)
    harness.advance(10)
    assert one.pushed() == []


def test_a_crash_loses_no_message_of_a_subscriber_that_is_still_there(
    harness: ChannelHarness,
) -> None:
    producer, one, two = harness.producer(), harness.join(), harness.join()
    a, b = producer.put(), producer.put()
    one.ack(a.id)
    one.pushed(), two.pushed()
    harness.crash()
    harness.advance(0.1)
    assert b.id in one.pushed_ids(), "a duplicate of the acked one is allowed"
    assert two.pushed_ids() == [a.id, b.id]
    later = producer.put()
    one.ack(later.id), two.ack(later.id)
    assert len(harness.kept()) == 2
