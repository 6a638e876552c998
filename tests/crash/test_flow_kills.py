"""kill -9 of node and worker while flows run: each flow ends with its result, each step was done at
least once, and none was put twice."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.jobs import Job, Queue, Step, Worker, chain, join, task
from tests.node.processes import serving

pytestmark = pytest.mark.anyio

KILLS = 5
LIFE_S = 0.2, 0.8
SETTLED_S = 90.0
FLOWS, GROUP = 15, 3
QUIET = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")


@pytest.fixture
def anyio_backend() -> str:
    """A kill hits another process: the event library of this one does not matter."""
    return "asyncio"


async def work(url: str, jobs: dict[str, set[int]]) -> None:
    @task(queue="mail")
    async def add(number: int, job: Job) -> int:
        jobs.setdefault(job.headers["step"], set()).add(job.id)
        await anyio.sleep(0.01)
        return number + 1

    @task(queue="sums")
    async def total(numbers: list[int], job: Job) -> int:
        jobs.setdefault(job.headers["step"], set()).add(job.id)
        return sum(numbers)

    async with Worker(url, [add, total], concurrency=4, history=False) as worker:
        await worker.run()


async def put(queue: Queue, ids: list[int]) -> None:
    """Flows of a group, a join and one more step; numbered by how many are put."""
    while len(ids) < FLOWS:
        flow = len(ids)
        group = [
            Step("add", n, queue="mail", headers={"step": f"{flow} {n}"}) for n in range(GROUP)
        ]
        together = join(Step("total", queue="sums", headers={"step": f"{flow} sum"}), group)
        last = chain(together, Step("add", queue="mail", headers={"step": f"{flow} last"}))
        ids.append(await queue.put_flow(last))


async def test_flows_end_whatever_is_killed(tmp_path: Path) -> None:
    rng = Random(9)
    jobs: dict[str, set[int]] = {}
    ids: list[int] = []
    words = ("--data", str(tmp_path / "node"), "--durability", "disk", *QUIET)
    for _ in range(KILLS):
        with serving(*words) as node, anyio.fail_after(SETTLED_S):
            url = node.urls["tcp"]
            async with anyio.create_task_group() as tasks, Queue(url, "mail") as queue:
                tasks.start_soon(work, url, jobs)
                tasks.start_soon(put, queue, ids)
                await anyio.sleep(rng.uniform(*LIFE_S))
                node.process.kill()
                tasks.cancel_scope.cancel()
    with serving(*words) as node, anyio.fail_after(SETTLED_S):
        async with anyio.create_task_group() as tasks, Queue(node.urls["tcp"], "mail") as queue:
            tasks.start_soon(work, node.urls["tcp"], jobs)
            await put(queue, ids)
            wanted = sum(range(1, GROUP + 1)) + 1
            assert [await queue.flow_result(each) for each in ids] == [wanted] * FLOWS
            assert (await queue.counts()).ready == 0
            tasks.cancel_scope.cancel()
    # A flow that was put and not acknowledged may be there as well, under the same headers.
    assert len(jobs) == FLOWS * (GROUP + 2)
    assert all(1 <= len(found) <= 1 + KILLS for found in jobs.values())
