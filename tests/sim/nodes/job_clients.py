"""Producers of jobs, and workers whose handlers end by chance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import NotFound, RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.retry import RETRYABLE
from millpond.node.client.settings import SimulatedSettings
from millpond.node.jobs.errors import JobCancelled, JobFailed, Reject, Retry
from millpond.node.jobs.handle import Handle
from millpond.node.jobs.job import Job
from millpond.node.jobs.limits import Limits, RateLimit
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.task import Backoff, Task
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.jobs.worker.worker import Worker
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.plan import JobsPlan
from tests.sim.nodes.simulation import Simulation

FOREVER_S = 1e6
AGAIN_S = 0.5
HANGS_S = 20.0
UNIQUE_KEYS = 3
LIMIT_KEYS = (b"", b"a", b"b")


class JobProducer:
    """A producer of jobs: it waits for some, and cancels some."""

    def __init__(self, sim: Simulation, plan: JobsPlan, tasks: TaskGroup) -> None:
        self._sim = sim
        self._plan = plan
        self._tasks = tasks
        self._who = f"boss-{plan.name}"
        self._rng = sim.rng(self._who)

    async def run(self) -> None:
        """Put all jobs; then stay for the results."""
        plan = self._plan
        async with AsyncExitStack() as putting:
            # From the beginning on: the first connection may take long.
            await putting.enter_async_context(self._sim.finishing(self._who))
            async with self._queue() as queue:
                # Chance of its own: the other worlds stay as they were.
                rng = self._sim.rng(f"{self._who} together")
                together = rng.randint(2, plan.jobs) if rng.random() < 0.3 else 0
                await self._put_many(queue, together)
                for payload in range(together, plan.jobs):
                    handle = await self._put(queue, payload)
                    if self._rng.random() < plan.cancels:
                        await self._cancel(queue, handle.id)
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))
                await putting.aclose()
                await anyio.sleep_forever()

    def _queue(self) -> Queue:
        sim, plan = self._sim, self._plan
        node = sim.node(plan.node)
        return Queue(node.url, plan.name, **client_options(sim, plan.node, self._who))

    async def _put_many(self, queue: Queue, count: int) -> None:
        """Put the first jobs in one call."""
        sim, name = self._sim, self._plan.name
        while True:
            try:
                ids = await queue.put_many(range(count), name="work")
            except RETRYABLE:
                await anyio.sleep(AGAIN_S)
            else:
                break
        for payload, job in enumerate(ids):
            sim.record(ce.JobPut(sim.now, self._who, name, payload, job, False, ""))

    async def _put(self, queue: Queue, payload: int) -> Handle:
        rng, plan, sim = self._rng, self._plan, self._sim
        unique = f"uniq{rng.randrange(UNIQUE_KEYS)}" if rng.random() < plan.unique else None
        due = rng.uniform(0.5, 15.0) if rng.random() < plan.due else None
        waits = unique is None and rng.random() < plan.waits
        ttl = rng.choice(plan.ttls) if len(plan.ttls) > 1 else plan.ttls[0]
        ranked: dict[str, Any] = {}
        if plan.is_operated:
            chance = sim.rng(f"{self._who} {payload} ranked")
            ranked = {"priority": chance.randrange(10), "limit_key": chance.choice(LIMIT_KEYS)}
        while True:
            try:
                handle = await queue.put(
                    payload, name="work", ttl=ttl, due=due, unique=unique, wait=waits, **ranked
                )
            except RETRYABLE:
                await anyio.sleep(AGAIN_S)
            else:
                break
        put = (plan.name, payload, handle.id, handle.existing, unique or "")
        sim.record(ce.JobPut(sim.now, self._who, *put))
        if waits:
            self._tasks.start_soon(self._wait, handle, payload)
        return handle

    async def _wait(self, handle: Handle, payload: int) -> None:
        try:
            value = str(await handle.result())
        except JobFailed as error:
            value = f"failed {error.reason}"
        except JobCancelled:
            value = "cancelled"
        sim = self._sim
        sim.record(ce.Result(sim.now, self._who, self._plan.name, payload, handle.id, value))

    async def _cancel(self, queue: Queue, job: int) -> None:
        with suppress(NotFound, RequestError, ConnectionLost):
            await queue.cancel(job)
            sim = self._sim
            sim.record(ce.Cancelled(sim.now, self._who, self._plan.name, job))


class QueueOperator:
    """An operator, who sets limits of a queue and pauses it until the faults end."""

    def __init__(self, sim: Simulation, plan: JobsPlan) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"op-{plan.name}"
        self._rng = sim.rng(self._who)

    async def run(self) -> None:
        """Change the settings; then resume the queue. Its limits stay."""
        sim, plan = self._sim, self._plan
        async with AsyncExitStack() as operating:
            await operating.enter_async_context(sim.finishing(self._who))
            url = sim.node(plan.node).url
            async with Queue(url, plan.name, **client_options(sim, plan.node, self._who)) as queue:
                while not sim.is_calm:
                    await self._set(self._change(queue))
                    await anyio.sleep(self._rng.uniform(0.1, sim.plan.lasts_s / 6))
                await self._set(queue.resume)

    def _change(self, queue: Queue) -> Callable[[], Awaitable[object]]:
        rng = self._rng
        if rng.random() < 0.3:
            return rng.choice((queue.pause, queue.resume))
        limits = Limits(
            concurrency=rng.choice((0, 1, 2)),
            key_concurrency=rng.choice((0, 1)),
            rate=rng.choice((0, 0, "1/s", RateLimit(2, 1.0, burst=1))),
            ageing=rng.choice((0.0, 5.0)),
        )
        return partial(queue.set_limits, limits)

    async def _set(self, change: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await change()
            except RETRYABLE:
                await anyio.sleep(AGAIN_S)
            else:
                return


class RestartingWorker:
    """A worker, over its restarts. `make` makes one, which calls `ended` with its results."""

    def __init__(
        self,
        sim: Simulation,
        who: str,
        rng: Random,
        restarts: float,
        make: Callable[[], Worker],
    ) -> None:
        self._sim = sim
        self._who = who
        self._rng = rng
        self._restarts = restarts
        self._make = make

    async def run(self) -> None:
        """Until cancelled; as told by the plan it drains, or is killed, and begins anew."""
        while True:
            async with self._make() as worker:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._restart, worker, tasks)
                    await worker.run()
                    tasks.cancel_scope.cancel()
            await anyio.sleep(self._rng.uniform(0.0, 2.0))

    async def _restart(self, worker: Worker, tasks: TaskGroup) -> None:
        while True:
            await anyio.sleep(1.0)
            if not self._sim.is_calm and self._rng.random() < self._restarts:
                if self._rng.random() < 0.5:
                    worker.drain()
                else:
                    self._sim.world.reset(self._who)
                    tasks.cancel_scope.cancel()
                return

    def ended(self, ended: AttemptResult) -> None:
        """Record the end of an attempt."""
        sim = self._sim
        seen = (ended.queue, ended.job, ended.attempt, ended.what)
        sim.record(ce.JobSettled(sim.now, self._who, *seen))


async def work_by_chance(
    sim: Simulation, rng: Random, work_s: float, shares: Sequence[tuple[float, str]]
) -> str:
    """Take a while, and tell how it ends: each end has its share; "done" has the rest."""
    if sim.is_calm:
        return "done"
    await anyio.sleep(rng.uniform(0.0, work_s))
    chance = rng.random()
    for share, how in shares:
        chance -= share
        if chance < 0:
            if how == "hang":
                await anyio.sleep(HANGS_S)
                return "done"
            return how
    return "done"


class JobWorker:
    """A worker of jobs."""

    def __init__(self, sim: Simulation, plan: JobsPlan, number: int) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"w-{plan.name}-{number}"
        self._rng = sim.rng(self._who)
        self._life = RestartingWorker(sim, self._who, self._rng, plan.restarts, self._worker)
        self.run = self._life.run

    def _worker(self) -> Worker:
        sim, plan = self._sim, self._plan
        work: Task[Any] = Task(
            self._work,
            name="work",
            queue=plan.name,
            attempts=plan.attempts,
            backoff=Backoff(0.5, 4.0),
            lease=plan.lease_s,
        )
        return Worker(
            sim.node(plan.node).url,
            [work],
            concurrency=plan.concurrency,
            grace=self._rng.choice((0.5, 5.0)),
            name=self._who,
            history=self._rng.random() < 0.3,
            on_end=self._life.ended,
            **client_options(sim, plan.node, self._who),
        )

    async def _work(self, payload: int, job: Job) -> str:
        sim, queue = self._sim, self._plan.name
        job_attempt = (queue, payload, job.id, job.attempt)
        sim.record(ce.JobBegins(sim.now, self._who, *job_attempt))
        how = "cancelled"
        try:
            how = await self._do(payload, job.attempt)
        finally:
            sim.record(ce.JobEnds(sim.now, self._who, *job_attempt, how))
        match how:
            case "fail":
                raise RuntimeError("no luck")
            case "retry":
                raise Retry(1.0)
            case "reject":
                raise Reject("not for us")
            case _:
                return f"done {payload}"

    async def _do(self, payload: int, attempt: int) -> str:
        sim, plan = self._sim, self._plan
        rng = Random(f"{sim.seed} {plan.name} {payload} {attempt}")
        shares = (
            (plan.fails, "fail"),
            (plan.retries, "retry"),
            (plan.rejects, "reject"),
            (plan.hangs, "hang"),
        )
        return await work_by_chance(sim, rng, plan.work_s, shares)


def client_options(sim: Simulation, node: str, who: str) -> dict[str, Any]:
    """The options of a client of jobs in the simulated world."""
    clock = sim.world.clock
    return {
        "settings": SimulatedSettings(
            dialer=sim.node(node).dialer(who), rng=sim.world.rng(who), now=clock.elapsed
        ),
        "wall": clock.now,
        "wait_s": FOREVER_S,
    }
