"""Schedules: a job at each moment, once, whatever becomes of the node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import anyio
import pytest

from millpond.actors.errors import BufferFull, DataTooLarge, Malformed, NotAQueue, NotFound
from millpond.actors.jobs.schedules import COUNT_MAX, DATA_BYTES_MAX, LATE_S, RETRY_S
from millpond.jobs import Job, Queue, ScheduleInfo, task
from millpond.node import clock_file
from millpond.node.jobs.payload import MOMENT_HEADER, SCHEDULE_HEADER, decode_job
from millpond.node.jobs.requests import Operation, ask
from millpond.testing import World
from tests.node.jobs.job_setup import BEGAN_AT, JobSetup, job_setup

MINUTE = timedelta(minutes=1)


async def bodies(queue: Queue) -> list[Any]:
    return [decode_job((await queue.show(row.id)).data or b"") async for row in queue.jobs()]


async def moments(queue: Queue) -> list[str]:
    return [each.headers[MOMENT_HEADER] for each in await bodies(queue)]


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(BEGAN_AT + seconds, UTC).isoformat()


async def only(queue: Queue) -> ScheduleInfo:
    (found,) = [each async for each in queue.schedules()]
    return found


async def test_a_job_is_put_at_each_moment_also_without_a_worker(setup: JobSetup) -> None:
    assert BEGAN_AT % 3600 == 0
    async with setup.queue() as queue:
        following = await queue.schedule("report", "*/5 * * * *", {"to": "alice"}, task="send")
        assert following == datetime.fromtimestamp(BEGAN_AT + 300, UTC)
        await anyio.sleep(299)
        assert await bodies(queue) == []
        await anyio.sleep(602)
        found = await bodies(queue)
        assert [each.payload for each in found] == [{"to": "alice"}] * 3
        assert {each.name for each in found} == {"send"}
        assert {each.headers[SCHEDULE_HEADER] for each in found} == {"report"}
        assert await moments(queue) == [moment(300), moment(600), moment(900)]
        shown = await only(queue)
        assert (shown.name, shown.jobs, shown.paused) == ("report", 3, False)
        assert shown.next == datetime.fromtimestamp(BEGAN_AT + 1200, UTC)
        assert shown.last == datetime.fromtimestamp(BEGAN_AT + 900, UTC)
        assert shown.last_job == [row.id async for row in queue.jobs()][-1]


async def test_several_workers_run_each_moment_once(setup: JobSetup) -> None:
    ran: list[str] = []

    @task(schedule=MINUTE)
    async def tidy(_payload: None, job: Job) -> None:
        ran.append(job.headers[MOMENT_HEADER])

    async with setup.working([tidy], "mail"), setup.working([tidy], "mail", source="second"):
        await setup.until(lambda: len(ran) == 5)
    assert len(set(ran)) == 5
    async with setup.queue() as queue:
        shown = await only(queue)
        assert shown.name == "tidy" and shown.timing.when == MINUTE


async def test_a_worker_that_comes_again_changes_nothing(setup: JobSetup) -> None:
    @task(queue="mail", schedule=timedelta(hours=1))
    def tidy() -> None: ...

    async with setup.queue() as queue:
        async with setup.working([tidy]):
            await anyio.sleep(1800)
        first = (await only(queue)).next
        async with setup.working([tidy]):
            await anyio.sleep(1)
        assert (await only(queue)).next == first


def test_a_scheduled_task_needs_no_payload() -> None:
    @task(schedule="* * * * *")
    def send(payload: int) -> None: ...

    with pytest.raises(TypeError, match=r"Queue\.schedule"):
        send.resolve()


@pytest.mark.parametrize("when", ["61 * * * *", "yearly", timedelta(milliseconds=5)])
async def test_a_schedule_that_cannot_be_read_is_told_where_it_is_made(
    setup: JobSetup, when: Any
) -> None:
    with pytest.raises(ValueError):
        task(schedule=when)(print)
    async with setup.queue() as queue:
        with pytest.raises(ValueError):
            await queue.schedule("report", when)
        with pytest.raises(ValueError, match="time zone"):
            await queue.schedule("report", "* * * * *", tz="Mars/Base")
        fields = {"name": b"report", "data": b"", "cron": "* * * * *", "zone": "Mars/Base"}
        with pytest.raises(Malformed):  # of a client that checks nothing
            await ask(queue.channel, Operation.PUT_SCHEDULE, **fields)


async def test_a_paused_schedule_misses_nothing(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", MINUTE, missed="all")
        await anyio.sleep(60.5)
        await queue.pause_schedule("report")
        await queue.schedule("report", MINUTE, "new", missed="all")
        shown = await only(queue)
        assert shown.paused and shown.next is None
        await anyio.sleep(3600)
        assert len(await bodies(queue)) == 1
        assert await queue.resume_schedule("report")
        await anyio.sleep(60)
        assert [each.payload for each in await bodies(queue)] == [None, "new"]


async def test_a_job_of_a_schedule_may_be_put_now_and_by_a_paused_one(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", "0 0 1 1 *", "yearly")
        await queue.pause_schedule("report")
        handle = await queue.run_schedule("report")
        (row,) = [row async for row in queue.jobs()]
        assert row.id == handle.id
        assert [each.payload for each in await bodies(queue)] == ["yearly"]


async def test_a_deleted_schedule_puts_nothing_and_its_jobs_stay(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", MINUTE)
        await anyio.sleep(60.5)
        await queue.delete_schedule("report")
        await anyio.sleep(600)
        assert len(await bodies(queue)) == 1
        for call in (queue.delete_schedule, queue.pause_schedule, queue.run_schedule):
            with pytest.raises(NotFound):
                await call("report")
        await queue.schedule("report", MINUTE)
        await anyio.sleep(60.5)
        assert len(await bodies(queue)) == 2


async def test_schedules_are_those_of_their_queue(setup: JobSetup) -> None:
    async with setup.queue("mail") as mail, setup.queue("calls") as calls:
        await mail.schedule("b", MINUTE)
        await mail.schedule("a", MINUTE)
        await calls.schedule("a", MINUTE)
        assert [each.name async for each in mail.schedules()] == ["a", "b"]
        await mail.delete_schedule("a")
        assert [each.name async for each in calls.schedules()] == ["a"]
        with pytest.raises(NotFound):
            await mail.show_schedule("a")
        assert (await calls.show_schedule("a")).timing.when == MINUTE


async def test_there_is_a_limit_and_lists_have_pages(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        for number in range(COUNT_MAX):
            await queue.schedule(f"{number:04}", "0 0 1 1 *", "x" * 300)
        with pytest.raises(BufferFull):
            await queue.schedule("one more", MINUTE)
        await queue.schedule("0000", MINUTE)
        names = [each.name async for each in queue.schedules()]
        assert names == [f"{number:04}" for number in range(COUNT_MAX)]
        cut = [each async for each in queue.schedules()][1]
        assert cut.body is None
        whole = await queue.show_schedule("0001")
        assert whole.body is not None and whole.body.payload == "x" * 300


async def test_what_is_too_large_is_refused(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        with pytest.raises(DataTooLarge):
            await queue.schedule("report", MINUTE, "x" * DATA_BYTES_MAX)
        with pytest.raises(ValueError, match="128 bytes"):
            await queue.schedule("x" * 129, MINUTE)
        with pytest.raises(Malformed):  # of a client that checks nothing
            await ask(queue.channel, Operation.DELETE_SCHEDULE, name=b"x" * 129)
        assert [each async for each in queue.schedules()] == []


async def test_a_channel_is_deleted_with_its_schedules() -> None:
    async with World() as world:
        node = await world.node("pond")
        settings = node.settings()
        async with Queue(node.url, "mail", settings=settings) as mail:
            await mail.schedule("report", MINUTE)
        async with Queue(node.url, "calls", settings=settings) as calls, node.connect("box") as box:
            await calls.schedule("report", MINUTE)
            await world.clock.sleep(61)
            await box.channels.delete("jobs/mail")
            await node.crash(power=True)
            await node.start()
            await world.clock.sleep(200)
            names = [each.name async for each in box.channels.list("jobs/*")]
            assert names == [b"jobs/calls"]
            assert (await only(calls)).name == "report"
        async with Queue(node.url, "mail", settings=settings) as mail:
            assert [each async for each in mail.schedules()] == []


async def test_a_moment_waits_for_room_in_the_queue() -> None:
    async with job_setup(channel_messages_max=1) as setup, setup.queue() as queue:
        first = await queue.put("first")
        await queue.schedule("report", "* * * * *")
        await anyio.sleep(90)
        await queue.cancel(first.id)
        await anyio.sleep(10)
        assert await moments(queue) == [moment(60)]


async def test_a_channel_in_another_mode_is_told_in_the_list(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", MINUTE)
    async with setup.observed("jobs/mail") as pair:
        with pytest.raises(NotAQueue):
            await ask(pair, Operation.COUNTS)
        await anyio.sleep(61)
    async with setup.queue() as queue:
        shown = await only(queue)
        assert isinstance(shown.refused, NotAQueue) and not shown.jobs


async def test_data_that_no_job_can_have_is_refused(setup: JobSetup) -> None:
    """JSON has numbers that MessagePack has not; they would stop the schedules of all queues."""
    async with setup.queue() as queue, setup.queue("calls") as calls:
        await calls.schedule("report", MINUTE)
        fields = {"name": b"report", "data": b"1" + b"0" * 30, "every": 1000}
        with pytest.raises(Malformed):  # of a client that checks nothing
            await ask(queue.channel, Operation.PUT_SCHEDULE, **fields)
        await anyio.sleep(61)
        assert await bodies(queue) == []
        assert len(await bodies(calls)) == 1


async def test_an_interval_that_no_calendar_has_is_refused(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        with pytest.raises(ValueError, match="longest interval"):
            await queue.schedule("report", timedelta(days=3661))
        with pytest.raises(Malformed):  # of a client that checks nothing
            fields = {"name": b"report", "data": b"", "every": 2**53}
            await ask(queue.channel, Operation.PUT_SCHEDULE, **fields)
        assert await queue.schedule("report", timedelta(days=3660))
        assert (await only(queue)).next is not None


async def test_a_retry_of_a_job_that_is_put_now_puts_no_second_one(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", "0 0 1 1 *")
        fields = {"name": b"report", "key": 7, "at": int(BEGAN_AT * 1000)}
        first = await ask(queue.channel, Operation.RUN_SCHEDULE, **fields)
        await anyio.sleep(5)
        assert await ask(queue.channel, Operation.RUN_SCHEDULE, **fields) == first
        assert await moments(queue) == [moment(0)]
        with pytest.raises(Malformed):
            fields = {"name": b"report", "key": 8, "at": 2**53}
            await ask(queue.channel, Operation.RUN_SCHEDULE, **fields)


async def test_a_change_of_a_paused_schedule_says_that_it_was_there(setup: JobSetup) -> None:
    async with setup.queue() as queue:
        await queue.schedule("report", MINUTE)
        await queue.pause_schedule("report")
        fields = {"name": b"report", "data": b"new", "every": 60_000}
        answer = await ask(queue.channel, Operation.PUT_SCHEDULE, **fields)
        assert answer == {"next": 0, "existing": True}


SEEDS = (1, 2, 3)


@pytest.mark.usefixtures("looks_rarely")
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_moment_is_lost_or_doubled_by_crashes(seed: int, power: bool) -> None:
    """A schedule of each 7 s, over crashes at any moment and times of up to two minutes without a
    node; it catches up with each of them."""
    rng = Random(seed)
    async with World(seed) as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", timedelta(seconds=7), missed="all")
            for _ in range(12):
                await world.clock.sleep(rng.uniform(0.0, 30.0))
                await node.crash(power=power)
                await world.clock.sleep(rng.uniform(0.0, 120.0))
                await node.start()
            await world.clock.sleep(RETRY_S + 1)
            found = [datetime.fromisoformat(each) for each in await moments(queue)]
            steps = {(b - a).total_seconds() for a, b in pairwise(found)}
            assert steps == {7.0}
            assert 0 <= world.clock.elapsed() - 7 * len(found) < 7
            assert (await only(queue)).jobs == len(found)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("one", [1800]), ("all", [600, 1200, 1800])],
)
async def test_what_passed_while_the_node_was_down(missed: Any, expected: list[float]) -> None:
    async with World() as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", "*/10 * * * *", missed=missed)
            await node.stop()
            await world.clock.sleep(1800 + LATE_S + 1)
            await node.start()
            await world.clock.sleep(2)
            assert await moments(queue) == list(map(moment, expected))
            await world.clock.sleep(600)
            assert await moments(queue) == [*map(moment, expected), moment(2400)]


@pytest.mark.usefixtures("looks_rarely")
async def test_a_day_of_missed_moments_is_caught_up_with() -> None:
    async with World() as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", "0 */6 * * *", missed="all")
        await node.stop()
        await world.clock.sleep(5 * 86_400 + 100)
        await node.start()
        await world.clock.sleep(5)
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            days = [4.25, 4.5, 4.75, 5.0]
            assert await moments(queue) == [moment(each * 86_400) for each in days]


@pytest.mark.usefixtures("looks_rarely")
async def test_catching_up_puts_no_job_before_its_moment() -> None:
    async with World() as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", "0 0 * * mon", missed="all")
        await node.stop()
        await world.clock.sleep(6 * 86_400)
        await node.start()
        await world.clock.sleep(5)
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            assert await moments(queue) == []
            assert (await only(queue)).next == datetime(2025, 12, 1, tzinfo=UTC)


async def test_a_moment_that_is_just_past_is_not_missed() -> None:
    async with World() as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", "*/10 * * * *", missed="skip")
            await node.stop()
            await world.clock.sleep(600 + LATE_S - 5)
            await node.start()
            await world.clock.sleep(2)
            assert await moments(queue) == [moment(600)]


@pytest.mark.usefixtures("looks_rarely")
async def test_a_clock_that_was_a_year_ahead_stops_no_schedule() -> None:
    async with World() as world:
        node = await world.node("pond")
        async with Queue(node.url, "mail", settings=node.settings()) as queue:
            await queue.schedule("report", "*/5 * * * *")
            await world.clock.sleep(310)
            world.clock.skew("pond", 366 * 86_400)
            await world.clock.sleep(1000)
            before = len(await moments(queue))
            await node.stop()
            world.clock.skew("pond", 0)
            clock_file.confirm(node.folder, world.clock.wall("pond"))
            await node.start()
            await world.clock.sleep(910)
            assert len(await moments(queue)) >= before + 3
            following = (await only(queue)).next
            assert following is not None
            assert following.timestamp() - BEGAN_AT - world.clock.elapsed() <= 300
