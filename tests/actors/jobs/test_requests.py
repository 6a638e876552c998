"""Jobs of a channel in queue mode: due times, unique names, lists, and what is done to one job."""

from __future__ import annotations

import pytest

from millpond.actors.channels.settings import TTL_UNLIMITED, ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.attributes import JobAttributes
from millpond.actors.jobs.listing import first_page, merge_pages
from millpond.actors.messages import Failed, Mode, NackReason, Touch
from millpond.actors.runtime.scheduler import SchedulerSettings
from millpond.actors.store.message_attributes import MessageAttributes
from tests.actors.channels.harness import NAME, START_S, ChannelHarness, pair, queue
from tests.actors.jobs.harness import (
    asked,
    counts,
    dead_ids,
    job_harness,
    make_dead_letter,
    put,
    rows,
    show,
    states,
    taken,
    worker,
)

DAY_S = 86_400


def test_a_job_is_handed_out_when_it_is_due_and_not_before() -> None:
    harness = job_harness(ack_timeout_s=600.0)
    producer, hand = harness.producer(), worker(harness, window=8)
    later, now = put(producer, b"later", due_in=60).id, put(producer, b"now").id
    assert taken(hand).id == now
    harness.advance(59.9)
    assert hand.pushed() == []
    harness.advance(0.2)
    assert taken(hand).id == later


def test_a_job_that_became_due_without_workers_is_pushed_once() -> None:
    """Its rest ended before anybody looked at it: it must not be leased twice."""
    harness = job_harness()
    producer = harness.producer()
    ids = [put(producer, due_in=5).id, put(producer, due_in=900).id, put(producer).id]
    harness.advance(10)
    first, second = worker(harness, window=8), worker(harness, window=8)
    assert sorted(first.pushed_ids() + second.pushed_ids()) == [ids[0], ids[2]]


def test_a_due_that_has_passed_is_now() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    kept = put(producer, due_in=-500, ttl=100)
    assert taken(hand).id == kept.id
    assert show(producer, kept.id).expires_at == harness.now + 100


def test_the_ttl_counts_from_the_due() -> None:
    harness = job_harness()
    producer = harness.producer()
    kept = put(producer, due_in=1000, ttl=60)
    assert (kept.ttl, show(producer, kept.id).expires_at) == (60, harness.now + 1060)
    harness.advance(1059)
    assert states(producer) == {kept.id: "ready"}
    harness.advance(2)
    (dead_id,) = dead_ids(producer)
    dead = show(producer, dead_id)
    assert (dead.origin, dead.reason, dead.attempt) == (kept.id, "expired", 0)
    assert harness.kept() == []


def test_a_job_without_a_ttl_does_not_expire() -> None:
    harness = job_harness()
    producer = harness.producer()
    job, plain = put(producer, b"job", ttl=0), producer.put(b"plain", ttl=0)
    assert job.ttl == plain.ttl == TTL_UNLIMITED
    assert show(producer, job.id).expires_at == show(producer, plain.id).expires_at == 0
    harness.advance(30 * DAY_S)
    harness = harness.restarted()
    producer = harness.producer()
    assert states(producer) == {job.id: "ready", plain.id: "ready"}
    assert counts(producer).oldest == START_S


def test_a_ttl_of_the_queue_holds_for_jobs_without_one() -> None:
    harness = ChannelHarness(ChannelSettings(mode=Mode.QUEUE, ttl_queue=60))
    producer = harness.producer()
    job, longer = put(producer, ttl=0), put(producer, ttl=90)
    assert (job.ttl, longer.ttl) == (60, 90)
    harness.advance(61)
    assert states(producer) == {longer.id: "ready", dead_ids(producer)[0]: "dead"}
    assert asked(producer, m.RetryDeadLetters, None).count == 1
    again = next(row for row in rows(producer).rows if row.id != longer.id)
    assert (again.reason, again.expires_at) == ("expired", harness.now + 60)


def test_a_unique_key_is_free_once_its_job_expired() -> None:
    harness = job_harness()
    producer = harness.producer()
    first = put(producer, b"a", ttl=60, unique=b"alice")
    harness.advance(60)
    second = put(producer, b"b", ttl=60, unique=b"alice")
    assert not second.existing and second.id != first.id
    assert show(producer, second.id).state is m.JobState.READY


def test_a_leased_job_that_expires_is_a_dead_letter_and_its_ack_is_late() -> None:
    harness = job_harness(ack_timeout_s=3600.0)
    producer, hand = harness.producer(), worker(harness)
    kept = put(producer, ttl=60)
    assert taken(hand).id == kept.id
    harness.advance(60)
    hand.ack(kept.id)
    assert asked(hand, m.RejectJob, kept.id, "no") is Code.LEASE_LOST
    (dead_id,) = dead_ids(producer)
    assert show(producer, dead_id).reason == "expired"


def test_a_year_ahead_is_taken_and_more_is_refused() -> None:
    harness = job_harness()
    producer = harness.producer()
    assert put(producer, due_in=365 * DAY_S).id
    assert put(producer, due_in=367 * DAY_S) is Code.TTL_REFUSED


def test_due_and_unique_survive_a_restart() -> None:
    harness = job_harness()
    producer = harness.producer()
    due = put(producer, b"later", due_in=60, unique=b"alice").id
    again = harness.restarted()
    producer, hand = again.producer(), worker(again, window=8)
    assert show(producer, due).due == START_S + 60
    assert put(producer, b"other", unique=b"alice").id == due
    again.advance(58)
    assert hand.pushed() == []
    again.advance(2)
    assert taken(hand).id == due


def test_the_wait_before_another_attempt_survives_a_restart() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    kept = put(producer).id
    hand.nack(taken(hand).id, NackReason.LATER, 300_000)
    again = harness.restarted()
    hand = worker(again)
    again.advance(298)
    assert hand.pushed() == []
    again.advance(2)
    assert (taken(hand).id, kept) == (kept, kept)


def test_a_channel_with_only_delayed_jobs_is_passivated_and_wakes_for_them() -> None:
    """PA-30: the wait is in the store, so memory need not have it."""
    harness = ChannelHarness(
        ChannelSettings(mode=Mode.QUEUE), runtime=SchedulerSettings(passivate_after_s=60.0)
    )
    producer = harness.producer()
    kept = put(producer, due_in=1000).id
    producer.leave()
    harness.advance(200)
    assert harness.scheduler.view(NAME) is None
    hand = worker(harness)
    harness.advance(700)
    assert hand.pushed() == []
    harness.advance(101)
    assert taken(hand).id == kept


def test_of_one_unique_name_there_is_one_job_until_it_leaves() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    first = put(producer, b"1", unique=b"alice")
    assert not first.existing
    second = put(producer, b"2", unique=b"alice", ttl=5)
    assert (second.id, second.ttl, second.existing) == (first.id, first.ttl, True)
    assert not put(producer, b"3", unique=b"bob").existing and len(harness.kept()) == 2
    hand.ack(first.id)
    third = put(producer, b"4", unique=b"alice")
    assert not third.existing and third.id != first.id


def test_a_unique_name_is_free_when_its_job_is_dead_expired_or_cancelled() -> None:
    harness = job_harness()
    producer = harness.producer()
    dead = put(producer, unique=b"a").id
    hand = worker(harness)
    asked(hand, m.RejectJob, taken(hand).id, "no")
    hand.leave()
    expired = put(producer, unique=b"a", ttl=10)
    assert not expired.existing and expired.id != dead
    harness.now += 11  # its deadline is over, and nobody has swept yet
    cancelled = put(producer, unique=b"a")
    assert not cancelled.existing
    asked(producer, m.CancelJob, cancelled.id)
    assert not put(producer, unique=b"a").existing


def test_a_put_said_twice_is_one_job_and_other_data_is_refused() -> None:
    """PA-08, PA-10: keys of jobs are those of the channel."""
    harness = job_harness()
    producer = harness.producer()
    first = put(producer, b"1", key=7, unique=b"x")
    again = put(producer, b"1", key=7, unique=b"x")
    assert (again.id, again.existing) == (first.id, False)
    assert put(producer, b"2", key=7) is Code.KEY_REUSED
    assert len(harness.kept()) == 1


@pytest.mark.parametrize(
    ("settings", "data", "code"),
    [
        (ChannelSettings(mode=Mode.QUEUE), b"", Code.EMPTY_DATA),
        (ChannelSettings(mode=Mode.QUEUE, data_bytes_max=3), b"four", Code.DATA_TOO_LARGE),
        (ChannelSettings(mode=Mode.QUEUE, messages_max=0), b"x", Code.BUFFER_FULL),
        (ChannelSettings(mode=Mode.QUEUE, ttl_max=10, ttl_strict=True), b"x", Code.TTL_REFUSED),
    ],
)
def test_a_put_is_refused_as_a_message_would_be(
    settings: ChannelSettings, data: bytes, code: Code
) -> None:
    producer = ChannelHarness(settings).producer()
    assert put(producer, data) is code


def test_an_identity_may_work_on_its_own_job() -> None:
    """Not so with messages (PA-18): there the sender is who should not get them."""
    harness = job_harness()
    ann = harness.join(identity=b"a" * 32, window=4)
    kept = put(ann).id
    assert taken(ann).id == kept
    ann.ack(kept)
    assert harness.kept() == []


def test_a_channel_in_another_mode_has_no_jobs() -> None:
    harness = ChannelHarness(pair())
    peer = harness.producer()
    assert put(peer) is Code.NOT_A_QUEUE
    assert asked(peer, m.CountJobs) is Code.NOT_A_QUEUE
    dead = job_harness().producer(NAME + b"!dead")
    assert asked(dead, m.ListJobs, None, 0, 10, 1000) is Code.NOT_A_QUEUE


def test_lists_tell_where_each_job_stands() -> None:
    harness = job_harness()
    producer = harness.producer()
    dead = make_dead_letter(harness, producer, b"dead")
    held, waiting = put(producer, b"h" * 300).id, put(producer, due_in=60).id
    hand = worker(harness)
    ready = put(producer).id
    assert taken(hand).id == held
    (dead_letter,) = dead_ids(producer)
    assert states(producer) == {
        held: "leased", waiting: "delayed", ready: "ready", dead_letter: "dead"
    }  # fmt: skip
    assert list(states(producer)) == sorted(states(producer))
    for state in m.JobState:
        found = [row for row in rows(producer).rows if row.state is state]
        assert list(rows(producer, state).rows) == found != []
    (row,) = rows(producer, m.JobState.LEASED).rows
    assert (row.attempt, row.size, row.data) == (1, 300, b"h" * 256)
    assert START_S + 20 < row.leased_until < START_S + 40 and row.due == 0
    row = show(producer, dead_letter)
    assert (row.origin, row.reason, row.attempt, row.data) == (dead, "no way", 1, b"dead")
    assert show(producer, dead) == row, "by the id that it had, as well"
    assert show(producer, held).data == b"h" * 300
    assert show(producer, held, size=400).data is None, "too large for the answer"
    assert asked(producer, m.GetJob, 12345, 1000) is Code.NOT_FOUND


@pytest.mark.parametrize("size", [2**18, 700])
def test_pages_of_the_living_and_the_dead_give_every_job_once(size: int) -> None:
    harness = job_harness()
    producer = harness.producer()
    for turn in range(4):
        make_dead_letter(harness, producer, b"dead%d" % turn)
        put(producer, due_in=100)
        for _ in range(turn):
            put(producer, due_in=200)
    found: list[int] = []
    for _ in range(100):
        page = rows(producer, None, found[-1] if found else 0, 3, size)
        found += [row.id for row in page.rows]
        if not page.more:
            break
    assert found == sorted(states(producer)) and len(found) == 14


def test_counts_are_those_of_the_states() -> None:
    harness = job_harness()
    producer = harness.producer()
    nothing = counts(producer)
    assert nothing == m.JobCounts(nothing.number, 0, 0, 0, 0, 0.0, 0)
    make_dead_letter(harness, producer)
    put(producer, due_in=60)
    put(producer)
    hand = worker(harness)
    harness.advance(5)
    first = put(producer).id
    harness.advance(5)
    put(producer)
    found = counts(producer)
    assert (found.ready, found.delayed, found.leased, found.dead) == (2, 1, 1, 1)
    assert (found.workers, found.oldest) == (1, START_S + 5)
    assert show(producer, first).state is m.JobState.READY and len(hand.pushed()) == 1


def test_a_delayed_job_can_be_retried_at_once_also_after_a_restart() -> None:
    harness = job_harness()
    producer = harness.producer()
    kept = put(producer, due_in=600).id
    assert asked(producer, m.RetryJob, kept).state is m.JobState.DELAYED
    assert asked(producer, m.RetryJob, kept).state is m.JobState.READY
    assert asked(producer, m.RetryJob, 99) is Code.NOT_FOUND
    again = harness.restarted()
    assert taken(worker(again)).id == kept
    assert taken(worker(harness)).id == kept


def test_a_cancelled_job_is_gone_and_its_worker_has_lost_the_lease() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    kept = put(producer).id
    assert taken(hand).id == kept
    assert asked(producer, m.CancelJob, kept).state is m.JobState.LEASED
    (ended,) = hand.port.take()
    assert ended == Failed(Touch(kept, 0), Code.LEASE_LOST), "it hears of it at once"
    assert getattr(hand.touch(kept, 1000), "code", None) is Code.LEASE_LOST
    assert asked(producer, m.CancelJob, kept) is Code.NOT_FOUND and harness.kept() == []
    other = put(producer).id
    assert taken(hand).id == other, "it has room for the next"


def test_only_the_holder_of_the_lease_rejects() -> None:
    harness = job_harness()
    producer, hand, other = harness.producer(), worker(harness), worker(harness)
    kept = put(producer).id
    holder, idle = (hand, other) if hand.pushed_ids() == [kept] else (other, hand)
    assert asked(idle, m.RejectJob, kept, "mine?") is Code.LEASE_LOST
    assert asked(producer, m.RejectJob, kept, "mine?") is Code.LEASE_LOST
    asked(holder, m.RejectJob, kept, "payload: \u00e9")
    (dead_letter,) = dead_ids(producer)
    assert show(producer, dead_letter).reason == "payload: \u00e9"
    assert asked(holder, m.RejectJob, kept, "again") is Code.LEASE_LOST


def test_a_job_given_back_counts_no_attempt_and_its_worker_gets_no_other() -> None:
    harness = job_harness(attempts_max=2)
    producer, hand = harness.producer(), worker(harness, window=2)
    ids = [put(producer).id for _ in range(3)]
    assert hand.pushed_ids() == ids[:2]
    assert asked(hand, m.RetryJob, ids[0]).state is m.JobState.LEASED
    assert asked(producer, m.RetryJob, ids[1]).state is m.JobState.LEASED, "of others it stays"
    hand.ack(ids[1])
    harness.advance(1)
    assert hand.pushed() == [] and states(producer) == {ids[0]: "ready", ids[2]: "ready"}
    other = worker(harness)
    message = taken(other)
    assert (message.id, message.attempt) == (ids[0], 1)
    hand.credit(1)
    assert taken(hand).id == ids[2]


def test_a_crash_of_the_channel_is_reported_to_the_client() -> None:
    harness = job_harness()
    producer = harness.producer()
    put(producer)
    harness.crash_on_spawn = lambda name: name.endswith(b"!dead")
    assert asked(producer, m.CountJobs) is Code.OUTCOME_UNKNOWN


def test_a_channel_is_not_put_away_while_a_rest_is_in_memory_alone() -> None:
    """PA-30: a rest that nobody asked for by its length is not in the store."""
    runtime = SchedulerSettings(passivate_after_s=60.0)
    harness = ChannelHarness(queue(ack_timeout_s=3600.0), runtime=runtime)
    producer, hand = harness.producer(), worker(harness)
    put(producer, due_in=900)
    kept = put(producer).id
    hand.nack(taken(hand).id, NackReason.BUSY)
    hand.leave()
    producer.leave()
    harness.advance(120)
    assert harness.scheduler.view(NAME) is not None
    hand = worker(harness)
    assert hand.pushed() == []
    harness.advance(400)
    assert taken(hand).id == kept


def test_a_dead_job_that_finds_no_room_is_in_no_list_and_its_name_is_free() -> None:
    harness = ChannelHarness(queue(), dead=ChannelSettings(messages_max=0))
    producer = harness.producer()
    kept = put(producer, unique=b"a").id
    hand = worker(harness)
    asked(hand, m.RejectJob, taken(hand).id, "no")
    assert states(producer) == {} and len(harness.kept()) == 1
    found = counts(producer)
    assert (found.ready, found.delayed, found.leased, found.dead) == (0, 0, 0, 0)
    for request in (m.RetryJob, m.CancelJob):
        assert asked(producer, request, kept) is Code.NOT_FOUND
    assert not put(producer, unique=b"a").existing
    harness.advance(20)
    assert len(harness.kept()) == 2, "it is offered again and again"


def row(message_id: int, size: int = 0) -> m.JobRow:
    return m.JobRow(message_id, m.JobState.READY, 0, 0.0, 0.0, 0.0, size, bytes(size))


def test_rows_above_a_page_with_more_are_for_the_next_page() -> None:
    few = (row(1),), True
    assert merge_pages(few, ((row(9),), False), 5, 10_000) == ((row(1),), True)
    assert merge_pages(few, ((row(0), row(2)), True), 5, 10_000) == ((row(0), row(1)), True)
    assert merge_pages(((), False), ((row(3),), False), 5, 10_000) == ((row(3),), False)
    assert first_page([row(1, 200), row(2, 200)], 5, 500) == ((row(1, 200),), True)
    assert first_page([row(1, 200)], 5, 1) == ((row(1, 200),), False), "one at least"


def test_a_ledger_forgets_all_and_a_name_belongs_to_its_last_claimant() -> None:
    schedule = JobAttributes(MessageAttributes({1: 5.0}, {1: b"a", 2: b"b"}))
    assert (schedule.find(b"a"), schedule.find(b"b")) == (1, 2)
    schedule.claim(3, b"a", [])
    schedule.forget(1)
    assert (schedule.find(b"a"), schedule.due) == (3, {})
    schedule.forget(2)
    schedule.forget(3)
    assert schedule.find(b"a") is schedule.find(b"b") is None
    assert schedule.attributes_of(2) == schedule.attributes_of(3) == (0.0, b"")
