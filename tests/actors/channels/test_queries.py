"""GET and LIST: snapshots of what is kept (P2P-11 to P2P-14, PA-03 to PA-05, PA-14, PA-15)."""

from __future__ import annotations

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import U64_MAX, Failed, Get, GetAck
from tests.actors.channels.harness import ChannelHarness, fanout


def test_p2p_11_get_answers_again_and_again_and_deletes_nothing() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    receipt = producer.put(b"hi")
    for _ in range(3):
        assert producer.get(receipt.id) == GetAck(receipt.id, b"hi")
    assert harness.kept() == [b"hi"]


@pytest.mark.parametrize("fate", ["unknown", "acked", "expired"])
def test_p2p_12_pa_14_all_missing_messages_look_the_same(fate: str) -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    receipt = producer.put(ttl=5)
    if fate == "acked":
        producer.ack(receipt.id)
    elif fate == "expired":
        harness.now += 5
    wanted = receipt.id + (fate == "unknown")
    assert producer.get(wanted) == Failed(Get(wanted), Code.NOT_FOUND)


def test_pa_15_get_of_a_message_in_flight_and_either_ack_deletes() -> None:
    harness = ChannelHarness()
    producer, consumer = harness.producer(), harness.join()
    receipt = producer.put()
    assert consumer.pushed_ids() == [receipt.id]
    reader = harness.join(push=False)
    assert reader.get(receipt.id) == GetAck(receipt.id, b"hi")
    reader.ack(receipt.id)
    assert harness.kept() == [] and harness.info().credit == consumer.joined.window


def test_pa_18_the_sender_lists_and_gets_its_own_but_is_not_pushed_it() -> None:
    harness = ChannelHarness()
    both = harness.join()
    receipt = both.put()
    assert both.list() == [receipt.id] and both.get(receipt.id) == GetAck(receipt.id, b"hi")
    harness.advance(100)
    assert both.pushed() == []


def test_ps_10_pa_17_an_anonymous_ack_deletes_without_any_delivery() -> None:
    harness = ChannelHarness()
    sender = harness.join()
    sender.ack(sender.put().id)
    lister = harness.producer()
    receipt = sender.put()
    assert lister.list() == [receipt.id]
    lister.ack(receipt.id)
    assert harness.kept() == []


def test_pa_16_acks_of_unknown_ids_are_ignored() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    receipt = producer.put()
    producer.ack(1, receipt.id + 1, U64_MAX)
    assert harness.kept() == [b"hi"]
    producer.ack(receipt.id, receipt.id)
    producer.ack(receipt.id)
    assert harness.kept() == []


def test_pa_03_to_05_pages_of_a_list() -> None:
    harness = ChannelHarness(ChannelSettings(list_page=3))
    producer = harness.producer()
    assert producer.list() == []
    a, b, c, d, e = (producer.put().id for _ in range(5))
    assert producer.list() == [a, b, c]
    assert producer.list(limit=2) == [a, b]
    assert producer.list(limit=65_535) == [a, b, c, d, e]
    assert producer.list(c, limit=9) == [c, d, e]
    assert producer.list(b, d) == [b, c, d]
    assert producer.list(d, b) == [d, c, b]
    assert producer.list(c, c) == [c]
    assert producer.list(U64_MAX, 0) == [e, d, c]
    assert producer.list(e + 1, U64_MAX) == []


def test_pa_03_exclusive_cursors_and_an_empty_page_when_negotiated() -> None:
    harness = ChannelHarness()
    cursors = harness.join(push=False, cursor_lists=True)
    a, b, c = (cursors.put().id for _ in range(3))
    assert cursors.list(a, c, limit=9) == [b] and cursors.list(c, a, limit=9) == [b]
    assert cursors.list(0, 0, limit=9) == [a, b, c]
    assert cursors.list(a, c, limit=0) == []


def test_p2p_14_expired_messages_are_in_no_list_before_any_sweep() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    producer.put(ttl=5)
    kept = producer.put(ttl=6)
    harness.now += 5
    assert producer.list() == [kept.id]


def test_ps_11_answers_fit_the_packets_that_the_other_end_takes() -> None:
    harness = ChannelHarness()
    small, producer = harness.join(data_max=1024), harness.producer()
    fits, large = producer.put(bytes(1024)), producer.put(bytes(1025))
    assert small.pushed_ids() == [fits.id]
    assert small.get(fits.id) == GetAck(fits.id, bytes(1024))
    assert small.get(large.id) == Failed(Get(large.id), Code.TOO_LARGE_FOR_PEER)
    for _ in range(200):
        producer.put()
    assert len(small.list()) == 1024 // 8


def test_ps_06_in_fanout_mode_a_list_has_unacked_messages() -> None:
    harness = ChannelHarness(fanout())
    one, two, producer = harness.join(), harness.join(), harness.producer()
    receipt = producer.put()
    one.pushed(), two.pushed()
    one.ack(receipt.id)
    assert one.list() == [] and two.list() == [receipt.id] and producer.list() == [receipt.id]
