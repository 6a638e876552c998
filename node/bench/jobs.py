"""The benchmark of job queues: puts, a worker that does nothing, and the latency of an idle one.

Each job has to start, and none may be left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import UnknownStream
from millpond.node.bench.load import Clocks
from millpond.node.bench.removal import removed_at_the_end
from millpond.node.client.connect import connect
from millpond.node.jobs.connector import ConnectionOptions
from millpond.node.jobs.history import stream_name
from millpond.node.jobs.job import Job
from millpond.node.jobs.payload import channel_of
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.worker.worker import Worker

PAYLOAD = {"to": "alice@example.org", "subject": "hello", "number": 1234567, "flags": [1, 2, 3]}
PRODUCERS = 16
WARM = 64
"""Jobs that are put before the measurement, and run with the others: they have both ends load
their code."""
IDLE_JOBS = 200
BULK = 1000
"""The jobs of one call."""
RUN_S = 120.0


class JobsResult(msgspec.Struct, frozen=True):
    """Rates in jobs a second, `bulk_rate` that of `put_many`; latencies of an idle worker from the
    put until the handler starts.

    `node_us`, `worker_us`: CPU time for each job, from its put to its end.
    """

    row: str
    durability: str
    jobs: int
    concurrency: int
    put_rate: float
    bulk_rate: float
    run_rate: float
    p10_us: float
    p50_us: float
    p99_us: float
    node_us: float | None
    worker_us: float
    again: int
    faults: dict[str, int]

    @property
    def ok(self) -> bool:
        """Each job started, and none is left."""
        return not self.faults


class JobsShape(msgspec.Struct, frozen=True):
    """The number of jobs, those at once, the queue they are in, and the durability that the result
    tells."""

    jobs: int
    concurrency: int
    queue: str = "bench"
    durability: str = "memory"


async def measure_jobs(
    url: str, shape: JobsShape, clocks: Clocks, options: ConnectionOptions
) -> JobsResult:
    """Put jobs, run them, then put some one by one for an idle worker. The queue is deleted."""
    jobs, concurrency = shape.jobs, shape.concurrency
    worker = partial(Worker, url, queues=[shape.queue], **options)
    started: Counter[int] = Counter()
    removed = removed_at_the_end(partial(_delete, url, shape.queue, options))
    async with removed, Queue(url, shape.queue, **options) as queue:
        ids = await _put_all(queue, WARM)
        first_cpu = clocks.node_cpu() if clocks.node_cpu is not None else 0.0
        own_cpu, at = clocks.own_cpu(), clocks.now()
        ids += await _put_all(queue, jobs)
        put_s = clocks.now() - at

        async def nothing(_payload: Any, job: Job) -> None:
            started[job.id] += 1

        at = clocks.now()
        with anyio.fail_after(RUN_S):
            run_s = await _run_all(worker, nothing, concurrency, WARM + jobs, clocks) - at
        node_us = None if clocks.node_cpu is None else (clocks.node_cpu() - first_cpu) / jobs * 1e6
        worker_us = (clocks.own_cpu() - own_cpu) / jobs * 1e6
        waits = await _idle_latencies(worker, queue, clocks)
        bulk_s = await _put_in_bulk(url, shape, clocks, options)
        counts = await queue.counts()
    left = counts.ready + counts.delayed + counts.leased + counts.dead
    missing = sum(1 for job in ids if job not in started)
    faults = {"left": left, "never begun": missing}
    return JobsResult(
        f"jobs-c{concurrency}",
        shape.durability,
        jobs,
        concurrency,
        jobs / put_s,
        jobs / bulk_s,
        (WARM + jobs) / run_s,
        waits[len(waits) // 10] * 1e6,
        waits[len(waits) // 2] * 1e6,
        waits[int(len(waits) * 0.99)] * 1e6,
        node_us,
        worker_us,
        sum(started.values()) - len(started),
        {name: count for name, count in faults.items() if count},
    )


async def _put_all(queue: Queue, jobs: int) -> list[int]:
    """Put jobs from `PRODUCERS` tasks, each of which waits for its receipt."""
    ids: list[int] = []
    numbers = iter(range(jobs))

    async def produce() -> None:
        for _ in numbers:
            ids.append((await queue.put(PAYLOAD)).id)  # noqa: PERF401  one after the other

    async with anyio.create_task_group() as tasks:
        for _ in range(PRODUCERS):
            tasks.start_soon(produce)
    return ids


async def _put_in_bulk(
    url: str, shape: JobsShape, clocks: Clocks, options: ConnectionOptions
) -> float:
    """Put jobs in a few calls, into another queue, which is deleted; the seconds of the puts."""
    name = f"{shape.queue}-bulk"
    removed = removed_at_the_end(partial(_delete, url, name, options))
    async with removed, Queue(url, name, **options) as queue:
        at = clocks.now()
        for start in range(0, shape.jobs, BULK):
            await queue.put_many(repeat(PAYLOAD, min(BULK, shape.jobs - start)))
        return clocks.now() - at


async def _delete(url: str, queue: str, options: ConnectionOptions) -> None:
    """Delete the queue with its history."""
    async with connect(url, channel_of(queue), role="producer", **options) as channel:
        with suppress(UnknownStream):
            await channel.streams.stream(stream_name(queue)).delete()
        await channel.channels.delete(channel_of(queue))


async def _run_all(
    work: Callable[..., Worker],
    handler: Callable[..., Any],
    concurrency: int,
    jobs: int,
    clocks: Clocks,
) -> float:
    """Run the jobs; the time at which the last one ended."""
    ended = 0
    ended_at = 0.0

    def end(_ended: object) -> None:
        nonlocal ended, ended_at
        ended += 1
        if ended >= jobs:
            ended_at = clocks.now()
            worker.drain()

    async with work(handler, concurrency=concurrency, on_end=end) as worker:
        await worker.run()
    return ended_at


async def _idle_latencies(work: Callable[..., Worker], queue: Queue, clocks: Clocks) -> list[float]:
    waits: list[float] = []
    began = anyio.Event()
    put_at = 0.0

    async def handler(_payload: Any) -> None:
        waits.append(clocks.now() - put_at)
        began.set()

    async with work(handler) as worker, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        for _ in range(IDLE_JOBS):
            began = anyio.Event()
            put_at = clocks.now()
            await queue.put(PAYLOAD)
            await began.wait()
        worker.drain()
    return sorted(waits)
