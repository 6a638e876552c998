"""Annotations of payloads: resolved when the worker is made, and applied to each payload."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from millpond.jobs import Job, Task, Worker, task
from tests.node.jobs.job_setup import JobSetup, job_setup

if TYPE_CHECKING:
    from millpond.jobs import Job as JobForTheTypeChecker


class Tree(msgspec.Struct):
    leaves: int
    branches: list[Tree] = []


class Picky(msgspec.Struct):
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise KeyError("no such size")


async def unions(_payload: set[int] | list[int]) -> None:
    raise AssertionError("never called")


async def nameless(_payload: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    raise AssertionError("never called")


async def broken(_payload: "Tree[") -> None:  # type: ignore[syntax]  # noqa: F722
    raise AssertionError("never called")


@pytest.mark.parametrize("handler", [unions, nameless, broken])
def test_an_annotation_that_cannot_be_used_is_an_error_at_the_start(handler: Any) -> None:
    made = task(queue="mail", name="bad")(handler)
    with pytest.raises(TypeError, match="'bad'"):
        Worker("tcp://pond:1", [made])
    with pytest.raises(TypeError, match=handler.__name__):
        Worker("tcp://pond:1", handler, queues=["mail"])


async def test_annotations_of_later_types_are_resolved_when_the_worker_is_made() -> None:
    async def work(payload: Later) -> None:  # type: ignore[name-defined]  # noqa: F821
        del payload

    made = task(queue="mail")(work)
    globals()["Later"] = Tree
    try:
        Worker("tcp://pond:1", [made])
        assert made.arguments({"leaves": 1}, None) == (Tree(1),)
    finally:
        del globals()["Later"]


async def test_only_the_payloads_annotation_counts(setup: JobSetup) -> None:
    """`Job` is often imported for the type checker alone."""
    seen: list[Any] = []

    class Handler:
        async def __call__(self, tree: Tree, job: JobForTheTypeChecker) -> NoType:  # type: ignore  # noqa: F821
            seen.append((tree, job.attempt))

    async with setup.queue() as queue:
        for handler in (Handler(), Handler().__call__):
            async with setup.working(Task(handler, name="t"), "mail"):
                await queue.put({"leaves": 2, "branches": [{"leaves": 1}]}, name="t")
                await setup.until(lambda: seen, 60)
            assert seen.pop() == (Tree(2, [Tree(1)]), 1)


async def test_an_error_of_a_payloads_type_is_that_jobs_failure(setup: JobSetup) -> None:
    seen: list[int] = []

    @task(queue="mail", attempts=1)
    async def work(picky: Picky) -> None:
        seen.append(picky.size)

    async with setup.queue() as queue, setup.working([work]):
        await queue.put({"size": -1}, name="work")
        await queue.put({"size": 1}, name="work")
        await setup.until(lambda: len(setup.ended) == 2, 60)
    assert seen == [1] and sorted(setup.outcomes) == ["done", "rejected"]
    assert "KeyError" in next(each.error for each in setup.ended if each.what == "rejected")


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_progress_can_be_told_in_any_thread(anyio_backend: str) -> None:
    def count(job: Job) -> None:
        for number in range(3):
            job.progress(number)

    def in_own_thread(job: Job) -> None:
        thread = threading.Thread(target=count, args=(job,))
        thread.start()
        thread.join()

    @task(queue="mail")
    async def looped(_payload: Any, job: Job) -> None:
        if anyio_backend == "asyncio":
            await asyncio.to_thread(count, job)
        else:
            await anyio.to_thread.run_sync(in_own_thread, job)

    @task(queue="mail")
    def threaded(_payload: Any, job: Job) -> None:
        in_own_thread(job)

    async with job_setup() as setup, setup.queue() as queue, setup.working([looped, threaded]):
        for each in (looped, threaded):
            put = await each.put(queue, wait=True)
            with anyio.fail_after(60):
                await put.result()
                assert [value async for value in put.progress()] == [0, 1, 2]
