"""Fanout mode: everyone who was subscribed must ack (PS-06)."""

from __future__ import annotations

import pytest

from millpond.actors.messages import NackReason
from tests.actors.pond import Pond, fanout


@pytest.fixture
def pond() -> Pond:
    return Pond(fanout())


def test_a_message_goes_when_all_who_were_subscribed_have_acked(pond: Pond) -> None:
    producer, one, two = pond.producer(), pond.join(), pond.join()
    receipt = producer.put()
    assert one.pushed_ids() == two.pushed_ids() == [receipt.id]
    one.ack(receipt.id, receipt.id)
    assert pond.kept() == [b"hi"] and pond.info().leased == 1
    two.ack(receipt.id)
    assert pond.kept() == [] and pond.info().leased == 0


def test_each_subscriber_has_its_own_pace(pond: Pond) -> None:
    producer, fast, slow = pond.producer(), pond.join(window=1), pond.join(window=1)
    ids = [producer.put().id for _ in range(3)]
    for each in ids:
        assert fast.pushed_ids() == [each]
        fast.ack(each)
    assert slow.pushed_ids() == ids[:1]


def test_without_a_subscriber_it_stays_until_its_deadline(pond: Pond) -> None:
    receipt = pond.producer().put(ttl=60)
    late = pond.join()
    assert late.pushed() == []
    late.ack(receipt.id)
    assert pond.kept() == [b"hi"]
    pond.advance(60)
    assert pond.kept() == []


@pytest.mark.parametrize(("after", "count"), [(None, 0), (0, 3), (1, 2), (3, 0)])
def test_a_newcomer_gets_what_comes_later_and_what_is_kept_after_tag_0c(
    pond: Pond, after: int | None, count: int
) -> None:
    producer, early = pond.producer(), pond.join()
    ids = [producer.put().id for _ in range(3)]
    early.pushed()
    resume_after = after if not after else ids[after - 1]
    newcomer = pond.join(resume_after=resume_after)
    assert newcomer.pushed_ids() == ids[3 - count :]
    later = producer.put()
    assert newcomer.pushed_ids() == [later.id]


def test_a_newcomer_s_ack_of_what_came_before_it_does_not_count(pond: Pond) -> None:
    producer, early = pond.producer(), pond.join()
    receipt = producer.put()
    newcomer = pond.join(resume_after=0)
    newcomer.ack(receipt.id)
    assert newcomer.list() == [] and pond.kept() == [b"hi"]
    early.ack(receipt.id)
    assert pond.kept() == []


def test_the_sender_and_who_cannot_take_it_are_not_waited_for(pond: Pond) -> None:
    sender, small, reader = pond.join(), pond.join(data_max=1024), pond.join()
    receipt = sender.put(bytes(2000))
    assert sender.pushed() == small.pushed() == []
    sender.ack(receipt.id), small.ack(receipt.id)
    assert pond.kept() != []
    reader.ack(receipt.id)
    assert pond.kept() == []


def test_who_left_without_an_ack_keeps_it_until_its_deadline(pond: Pond) -> None:
    producer, leaves, stays = pond.producer(), pond.join(), pond.join()
    receipt = producer.put(ttl=60)
    leaves.leave()
    stays.ack(receipt.id)
    assert pond.kept() == [b"hi"]
    pond.advance(60)
    assert pond.kept() == []


def test_a_nack_rests_the_message_for_this_subscriber_alone(pond: Pond) -> None:
    producer, one, two = pond.producer(), pond.join(), pond.join()
    receipt = producer.put()
    one.pushed(), two.pushed()
    one.nack(receipt.id, NackReason.LATER, 10_000)
    two.nack(receipt.id, NackReason.LATER, 1_000)
    pond.advance(1)
    assert one.pushed() == [] and two.pushed_ids() == [receipt.id]
    pond.advance(9)
    assert one.pushed_ids() == [receipt.id] and two.pushed() == []


@pytest.mark.parametrize("reason", [NackReason.LATER, NackReason.REJECT, NackReason.BUSY])
def test_what_was_acked_or_rejected_is_not_pushed_here_again(
    pond: Pond, reason: NackReason
) -> None:
    producer, one, two = pond.producer(), pond.join(), pond.join()
    receipt = producer.put(ttl=36_000)
    one.pushed()
    one.nack(receipt.id, reason)
    if reason is not NackReason.REJECT:
        one.ack(receipt.id)
    pond.advance(3600)
    assert one.pushed() == [] and two.pushed() != []
    two.ack(receipt.id)
    assert pond.kept() == []


def test_what_was_acked_before_it_was_pushed_is_not_pushed(pond: Pond) -> None:
    producer, one, _two = pond.producer(), pond.join(window=0), pond.join()
    receipt = producer.put()
    one.ack(receipt.id)
    one.credit(1)
    assert one.pushed() == []


def test_a_late_ack_after_the_lease_ended_stops_the_redelivery(pond: Pond) -> None:
    producer, one, _two = pond.producer(), pond.join(), pond.join()
    receipt = producer.put()
    one.pushed()
    while pond.info().leased == 2:
        pond.advance(0.5)
    one.ack(receipt.id)
    pond.advance(10)
    assert one.pushed() == []


def test_a_crash_loses_no_message_of_a_subscriber_that_is_still_there(pond: Pond) -> None:
    producer, one, two = pond.producer(), pond.join(), pond.join()
    a, b = producer.put(), producer.put()
    one.ack(a.id)
    one.pushed(), two.pushed()
    pond.crash()
    pond.advance(0.1)
    assert b.id in one.pushed_ids(), "a duplicate of the acked one is allowed"
    assert two.pushed_ids() == [a.id, b.id]
    later = producer.put()
    one.ack(later.id), two.ack(later.id)
    assert len(pond.kept()) == 2
