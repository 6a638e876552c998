"""Producers of jobs and workers, whose handlers do what chance tells them."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import NotFound, RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.retry import RETRYABLE
from millpond.node.jobs.errors import JobCancelled, JobFailed, Reject, Retry
from millpond.node.jobs.handle import Handle
from millpond.node.jobs.job import Job
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.task import Backoff, Task
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.jobs.worker.worker import Worker
from tests.sim.nodes import notes as n
from tests.sim.nodes.plan import JobsPlan
from tests.sim.nodes.stage import Stage

FOREVER_S = 1e6
AGAIN_S = 0.5
HANGS_S = 20.0
MARKS = 3


class Boss:
    """Puts jobs, waits for some, cancels some."""

    def __init__(self, stage: Stage, plan: JobsPlan, tasks: TaskGroup) -> None:
        self._stage = stage
        self._plan = plan
        self._tasks = tasks
        self._who = f"boss-{plan.name}"
        self._rng = stage.rng(self._who)

    async def run(self) -> None:
        """All of them; then stays for what waits."""
        plan = self._plan
        async with self._queue() as queue:
            async with self._stage.finishing(self._who):
                for payload in range(plan.jobs):
                    handle = await self._put(queue, payload)
                    if self._rng.random() < plan.cancels:
                        await self._cancel(queue, handle.id)
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))
            await anyio.sleep_forever()

    def _queue(self) -> Queue:
        stage, plan = self._stage, self._plan
        node = stage.node(plan.node)
        return Queue(node.url, plan.name, **_options(stage, plan, self._who))

    async def _put(self, queue: Queue, payload: int) -> Handle:
        rng, plan, stage = self._rng, self._plan, self._stage
        unique = f"mark{rng.randrange(MARKS)}" if rng.random() < plan.unique else None
        due = rng.uniform(0.5, 15.0) if rng.random() < plan.due else None
        waits = unique is None and rng.random() < plan.waits
        while True:
            try:
                handle = await queue.put(payload, name="work", due=due, unique=unique, wait=waits)
            except RETRYABLE:
                await anyio.sleep(AGAIN_S)
            else:
                break
        put = (plan.name, payload, handle.id, handle.existing, unique or "")
        stage.note(n.JobPut(stage.now, self._who, *put))
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
        stage = self._stage
        stage.note(n.Result(stage.now, self._who, self._plan.name, payload, handle.id, value))

    async def _cancel(self, queue: Queue, job: int) -> None:
        with suppress(NotFound, RequestError, ConnectionLost):
            await queue.cancel(job)
            stage = self._stage
            stage.note(n.Cancelled(stage.now, self._who, self._plan.name, job))


class Hands:
    """A worker, over its restarts."""

    def __init__(self, stage: Stage, plan: JobsPlan, number: int) -> None:
        self._stage = stage
        self._plan = plan
        self._who = f"w-{plan.name}-{number}"
        self._rng = stage.rng(self._who)

    async def run(self) -> None:
        """Until cancelled; as told by the plan it drains, or is killed, and begins anew."""
        while True:
            async with self._worker() as worker:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._restart, worker, tasks)
                    await worker.run()
                    tasks.cancel_scope.cancel()
            await anyio.sleep(self._rng.uniform(0.0, 2.0))

    async def _restart(self, worker: Worker, tasks: TaskGroup) -> None:
        while True:
            await anyio.sleep(1.0)
            if not self._stage.is_calm and self._rng.random() < self._plan.restarts:
                if self._rng.random() < 0.5:
                    worker.drain()
                else:
                    self._stage.world.reset(self._who)
                    tasks.cancel_scope.cancel()
                return

    def _worker(self) -> Worker:
        stage, plan = self._stage, self._plan
        work: Task[Any] = Task(
            self._work,
            name="work",
            queue=plan.name,
            attempts=plan.attempts,
            backoff=Backoff(0.5, 4.0),
            lease=plan.lease_s,
        )
        return Worker(
            stage.node(plan.node).url,
            [work],
            concurrency=plan.concurrency,
            grace=self._rng.choice((0.5, 5.0)),
            name=self._who,
            history=self._rng.random() < 0.3,
            on_end=self._ended,
            **_options(stage, plan, self._who),
        )

    async def _work(self, payload: int, job: Job) -> str:
        stage, queue = self._stage, self._plan.name
        place = (queue, payload, job.id, job.attempt)
        stage.note(n.JobBegins(stage.now, self._who, *place))
        how = "cancelled"
        try:
            how = await self._do(payload, job.attempt)
        finally:
            stage.note(n.JobEnds(stage.now, self._who, *place, how))
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
        stage, plan = self._stage, self._plan
        rng = Random(f"{stage.seed} {plan.name} {payload} {attempt}")
        if stage.is_calm:
            return "done"
        await anyio.sleep(rng.uniform(0.0, plan.work_s))
        chance = rng.random()
        for share, how in (
            (plan.fails, "fail"),
            (plan.retries, "retry"),
            (plan.rejects, "reject"),
            (plan.hangs, "hang"),
        ):
            chance -= share
            if chance < 0:
                if how == "hang":
                    await anyio.sleep(HANGS_S)
                    return "done"
                return how
        return "done"

    def _ended(self, ended: AttemptResult) -> None:
        stage = self._stage
        seen = (ended.queue, ended.job, ended.attempt, ended.what)
        stage.note(n.JobSettled(stage.now, self._who, *seen))


def _options(stage: Stage, plan: JobsPlan, who: str) -> dict[str, Any]:
    clock = stage.world.clock
    return {
        "dialer": stage.node(plan.node).dialer(who),
        "rng": stage.world.rng(who),
        "now": clock.elapsed,
        "wall": clock.now,
        "wait_s": FOREVER_S,
    }
