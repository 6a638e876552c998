"""Consumers that report the start of their work: other losses are no attempts
(docs/reference/wire-protocol.md, BEGUN)."""

from __future__ import annotations

import pytest

from millpond.actors.channels.settings import UNSTARTED_MAX
from millpond.actors.jobs.messages import CountJobs, JobCounts
from millpond.actors.messages import AttemptStarted, Role
from tests.actors.channels.harness import ChannelHarness, Peer
from tests.actors.jobs.harness import asked, dead_ids, job_harness


def worker(harness: ChannelHarness, window: int = 8) -> Peer:
    return harness.join(role=Role.WORKER, window=window, reports_start=True)


def test_only_started_messages_count_when_the_connection_is_lost() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    first, second = producer.put(b"1").id, producer.put(b"2").id
    assert len(hand.pushed()) == 2
    hand.send(AttemptStarted(first))
    hand.leave()
    again = {each.id: each.attempt for each in worker(harness).pushed()}
    assert again == {first: 2, second: 1}


def test_only_started_messages_count_when_the_lease_is_over() -> None:
    harness = job_harness(ack_timeout_s=10.0)
    producer, hand = harness.producer(), worker(harness)
    first, second = producer.put(b"1").id, producer.put(b"2").id
    hand.pushed()
    hand.send(AttemptStarted(first))
    harness.advance(16)
    again = {each.id: each.attempt for each in hand.pushed()}
    assert again == {first: 2, second: 1}


def test_a_lease_that_was_prolonged_is_still_begun() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    job = producer.put(b"1").id
    hand.pushed()
    hand.send(AttemptStarted(job))
    hand.touch(job, 60_000)
    hand.leave()
    assert [each.attempt for each in worker(harness).pushed()] == [2]


def test_started_messages_count_one_attempt_and_others_none() -> None:
    harness = job_harness(attempts_max=1)
    producer, hand = harness.producer(), worker(harness)
    first, second = producer.put(b"1").id, producer.put(b"2").id
    hand.pushed()
    hand.send(AttemptStarted(first))
    hand.leave()
    harness.run_due()
    assert len(dead_ids(producer)) == 1
    assert [each.id for each in worker(harness).pushed()] == [second]


def test_a_message_that_crashes_every_consumer_becomes_a_dead_letter() -> None:
    harness = job_harness(attempts_max=2)
    producer = harness.producer()
    producer.put(b"poison")
    shown = 0
    while not dead_ids(producer):
        hand = worker(harness)
        shown += len(hand.pushed())
        hand.leave()
        harness.run_due()
        assert shown <= 2 * UNSTARTED_MAX
    assert shown == 2 * UNSTARTED_MAX


def test_losses_count_only_in_a_row() -> None:
    harness = job_harness()
    producer = harness.producer()
    job = producer.put(b"1").id
    for _ in range(UNSTARTED_MAX - 1):
        worker(harness).leave()
    hand = worker(harness)
    hand.pushed()
    hand.send(AttemptStarted(job))
    hand.leave()
    for _ in range(UNSTARTED_MAX - 1):
        worker(harness).leave()
    assert [each.attempt for each in worker(harness).pushed()] == [2]


@pytest.mark.parametrize("begins", [False, True])
def test_without_the_extension_all_leases_count_as_started(begins: bool) -> None:
    harness = job_harness()
    producer = harness.producer()
    hand = harness.join(role=Role.WORKER, reports_start=begins)
    job = producer.put(b"1").id
    hand.pushed()
    hand.send(AttemptStarted(job + 1))  # nobody's
    hand.leave()
    expected = 1 if begins else 2
    assert [each.attempt for each in harness.join(role=Role.WORKER).pushed()] == [expected]


def test_a_stopped_consumer_gets_nothing_until_its_next_credit() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    assert isinstance(asked(hand, CountJobs, stop=True), JobCounts)
    job = producer.put(b"1").id
    assert hand.pushed() == []
    hand.credit(1)
    assert hand.pushed_ids() == [job]
