"""The channel's part of schedules: a job is put once, and deleted schedules are forgotten, also
where the channel could not hear of it: it asks."""

from __future__ import annotations

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.idempotency import SCHEDULE_KEYS
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.recurrence import Recurrence
from millpond.actors.jobs.schedule_counters import ScheduleCounters
from millpond.actors.jobs.schedules import Schedules
from millpond.actors.messages import (
    Batch,
    CheckSchedules,
    Mode,
    MovesDone,
    ScheduledJob,
    ScheduledJobStored,
)
from millpond.actors.store.changes import KeyExpired, LogSnapshot, MetadataSet, Snapshot
from millpond.actors.streams.names import SCHEDULES
from tests.actors.channels.harness import NAME, ChannelHarness
from tests.actors.jobs.harness import job_harness

SPEC = m.ScheduleSpec(Recurrence(every_ms=60_000), b"data")


def schedules(harness: ChannelHarness, *channels: bytes) -> Schedules:
    """The cell with a schedule of each channel, numbered from 1."""
    cell = Schedules(LogSnapshot(), lambda data, name, at, now: data, ScheduleCounters())
    port = harness.port()
    for channel in channels:
        request = m.ScheduleRequest(1, channel, m.PutSchedule(1, b"report", SPEC))
        assert cell.handle(Batch(port, [request]), harness.now).changes
    return cell


def test_a_channel_asks_for_the_schedules_that_it_remembers_and_forgets_the_others() -> None:
    harness = job_harness()
    for number in (1, 2, 3):
        harness.post(ScheduledJob(b"elsewhere", number, 1000, 0, b"data"))
    snapshot = harness.store.load(NAME)
    assert isinstance(snapshot, Snapshot)
    channel = Channel(NAME, snapshot, {}, ChannelSettings(mode=Mode.QUEUE), harness.shared)
    assert channel.deadline == 0.0 and not channel.can_passivate
    ((cell, question),) = channel.wake(harness.now).posts
    assert cell == SCHEDULES and question == CheckSchedules(NAME, (1, 2, 3))
    assert channel.deadline > 0.0

    ((receiver, answer),) = (
        schedules(harness, NAME, b"other").handle(Batch(None, [question]), harness.now).posts
    )
    assert receiver == NAME and isinstance(answer, MovesDone)
    changes = channel.handle(Batch(None, [answer]), harness.now).changes
    assert changes == [KeyExpired(SCHEDULE_KEYS + number, True) for number in (2, 3)]
    assert channel.keys.schedules == (1,)


def test_a_job_that_a_schedule_sends_again_is_put_once_also_after_a_restart() -> None:
    """The cell sends it again where the answer was lost, and an earlier moment never follows."""
    harness = job_harness()
    job = ScheduledJob(b"elsewhere", 1, 2000, 0, b"data")
    harness.post(job)
    harness.post(job)
    snapshot = harness.store.load(NAME)
    assert isinstance(snapshot, Snapshot)
    channel = Channel(NAME, snapshot, {}, ChannelSettings(mode=Mode.QUEUE), harness.shared)
    (first,) = channel.buffer.rows
    for at_ms, known in ((2000, first), (1000, 0)):
        again = ScheduledJob(b"elsewhere", 1, at_ms, 0, b"data")
        ((_, answer),) = channel.handle(Batch(None, [again]), harness.now).posts
        assert answer == ScheduledJobStored(1, at_ms, known, None)
    assert [*channel.buffer.rows] == [first]


def test_nothing_is_said_of_schedules_that_are_all_there() -> None:
    harness = job_harness()
    cell = schedules(harness, NAME)
    effects = cell.handle(Batch(None, [CheckSchedules(NAME, (1,))]), harness.now)
    assert not effects.posts and not effects.changes


def test_the_cell_counts_its_schedules_and_what_they_put() -> None:
    harness = job_harness()
    cell = schedules(harness, NAME, b"other")
    assert cell.totals(harness.now) == (2, 0, 0.0)
    pause = m.ScheduleRequest(2, NAME, m.PauseSchedule(2, b"report", is_paused=True))
    effects = cell.handle(Batch(harness.port(), [pause]), harness.now)
    assert isinstance(effects.changes[0], MetadataSet)
    cell.wake(harness.now + 60.0)
    assert cell.totals(harness.now + 70.0) == (2, 1, 10.0)


def test_an_interval_puts_no_job_at_the_moment_at_which_it_is_put() -> None:
    harness = job_harness()
    harness.now += 0.0007
    cell = schedules(harness, NAME)
    cell.wake(harness.now + 1.0)
    assert cell.totals(harness.now + 1.0) == (1, 0, 0.0)
    assert cell.deadline > harness.now + 59.0
