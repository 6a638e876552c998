"""Priorities and limits of a queue: the channel holds to them where it leases jobs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.dead_letters import NOT_STARTED
from millpond.actors.channels.ranked_backlog import _Level
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs import messages as m
from millpond.actors.messages import NackReason, QueueSettingsChanged, Role
from millpond.actors.queue_settings import (
    AGEING_MS,
    KEYS_MAX,
    NO_SETTINGS,
    SWEEP_GAP_S,
    Buckets,
    QueueSettings,
    Rate,
)
from millpond.node.jobs.payload import JobMessage, decode_job, encode_job
from tests.actors.channels.harness import NAME, ChannelHarness, Peer
from tests.actors.jobs.harness import (
    asked,
    job_harness,
    make_dead_letter,
    put,
    rows,
    worker,
)

MINUTE_MS = 60_000


def job(payload: object, **options: Any) -> bytes:
    return encode_job(JobMessage(payload, **options))


def use(harness: ChannelHarness, **fields: Any) -> None:
    """Have these settings for the queue, as the catalog of channels does."""
    harness.shared.queue_table.set(NAME, QueueSettings(**fields))
    harness.post(QueueSettingsChanged())


def channel(harness: ChannelHarness) -> Channel:
    behaviour = harness.scheduler.view(NAME)
    assert isinstance(behaviour, Channel)
    return behaviour


def delivery(harness: ChannelHarness) -> Any:
    return channel(harness).delivery


def payloads(peer: Peer) -> list[Any]:
    return [decode_job(each.data).payload for each in peer.pushed()]


def leases_lost(harness: ChannelHarness, peer: Peer) -> None:
    """The pushes of the connection wait for the store, and it ends."""
    for consumer in delivery(harness).consumers.values():
        for message_id, lease in consumer.leases.items():
            consumer.leases[message_id] = replace(lease, started=False)
    peer.leave()


def acked(peer: Peer) -> list[Any]:
    """The payloads of the jobs that the worker has, which it acknowledges."""
    messages = peer.pushed()
    peer.ack(*(each.id for each in messages))
    return [decode_job(each.data).payload for each in messages]


def drained(peer: Peer) -> list[Any]:
    """The payloads of all jobs, acknowledged one after the other."""
    found = []
    while messages := peer.pushed():
        for message in messages:
            found.append(decode_job(message.data).payload)
            peer.ack(message.id)
    return found


# Priorities.


def test_higher_priorities_go_first_and_equal_ones_in_order() -> None:
    harness = job_harness()
    producer = harness.producer()
    for number, priority in enumerate((4, 0, 9, 4, 9, 7)):
        put(producer, job(number, priority=priority))
    producer.put(b"a job without options has the priority 4")
    hand = worker(harness, window=1)
    assert drained(hand) == [2, 4, 5, 0, 3, b"a job without options has the priority 4", 1]


def test_a_low_job_gets_older_than_a_high_one_is_important() -> None:
    harness = job_harness()
    producer = harness.producer()
    put(producer, job("low", priority=0))
    harness.advance(9 * AGEING_MS / 1000 - 1)
    put(producer, job("high", priority=9))
    harness.advance(2)
    put(producer, job("later", priority=9))
    assert drained(worker(harness, window=1)) == ["high", "low", "later"]


def test_priorities_are_strict_without_ageing() -> None:
    harness = job_harness()
    producer = harness.producer()
    put(producer, job("low", priority=3), ttl=10**6)
    use(harness, ageing_ms=0)
    harness.advance(500_000)
    put(producer, job("high", priority=4))
    assert drained(worker(harness, window=1)) == ["high", "low"]


def test_a_failed_job_comes_back_to_its_place() -> None:
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness, window=1)
    for name, priority in (("first", 9), ("second", 9), ("third", 1)):
        put(producer, job(name, priority=priority))
    (first,) = hand.pushed()
    hand.nack(first.id, NackReason.LATER, 1000)
    (second,) = hand.pushed()
    harness.advance(2)
    hand.ack(second.id)
    assert drained(hand) == ["first", "third"]


def test_a_job_that_a_consumer_may_not_have_is_for_others() -> None:
    harness = job_harness()
    hand = harness.join(role=Role.WORKER, window=1)
    for number in range(3):
        hand.put(job(number, priority=9))  # a PUT is not pushed to the connection that sent it
    put(harness.producer(), job("other", priority=1))
    assert drained(hand) == ["other"]
    other = worker(harness, window=1)
    assert drained(other) == [0, 1, 2]


def test_delayed_jobs_keep_their_priority() -> None:
    harness = job_harness()
    producer = harness.producer()
    put(producer, job("now", priority=1))
    put(producer, job("due", priority=9), due_in=10)
    hand = worker(harness, window=1)
    assert payloads(hand) == ["now"]
    harness.advance(11)
    hand.ack(rows(producer, m.JobState.LEASED).rows[0].id)
    assert payloads(hand) == ["due"]


def test_priorities_survive_a_restart_and_dead_letters() -> None:
    harness = job_harness()
    producer = harness.producer()
    high = put(producer, job("high", priority=9)).id
    hand = worker(harness, window=1)
    hand.pushed()
    asked(hand, m.RejectJob, high, "no")
    hand.leave()
    for name, priority in (("low", 0), ("middle", 5)):
        put(producer, job(name, priority=priority))
    assert asked(producer, m.RetryDeadLetters, None).count == 1
    again = harness.restarted()
    assert drained(worker(again, window=1)) == ["high", "middle", "low"]


def test_options_that_nobody_can_have_are_none() -> None:
    harness = job_harness()
    producer = harness.producer()
    producer.put(b"\x83\xa1v\x01\xa1r\x0a\xa1p\x01")  # a priority of 10
    producer.put(b"\x83\xa1v\x01\xa1r\xff\xa1p\x02")
    producer.put(b"\x83\xa1v\x01\xa1r")
    put(producer, job(4, priority=5))
    hand = worker(harness, window=1)
    assert len(drained(hand)) == 4


# Limits of the queue.


def test_no_more_jobs_run_than_the_queue_allows() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, concurrency=3)
    one, two = worker(harness, window=8), worker(harness, window=8)
    for number in range(6):
        put(producer, job(number))
    held = [*one.pushed(), *two.pushed()]
    assert len(held) == 3
    two.leave()
    one.pushed()
    three = worker(harness, window=8)
    assert delivery(harness).leased == 3
    assert delivery(harness).limited_count == 3
    del three
    use(harness, concurrency=5)
    assert delivery(harness).leased == 5
    use(harness)
    assert delivery(harness).leased == 6


def test_a_rate_lets_a_burst_through_and_then_one_at_a_time() -> None:
    harness = job_harness(window_queue_max=1000, ack_timeout_s=10_000.0)
    producer = harness.producer()
    use(harness, rate=Rate(60, MINUTE_MS, 5))
    hand = worker(harness, window=100)
    for number in range(20):
        put(producer, job(number))
    assert payloads(hand) == [0, 1, 2, 3, 4]
    for number in range(5, 8):
        harness.advance(0.9)
        assert payloads(hand) == []
        harness.advance(0.1)
        assert payloads(hand) == [number]
    harness.advance(60)
    assert len(payloads(hand)) == 12


def test_a_bucket_outlives_the_behaviour_and_has_one_token_after_a_restart() -> None:
    harness = job_harness(window_queue_max=1000, ack_timeout_s=10_000.0)
    producer = harness.producer()
    use(harness, rate=Rate(60, MINUTE_MS, 5))
    for number in range(20):
        put(producer, job(number))
    hand = worker(harness, window=100)
    assert len(payloads(hand)) == 5
    again = harness.restarted()
    again.shared.queue_table.load({NAME: QueueSettings(rate=Rate(60, MINUTE_MS, 5))})
    hand = worker(again, window=100)
    assert len(payloads(hand)) == 1
    again.advance(1.01)
    assert len(payloads(hand)) == 1


def test_a_pause_holds_back_what_a_limit_would_let_through() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, rate=Rate(1, 1000), is_paused=True)
    put(producer, job(1))
    hand = worker(harness)
    harness.advance(10)
    assert payloads(hand) == []
    use(harness, rate=Rate(1, 1000))
    assert payloads(hand) == [1]


# Limits of keys.


def test_of_each_key_so_many_run_and_others_are_not_held_up() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    for key in (b"a", b"a", b"a", b"b", b""):
        put(producer, job(key.decode(), limit_key=key))
    hand = worker(harness, window=8)
    held = hand.pushed()
    assert [decode_job(each.data).payload for each in held] == ["a", "b", ""]
    assert delivery(harness).limited_count == 2
    hand.ack(held[1].id)
    assert hand.pushed() == []
    hand.ack(held[0].id)
    (second,) = hand.pushed()
    hand.nack(second.id, NackReason.LATER, 10)
    (third,) = hand.pushed()
    harness.advance(1)
    assert hand.pushed() == []
    hand.ack(third.id)
    assert len(hand.pushed()) == 1


def test_a_rate_of_keys_is_that_of_each() -> None:
    harness = job_harness(window_queue_max=1000)
    producer = harness.producer()
    use(harness, key_rate=Rate(2, 1000))
    for number in range(6):
        for key in (b"a", b"b"):
            put(producer, job(number, limit_key=key))
    hand = worker(harness, window=100)
    assert payloads(hand) == [0, 0, 1, 1]
    harness.advance(0.51)
    assert payloads(hand) == [2, 2]
    harness.advance(2)
    assert payloads(hand) == [3, 3, 4, 4, 5, 5]


def test_the_more_important_job_of_a_key_is_first_where_one_waits_for_the_key() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    put(producer, job("running", limit_key=b"a"))
    hand = worker(harness, window=8)
    for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
        put(producer, job(name, limit_key=b"a", priority=priority))
    assert drained(hand) == ["running", "high", "middle", "low"]


def test_a_parked_job_can_be_cancelled_and_expires() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    hand = worker(harness, window=8)
    ids = [put(producer, job(n, limit_key=b"a"), ttl=100 if n == 2 else 3600).id for n in range(4)]
    asked(producer, m.CancelJob, ids[1])
    (first,) = hand.pushed()
    harness.advance(20)
    hand.touch(first.id, 200_000)
    harness.advance(100)
    hand.ack(first.id)
    assert payloads(hand) == [3]


def test_a_job_that_its_key_let_through_and_is_cancelled_makes_room() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    ids = [put(producer, job(name, limit_key=b"k")).id for name in "abc"]
    hand = worker(harness, window=2)
    put(producer, job("other"))
    first, other = hand.pushed()
    put(producer, job("urgent", priority=9))
    hand.ack(first.id)
    (urgent,) = hand.pushed()
    asked(producer, m.CancelJob, ids[1])
    hand.ack(other.id, urgent.id)
    assert payloads(hand) == ["c"]


@pytest.mark.parametrize("is_own", [False, True])
def test_a_job_that_its_key_let_through_and_nobody_may_have_holds_up_no_other(
    is_own: bool,
) -> None:
    """The next one of its key goes instead, and it stays for a worker that may have it."""
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    wide = worker(harness, window=8)
    put(producer, job("first", limit_key=b"k"))
    (first,) = wide.pushed()
    hand = harness.join(role=Role.WORKER, window=8, data_max=1024)
    if is_own:
        hand.put(job("other", limit_key=b"k"))
    else:
        put(producer, job("x" * 2000, limit_key=b"k"))
    for name in ("third", "fourth"):
        put(producer, job(name, limit_key=b"k"))
    assert delivery(harness).limited_count == 3
    asked(wide, m.CountJobs, stop=True)
    wide.ack(first.id)
    assert drained(hand) == ["third", "fourth"]
    assert len(drained(worker(harness))) == 1


def test_jobs_of_a_key_go_to_the_workers_that_may_have_them() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1)
    wide, hand = worker(harness, window=1), worker(harness, window=1, data_max=1024)
    put(producer, job("first", limit_key=b"k"))
    (first,) = wide.pushed()
    for name in ("x" * 2000, "y" * 2000, "third", "fourth"):
        put(producer, job(name, limit_key=b"k"))
    wide.ack(first.id)
    found = [payload for _ in range(4) for peer in (hand, wide) for payload in acked(peer)]
    assert sorted(each[0] for each in found) == ["f", "t", "x", "y"]


def test_a_job_that_its_key_let_through_and_is_late_holds_up_no_other() -> None:
    """Not even while there is no room for it among the dead letters."""
    harness = job_harness()
    harness.dead = ChannelSettings(messages_max=1)
    producer = harness.producer()
    make_dead_letter(harness, producer)
    use(harness, key_concurrency=1)
    harness.run_due()
    hand, other = worker(harness, window=1), worker(harness, window=1)
    put(producer, job("first", limit_key=b"k"))
    put(producer, job("busy"))
    by = round((harness.now + 10) * 1000)
    put(producer, job("late", limit_key=b"k", start_by_ms=by))
    put(producer, job("next", limit_key=b"k"))
    looks = worker(harness, window=8)
    assert looks.pushed() == [] and delivery(harness).limited_count == 2
    asked(looks, m.CountJobs, stop=True)
    harness.advance(5)
    (first,), (busy,) = hand.pushed(), other.pushed()
    hand.touch(first.id, 100_000)
    other.touch(busy.id, 100_000)
    put(producer, job("urgent", priority=9))
    hand.ack(first.id)  # "late" may go now, and is behind "urgent"
    (urgent,) = hand.pushed()
    harness.advance(6)
    hand.ack(urgent.id)
    assert payloads(hand) == ["next"]


def test_limits_that_are_lifted_let_everything_through() -> None:
    harness = job_harness()
    producer = harness.producer()
    use(harness, key_concurrency=1, key_rate=Rate(1, 3_600_000))
    for number in range(5):
        put(producer, job(number, limit_key=b"a"))
    hand = worker(harness, window=8)
    assert payloads(hand) == [0]
    harness.shared.queue_table.set(NAME, NO_SETTINGS)
    harness.post(QueueSettingsChanged())
    assert payloads(hand) == [1, 2, 3, 4]


# Start deadlines.


def test_a_job_that_does_not_start_in_time_is_a_dead_letter() -> None:
    harness = job_harness()
    producer = harness.producer()
    by = round((harness.now + 60) * 1000)
    put(producer, job("late", start_by_ms=by))
    harness.advance(61)
    (dead,) = rows(producer, m.JobState.DEAD).rows
    assert dead.reason == NOT_STARTED
    assert payloads(worker(harness)) == []


def test_a_job_that_started_in_time_may_take_longer_and_be_tried_again() -> None:
    harness = job_harness(ack_timeout_s=1000.0)
    producer, hand = harness.producer(), worker(harness, window=1)
    put(producer, job("x", start_by_ms=round((harness.now + 60) * 1000)))
    (message,) = hand.pushed()
    harness.advance(100)
    hand.nack(message.id, NackReason.LATER, 10)
    harness.advance(100)
    (again,) = hand.pushed()
    assert again.attempt == 2


def test_a_job_that_failed_before_its_start_deadline_is_tried_again_after_it() -> None:
    harness = job_harness(ack_timeout_s=1000.0)
    producer, hand = harness.producer(), worker(harness, window=1)
    put(producer, job("x", start_by_ms=round((harness.now + 60) * 1000)))
    (message,) = hand.pushed()
    hand.nack(message.id, NackReason.LATER, 120_000)
    harness.advance(130)
    assert [each.attempt for each in hand.pushed()] == [2]


@pytest.mark.parametrize("how", ["back", "lost"])
def test_a_job_that_comes_back_unstarted_after_its_time_is_a_dead_letter(how: str) -> None:
    """It is not given to another worker first."""
    harness = job_harness(ack_timeout_s=1000.0)
    producer, hand = harness.producer(), worker(harness, window=1)
    put(producer, job("late", start_by_ms=round((harness.now + 60) * 1000)))
    (message,) = hand.pushed()
    other = worker(harness, window=1)
    harness.advance(61)
    assert rows(producer, m.JobState.DEAD).rows == ()
    if how == "back":
        asked(hand, m.RetryJob, message.id)
    else:
        leases_lost(harness, hand)
    harness.run_due()
    assert other.pushed() == []
    assert [row.reason for row in rows(producer, m.JobState.DEAD).rows] == [NOT_STARTED]
    assert delivery(harness).leased == 0


def test_no_job_starts_after_its_time_before_the_channel_is_woken() -> None:
    harness = job_harness()
    put(harness.producer(), job("late", start_by_ms=round((harness.now + 60) * 1000)))
    harness.now += 61
    assert payloads(worker(harness, window=1)) == []


def test_a_start_deadline_survives_a_restart() -> None:
    harness = job_harness()
    put(harness.producer(), job("late", start_by_ms=round((harness.now + 60) * 1000)))
    again = harness.restarted()
    producer = again.producer()
    assert len(rows(producer, m.JobState.READY).rows) == 1
    again.advance(60)
    assert [row.reason for row in rows(producer, m.JobState.DEAD).rows] == [NOT_STARTED]


# Buckets.


def test_the_buckets_of_keys_have_a_limit() -> None:
    buckets, rate = Buckets(), Rate(1, 1000)
    for number in range(KEYS_MAX):
        buckets.take_of_key(b"%d" % number, rate, 100.0)
    assert buckets.key_opens_at(b"other", rate, 100.0) > 100.0
    assert buckets.key_opens_at(b"7", rate, 100.0) == 101.0
    assert buckets.key_opens_at(b"other", rate, 101.5) <= 101.5


@given(
    count=st.integers(1, 50),
    period_ms=st.integers(1, 10**6),
    burst=st.integers(0, 50),
    waits=st.lists(st.floats(0, 100), max_size=60),
)
def test_a_bucket_gives_no_more_than_its_rate(
    count: int, period_ms: int, burst: int, waits: list[float]
) -> None:
    """In any time no more starts than the burst, and those of the rate in that time."""
    rate, buckets, now = Rate(count, period_ms, burst), Buckets(), 1000.0
    times = []
    for wait in waits:
        now += wait
        if buckets.opens_at(rate, now) <= now:
            buckets.take(rate, now)
            times.append(now)
    for i, first in enumerate(times):
        for j, last in enumerate(times[i:], 1):
            allowed = (burst or count) + (last - first) / rate.interval_s
            assert j <= allowed + 1e-6 * (1 + allowed)
            assert j <= allowed + 1


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_happens_limits_hold_and_every_job_runs_once(data: st.DataObject) -> None:
    """A model: jobs of random priorities and keys, workers that come, end jobs and go, limits that
    change; at the end nothing is left."""
    harness = job_harness(attempts_max=1000)
    producer = harness.producer()
    put_ids: set[int] = set()
    done: set[int] = set()
    hands: list[Peer] = []
    held: dict[Peer, list[Any]] = {}
    most, key_most = 0, 0

    def collect() -> None:
        for each in hands:
            held[each] += each.pushed()
        running = [message for each in hands for message in held[each]]
        assert len({message.id for message in running}) == len(running)
        keys = [decode_job(message.data).limit_key for message in running]
        if most:
            assert len(running) <= most
        if key_most:
            for key in set(keys) - {b""}:
                assert keys.count(key) <= key_most

    for _ in range(data.draw(st.integers(5, 40))):
        match data.draw(st.sampled_from(("put", "join", "ack", "fail", "leave", "wait", "limit"))):
            case "put":
                key = data.draw(st.sampled_from((b"", b"a", b"b")))
                priority = data.draw(st.integers(0, 9))
                due_in = data.draw(st.sampled_from((None, None, 3)))
                body = job(0, limit_key=key, priority=priority)
                put_ids.add(put(producer, body, due_in=due_in, ttl=10**6).id)
            case "join" if len(hands) < 3:
                hand = worker(harness, window=data.draw(st.integers(1, 3)))
                hands.append(hand)
                held[hand] = []
            case "ack" | "fail" as what:
                busy = [each for each in hands if held[each]]
                if busy:
                    message = held[busy[0]].pop(0)
                    if what == "ack":
                        busy[0].ack(message.id)
                        done.add(message.id)
                    else:
                        busy[0].nack(message.id, NackReason.LATER, 500)
            case "leave" if hands:
                hand = hands.pop()
                del held[hand]
                hand.leave()
            case "wait":
                harness.advance(data.draw(st.floats(0.1, 5)))
            case "limit" if not hands:
                most, key_most = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
                rate = data.draw(st.sampled_from((None, Rate(2, 1000))))
                use(harness, concurrency=most, key_concurrency=key_most, rate=rate)
            case _:
                pass
        collect()
    for hand in hands:
        hand.leave()
    hand = worker(harness, window=3)
    for _ in range(300):
        for message in hand.pushed():
            done.add(message.id)
            hand.ack(message.id)
        if done >= put_ids:
            break
        harness.advance(2)
    assert done == put_ids
    assert not channel(harness).buffer.rows


@pytest.mark.parametrize("count", [2_000])
def test_many_cancelled_jobs_leave_nothing_behind(count: int) -> None:
    harness = job_harness()
    producer = harness.producer()
    put(producer, job("stays", priority=9, limit_key=b"k"))
    use(harness, key_concurrency=1)
    for number in range(3 * count):
        message_id = put(producer, job(number, priority=number % 10, limit_key=b"k")).id
        asked(producer, m.CancelJob, message_id)
    backlog: Any = delivery(harness)._backlog
    entries = sum(len(level.ids) for level in backlog._levels.values())
    assert entries < 2 * count
    assert drained(worker(harness, window=1)) == ["stays"]


def test_further_keys_look_again_when_one_can_be_forgotten() -> None:
    """Not each second: with thousands of them that would be all that the node does."""
    buckets, day, hour = Buckets(), Rate(1, 86_400_000), Rate(1, 3_600_000)
    for number in range(KEYS_MAX - 1):
        buckets.take_of_key(b"%d" % number, day, 1000.0)
    buckets.take_of_key(b"soon", hour, 1000.0)
    assert buckets.key_opens_at(b"further", day, 1001.0) == 4600.0
    assert buckets.key_opens_at(b"further", day, 4599.5) == 4600.5, "but never sooner than that"
    assert buckets.key_opens_at(b"further", day, 4600.5) <= 4600.5


def test_sweeps_of_a_full_table_keep_a_distance() -> None:
    """Where a bucket gets full every few milliseconds, and thousands of further keys ask."""
    buckets, minute, sweeps, found = Buckets(), Rate(1, 60_000), 0, 0
    for number in range(KEYS_MAX):
        buckets.take_of_key(b"%d" % number, minute, 1000.0 + number * 0.003)
    before = buckets._key_full_at
    for ms in range(2000):
        now = 1060.0 + ms / 1000
        if buckets.key_opens_at(b"further %d" % ms, minute, now) <= now:
            buckets.take_of_key(b"further %d" % ms, minute, now)
            found += 1
        sweeps += buckets._key_full_at is not before
        before = buckets._key_full_at
    assert sweeps <= 2 / SWEEP_GAP_S + 1
    assert found > 500, "and those that are full by then make room for others"
    assert len(buckets._key_full_at) <= KEYS_MAX


def test_jobs_that_come_back_in_any_order_are_where_they_were() -> None:
    """And few entries move for one of the oldest, however many wait behind it."""

    class Counting(list[int]):
        moved = 0

        def insert(self, at: Any, value: int) -> None:
            self.moved += len(self) - at
            super().insert(at, value)

        def __setitem__(self, at: Any, value: Any) -> None:
            self.moved += len(value) if isinstance(at, slice) else 1
            super().__setitem__(at, value)

    level, waiting = _Level(), set(range(1, 5001))
    level.ids = Counting(waiting)
    rng = Random(4)
    for _ in range(500):
        taken = [level.first(0, waiting) for _ in range(1)]
        taken += [level.first(taken[0], waiting), level.first(taken[0] + 3, waiting)]
        waiting.difference_update(taken)
        level.first(0, waiting)
        rng.shuffle(taken)
        for each in taken[:2]:
            waiting.add(each)
            level.add(each)
        assert level.first(0, waiting) == min(waiting)
    assert [each for each in level.ids[level.start :] if each in waiting] == sorted(waiting)
    assert level.ids.moved < 500 * 2 * 20
