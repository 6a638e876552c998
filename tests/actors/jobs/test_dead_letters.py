"""Dead jobs: they are put back or deleted, and no crash loses or doubles one."""

from __future__ import annotations

import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.messages import Mode
from tests.actors.channels.harness import NAME, ChannelHarness
from tests.actors.jobs.harness import (
    asked,
    counts,
    dead_ids,
    job_harness,
    make_dead_letter,
    put,
    rows,
    show,
    taken,
    worker,
)

DEAD = NAME + b"!dead"


def test_dead_jobs_come_back_with_new_ids_and_all_attempts() -> None:
    harness = job_harness(attempts_max=1)
    producer = harness.producer()
    olds = [make_dead_letter(harness, producer, data) for data in (b"a", b"b", b"c")]
    dead_letters = dead_ids(producer)
    done = asked(producer, m.RetryDeadLetters, (dead_letters[2], dead_letters[0], 77))
    assert (done.count, done.more) == (2, False)
    assert dead_ids(producer) == [dead_letters[1]] and sorted(harness.kept()) == [b"a", b"c"]
    live = rows(producer, m.JobState.READY).rows
    assert not {row.id for row in live} & {*olds, *dead_letters}
    assert [(row.attempt, row.origin, row.reason) for row in live] == [
        (0, olds[2], "no way"),
        (0, olds[0], "no way"),
    ]
    hand = worker(harness)
    message = taken(hand)
    assert (message.attempt, message.data) == (1, b"c")
    hand.ack(message.id)
    assert asked(producer, m.RetryDeadLetters, None).count == 1
    assert asked(producer, m.RetryDeadLetters, None).count == 0
    assert counts(producer).dead == 0 and harness.kept(DEAD) == []


def test_a_requeued_job_that_fails_again_is_a_new_dead_letter() -> None:
    harness = job_harness()
    producer = harness.producer()
    make_dead_letter(harness, producer)
    asked(producer, m.RetryDeadLetters, None)
    hand = worker(harness)
    second = taken(hand).id
    asked(hand, m.RejectJob, second, "still not")
    (dead_letter,) = dead_ids(producer)
    assert (show(producer, dead_letter).origin, show(producer, dead_letter).reason) == (
        second,
        "still not",
    )


def test_dead_jobs_are_deleted() -> None:
    harness = job_harness()
    producer = harness.producer()
    old = make_dead_letter(harness, producer)
    for _ in range(3):
        make_dead_letter(harness, producer)
    assert asked(producer, m.PurgeDeadLetters, (old, old, 5)).count == 1, "by the id that it had"
    assert asked(producer, m.PurgeDeadLetters, None).count == 3
    assert dead_ids(producer) == [] and harness.kept(DEAD) == []


def test_many_are_moved_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.actors.jobs.dead_letters.COUNT_MAX", 2)
    harness = job_harness()
    producer = harness.producer()
    for _ in range(5):
        make_dead_letter(harness, producer)
    done = asked(producer, m.RetryDeadLetters, None)
    assert (done.count, done.more) == (2, True)
    done = asked(producer, m.PurgeDeadLetters, None)
    assert (done.count, done.more) == (2, True)
    done = asked(producer, m.RetryDeadLetters, None)
    assert (done.count, done.more) == (1, False)


def test_dead_letters_without_room_are_not_requeued() -> None:
    harness = ChannelHarness(ChannelSettings(mode=Mode.QUEUE, messages_max=2))
    producer = harness.producer()
    for _ in range(3):
        make_dead_letter(harness, producer)
    put(producer, due_in=100)
    done = asked(producer, m.RetryDeadLetters, None)
    assert (done.count, done.more, len(dead_ids(producer))) == (1, True, 2)
    assert asked(producer, m.RetryDeadLetters, None) is Code.BUFFER_FULL
    assert len(dead_ids(producer)) == 2 and len(harness.kept()) == 2


def test_a_crash_before_the_dead_letter_is_let_go_of_does_not_double_the_job() -> None:
    """The channel and its dead letters are two writes."""
    harness = job_harness()
    producer = harness.producer()
    make_dead_letter(harness, producer)
    before = harness.store.load(DEAD)
    asked(producer, m.RetryDeadLetters, None)
    (dead_letter,) = before.rows
    harness.store.write(DEAD, [dead_letter])  # as if its end had not been kept
    again = harness.restarted()
    producer = again.producer()
    again.run_due()
    assert dead_ids(producer) == [], "the channel says again that it has it"
    assert len(again.kept()) == 1


def test_a_request_before_the_first_wake_does_not_keep_a_requeued_dead_letter() -> None:
    """After such a crash the dead-letter channel is told, whatever the channel handles first."""
    harness = job_harness()
    producer = harness.producer()
    make_dead_letter(harness, producer)
    (dead_letter,) = harness.store.load(DEAD).rows
    asked(producer, m.RetryDeadLetters, None)
    harness.store.write(DEAD, [dead_letter])  # as if its end had not been kept
    again = harness.restarted()
    producer = again.producer()
    assert put(producer, b"another")
    again.run_due()
    assert dead_ids(producer) == [] and len(again.kept()) == 2


@pytest.mark.parametrize("is_done", [False, True])
def test_the_second_retry_after_such_a_crash_is_none(is_done: bool) -> None:
    harness = job_harness()
    producer = harness.producer()
    make_dead_letter(harness, producer)
    (dead_letter,) = harness.store.load(DEAD).rows
    asked(producer, m.RetryDeadLetters, None)
    if is_done:
        hand = worker(harness)
        hand.ack(taken(hand).id)
        hand.leave()
    harness.store.write(DEAD, [dead_letter])
    harness.scheduler.cells.pop(DEAD, None)
    done = asked(producer, m.RetryDeadLetters, None)
    assert (done.count, done.more) == (0, False)
    assert len(harness.kept()) == (0 if is_done else 1) and harness.kept(DEAD) == []


def test_a_failing_disk_leaves_them_dead() -> None:
    harness = job_harness()
    producer = harness.producer()
    make_dead_letter(harness, producer)
    harness.store.health.is_writable = False
    assert asked(producer, m.RetryDeadLetters, None) is Code.STORAGE_FAILED
    assert len(dead_ids(producer)) == 1 and harness.kept() == []
