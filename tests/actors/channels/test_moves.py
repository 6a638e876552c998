"""Messages that move into a channel from elsewhere in the node are added once, until the move is
over."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings, NodeLimits
from millpond.actors.errors import Code
from millpond.actors.messages import (
    Failed,
    FindMove,
    Move,
    MovesDone,
    OpenMoves,
    Put,
    PutAck,
)
from tests.actors.channels.harness import NAME, ChannelHarness, Peer

ORIGIN = 2**60 + 7
DAY_S = 86_400
MONTH_S = 30 * DAY_S


def move(harness: ChannelHarness, key: int = 1, origin: int = ORIGIN, data: bytes = b"hi") -> Move:
    return Move(origin, harness.now + MONTH_S, Put(key, 3600, data))


def moved(peer: Peer, request: Move) -> PutAck:
    (reply,) = peer.request(request)
    assert isinstance(reply, PutAck), reply
    return reply


def test_a_message_that_was_read_does_not_move_again_days_later_and_after_a_restart() -> None:
    harness = ChannelHarness()
    reader = harness.join()
    request = move(harness)
    first = moved(harness.producer(), request)
    assert reader.pushed_ids() == [first.id]
    reader.ack(first.id)
    harness.advance(3 * DAY_S)
    again = harness.restarted()
    again.now = harness.now
    reader = again.join()
    assert moved(again.producer(), request).id == first.id
    assert reader.pushed() == [] and again.kept() == []


def test_a_move_that_comes_twice_in_one_read_adds_one_message() -> None:
    harness = ChannelHarness()
    one, other = harness.producer().request(move(harness, key=1), move(harness, key=2))
    assert isinstance(one, PutAck) and isinstance(other, PutAck) and one.id == other.id
    assert harness.kept() == [b"hi"]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_move_of_a_message_that_its_key_stands_for_is_remembered_longer_than_the_key(
    is_read: bool,
) -> None:
    harness = ChannelHarness()
    request = move(harness)
    reader, producer = harness.join(), harness.producer()
    (first,) = producer.request(request.put)
    assert isinstance(first, PutAck)
    if is_read:
        reader.ack(*reader.pushed_ids())
    assert moved(producer, request).id == first.id
    harness.advance(3 * DAY_S)
    again = harness.restarted()
    assert moved(again.producer(), request).id == first.id and again.kept() == []


def test_a_move_that_is_done_leaves_nothing() -> None:
    harness = ChannelHarness()
    reader, producer = harness.join(), harness.producer()
    moved(producer, move(harness))
    (reply,) = producer.request(FindMove(ORIGIN))
    assert isinstance(reply, PutAck) and [reply.id] == reader.pushed_ids()
    assert harness.store.usage.keys == 1
    harness.post(MovesDone((ORIGIN, ORIGIN + 1)))
    assert harness.store.usage.keys == 0
    assert producer.request(FindMove(ORIGIN)) == [Failed(FindMove(ORIGIN), Code.NOT_FOUND)]
    reader.ack(reply.id)
    for each in (reader, producer):
        each.leave()
    harness.advance(2 * 3600)
    assert harness.store.usage.keys == 0 and NAME not in harness.scheduler.cells


def test_moves_that_are_not_open_are_forgotten_also_after_a_restart() -> None:
    harness = ChannelHarness()
    for number in range(3):
        moved(harness.producer(), move(harness, key=number + 1, origin=ORIGIN + number))
    harness.post(OpenMoves((ORIGIN + 1, ORIGIN + 7)))
    again = harness.restarted()
    producer = again.producer()
    found = [producer.request(FindMove(ORIGIN + number))[0] for number in range(3)]
    assert [isinstance(each, PutAck) for each in found] == [False, True, False]
    assert len(again.kept()) == 3 and again.store.usage.keys == 1


def test_a_move_is_remembered_until_its_time_is_over() -> None:
    harness = ChannelHarness()
    producer = harness.producer()
    moved(producer, move(harness))
    harness.advance(MONTH_S - 10)
    assert isinstance(producer.request(FindMove(ORIGIN))[0], PutAck)
    harness.advance(20)
    assert producer.request(FindMove(ORIGIN)) == [Failed(FindMove(ORIGIN), Code.NOT_FOUND)]
    assert harness.store.usage.keys == 0


@pytest.mark.parametrize("is_node_full", [False, True])
def test_moves_are_not_forgotten_for_other_keys(is_node_full: bool) -> None:
    settings = ChannelSettings() if is_node_full else ChannelSettings(keys_max=32)
    limits = NodeLimits(keys_max=32) if is_node_full else NodeLimits()
    harness = ChannelHarness(settings, limits=limits)
    reader, producer = harness.join(window=1000), harness.producer()
    moved(producer, move(harness))
    for _ in range(100):
        producer.put()
        reader.ack(*reader.pushed_ids())
    assert harness.store.usage.keys <= 33
    assert isinstance(producer.request(FindMove(ORIGIN))[0], PutAck)


def test_keys_of_identities_are_forgotten_beside_a_move() -> None:
    """The number of an identity, which begins its keys, is not that in the key of a move."""
    harness = ChannelHarness(ChannelSettings(keys_max=32))
    moved(harness.producer(), move(harness))
    again = harness.restarted()
    again.settings = harness.settings
    reader, producer = again.join(window=1000), again.producer(identity=bytes(32))
    for _ in range(100):
        producer.put()
        reader.ack(*reader.pushed_ids())
    assert again.store.usage.keys <= 34
    subscribers = again.store.load(NAME).subscribers
    assert subscribers is not None and list(subscribers.by_number) == [1]
    assert isinstance(producer.request(FindMove(ORIGIN))[0], PutAck)


def test_a_refused_move_is_not_remembered() -> None:
    harness = ChannelHarness(ChannelSettings(messages_max=1))
    reader, producer = harness.join(), harness.producer()
    producer.put(b"first")
    request = move(harness)
    assert producer.request(request) == [Failed(request.put, Code.BUFFER_FULL)]
    reader.ack(*reader.pushed_ids())
    moved(producer, request)
    assert harness.kept() == [b"hi"]


def test_a_move_that_was_stored_is_known_after_a_crash_of_the_channel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    harness = ChannelHarness()
    request = move(harness)
    first = moved(harness.producer(), request)
    harness.crash()
    harness.advance(60)
    assert moved(harness.producer(), request).id == first.id
    assert harness.kept() == [b"hi"]
