"""Messages whose time ran out, on channels that keep these as dead letters (PS-14, P2P-14)."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Get, Mode
from millpond.actors.store.changes import Origin
from tests.actors.channels.harness import NAME, ChannelHarness, Peer

DEAD = NAME + b"!dead"
BURYING = [ChannelSettings(mode=mode, dead_letter_expired=True) for mode in Mode]
BY_MODE = pytest.mark.parametrize("settings", BURYING, ids=lambda each: each.mode.name.lower())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def origins(harness: ChannelHarness) -> list[tuple[bytes, Origin | None]]:
    return [(row.data, row.origin) for row in harness.store.load(DEAD).rows]


def check_unseen(harness: ChannelHarness, reader: Peer, message_id: int) -> None:
    assert reader.pushed() == [] and reader.list() == []
    assert reader.get(message_id) == Failed(Get(message_id), Code.NOT_FOUND)


@BY_MODE
@pytest.mark.parametrize("has_reader", [False, True])
def test_ps_14_an_expired_message_is_a_dead_letter_with_its_reason(
    settings: ChannelSettings, has_reader: bool
) -> None:
    harness = ChannelHarness(settings)
    reader = harness.join() if has_reader else None
    receipt = harness.producer().put(b"late", ttl=5)
    if reader is not None:
        assert reader.pushed_ids() == [receipt.id]
    harness.advance(5)
    harness.run_due()
    assert harness.kept() == [] and harness.info().leased == 0
    assert origins(harness) == [(b"late", Origin(receipt.id, 0, "expired"))]
    if reader is not None:
        assert harness.info().credit == reader.joined.window
        reader.ack(receipt.id)
    check_unseen(harness, reader or harness.join(), receipt.id)
    (dead_letter,) = harness.join(DEAD).pushed()
    assert dead_letter.data == b"late" and dead_letter.id > receipt.id


@BY_MODE
def test_a_message_acked_in_time_is_no_dead_letter(settings: ChannelSettings) -> None:
    harness = ChannelHarness(settings)
    reader = harness.join()
    reader.ack(harness.producer().put(ttl=5).id)
    harness.advance(60)
    assert harness.kept() == [] == harness.kept(DEAD)


def test_a_dead_letter_has_its_failed_attempts() -> None:
    harness = ChannelHarness(BURYING[Mode.QUEUE])
    worker = harness.join()
    harness.producer().put(ttl=100)
    harness.advance(90)
    attempts = len(worker.pushed())
    assert attempts >= 2
    harness.advance(60)
    ((_, origin),) = origins(harness)
    assert origin is not None and origin.attempts in (attempts - 1, attempts)


@BY_MODE
def test_p2p_14_while_its_dead_letter_channel_is_full_it_is_not_visible(
    settings: ChannelSettings,
) -> None:
    """It is kept where it was, and an ack comes too late for it."""
    harness = ChannelHarness(settings, dead=ChannelSettings(messages_max=1))
    reader = harness.join()
    producer = harness.producer()
    first, second = producer.put(b"a", ttl=5), producer.put(b"b", ttl=6)
    assert reader.pushed_ids() == [first.id, second.id]
    harness.advance(60)
    assert harness.kept() == [b"b"] and harness.kept(DEAD) == [b"a"]
    reader.ack(second.id)
    harness.advance(60)
    check_unseen(harness, reader, second.id)
    assert harness.join(resume_after=0).pushed() == []
    assert harness.kept() == [b"b"] and harness.info().leased == 0
    undertaker = harness.join(DEAD)
    undertaker.ack(*undertaker.pushed_ids())
    harness.advance(10)
    assert harness.kept() == [] and harness.kept(DEAD) == [b"b"]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_an_interrupted_dead_letter_arrives_once(how: str) -> None:
    harness = ChannelHarness(BURYING[0], dead=ChannelSettings(messages_max=0))
    receipt = harness.producer().put(ttl=5)
    harness.advance(8)
    assert harness.kept() == [b"hi"]
    if how == "crash":
        harness.crash()
    else:
        harness = harness.restarted()
    harness.dead = ChannelSettings()
    for name in (NAME, DEAD):
        harness.join(name)
    harness.advance(20)
    if how == "crash":  # the cell of the dead letters has its settings from before
        harness = harness.restarted()
        harness.dead = ChannelSettings()
        harness.join(), harness.advance(20)
    assert harness.kept() == [] and [origin for _, origin in origins(harness)] == [
        Origin(receipt.id, 0, "expired")
    ]


def test_dead_letters_do_not_become_dead_letters_again() -> None:
    dead = ChannelSettings(dead_ttl=60, dead_letter_expired=True)
    harness = ChannelHarness(BURYING[0], dead=dead)
    harness.producer().put(ttl=5)
    harness.advance(6)
    assert harness.kept(DEAD) == [b"hi"]
    harness.advance(3600)
    assert harness.kept(DEAD) == [] == harness.kept(DEAD + b"!dead")


@pytest.mark.parametrize("mode", Mode, ids=lambda each: each.name.lower())
def test_by_default_an_expired_message_is_a_dead_letter_in_queue_mode_alone(mode: Mode) -> None:
    harness = ChannelHarness(ChannelSettings(mode=mode))
    harness.producer().put(ttl=5)
    harness.advance(60)
    assert harness.kept() == []
    assert harness.kept(DEAD) == ([b"hi"] if mode is Mode.QUEUE else [])


def test_a_producer_is_known_as_long_as_its_message_that_does_not_expire() -> None:
    """PS-10: its own message is not pushed to it, however old that is; then it is forgotten."""
    harness = ChannelHarness(ChannelSettings(mode=Mode.QUEUE))
    ann, bob = b"a" * 32, b"b" * 32
    harness.producer(identity=ann).put(ttl=0)
    for _ in range(3):
        harness = harness.restarted()
        harness.advance(8 * 86_400)
        own = harness.join(identity=ann)
        assert own.pushed() == []
        own.leave()
    other = harness.join(identity=bob)
    other.ack(*other.pushed_ids())
    other.leave()
    harness.advance(16 * 86_400)
    assert harness.kept() == [] and harness.store.load(NAME).subscribers is None


def test_a_full_channel_has_room_once_its_dead_have_left() -> None:
    harness = ChannelHarness(
        ChannelSettings(mode=Mode.PAIR, messages_max=2, dead_letter_expired=True)
    )
    producer = harness.producer()
    producer.put(ttl=5), producer.put(ttl=5)
    harness.advance(6)
    producer.put(), producer.put()
    assert len(harness.kept()) == 2 == len(harness.kept(DEAD))


def test_many_dead_letters_that_are_refused_neither_flood_the_log_nor_come_all_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PS-14: a full dead-letter channel holds up nobody, and gets them all once it has room."""
    harness = ChannelHarness(BURYING[Mode.PAIR], dead=ChannelSettings(messages_max=300))
    producer = harness.producer()
    for _ in range(600):
        producer.put(ttl=5)
    caplog.set_level(logging.WARNING)
    harness.advance(65)
    assert len(harness.kept()) == 300 and 1 <= len(caplog.records) <= 12
    start, moments = harness.now, set()
    while harness.now < start + 6:
        harness.now = max(harness.now, harness.scheduler.timers.next_at)
        harness.scheduler.turn(harness.now)
        moments.add(harness.now)
    assert len(moments) > 100
    undertaker = harness.join(DEAD)
    for _ in range(1200):
        undertaker.ack(*undertaker.pushed_ids())
        harness.advance(0.01)
    assert harness.kept() == [] == harness.kept(DEAD)
