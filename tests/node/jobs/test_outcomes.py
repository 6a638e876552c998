"""Any failure of one job is that job's failure: its worker goes on with all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import anyio.to_thread
import pytest

from millpond.jobs import Backoff, JobFailed, Reject, Retry, task
from millpond.node.jobs.worker.outcome import (
    OTHER,
    TASKS_MAX,
    AttemptResult,
    WorkerStats,
    error_text,
)
from tests.node.jobs.job_setup import JobSetup, job_setup

SHORT = Backoff(0.01, 0.02)


class Sad(Exception):
    """Its text is none of those that UTF-8 can say."""

    def __str__(self) -> str:
        return "no file caf\udce9"


class Broken(Exception):
    """It cannot even be told."""

    def __str__(self) -> str:
        raise KeyError("text")


class Bare(Reject):
    """As people write them: without a word to `Reject` itself."""

    def __init__(self, code: int) -> None:
        self.code = code


class Later(Retry):
    def __init__(self, _code: int) -> None:
        pass


class Odd(Retry):
    """Says what is no time, after it was made."""

    def __init__(self, delay: Any) -> None:
        super().__init__(1.0)
        self.delay = delay


async def cancelled_future() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancelled_task() -> None:
    this = asyncio.current_task()
    assert this is not None
    this.cancel()
    await asyncio.sleep(60)


async def own_cancellation_in_a_thread() -> None:
    def raising() -> None:
        raise asyncio.CancelledError

    await anyio.to_thread.run_sync(raising)


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def handler() -> None:
        raise error

    return handler


async def outcomes(bad: Callable[[], Awaitable[Any]], **options: Any) -> list[tuple[str, str]]:
    """The outcome of a bad job of two attempts, beside one that is long and good."""
    long_ones: list[str] = []

    @task(queue="mail", attempts=2, backoff=SHORT)
    async def work(payload: str) -> None:
        if payload == "bad":
            await bad()
        await anyio.sleep(0.3)
        long_ones.append(payload)

    async with job_setup() as setup:
        async with setup.queue() as queue, setup.working([work], **options):
            await queue.put("good")
            await queue.put("bad")
            await setup.until(lambda: long_ones, 5.0)
            await setup.until(lambda: len(setup.ended) >= 2, 5.0)
            await setup.until(
                lambda: setup.outcomes.count("failed") != 1 or "rejected" in setup.outcomes
            )
            await queue.put("after")
            await setup.until(lambda: long_ones == ["good", "after"], 5.0)
        return [(each.what, each.error) for each in setup.ended if each.what != "done"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("bad", [cancelled_future, cancelled_task, own_cancellation_in_a_thread])
async def test_a_cancellation_of_the_handlers_own_is_a_failure(
    anyio_backend: str, bad: Callable[[], Awaitable[Any]]
) -> None:
    whats = await outcomes(bad)
    assert [what for what, _ in whats] == ["failed", "rejected"]
    assert "the handler was cancelled" in whats[-1][1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_worker_that_is_cancelled_as_a_whole_ends_and_fails_no_job(
    anyio_backend: str, at_once: bool
) -> None:
    """By asyncio's own means: its task alone, or all tasks as at the end of `asyncio.run`."""
    async with job_setup() as setup, setup.queue() as queue:
        began = asyncio.Event()

        async def work() -> None:
            began.set()
            await asyncio.sleep(60)

        async with setup.worker(work, "mail") as worker:
            before = asyncio.all_tasks()
            running = asyncio.create_task(worker.run())
            await queue.put()
            async with asyncio.timeout(5):
                await began.wait()
            for each in asyncio.all_tasks() - before if at_once else {running}:
                each.cancel()
            with pytest.raises(asyncio.CancelledError), anyio.fail_after(5):
                await running
            assert not setup.ended and worker.stats.running == 0


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("error", [Sad(), Broken(), SystemExit(1), BaseException("base")])
async def test_any_error_is_a_failure(error: BaseException, history: bool) -> None:
    whats = await outcomes(raising(error), history=history)
    assert [what for what, _ in whats] == ["failed", "rejected"]
    assert type(error).__name__ in whats[0][1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(-1),
        lambda: Retry(float("nan")),
        lambda: Retry("5"),  # type: ignore[arg-type]
        lambda: Backoff(-1.0),
        lambda: Backoff(float("inf")),
        lambda: Backoff("1"),  # type: ignore[arg-type]
        lambda: Backoff(1.0, float("nan")),
    ],
)
async def test_an_argument_that_is_no_time_is_refused_when_it_is_made(
    make: Callable[[], Any],
) -> None:
    with pytest.raises((ValueError, TypeError)):
        make()

    async def bad() -> None:
        raise make()

    assert [what for what, _ in await outcomes(bad)] == ["failed", "rejected"]


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon", 10**400])
async def test_every_delay_is_clamped(delay: Any) -> None:
    assert [what for what, _ in await outcomes(raising(Odd(delay)))] == ["failed", "rejected"]


async def test_a_users_own_backoff_may_return_anything() -> None:
    class Wild(Backoff, frozen=True):
        def delay_s(self, attempt: int, rng: Random) -> float:
            raise ZeroDivisionError

    @task(queue="mail", attempts=3, backoff=Wild())
    async def work(payload: str) -> None:
        if payload == "bad":
            raise ValueError("no")
        await anyio.sleep(60)

    async with job_setup() as setup:
        async with setup.queue() as queue, setup.working([work]):
            await queue.put("good")
            await queue.put("bad")
            await setup.until(lambda: len(setup.ended) == 4)
            assert len(await setup.dead()) == 1
        assert sorted(setup.outcomes) == ["done", "failed", "failed", "rejected"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Reject(123), "123"),  # type: ignore[arg-type]
        (Reject(ValueError("no user")), "no user"),
        (Reject(""), "rejected"),
        (Reject("caf\udce9"), r"caf\udce9"),
        (Reject("x" * 3_000_000), "x" * 200),
        (Bare(5), "rejected"),
    ],
)
async def test_a_reason_is_text_whatever_was_given(error: Reject, reason: str) -> None:
    async with job_setup() as setup:

        async def work() -> None:
            raise error

        async with setup.queue() as queue, setup.working(work, "mail"):
            put = await queue.put(wait=True)
            with pytest.raises(JobFailed) as caught:
                await put.result(60)
            assert caught.value.reason == reason
            await setup.until(lambda: setup.ended)
        assert setup.outcomes == ["rejected"]


async def test_an_error_of_the_users_own_needs_no_init() -> None:
    assert [what for what, _ in await outcomes(raising(Later(1)))] == ["failed", "rejected"]


async def test_a_result_that_names_itself_is_a_failure(setup: JobSetup) -> None:
    async def work() -> Any:
        ring: list[Any] = []
        ring.append(ring)
        return ring

    async with setup.queue() as queue, setup.working(work, "mail"):
        put = await queue.put(wait=True)
        with pytest.raises(JobFailed, match="cannot be encoded"):
            await put.result(60)
        assert setup.outcomes == ["done"]


async def test_a_result_too_large_for_a_packet_is_a_failure(setup: JobSetup) -> None:
    async def work() -> bytes:
        return bytes(2**20 + 1)

    async with setup.queue() as queue, setup.working(work, "mail"):
        put = await queue.put(wait=True)
        with pytest.raises(JobFailed) as caught:
            await put.result(60)
        assert caught.value.reason == "result" and "cannot be encoded" in caught.value.error


async def test_an_error_text_too_large_for_a_packet_is_cut(setup: JobSetup) -> None:
    @task(queue="mail", attempts=1)
    async def work() -> None:
        raise ValueError("x" * 2**21)

    async with setup.queue() as queue, setup.working([work]):
        put = await queue.put(wait=True)
        with pytest.raises(JobFailed, match="attempts: ValueError: xxx") as caught:
            await put.result(60)
        assert len(caught.value.error) == 10_000


async def test_on_end_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def on_end(ended: Any) -> None:
        calls.append(ended.what)
        raise LookupError("no such metric")

    async with job_setup() as setup:

        async def work() -> None:
            pass

        async with setup.queue() as queue, setup.working(work, "mail", on_end=on_end) as worker:
            await queue.put()
            await queue.put()
            await setup.until(lambda: len(calls) == 2, 60)
            assert worker.stats.done == 2 and worker.stats.running == 0
    assert "no such metric" in caplog.text


async def test_an_unforeseen_error_is_logged_and_the_job_runs_again(
    setup: JobSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last net: a mistake of ours while one job is settled."""
    from millpond.node.jobs.worker.completion import JobCompletion

    acknowledge = JobCompletion.acknowledge
    times = 0

    def faulty(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            raise AssertionError("a mistake")
        return acknowledge(*arguments)

    monkeypatch.setattr(JobCompletion, "acknowledge", faulty)

    async def work() -> None:
        pass

    async with setup.queue() as queue, setup.working(work, "mail"):
        await queue.put()
        await setup.until(lambda: "done" in setup.outcomes, 60)
    assert setup.outcomes == ["failed", "done"]
    assert "could not be completed" in caplog.text and "a mistake" in caplog.text


def test_an_errors_text_can_be_encoded() -> None:
    assert error_text(Sad()) == r"Sad: no file caf\udce9"
    assert error_text(Broken()) == "Broken: no text, str() of it raises KeyError"
    assert error_text(ValueError()) == "ValueError"


def test_a_hundred_tasks_are_counted_by_name() -> None:
    stats = WorkerStats()
    for number in range(TASKS_MAX + 5):
        stats.ended(AttemptResult(number, "mail", f"task-{number}", 1, "done", "", 0.2))
    stats.ended(AttemptResult(1, "mail", "task-1", 2, "failed", "x", 90.0))
    assert len(stats.tasks) == TASKS_MAX + 1 and stats.done == TASKS_MAX + 5
    first, rest = stats.tasks["mail", "task-1"], stats.tasks[OTHER, OTHER]
    assert (first.done, first.failed, first.seconds.count) == (1, 1, 2)
    assert rest.done == 5 and rest.seconds.total == pytest.approx(1.0)
