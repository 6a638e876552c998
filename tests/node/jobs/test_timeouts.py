"""The time-out of an attempt: the handler is stopped, the attempt counts, the worker goes on."""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import pytest

from millpond.jobs import Backoff, HandlersHang, Job, batch_task, task
from tests.node.jobs.job_setup import JobSetup, job_setup

SHORT = Backoff(0.01, 0.02)


async def test_an_attempt_that_takes_too_long_is_cancelled_and_counts(setup: JobSetup) -> None:
    attempts: list[int] = []

    @task(queue="mail", timeout=5.0, attempts=3, backoff=SHORT)
    async def slow(_payload: None, job: Job) -> str:
        attempts.append(job.attempt)
        await anyio.sleep(1000 if job.attempt < 3 else 1)
        return "in time"

    async with setup.queue() as queue, setup.working([slow]):
        handle = await queue.put(None, name="slow", wait=True)
        before = anyio.current_time()
        assert await handle.result() == "in time"
        assert 11.0 <= anyio.current_time() - before < 12.0
    assert attempts == [1, 2, 3]
    assert setup.outcomes == ["failed", "failed", "done"]
    assert setup.ended[0].error == "AttemptTimedOut: it took longer than 5 s"


async def test_the_last_attempt_that_takes_too_long_makes_a_dead_letter(setup: JobSetup) -> None:
    @task(queue="mail", timeout=1.0, attempts=1)
    async def slow(_payload: None) -> None:
        await anyio.sleep(1000)

    async with setup.queue() as queue, setup.working([slow]):
        await queue.put(None, name="slow")
        await setup.until(lambda: setup.ended)
        counts = await queue.counts()
        assert (counts.dead, counts.leased, counts.ready) == (1, 0, 0)


async def test_a_handler_that_ends_in_time_or_hides_its_cancellation_is_done(
    setup: JobSetup,
) -> None:
    @task(queue="mail", timeout=2.0)
    async def careful(_payload: None) -> str:
        with anyio.move_on_after(1.0):
            await anyio.sleep(1000)
        return "gave up by itself"

    async with setup.queue() as queue, setup.working([careful]):
        handle = await queue.put(None, name="careful", wait=True)
        assert await handle.result() == "gave up by itself"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_time_out_is_a_time(timeout: float) -> None:
    with pytest.raises(ValueError):
        task(timeout=timeout)(print)


class TestThreads:
    """Threads take real time."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_a_thread_sees_that_its_time_is_over(self) -> None:
        saw: list[bool] = []
        ended = threading.Event()

        @task(queue="mail", timeout=0.2, attempts=2, backoff=SHORT)
        def slow(_payload: None, job: Job) -> None:
            if job.attempt == 1:
                until = time.monotonic() + 20
                while not job.cancelled and time.monotonic() < until:
                    time.sleep(0.01)
                saw.append(job.cancelled)
                ended.set()

        async with job_setup() as setup, setup.queue() as queue, setup.working([slow]):
            await queue.put(None, name="slow")
            await setup.until(lambda: setup.outcomes == ["failed", "done"], 30)
            await anyio.to_thread.run_sync(ended.wait, 20)
        assert saw == [True]

    async def test_a_worker_whose_threads_all_hang_ends_and_says_so(self) -> None:
        release = threading.Event()
        done: list[Any] = []

        @task(queue="mail", timeout=0.1, attempts=1)
        def stuck(payload: int) -> None:
            if payload < 2:
                release.wait(30)
            done.append(payload)

        async with job_setup() as setup, setup.queue() as queue:
            for number in range(2):
                await queue.put(number, name="stuck")
            try:
                with anyio.fail_after(30), pytest.raises(HandlersHang, match="2 handlers"):
                    async with setup.worker([stuck], concurrency=2) as worker:
                        await worker.run()
                assert await queue.put(2, name="stuck")
            finally:
                release.set()
            async with setup.worker([stuck], concurrency=2) as worker:
                await worker.run(burst=True)
            assert 2 in done

    async def test_a_task_that_kills_ends_its_worker_when_one_thread_hangs(self) -> None:
        release = threading.Event()
        ended: list[str] = []

        @task(queue="mail", timeout=0.1, on_hang="kill", attempts=2, backoff=SHORT)
        def stuck(_payload: None) -> None:
            release.wait(30)

        @task(queue="mail")
        async def other(payload: str) -> None:
            await anyio.sleep(2.0)
            ended.append(payload)

        async with job_setup() as setup, setup.queue() as queue:
            await queue.put(None, name="stuck")
            await queue.put("runs", name="other")
            try:
                with (
                    anyio.fail_after(30),
                    pytest.raises(HandlersHang, match=r"handler of job \d+ of mail"),
                ):
                    async with setup.worker([stuck, other], concurrency=3) as worker:
                        await worker.run()
            finally:
                release.set()
            text = "the handler hung: its thread did not end within 1 s more"
            assert [(each.task, each.what) for each in setup.ended] == [
                ("stuck", "failed"),
                ("other", "done"),
            ]
            assert setup.ended[0].error == f"AttemptTimedOut: it took longer than 0.1 s, and {text}"
            assert ended == ["runs"], "running jobs end, as in a drain"
            async with setup.worker([stuck, other], concurrency=3) as worker:
                await worker.run(burst=True)
            assert setup.ended[-1].attempt == 2, "the attempt that hung counts"

    async def test_jobs_that_wait_for_the_slot_of_a_hung_handler_count_no_attempt(self) -> None:
        release = threading.Event()

        @task(queue="mail", timeout=0.1, on_hang="kill", attempts=1)
        def stuck(payload: int) -> None:
            if payload == 0:
                release.wait(30)

        async with job_setup() as setup, setup.queue() as queue:
            for number in range(3):
                await queue.put(number, name="stuck")
            try:
                with anyio.fail_after(30), pytest.raises(HandlersHang):
                    async with setup.worker([stuck], concurrency=1) as worker:
                        await worker.run()
            finally:
                release.set()
            assert setup.outcomes == ["rejected"]
            async with setup.worker([stuck], concurrency=1) as worker:
                await worker.run(burst=True)
            assert setup.outcomes == ["rejected", "done", "done"]
            assert [each.attempt for each in setup.ended] == [1, 1, 1]

    async def test_a_batch_that_hangs_says_so_for_each_job(self) -> None:
        release = threading.Event()

        @batch_task(queue="mail", timeout=0.2, on_hang="kill", size=2)
        def stuck(_rows: list[int]) -> None:
            release.wait(30)

        async with job_setup() as setup, setup.queue() as queue:
            await stuck.bind(queue).put_many(range(2))
            try:
                with anyio.fail_after(30), pytest.raises(HandlersHang):
                    async with setup.worker([stuck], concurrency=5) as worker:
                        await worker.run()
            finally:
                release.set()
            assert ["handler hung" in each.error for each in setup.ended] == [True, True]

    async def test_a_thread_that_ends_soon_after_its_time_out_kills_nothing(self) -> None:
        @task(queue="mail", timeout=0.1, on_hang="kill", attempts=1)
        def slow(_payload: None, job: Job) -> None:
            until = time.monotonic() + 20
            while not job.cancelled and time.monotonic() < until:
                time.sleep(0.01)

        async with job_setup() as setup, setup.queue() as queue:
            for _ in range(2):
                await queue.put(None, name="slow")
            async with setup.worker([slow], concurrency=1) as worker:
                with anyio.fail_after(30):
                    await worker.run(burst=True)
            assert setup.outcomes == ["rejected", "rejected"]
            assert setup.ended[0].error.endswith("it took longer than 0.1 s")


def test_a_task_kills_only_where_a_thread_can_hang() -> None:
    async def handler() -> None: ...

    for wrong in (
        lambda: task(on_hang="kill")(print),
        lambda: task(on_hang="kill", timeout=1.0)(handler),
        lambda: task(on_hang="other", timeout=1.0)(print),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="on_hang"):
            wrong()
