"""Dead letters are kept exactly once, whatever happens meanwhile (PS-14)."""

from __future__ import annotations

import logging

import pytest

from millpond.actors.channels.settings import ChannelSettings, NodeLimits
from millpond.actors.messages import DeadLetter, GetAck, Mode, NackReason, Put
from tests.actors.cells import LateStore
from tests.actors.pond import NAME, Pond, queue

DEAD = NAME + b"!dead"
WEEK = 604_800


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def reject(pond: Pond, data: bytes = b"bad") -> int:
    """A worker rejects one message and leaves."""
    producer, worker = pond.producer(), pond.join()
    receipt = producer.put(data, ttl=36_000)
    assert receipt.id in worker.pushed_ids()
    worker.nack(receipt.id, NackReason.REJECT)
    for each in (worker, producer):
        each.leave()
    pond.settle()
    return receipt.id


def letters(pond: Pond) -> list[tuple[bytes, int]]:
    rows = pond.store.load(DEAD).rows
    return [(row.data, row.origin.id) for row in rows if row.origin is not None]


def test_ps_14_a_dead_letter_is_read_like_any_message_and_has_its_own_id() -> None:
    pond = Pond(queue())
    old = reject(pond)
    pond.settle()
    reader = pond.join(DEAD)
    (letter,) = reader.pushed()
    assert letter.data == b"bad" and letter.id > old
    assert reader.list() == [letter.id]
    assert reader.get(letter.id) == GetAck(letter.id, b"bad")
    assert letters(pond) == [(b"bad", old)]
    (row,) = pond.store.load(DEAD).rows
    assert row.ttl == WEEK and row.origin is not None and row.origin.reason == "reject"
    reader.ack(letter.id)
    assert pond.kept(DEAD) == []


def test_it_is_not_pushed_again_while_its_burial_waits() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(pond)
    worker = pond.join()
    pond.advance(60)
    assert worker.pushed() == []
    assert worker.list() == [old] and worker.get(old) == GetAck(old, b"bad")


def test_a_full_dead_letter_channel_gets_it_once_there_is_room() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=1))
    first, second = reject(pond, b"one"), reject(pond, b"two")
    pond.advance(60)
    assert letters(pond) == [(b"one", first)] and pond.kept() == [b"two"]
    reader = pond.join(DEAD)
    reader.ack(reader.pushed_ids()[0])
    pond.advance(6)
    assert letters(pond) == [(b"two", second)] and pond.kept() == []
    assert [each.data for each in reader.pushed()] == [b"two"]


def test_a_dead_letter_channel_that_rests_after_a_crash_gets_it_afterwards() -> None:
    pond = Pond(queue())
    pond.crash(DEAD)
    old = reject(pond)
    assert pond.kept() == [b"bad"] and letters(pond) == []
    pond.advance(10)
    assert letters(pond) == [(b"bad", old)] and pond.kept() == []


def test_a_quarantined_dead_letter_channel_gets_it_after_its_quarantine() -> None:
    pond = Pond(queue())
    pond.crash_on_spawn = lambda name: name == DEAD
    old = reject(pond)
    pond.advance(100)
    assert pond.scheduler.counters.quarantines == 1 and pond.kept() == [b"bad"]
    pond.crash_on_spawn = lambda name: False
    pond.advance(400)
    assert letters(pond) == [(b"bad", old)] and pond.kept() == []


def test_a_crash_of_the_channel_while_its_burial_waits_keeps_one_letter() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(pond)
    pond.crash()
    pond.dead = ChannelSettings()
    pond.crash(DEAD)
    pond.advance(1)
    worker = pond.join()
    for _ in range(10):
        pond.advance(60)
        for each in worker.pushed():
            worker.nack(each.id, NackReason.REJECT)
    pond.settle()
    assert letters(pond) == [(b"bad", old)] and pond.kept() == []


def test_an_ack_while_its_burial_waits_ends_it() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(pond)
    pond.producer().ack(old)
    pond.dead = ChannelSettings()
    pond.advance(60)
    assert pond.kept() == [] and letters(pond) == []


def test_its_deadline_ends_it_while_its_burial_waits() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=0))
    reject(pond)
    pond.advance(36_000)
    assert pond.kept() == [] and letters(pond) == []


def test_what_a_dead_letter_channel_rejects_is_gone() -> None:
    pond = Pond(queue(), dead=ChannelSettings(mode=Mode.QUEUE))
    reject(pond)
    reader = pond.join(DEAD)
    (letter,) = reader.pushed()
    reader.nack(letter.id, NackReason.REJECT)
    pond.settle()
    assert pond.kept(DEAD) == [] and list(pond.store._partitions) == [NAME, DEAD]


def test_a_lost_connection_uses_up_the_last_attempt() -> None:
    pond = Pond(queue(attempts_max=2))
    producer = pond.producer()
    old = producer.put(ttl=36_000).id
    for attempt in (1, 2):
        worker = pond.join()
        assert [each.attempt for each in worker.pushed()] == [attempt]
        worker.leave()
    pond.settle()
    assert letters(pond) == [(b"hi", old)] and pond.kept() == []
    assert pond.join().pushed() == []


@pytest.mark.parametrize("reason", [NackReason.LATER, NackReason.BUSY, NackReason.OTHER])
def test_nacks_use_up_attempts(reason: NackReason) -> None:
    pond = Pond(queue(attempts_max=3))
    producer, worker = pond.producer(), pond.join()
    old = producer.put(ttl=36_000).id
    attempts = []
    for _ in range(5):
        for each in worker.pushed():
            attempts.append(each.attempt)
            worker.nack(each.id, reason, 0 if reason is NackReason.LATER else None)
        pond.advance(60)
    assert attempts == [1, 2, 3] and letters(pond) == [(b"hi", old)]


def test_cannot_decrypt_is_final_in_queue_mode() -> None:
    pond = Pond(queue())
    producer, worker = pond.producer(), pond.join()
    old = producer.put().id
    worker.pushed()
    worker.nack(old, NackReason.CANNOT_DECRYPT)
    pond.settle()
    assert letters(pond) == [(b"hi", old)]


def test_a_letter_posted_twice_is_kept_once_even_after_it_was_acked() -> None:
    pond = Pond(queue())
    old = reject(pond)
    pond.settle()
    again = DeadLetter(NAME, old, 1, "reject", b"bad")
    pond.post(again, DEAD)
    assert len(letters(pond)) == 1
    reader = pond.join(DEAD)
    reader.ack(reader.pushed_ids()[0])
    pond.post(again, DEAD)
    assert letters(pond) == []


def test_credit_of_who_rejected_returns_at_once() -> None:
    pond = Pond(queue(), dead=ChannelSettings(messages_max=0))
    producer, worker = pond.producer(), pond.join(window=1)
    first, second = producer.put().id, producer.put().id
    assert worker.pushed_ids() == [first]
    worker.nack(first, NackReason.REJECT)
    assert worker.pushed_ids() == [second]


def test_the_node_s_quota_counts_for_dead_letters_too() -> None:
    pond = Pond(queue(), limits=NodeLimits(messages_max=1))
    old = reject(pond)
    pond.advance(60)
    # The letter and its message exist side by side for a moment.
    assert pond.kept() + pond.kept(DEAD) == [b"bad"]
    assert pond.producer().get(old) == GetAck(old, b"bad")


def test_ps_14_a_rejection_counts_before_the_dead_letter_is_kept() -> None:
    """The node may end before: the message comes again then, and for the next time."""
    pond = Pond(queue(ack_timeout_s=300), store=(store := LateStore()))
    worker, producer = pond.join(), pond.producer()
    producer.say(Put(1, 3600, b"one"))
    store.commits[-1].finish(None)
    (message,) = worker.pushed()
    worker.nack(message.id, NackReason.REJECT)
    assert store.load(NAME).attempts == {message.id: 1}
