"""Producers of flows, owners of schedules, readers of results, and workers for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

import anyio

from millpond.actors.errors import NotFound
from millpond.node.client.retry import RETRYABLE
from millpond.node.jobs.errors import JobCancelled, JobFailed, Reject
from millpond.node.jobs.flow import FlowInfo, Step
from millpond.node.jobs.job import Job
from millpond.node.jobs.payload import MOMENT_HEADER, SCHEDULE_HEADER
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.task import Backoff, Task
from millpond.node.jobs.worker.worker import Worker
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.job_clients import (
    AGAIN_S,
    RestartingWorker,
    client_options,
    work_by_chance,
)
from tests.sim.nodes.plan import FlowsPlan, FlowStepPlan, SchedulePlan
from tests.sim.nodes.simulation import Simulation

PLACE_HEADER = "place"
TICK_ATTEMPTS = 50
"""No job of a schedule fails so often."""
LOOK_S = 1.0
READ_S = 3.0

T = TypeVar("T")


async def until_kept(act: Callable[[], Awaitable[T]]) -> T:
    """The result of a request that is repeated until it has one."""
    while True:
        try:
            return await act()
        except RETRYABLE:
            await anyio.sleep(AGAIN_S)


async def until_calm(sim: Simulation) -> None:
    """Wait until no fault is injected any more."""
    await anyio.sleep(max(0.0, sim.plan.lasts_s - sim.now))
    while not sim.is_calm:  # noqa: ASYNC110  the disks, nodes and connections are being repaired
        await anyio.sleep(LOOK_S)


class FlowProducer:
    """A producer of flows: it cancels some, retries some, and waits for the end of all."""

    def __init__(self, sim: Simulation, plan: FlowsPlan) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"boss-{plan.name}"
        self._rng = sim.rng(self._who)

    async def run(self) -> None:
        """Put all flows; until the faults have ended, cancel and retry; then wait for them."""
        sim, plan = self._sim, self._plan
        url = sim.node(plan.node).url
        async with AsyncExitStack() as putting:
            await putting.enter_async_context(sim.finishing(self._who))
            options = client_options(sim, plan.node, self._who)
            async with Queue(url, plan.name, **options) as queue:
                numbers = []
                for place, steps in enumerate(plan.flows):
                    numbers.append(await self._put(queue, place, steps))
                    await self._disturb(queue, numbers)
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))
                while not sim.is_calm:
                    await anyio.sleep(self._rng.uniform(0.0, sim.plan.lasts_s / 6))
                    await self._disturb(queue, numbers)
                for number in numbers:
                    await self._finish(queue, number)
                await putting.aclose()
                await anyio.sleep_forever()

    async def _put(self, queue: Queue, place: int, plans: tuple[FlowStepPlan, ...]) -> int:
        steps: list[Step] = []
        for number, plan in enumerate(plans):
            payload = {} if plan.feeds else {"payload": [place, number]}
            step = Step(
                "step",
                **payload,
                after=[steps[each] for each in plan.after],
                on_failure=plan.on_failure,
                headers={PLACE_HEADER: f"{place}/{number}"},
                keep=plan.keep_s,
            )
            steps.append(step)
        flow = await until_kept(lambda: queue.put_flow(steps))
        sim = self._sim
        sim.record(ce.FlowPut(sim.now, self._who, self._plan.name, place, flow))
        return flow

    async def _disturb(self, queue: Queue, numbers: list[int]) -> None:
        plan, rng, sim = self._plan, self._rng, self._sim
        if rng.random() < plan.cancels:
            number, asked_at = rng.choice(numbers), sim.now
            self._request(number, "cancel")
            await until_kept(lambda: queue.cancel_flow(number))
            sim.record(ce.FlowCancelled(sim.now, self._who, plan.name, number, asked_at))
        if rng.random() < plan.retries:
            await self._retry(queue, rng.choice(numbers))

    async def _retry(self, queue: Queue, number: int) -> None:
        self._request(number, "retry")
        await until_kept(lambda: queue.retry_flow(number))

    def _request(self, number: int, what: str) -> None:
        sim = self._sim
        sim.record(ce.FlowRequested(sim.now, self._who, self._plan.name, number, what))

    async def _finish(self, queue: Queue, number: int) -> None:
        """A flow that is blocked goes on by a retry, as handlers do not fail any more."""
        while True:
            info = await until_kept(lambda: queue.flow(number))
            match info.state:
                case "running":
                    await anyio.sleep(LOOK_S)
                case "blocked":
                    await self._retry(queue, number)
                    await anyio.sleep(LOOK_S)
                case _:
                    await self._ended(queue, info)
                    return

    async def _ended(self, queue: Queue, info: FlowInfo) -> None:
        sim, results = self._sim, ()
        if info.state == "done":
            value: Any = await until_kept(lambda: queue.flow_result(info.id))
            results = tuple(map(str, value if len(info.last) > 1 else [value]))
        states = tuple(each.state for each in info.steps)
        seen = (self._plan.name, info.id, info.state, states, results)
        sim.record(ce.FlowEnded(sim.now, self._who, *seen))


async def keep_schedule(sim: Simulation, plan: FlowsPlan, schedule: SchedulePlan) -> None:
    """Set a schedule; when all works again and it is up to date, delete it."""
    who = f"cron-{plan.name}"
    name, every = schedule.name, timedelta(seconds=schedule.every_s)
    async with sim.finishing(f"{who} {name}"):
        url = sim.node(plan.node).url
        async with Queue(url, plan.name, **client_options(sim, plan.node, who)) as queue:
            following = await until_kept(
                lambda: queue.schedule(name, every, task="tick", missed=schedule.missed)
            )
            sim.record(ce.ScheduleSet(sim.now, who, plan.name, name, _ms(following)))
            if schedule.ends_s is not None:
                await anyio.sleep(max(0.0, schedule.ends_s - sim.now))
                await _delete(sim, plan, queue, name, 0, 0)
                return
            await until_calm(sim)
            calm_ms = round(sim.world.clock.now() * 1000)
            while True:
                info = await until_kept(lambda: queue.show_schedule(name))
                if _ms(info.last) > calm_ms:
                    break
                await anyio.sleep(LOOK_S)
            await _delete(sim, plan, queue, name, _ms(info.last), info.jobs)


async def _delete(
    sim: Simulation, plan: FlowsPlan, queue: Queue, name: str, last_ms: int, jobs: int
) -> None:
    asked_at = sim.now
    with suppress(NotFound):  # the reply to an earlier request was lost
        await until_kept(lambda: queue.delete_schedule(name))
    seen = (plan.name, name, asked_at, last_ms, jobs)
    sim.record(ce.ScheduleGone(sim.now, f"cron-{plan.name}", *seen))


def _ms(at: datetime | None) -> int:
    return 0 if at is None else round(at.timestamp() * 1000)


async def read_results(sim: Simulation, plan: FlowsPlan) -> None:
    """Ask for the results of jobs that are done, again and again."""
    who = f"reader-{plan.name}"
    rng = sim.rng(who)
    url = sim.node(plan.node).url
    async with Queue(url, plan.name, **client_options(sim, plan.node, who)) as queue:
        while True:
            await anyio.sleep(rng.uniform(0.0, READ_S))
            done = [
                each.id
                for each in sim.seen
                if isinstance(each, ce.JobSettled) and each.what == "done"
            ]
            if done:
                job = rng.choice(done)
                await _read(sim, plan, queue, job, who)


async def _read(sim: Simulation, plan: FlowsPlan, queue: Queue, job: int, who: str) -> None:
    asked_at = sim.now
    try:
        value = str(await until_kept(lambda: queue.result(job, timeout=60.0)))
    except JobFailed as error:
        value = error.reason
    except JobCancelled:
        value = "cancelled"
    except TimeoutError:
        return  # the node is away
    sim.record(ce.KeptResult(sim.now, who, plan.name, job, asked_at, value))


class FlowWorker:
    """A worker of steps and of scheduled jobs."""

    def __init__(self, sim: Simulation, plan: FlowsPlan, number: int) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"w-{plan.name}-{number}"
        self._rng = sim.rng(self._who)
        self._life = RestartingWorker(sim, self._who, self._rng, plan.restarts, self._worker)
        self.run = self._life.run

    def _worker(self) -> Worker:
        sim, plan = self._sim, self._plan
        options: dict[str, Any] = {
            "queue": plan.name,
            "backoff": Backoff(0.5, 4.0),
            "lease": plan.lease_s,
        }
        step: Task[Any] = Task(self._step, name="step", attempts=plan.attempts, **options)
        tick: Task[Any] = Task(self._tick, name="tick", attempts=TICK_ATTEMPTS, **options)
        return Worker(
            sim.node(plan.node).url,
            [step, tick],
            concurrency=plan.concurrency,
            grace=self._rng.choice((0.5, 5.0)),
            name=self._who,
            on_end=self._life.ended,
            **client_options(sim, plan.node, self._who),
        )

    async def _step(self, payload: Any, job: Job) -> str:
        sim, queue = self._sim, self._plan.name
        place, step = map(int, job.headers[PLACE_HEADER].split("/"))
        results = tuple("failed" if isinstance(r, JobFailed) else str(r) for r in job.results)
        at = (queue, place, step, job.id, job.attempt)
        sim.record(ce.StepBegins(sim.now, self._who, *at, results, str(payload)))
        how = "cancelled"
        try:
            how = await self._do(f"{place}/{step} {job.id} {job.attempt}")
        finally:
            sim.record(ce.StepEnds(sim.now, self._who, *at, how))
        match how:
            case "fail":
                raise RuntimeError("no luck")
            case "reject":
                raise Reject("not for us")
            case _:
                return f"{place}/{step}"

    async def _tick(self, payload: Any, job: Job) -> None:
        sim, name = self._sim, job.headers[SCHEDULE_HEADER]
        moment_ms = _ms(datetime.fromisoformat(job.headers[MOMENT_HEADER]))
        at = (self._plan.name, name, moment_ms, job.id, job.attempt)
        sim.record(ce.TickBegins(sim.now, self._who, *at))
        if await self._do(f"{name} {moment_ms} {job.attempt}") == "fail":
            raise RuntimeError("no luck")

    async def _do(self, what: str) -> str:
        sim, plan = self._sim, self._plan
        rng = Random(f"{sim.seed} {what}")
        shares = (plan.fails, "fail"), (plan.rejects, "reject"), (plan.hangs, "hang")
        return await work_by_chance(sim, rng, plan.work_s, shares)
