"""Batches: one call of a handler for many jobs, each with an outcome of its own."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

from millpond.jobs import Backoff, Handle, Job, JobFailed, Reject, Retry, Task, batch_task
from millpond.node.jobs.worker.batches import Batches
from tests.node.jobs.job_setup import JobSetup

SHORT = Backoff(0.01, 0.02)


class Row(msgspec.Struct):
    number: int


async def test_a_handler_takes_what_is_there_up_to_its_size(setup: JobSetup) -> None:
    calls: list[list[int]] = []

    @batch_task(queue="mail", size=4)
    async def insert(rows: list[Row], jobs: list[Job]) -> list[int]:
        calls.append([row.number for row in rows])
        assert [job.payload for job in jobs] == [{"number": row.number} for row in rows]
        return [2 * row.number for row in rows]

    async with setup.queue() as queue:
        puts = [await insert.put(queue, Row(number), wait=True) for number in range(10)]
        handles: list[Handle[int]] = puts
        async with setup.working(insert, concurrency=20):
            assert [await each.result(60) for each in handles] == [2 * n for n in range(10)]
    assert [len(each) for each in calls] == [4, 4, 2]
    assert sorted(row for rows in calls for row in rows) == list(range(10))
    assert setup.outcomes == ["done"] * 10


async def test_a_batch_waits_its_time_for_more(setup: JobSetup) -> None:
    calls: list[tuple[float, int]] = []

    @batch_task(queue="mail", wait=5.0)
    async def insert(rows: list[int]) -> None:
        calls.append((anyio.current_time(), len(rows)))

    async with setup.queue() as queue, setup.working(insert, concurrency=20):
        began = anyio.current_time()
        for number in (1, 2, 3):
            await insert.put(queue, number)
            await anyio.sleep(1)
        await setup.until(lambda: len(setup.ended) == 3)
        assert [(round(at - began), count) for at, count in calls] == [(5, 3)]


async def test_no_batch_is_larger_than_the_concurrency(setup: JobSetup) -> None:
    sizes: list[int] = []

    @batch_task(queue="mail", size=100, wait=60.0)
    def insert(rows: list[int]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        sizes.append(len(rows))

    async with setup.queue() as queue:
        await insert.bind(queue).put_many(range(6))
        async with setup.working(insert, concurrency=3):
            await setup.until(lambda: len(setup.ended) == 6, 30)
    assert sizes == [3, 3]


async def test_each_job_has_its_own_outcome(setup: JobSetup) -> None:
    @batch_task(queue="mail", attempts=3, backoff=SHORT)
    async def check(rows: list[int], jobs: list[Job]) -> list[int | Exception]:
        found: list[int | Exception] = []
        for row, job in zip(rows, jobs, strict=True):
            if row == 1:
                found.append(Reject("no ones"))
            elif row == 2 and job.attempt == 1:
                found.append(Retry(0.5))
            elif row == 3:
                found.append(KeyError("three"))
            else:
                found.append(row)
        return found

    async with setup.queue() as queue, setup.working(check, concurrency=10):
        handles = [await check.put(queue, number, wait=True) for number in range(4)]
        assert await handles[0].result(60) == 0
        with pytest.raises(JobFailed, match="no ones"):
            await handles[1].result(60)
        assert await handles[2].result(60) == 2
        with pytest.raises(JobFailed, match="three"):
            await handles[3].result(60)
    assert sorted(each.attempt for each in setup.ended if each.what == "done") == [1, 2]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_fails_all_of_them_and_shows_the_handler_alone(
    setup: JobSetup, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def broken(rows: list[int]) -> None:
        raise KeyError("all of them")

    async def broken_async(rows: list[int]) -> None:
        broken(rows)

    work: Task[int, None] = batch_task(queue="mail", name="broken", attempts=1)(
        broken_async if is_async else broken
    )
    async with setup.queue() as queue:
        await work.bind(queue).put_many(range(3))
        async with setup.working(work, concurrency=10):
            await setup.until(lambda: len(setup.ended) == 3)
    assert setup.outcomes == ["rejected"] * 3
    for record in caplog.records:
        assert record.exc_info is not None and record.exc_info[2] is not None
        assert record.exc_info[2].tb_frame.f_code.co_name.startswith("broken")


async def test_a_wrong_number_of_results_fails_all(setup: JobSetup) -> None:
    @batch_task(queue="mail", attempts=1)
    async def short(rows: list[int]) -> list[int]:
        return rows[1:]

    async with setup.queue() as queue, setup.working(short, concurrency=10):
        handle = await short.put(queue, 1, wait=True)
        with pytest.raises(JobFailed, match="a list of 1 results"):
            await handle.result(60)


async def test_a_payload_that_does_not_fit_is_not_in_the_batch(setup: JobSetup) -> None:
    seen: list[int] = []

    @batch_task(queue="mail")
    async def insert(rows: list[Row]) -> None:
        seen.extend(row.number for row in rows)

    async with setup.queue() as queue:
        await queue.put({"number": 1}, name="insert")
        await queue.put({"number": "two"}, name="insert")
        with pytest.raises(TypeError, match="does not take this payload"):
            await insert.put(queue, 7)  # type: ignore[arg-type]
        async with setup.working(insert, concurrency=10):
            await setup.until(lambda: len(setup.ended) == 2)
    assert seen == [1]
    assert sorted(setup.outcomes) == ["done", "rejected"]


async def test_a_cancelled_job_leaves_its_batch_and_the_last_one_ends_the_call(
    setup: JobSetup,
) -> None:
    ends: list[str] = []

    @batch_task(queue="mail")
    async def long(rows: list[int]) -> None:
        try:
            await anyio.sleep(100)
            ends.append("done")
        except BaseException:
            ends.append("cancelled")
            raise

    async with setup.queue() as queue, setup.working(long, concurrency=10):
        first = [(await long.put(queue, number)).id for number in range(2)]
        await anyio.sleep(1)
        await queue.cancel(first[0])
        await setup.until(lambda: len(setup.ended) == 2)
        assert ends == ["done"] and sorted(setup.outcomes) == ["cancelled", "done"]
        second = [(await long.put(queue, number)).id for number in range(2)]
        await anyio.sleep(1)
        for job in second:
            await queue.cancel(job)
        await setup.until(lambda: len(setup.ended) == 4)
        assert ends == ["done", "cancelled"]


async def test_a_job_that_comes_as_the_last_one_leaves_has_a_batch_of_its_own(
    setup: JobSetup,
) -> None:
    calls: list[list[int]] = []

    @batch_task(queue="mail", wait=0.1)
    async def insert(rows: list[int]) -> None:
        calls.append(rows)

    job: Any = None  # which this handler does not take
    async with anyio.create_task_group() as tasks:
        batches = Batches(tasks, 10, anyio.to_thread.run_sync)

        async def leave() -> None:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel, scope)
                await batches.result(insert, 1, job)

        async def cancel(scope: anyio.CancelScope) -> None:
            await anyio.lowlevel.checkpoint()
            scope.cancel()

        for delay in range(6):
            async with anyio.create_task_group() as jobs:
                jobs.start_soon(leave)
                for _ in range(delay):
                    await anyio.lowlevel.checkpoint()
                with anyio.fail_after(10):
                    await batches.result(insert, 2, job)
    assert 2 in calls[-1] and all(calls)


async def test_each_attempt_of_a_batch_has_its_time(setup: JobSetup) -> None:
    attempts: list[int] = []

    @batch_task(queue="mail", timeout=10, attempts=2, backoff=SHORT)
    async def slow(rows: list[int], jobs: list[Job]) -> None:
        attempts.extend(job.attempt for job in jobs)
        await anyio.sleep(0 if jobs[0].attempt == 2 else 1000)

    async with setup.queue() as queue, setup.working(slow, concurrency=10):
        await slow.bind(queue).put_many(range(3))
        await setup.until(lambda: setup.outcomes.count("done") == 3, 60)
    assert sorted(attempts) == [1, 1, 1, 2, 2, 2]


async def test_a_worker_that_drains_finishes_its_batches(setup: JobSetup) -> None:
    seen: list[int] = []

    @batch_task(queue="mail", wait=3.0)
    async def insert(rows: list[int]) -> None:
        await anyio.sleep(1)
        seen.extend(rows)

    async with setup.queue() as queue, setup.working(insert, concurrency=10):
        await insert.bind(queue).put_many(range(5))
        await anyio.sleep(1)
    assert sorted(seen) == list(range(5))
    assert setup.outcomes == ["done"] * 5


@pytest.mark.parametrize(("size", "wait"), [(0, 1.0), (10_001, 1.0), (1, -1.0)])
def test_sizes_and_times_that_cannot_be(size: int, wait: float) -> None:
    with pytest.raises(ValueError):
        batch_task(size=size, wait=wait)(_nothing)


def test_a_handler_of_batches_takes_a_list() -> None:
    wrong: Any = Row
    handler: Any = lambda row: None  # noqa: E731
    handler.__annotations__ = {"row": wrong}
    with pytest.raises(TypeError, match="takes a list"):
        batch_task()(handler).resolve()


def _nothing(rows: list[int]) -> None:
    """Does nothing."""
