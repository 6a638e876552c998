"""On real sockets and the running clock: handlers in threads, the blocking queue, both loops."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from millpond import sync as blocking
from millpond.jobs import Job, Queue, Worker
from millpond.node.config import OFF, Config
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.node import Node
from tests.node.processes import ROOT, environment

TIMEOUT_S = 60.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def url(anyio_backend: Any) -> AsyncIterator[str]:
    config = Config(p2p="127.0.0.1:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, ack_timeout_s=1.0)
    async with Node(config) as node:
        yield f"tcp://{node.listeners['p2p']}"


async def test_a_function_in_a_thread_keeps_its_lease_and_tells_its_progress(url: str) -> None:
    """The lease is 1 s; the handler blocks its thread for longer, and the job is run once."""
    began: list[int] = []

    def slow(payload: list[int], job: Job) -> int:
        began.append(job.attempt)
        job.progress("begun")
        time.sleep(1.6)
        assert not job.cancelled and threading.current_thread() is not threading.main_thread()
        return sum(payload)

    async with Queue(url, "sums") as queue, Worker(url, slow, queues=["sums"]) as worker:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            put = await queue.put([1, 2, 3], wait=True)
            assert await put.result(TIMEOUT_S) == 6
            assert [value async for value in put.progress()] == ["begun"]
            worker.drain()
    assert began == [1] and worker.stats.done == 1


async def test_a_function_in_a_thread_is_told_when_it_is_left_alone(url: str) -> None:
    told, began = threading.Event(), anyio.Event()

    def stubborn(_payload: Any, job: Job) -> None:
        anyio.from_thread.run_sync(began.set)
        while not job.cancelled:
            time.sleep(0.02)
        told.set()

    ended: list[AttemptResult] = []
    async with Queue(url, "q") as queue:
        await queue.put()
        async with Worker(url, stubborn, queues=["q"], on_end=ended.append, grace=0.2) as worker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                with anyio.fail_after(TIMEOUT_S):
                    await began.wait()
                worker.drain()
    assert [each.what for each in ended] == ["returned"]
    assert await anyio.to_thread.run_sync(told.wait, TIMEOUT_S)


async def test_a_burst_of_jobs_of_a_blocking_producer(url: str) -> None:
    seen: list[Any] = []

    async def take(payload: Any) -> str:
        seen.append(payload)
        return f"took {payload}"

    def produce() -> str:
        with blocking.Queue(url, "q") as queue:
            queue.put("one")
            put = queue.put("two", wait=True)
            assert put.id and not put.existing
            return str(put.result(TIMEOUT_S))

    async with Worker(url, take, queues=["q"]) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        assert await anyio.to_thread.run_sync(produce) == "took two"
        worker.drain()
    assert sorted(seen) == ["one", "two"]
    async with Worker(url, take, queues=["q"]) as worker:
        with anyio.fail_after(TIMEOUT_S):
            await worker.run(burst=True)


async def test_a_node_that_is_not_there_is_told_at_once(url: str) -> None:
    from millpond import ConnectionLost

    with pytest.raises(ConnectionLost):
        async with Worker("tcp://127.0.0.1:1", print, queues=["q"]):
            pass
    with pytest.raises(ConnectionLost):
        async with Queue("tcp://127.0.0.1:1", "q"):
            pass


POISON = """
import os
from pathlib import Path
from millpond.jobs import task

@task(queue="q", attempts=2)
async def poison(path):
    with Path(path).open("a") as file:
        file.write("begun ")
    os._exit(9)
"""


async def test_a_job_that_kills_each_worker_ends_as_a_dead_letter(url: str, tmp_path: Path) -> None:
    """Its first step ends the process: the node has heard by then that it was begun."""
    (tmp_path / "poisonous.py").write_text(POISON)
    told, codes = tmp_path / "told", []
    words = [sys.executable, "-m", "millpond", "work", "poisonous", "--connect", url, "--burst"]
    words += ["--queue", "q", "--queue", "other"]
    way = os.pathsep.join([str(tmp_path), str(ROOT)])
    async with Queue(url, "q") as queue:
        await queue.put(str(told), name="poison")
        for _ in range(3):
            with anyio.fail_after(TIMEOUT_S):
                env = environment(PYTHONPATH=way)
                done = await anyio.run_process(words, check=False, cwd=tmp_path, env=env)
            codes.append(done.returncode)
        assert (await queue.counts()).dead == 1
    assert codes == [9, 9, 0] and told.read_text() == "begun begun "
