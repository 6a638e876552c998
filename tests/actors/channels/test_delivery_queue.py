"""Queue mode: competing consumers, one lease at a time (docs/reference/wire-protocol.md)."""

from __future__ import annotations

import pytest

from millpond.actors.messages import NackReason
from tests.actors.channels.harness import ChannelHarness, queue


@pytest.fixture
def harness() -> ChannelHarness:
    return ChannelHarness(queue())


def test_a_message_is_leased_to_one_consumer(harness: ChannelHarness) -> None:
    producer, workers = harness.producer(), [harness.join() for _ in range(3)]
    receipt = producer.put()
    assert [each for worker in workers for each in worker.pushed_ids()] == [receipt.id]
    assert harness.info().leased == 1


def test_the_fewest_leases_come_first_then_the_longest_wait(harness: ChannelHarness) -> None:
    producer, workers = harness.producer(), [harness.join(window=3) for _ in range(3)]
    ids = [producer.put().id for _ in range(6)]
    assert [worker.pushed_ids() for worker in workers] == [ids[0::3], ids[1::3], ids[2::3]]
    workers[1].ack(ids[1], ids[4])
    new = [producer.put().id for _ in range(3)]
    assert workers[1].pushed_ids() == new[:2]
    assert workers[0].pushed_ids() == new[2:]


def test_no_starvation_of_a_consumer_with_window_one(harness: ChannelHarness) -> None:
    producer, workers = harness.producer(), [harness.join(window=1) for _ in range(2)]
    served = [0, 0]
    for _ in range(20):
        producer.put()
        for number, worker in enumerate(workers):
            for message_id in worker.pushed_ids():
                served[number] += 1
                worker.ack(message_id)
    assert served == [10, 10]


def test_pa_38_a_lost_connection_hands_over_at_once_and_counts_the_attempt(
    harness: ChannelHarness,
) -> None:
    producer, first, second = harness.producer(), harness.join(), harness.join()
    receipt = producer.put()
    assert first.pushed_ids() == [receipt.id] and second.pushed() == []
    first.leave()
    assert [(each.id, each.attempt) for each in second.pushed()] == [(receipt.id, 2)]


def test_a_nacked_message_goes_to_any_free_consumer(harness: ChannelHarness) -> None:
    producer, first = harness.producer(), harness.join(window=1)
    receipt = producer.put(ttl=36_000)
    second = harness.join(window=1)
    first.pushed()
    first.nack(receipt.id, NackReason.LATER, 5000)
    producer.put()
    assert len(first.pushed_ids() + second.pushed_ids()) == 1
    harness.advance(5)
    assert receipt.id in first.pushed_ids() + second.pushed_ids()


def test_pa_18_a_message_that_one_may_not_have_stays_for_the_others(
    harness: ChannelHarness,
) -> None:
    both = harness.join(window=8)
    own = [both.put().id for _ in range(3)]
    foreign = harness.producer().put().id
    assert both.pushed_ids() == [foreign]
    worker = harness.join(window=8)
    assert worker.pushed_ids() == own
    worker.nack(own[1], NackReason.LATER, 0)
    harness.run_due()
    assert both.pushed() == [] and worker.pushed_ids() == [own[1]]
    worker.leave()
    assert harness.join().pushed_ids() == own


def test_ps_11_resume_after_skips_for_one_and_leaves_it_to_others(harness: ChannelHarness) -> None:
    producer = harness.producer()
    a, b, c = (producer.put().id for _ in range(3))
    late = harness.join(resume_after=b)
    assert late.pushed_ids() == [c]
    assert harness.join(window=8).pushed_ids() == [a, b]


def test_a_message_too_large_for_one_consumer_goes_to_another(harness: ChannelHarness) -> None:
    producer, small, large = harness.producer(), harness.join(data_max=1024), harness.join()
    big, little = producer.put(bytes(2000)), producer.put()
    assert large.pushed_ids() == [big.id] and small.pushed_ids() == [little.id]
    large.leave()
    harness.advance(100)
    assert big.id not in small.pushed_ids()


def test_a_nack_delay_outlasts_that_everyone_leaves() -> None:
    harness = ChannelHarness(queue())
    producer, worker = harness.producer(), harness.join()
    receipt = producer.put(ttl=36_000)
    worker.pushed()
    worker.nack(receipt.id, NackReason.LATER, 600_000)
    worker.leave(), producer.leave()
    harness.advance(300)
    late = harness.join()
    assert late.pushed() == []
    harness.advance(300)
    assert [(each.id, each.attempt) for each in late.pushed()] == [(receipt.id, 2)]


def test_attempts_outlast_passivation(harness: ChannelHarness) -> None:
    producer, worker = harness.producer(), harness.join()
    producer.put(ttl=36_000)
    worker.leave(), producer.leave()
    harness.advance(300)
    assert harness.scheduler.cells[b"orders"].behaviour is None
    assert [each.attempt for each in harness.join().pushed()] == [2]


def test_a_thousand_messages_reach_their_workers_once(harness: ChannelHarness) -> None:
    producer, workers = harness.producer(), [harness.join() for _ in range(5)]
    put = [producer.put().id for _ in range(1000)]
    got: list[int] = []
    while len(got) < 1000:
        for worker in workers:
            ids = worker.pushed_ids()
            got += ids
            worker.ack(*ids)
    assert sorted(got) == put and harness.kept() == []
