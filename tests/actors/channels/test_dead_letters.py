"""Dead letters are kept exactly once, whatever happens meanwhile (PS-14)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from millpond.actors.channels.settings import ChannelSettings, NodeLimits
from millpond.actors.messages import DeadLetter, GetAck, Mode, NackReason, Put
from millpond.actors.store.changes import Change, is_unawaited
from millpond.actors.store.memory import MemoryStore
from tests.actors.channels.harness import NAME, ChannelHarness, queue
from tests.actors.runtime.harness import LateStore

DEAD = NAME + b"!dead"
WEEK = 604_800


class PowerCutStore(MemoryStore):
    """While `is_cut`, changes that nobody waits for are lost, as by a power cut a moment later."""

    is_cut = False

    def write(self, name: bytes, changes: Sequence[Change]) -> None:
        if not (self.is_cut and all(map(is_unawaited, changes))):
            super().write(name, changes)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def reject(harness: ChannelHarness, data: bytes = b"bad") -> int:
    """A worker rejects one message and leaves."""
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put(data, ttl=36_000)
    assert receipt.id in worker.pushed_ids()
    worker.nack(receipt.id, NackReason.REJECT)
    for each in (worker, producer):
        each.leave()
    harness.run_due()
    return receipt.id


def dead_letters(harness: ChannelHarness) -> list[tuple[bytes, int]]:
    rows = harness.store.load(DEAD).rows
    return [(row.data, row.origin.id) for row in rows if row.origin is not None]


def test_ps_14_a_dead_letter_is_read_like_any_message_and_has_its_own_id() -> None:
    harness = ChannelHarness(queue())
    old = reject(harness)
    harness.run_due()
    reader = harness.join(DEAD)
    (dead_letter,) = reader.pushed()
    assert dead_letter.data == b"bad" and dead_letter.id > old
    assert reader.list() == [dead_letter.id]
    assert reader.get(dead_letter.id) == GetAck(dead_letter.id, b"bad")
    assert dead_letters(harness) == [(b"bad", old)]
    (row,) = harness.store.load(DEAD).rows
    assert row.ttl == WEEK and row.origin is not None and row.origin.reason == "reject"
    reader.ack(dead_letter.id)
    assert harness.kept(DEAD) == []


def test_it_is_not_pushed_again_on_its_way_to_the_dead_letters() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(harness)
    worker = harness.join()
    harness.advance(60)
    assert worker.pushed() == []
    assert worker.list() == [old] and worker.get(old) == GetAck(old, b"bad")


def test_a_full_dead_letter_channel_gets_it_once_there_is_room() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=1))
    first, second = reject(harness, b"one"), reject(harness, b"two")
    harness.advance(60)
    assert dead_letters(harness) == [(b"one", first)] and harness.kept() == [b"two"]
    reader = harness.join(DEAD)
    reader.ack(reader.pushed_ids()[0])
    harness.advance(6)
    assert dead_letters(harness) == [(b"two", second)] and harness.kept() == []
    assert [each.data for each in reader.pushed()] == [b"two"]


def test_a_dead_letter_channel_that_crashed_gets_it_after_its_restart() -> None:
    harness = ChannelHarness(queue())
    harness.crash(DEAD)
    old = reject(harness)
    assert harness.kept() == [b"bad"] and dead_letters(harness) == []
    harness.advance(10)
    assert dead_letters(harness) == [(b"bad", old)] and harness.kept() == []


def test_a_quarantined_dead_letter_channel_gets_it_after_its_quarantine() -> None:
    harness = ChannelHarness(queue())
    harness.crash_on_spawn = lambda name: name == DEAD
    old = reject(harness)
    harness.advance(100)
    assert harness.scheduler.counters.quarantines == 1 and harness.kept() == [b"bad"]
    harness.crash_on_spawn = lambda name: False
    harness.advance(400)
    assert dead_letters(harness) == [(b"bad", old)] and harness.kept() == []


def test_a_crash_of_the_channel_on_the_way_leaves_one_dead_letter() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(harness)
    harness.crash()
    harness.dead = ChannelSettings()
    harness.crash(DEAD)
    harness.advance(1)
    worker = harness.join()
    for _ in range(10):
        harness.advance(60)
        for each in worker.pushed():
            worker.nack(each.id, NackReason.REJECT)
    harness.run_due()
    assert dead_letters(harness) == [(b"bad", old)] and harness.kept() == []


@pytest.mark.parametrize("days", [0, 2, 60])
def test_a_power_cut_on_the_way_leaves_one_dead_letter_however_long_the_node_is_off(
    days: int,
) -> None:
    store = PowerCutStore()
    harness = ChannelHarness(queue(), store=store)
    store.is_cut = True
    reject(harness)
    store.is_cut = False
    assert harness.kept() == harness.kept(DEAD) == [b"bad"]
    again = harness.restarted()
    again.now += days * 86_400
    reader = again.join(DEAD)
    again.advance(5)
    again.join()
    again.advance(10)
    assert again.kept() == []
    assert len(reader.pushed()) == len(again.kept(DEAD)) == (1 if days < 7 else 0)
    reader.leave()
    again.advance(30 * 86_400)
    assert store.usage.keys == 0


def test_a_dead_letter_that_was_read_does_not_come_again_after_a_power_cut() -> None:
    store = PowerCutStore()
    harness = ChannelHarness(queue(), store=store)
    store.is_cut = True
    reject(harness)
    store.is_cut = False
    reader = harness.join(DEAD)
    reader.ack(*reader.pushed_ids())
    again = harness.restarted()
    again.now += 2 * 86_400
    reader = again.join(DEAD)
    again.advance(5)
    worker = again.join()
    again.advance(10)
    assert reader.pushed() == worker.pushed() == []
    assert again.kept() == again.kept(DEAD) == []


def test_a_dead_letter_whose_key_was_forgotten_is_kept_once() -> None:
    """Its channel has not said yet that it is removed there."""
    harness = ChannelHarness(queue(), dead=ChannelSettings(keys_max=2))
    harness.crash_on_spawn = lambda name: name == NAME
    for old in (11, 12, 13, 11):
        harness.post(DeadLetter(NAME, old, 1, "reject", b"bad"), DEAD)
        harness.run_due()
    assert dead_letters(harness) == [(b"bad", 11), (b"bad", 12), (b"bad", 13)]


def test_a_power_cut_after_the_way_leaves_nothing_of_it() -> None:
    store = PowerCutStore()
    harness = ChannelHarness(queue(), store=store)
    reject(harness)
    reader = harness.join(DEAD)
    reader.ack(*reader.pushed_ids())
    reader.leave()
    harness.advance(2 * 86_400)
    assert store.usage.keys == 0


def test_an_ack_on_the_way_removes_it() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=0))
    old = reject(harness)
    harness.producer().ack(old)
    harness.dead = ChannelSettings()
    harness.advance(60)
    assert harness.kept() == [] and dead_letters(harness) == []


def test_its_deadline_changes_nothing_on_the_way() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=1))
    first, second = reject(harness, b"one"), reject(harness, b"two")
    harness.advance(36_000)
    assert harness.kept() == [b"two"] and dead_letters(harness) == [(b"one", first)]
    reader = harness.join(DEAD)
    reader.ack(reader.pushed_ids()[0])
    harness.advance(6)
    assert harness.kept() == [] and dead_letters(harness) == [(b"two", second)]
    (row,) = harness.store.load(DEAD).rows
    assert row.origin is not None and row.origin.reason == "reject"


def test_a_rejected_dead_letter_is_removed() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(mode=Mode.QUEUE))
    reject(harness)
    reader = harness.join(DEAD)
    (dead_letter,) = reader.pushed()
    reader.nack(dead_letter.id, NackReason.REJECT)
    harness.run_due()
    assert harness.kept(DEAD) == [] and list(harness.store._partitions) == [NAME, DEAD]


def test_a_lost_connection_uses_up_the_last_attempt() -> None:
    harness = ChannelHarness(queue(attempts_max=2))
    producer = harness.producer()
    old = producer.put(ttl=36_000).id
    for attempt in (1, 2):
        worker = harness.join()
        assert [each.attempt for each in worker.pushed()] == [attempt]
        worker.leave()
    harness.run_due()
    assert dead_letters(harness) == [(b"hi", old)] and harness.kept() == []
    assert harness.join().pushed() == []


@pytest.mark.parametrize("reason", [NackReason.LATER, NackReason.BUSY, NackReason.OTHER])
def test_nacks_use_up_attempts(reason: NackReason) -> None:
    harness = ChannelHarness(queue(attempts_max=3))
    producer, worker = harness.producer(), harness.join()
    old = producer.put(ttl=36_000).id
    attempts = []
    for _ in range(5):
        for each in worker.pushed():
            attempts.append(each.attempt)
            worker.nack(each.id, reason, 0 if reason is NackReason.LATER else None)
        harness.advance(60)
    assert attempts == [1, 2, 3] and dead_letters(harness) == [(b"hi", old)]


def test_cannot_decrypt_is_final_in_queue_mode() -> None:
    harness = ChannelHarness(queue())
    producer, worker = harness.producer(), harness.join()
    old = producer.put().id
    worker.pushed()
    worker.nack(old, NackReason.CANNOT_DECRYPT)
    harness.run_due()
    assert dead_letters(harness) == [(b"hi", old)]


def test_a_dead_letter_sent_twice_is_kept_once_even_after_it_was_acked() -> None:
    harness = ChannelHarness(queue())
    old = reject(harness)
    harness.run_due()
    again = DeadLetter(NAME, old, 1, "reject", b"bad")
    harness.post(again, DEAD)
    harness.run_due()
    assert len(dead_letters(harness)) == 1
    reader = harness.join(DEAD)
    reader.ack(reader.pushed_ids()[0])
    harness.post(again, DEAD)
    assert dead_letters(harness) == []


def test_credit_of_a_rejection_returns_at_once() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=0))
    producer, worker = harness.producer(), harness.join(window=1)
    first, second = producer.put().id, producer.put().id
    assert worker.pushed_ids() == [first]
    worker.nack(first, NackReason.REJECT)
    assert worker.pushed_ids() == [second]


def test_the_node_s_quota_counts_for_dead_letters_too() -> None:
    harness = ChannelHarness(queue(), limits=NodeLimits(messages_max=1))
    old = reject(harness)
    harness.advance(60)
    # The letter and its message exist side by side for a moment.
    assert harness.kept() + harness.kept(DEAD) == [b"bad"]
    assert harness.producer().get(old) == GetAck(old, b"bad")


def test_ps_14_a_rejection_counts_before_the_dead_letter_is_kept() -> None:
    """The node may end before: the message comes again then, and for the next time."""
    harness = ChannelHarness(queue(ack_timeout_s=300), store=(store := LateStore()))
    worker, producer = harness.join(), harness.producer()
    producer.send(Put(1, 3600, b"one"))
    store.commits[-1].finish(None)
    (message,) = worker.pushed()
    worker.nack(message.id, NackReason.REJECT)
    assert store.load(NAME).attempts == {message.id: 1}
