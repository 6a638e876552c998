"""Messages whose time ran out, where they are buried instead of forgotten (PS-14, P2P-14)."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Get, Mode
from millpond.actors.store.changes import Origin
from tests.actors.pond import NAME, Peer, Pond

DEAD = NAME + b"!dead"
BURYING = [ChannelSettings(mode=mode, dead_letter_expired=True) for mode in Mode]
BY_MODE = pytest.mark.parametrize("settings", BURYING, ids=lambda each: each.mode.name.lower())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def origins(pond: Pond) -> list[tuple[bytes, Origin | None]]:
    return [(row.data, row.origin) for row in pond.store.load(DEAD).rows]


def check_unseen(pond: Pond, reader: Peer, message_id: int) -> None:
    assert reader.pushed() == [] and reader.list() == []
    assert reader.get(message_id) == Failed(Get(message_id), Code.NOT_FOUND)


@BY_MODE
@pytest.mark.parametrize("has_reader", [False, True])
def test_ps_14_what_expires_is_a_dead_letter_with_its_reason(
    settings: ChannelSettings, has_reader: bool
) -> None:
    pond = Pond(settings)
    reader = pond.join() if has_reader else None
    receipt = pond.producer().put(b"late", ttl=5)
    if reader is not None:
        assert reader.pushed_ids() == [receipt.id]
    pond.advance(5)
    pond.settle()
    assert pond.kept() == [] and pond.info().leased == 0
    assert origins(pond) == [(b"late", Origin(receipt.id, 0, "expired"))]
    if reader is not None:
        assert pond.info().credit == reader.joined.window
        reader.ack(receipt.id)
    check_unseen(pond, reader or pond.join(), receipt.id)
    (letter,) = pond.join(DEAD).pushed()
    assert letter.data == b"late" and letter.id > receipt.id


@BY_MODE
def test_what_was_acked_in_time_is_not_buried(settings: ChannelSettings) -> None:
    pond = Pond(settings)
    reader = pond.join()
    reader.ack(pond.producer().put(ttl=5).id)
    pond.advance(60)
    assert pond.kept() == [] == pond.kept(DEAD)


def test_the_attempts_that_failed_are_told() -> None:
    pond = Pond(BURYING[Mode.QUEUE])
    worker = pond.join()
    pond.producer().put(ttl=100)
    pond.advance(90)
    attempts = len(worker.pushed())
    assert attempts >= 2
    pond.advance(60)
    ((_, origin),) = origins(pond)
    assert origin is not None and origin.attempts in (attempts - 1, attempts)


@BY_MODE
def test_p2p_14_while_its_dead_letter_channel_is_full_nobody_sees_it_any_more(
    settings: ChannelSettings,
) -> None:
    """It is kept where it was, and an ack comes too late for it."""
    pond = Pond(settings, dead=ChannelSettings(messages_max=1))
    reader = pond.join()
    producer = pond.producer()
    first, second = producer.put(b"a", ttl=5), producer.put(b"b", ttl=6)
    assert reader.pushed_ids() == [first.id, second.id]
    pond.advance(60)
    assert pond.kept() == [b"b"] and pond.kept(DEAD) == [b"a"]
    reader.ack(second.id)
    pond.advance(60)
    check_unseen(pond, reader, second.id)
    assert pond.join(resume_after=0).pushed() == []
    assert pond.kept() == [b"b"] and pond.info().leased == 0
    undertaker = pond.join(DEAD)
    undertaker.ack(*undertaker.pushed_ids())
    pond.advance(10)
    assert pond.kept() == [] and pond.kept(DEAD) == [b"b"]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_burial_goes_on_and_is_one(how: str) -> None:
    pond = Pond(BURYING[0], dead=ChannelSettings(messages_max=0))
    receipt = pond.producer().put(ttl=5)
    pond.advance(8)
    assert pond.kept() == [b"hi"]
    if how == "crash":
        pond.crash()
    else:
        pond = pond.restarted()
    pond.dead = ChannelSettings()
    for name in (NAME, DEAD):
        pond.join(name)
    pond.advance(20)
    if how == "crash":  # the cell of the dead letters has its settings from before
        pond = pond.restarted()
        pond.dead = ChannelSettings()
        pond.join(), pond.advance(20)
    assert pond.kept() == [] and [origin for _, origin in origins(pond)] == [
        Origin(receipt.id, 0, "expired")
    ]


def test_dead_letters_are_never_buried_themselves() -> None:
    dead = ChannelSettings(dead_ttl=60, dead_letter_expired=True)
    pond = Pond(BURYING[0], dead=dead)
    pond.producer().put(ttl=5)
    pond.advance(6)
    assert pond.kept(DEAD) == [b"hi"]
    pond.advance(3600)
    assert pond.kept(DEAD) == [] == pond.kept(DEAD + b"!dead")


def test_by_default_what_expires_is_gone() -> None:
    pond = Pond()
    pond.producer().put(ttl=5)
    pond.advance(60)
    assert pond.kept() == [] == pond.kept(DEAD)


def test_a_full_channel_has_room_once_its_dead_have_left() -> None:
    pond = Pond(ChannelSettings(mode=Mode.PAIR, messages_max=2, dead_letter_expired=True))
    producer = pond.producer()
    producer.put(ttl=5), producer.put(ttl=5)
    pond.advance(6)
    producer.put(), producer.put()
    assert len(pond.kept()) == 2 == len(pond.kept(DEAD))


def test_many_letters_that_are_refused_neither_flood_the_log_nor_come_all_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PS-14: a full dead-letter channel holds up nobody, and gets them all once it has room."""
    pond = Pond(BURYING[Mode.PAIR], dead=ChannelSettings(messages_max=300))
    producer = pond.producer()
    for _ in range(600):
        producer.put(ttl=5)
    caplog.set_level(logging.WARNING)
    pond.advance(65)
    assert len(pond.kept()) == 300 and 1 <= len(caplog.records) <= 12
    start, moments = pond.now, set()
    while pond.now < start + 6:
        pond.now = max(pond.now, pond.scheduler.timers.next_at)
        pond.scheduler.turn(pond.now)
        moments.add(pond.now)
    assert len(moments) > 100
    undertaker = pond.join(DEAD)
    for _ in range(1200):
        undertaker.ack(*undertaker.pushed_ids())
        pond.advance(0.01)
    assert pond.kept() == [] == pond.kept(DEAD)
