"""kill -9 of a node whose jobs keep their results: none is lost, and each is the first one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.jobs import Job, Queue, Worker
from tests.node.processes import serving

pytestmark = pytest.mark.anyio

KILLS = 4
LIFE_S = 0.3, 0.8
SETTLED_S = 60.0
JOBS = 200
QUIET = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")


@pytest.fixture
def anyio_backend() -> str:
    """A kill hits another process: the event library of this one does not matter."""
    return "asyncio"


async def work(url: str, runs: dict[int, int]) -> None:
    async def double(number: int, job: Job) -> list[int]:
        runs[job.id] = runs.get(job.id, 0) + 1
        job.progress(runs[job.id])
        await anyio.sleep(0.02)
        return [2 * number, runs[job.id]]

    async with Worker(url, double, queues=["mail"], concurrency=4, history=False) as worker:
        await worker.run()


async def test_each_job_that_left_has_its_result(tmp_path: Path) -> None:
    rng = Random(8)
    runs: dict[int, int] = {}
    ids: list[int] = []
    words = ("--data", str(tmp_path / "node"), "--durability", "disk", *QUIET)
    for _ in range(KILLS):
        with serving(*words) as node, anyio.fail_after(SETTLED_S):
            async with anyio.create_task_group() as tasks, Queue(node.urls["tcp"], "mail") as queue:
                if not ids:
                    ids = await queue.put_many(range(JOBS), keep=3600)
                tasks.start_soon(work, node.urls["tcp"], runs)
                await anyio.sleep(rng.uniform(*LIFE_S))
                node.process.kill()
                tasks.cancel_scope.cancel()
    with serving(*words) as node, anyio.fail_after(SETTLED_S):
        async with anyio.create_task_group() as tasks, Queue(node.urls["tcp"], "mail") as queue:
            tasks.start_soon(work, node.urls["tcp"], runs)
            results = [await queue.result(each) for each in ids]
            tasks.cancel_scope.cancel()
        assert [result[0] for result in results] == [2 * number for number in range(JOBS)]
        # A job with a result may have run again, but its first result stayed.
        assert all(1 <= result[1] <= runs[job] for job, result in zip(ids, results, strict=True))
