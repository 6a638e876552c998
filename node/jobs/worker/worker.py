"""A worker: takes jobs of one or several queues, runs their handlers, keeps the leases meanwhile.

`async with Worker("tcp://127.0.0.1:7400", [send], concurrency=8) as worker: await worker.run()`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from math import ceil
from types import TracebackType
from typing import Any, Self, Unpack

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.message import Message
from millpond.node.client.streams.connect import Streams
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.node.jobs.connector import ConnectionOptions, Connector
from millpond.node.jobs.history import History
from millpond.node.jobs.payload import decode_job
from millpond.node.jobs.requests import is_empty, queue_counts
from millpond.node.jobs.results import ResultMailboxes
from millpond.node.jobs.task import LEASE_S, Handler, Task, TaskRegistry
from millpond.node.jobs.worker.completion import JobCompletion
from millpond.node.jobs.worker.executor import run_handler
from millpond.node.jobs.worker.leased_job import LeasedJob
from millpond.node.jobs.worker.leases import Leases
from millpond.node.jobs.worker.outcome import AttemptResult, Done, WorkerStats
from millpond.node.jobs.worker.subscription import QueueSubscription
from millpond.node.jobs.worker.task_pool import TaskPool
from millpond.node.jobs.worker.weighted_queues import WeightedQueues, parse_queues

CONCURRENCY = 8
CONCURRENCY_MAX = 10_000
GRACE_S = 30.0
LEAVE_S = 5.0
ASK_S = 1.0
LOOK_S = 0.2
"""How long a queue has to stay empty to be called so."""
LOOKS_MAX = 25
"""So often jobs may be ready and not come: then they are not for us (too large, say)."""

log = logging.getLogger("millpond.node.jobs")


class Worker:
    """Connect with `async with`, then `run`. See docs/guides/jobs.md.

    `work`: one handler, or tasks. `queues`: names, or `NAME=WEIGHT`; by default those of the tasks.
    `lease` is for a handler that is no task. `grace`: so many seconds have running handlers to end
    when the worker drains. `on_end` hears of each attempt. `log_done`: the history tells of
    successes as well. Other options as those of `node.connect`.

    Raises ValueError and TypeError for arguments.
    """

    def __init__(
        self,
        url: str,
        work: Handler | Task[Any] | Iterable[Task[Any]],
        *,
        queues: Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        lease: float = LEASE_S,
        grace: float = GRACE_S,
        name: str | None = None,
        history: bool = True,
        log_done: bool = False,
        on_end: Callable[[AttemptResult], None] | None = None,
        wall: Callable[[], float] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency must be within 1..{CONCURRENCY_MAX}")
        self.stats = WorkerStats()
        self._registry = TaskRegistry(work, lease)
        weights = parse_queues(queues or self._registry.queues)
        if not weights:
            raise ValueError("a worker needs a queue: name one, or give the task one")
        self._way = Connector(url, options)
        self._slots = concurrency
        self._grace_s = grace
        total = sum(weights.values())
        self._feeds = [
            self._feed(queue, 0 if len(weights) == 1 else ceil(concurrency * weight / total))
            for queue, weight in weights.items()
        ]
        self._choice = WeightedQueues({feed: weights[feed.queue] for feed in self._feeds})
        self._name, self._wall, self._keeps_history = name, wall, history
        self._history: History | None = None
        self._log_done, self._on_end = log_done, on_end
        self._stack = AsyncExitStack()
        self._running: dict[LeasedJob, None] = {}
        self._draining = anyio.Event()
        self._changed = anyio.Event()
        self._grace = anyio.CancelScope()
        self._taken: TaskPool | None = None

    @property
    def queues(self) -> list[str]:
        """The names of the queues."""
        return [feed.queue for feed in self._feeds]

    @property
    def oldest_s(self) -> float:
        """For how many seconds the job that runs longest has been here; 0: none runs."""
        now = self._now()
        return max((now - held.taken_at for held in self._running), default=0.0)

    @property
    def subscriptions(self) -> Sequence[QueueSubscription]:
        """The connections, one for each queue."""
        return self._feeds

    def drain(self) -> None:
        """Begin no more jobs; `run` returns once those that run have ended, or after `grace`."""
        self._draining.set()
        self._changed.set()

    def stop(self) -> None:
        """The same, without waiting for anybody: handlers are cancelled, their jobs given back."""
        self._grace.cancel()
        self.drain()

    async def __aenter__(self) -> Self:
        self._now = self._way.now()
        if self._keeps_history:
            around = current_environment()
            self._history = History(self._wall or around.wall, self._name or around.name())
        self._leases = Leases(self._now)
        await self._stack.__aenter__()
        try:
            for feed in self._feeds:
                await self._stack.enter_async_context(feed.joined(self._way))
        except BaseException as exc:
            await self._stack.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def run(self, *, burst: bool = False) -> None:
        """Work until `drain`, or with `burst` until no queue has a job that is due.

        Raises ConnectionLost when a node does not let the worker in again; lost connections are
        mended otherwise. Cancelled, it gives nothing back: the jobs come again once it has left.
        """
        with single_errors():
            await self._run(burst)

    async def _run(self, burst: bool) -> None:
        async with anyio.create_task_group() as around:
            mailboxes = ResultMailboxes(self._way, around, self._now)
            rng, log_done = self._way.rng, self._log_done
            self._settler = JobCompletion(
                self._leases, mailboxes, self._history, rng, self._now, self._ended, log_done
            )
            self._threads = anyio.CapacityLimiter(self._slots)
            self._around = around
            around.start_soon(self._leases.run)
            if self._history is not None:
                around.start_soon(self._history.run, self._streams)
            await self._work(around, burst)
            for feed in self._feeds:
                await self._leave(feed)
            around.cancel_scope.cancel()

    async def _work(self, around: TaskGroup, burst: bool) -> None:
        async with anyio.create_task_group() as jobs:
            self._taken = TaskPool(jobs, self._begin)
            for feed in self._feeds:
                around.start_soon(self._receive, feed)
            if burst:
                await self._until_empty()
            else:
                await self._draining.wait()
            self._draining.set()
            self._leases.end()
            for feed in self._feeds:
                around.start_soon(self._give_back, feed)
            with self._grace:
                self._grace.deadline = anyio.current_time() + self._grace_s
                await self._until_idle()
            for held in list(self._running):
                held.give_up()
            self._taken.close()

    async def _receive(self, feed: QueueSubscription) -> None:
        try:
            await feed.receive()
        except ChannelClosed:
            if not self._draining.is_set():
                raise

    async def _give_back(self, feed: QueueSubscription) -> None:
        while feed.waiting:
            await self._settler.give_back(feed.waiting.popleft())

    async def _until_idle(self) -> None:
        """Leave each queue once nothing of it runs here: what waits here is for others."""
        left: set[QueueSubscription] = set()
        while True:
            for feed in self._feeds:
                if not feed.running and feed not in left:
                    left.add(feed)
                    self._around.start_soon(self._leave, feed)
            if not self._running:
                return
            await self._next_change()

    async def _until_empty(self) -> None:
        looks = 0
        while not self._draining.is_set() and looks < LOOKS_MAX:
            if self._running or any(feed.waiting for feed in self._feeds):
                looks = 0
                await self._next_change()
                continue
            changed = self._changed = anyio.Event()
            are_empty = await self._are_empty()
            with anyio.move_on_after(LOOK_S):  # what is on its way here counts as well
                await changed.wait()
            if are_empty and not changed.is_set():
                return
            # While the node is away it gives jobs to nobody.
            looks += all(feed.channel.connected for feed in self._feeds)
        if looks == LOOKS_MAX:
            log.warning("jobs are ready that the node does not give to this worker")

    async def _are_empty(self) -> bool:
        """Is no job ready, in any queue? Asked for a second at most."""
        with anyio.move_on_after(ASK_S):
            return all([await is_empty(feed.channel) for feed in self._feeds])
        return False

    async def _next_change(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()

    async def _leave(self, feed: QueueSubscription) -> None:
        """Have said what there is to say, and go."""
        with suppress(RequestError, ConnectionLost, ChannelClosed), anyio.move_on_after(ASK_S):
            await queue_counts(feed.channel, stop=True)  # by then it is here what was pushed
            await feed.take_rest()
        with anyio.move_on_after(LEAVE_S):  # what was not begun is given back by leaving as well
            await self._give_back(feed)
        if self._history is not None:
            with anyio.move_on_after(LEAVE_S):
                await self._history.flush(self._streams)
        await feed.leave()

    def _feed(self, queue: str, spare: int) -> QueueSubscription:
        slots = self._slots
        return QueueSubscription(
            queue, slots=slots, spare=spare, on_message=self._arrived, on_lost=self._lost
        )

    def _arrived(self, feed: QueueSubscription, message: Message) -> None:
        body = decode_job(message.data)
        task = self._registry.task_for(feed.queue, body)
        held = LeasedJob(message, body, feed, task, self._now())
        self._leases.add(held)
        feed.waiting.append(held)
        self._changed.set()
        if self._draining.is_set():
            self._around.start_soon(self._give_back, feed)
        else:
            self._fill()

    def _lost(self, feed: QueueSubscription) -> None:
        self._leases.lose(feed)
        self._changed.set()

    def _fill(self) -> None:
        """Begin what there is room for."""
        while self._taken is not None and not self._draining.is_set():
            if len(self._running) >= self._slots:
                return
            ready = [feed for feed in self._feeds if feed.waiting]
            feed = self._choice.next(ready) if ready else None
            if feed is None:
                return
            held = feed.waiting.popleft()
            if held.is_lost:
                continue
            self._running[held] = None
            self.stats.running += 1
            feed.begin(held)
            self._taken.begin(held)
            if feed.is_short:
                self._around.start_soon(self._widen, feed)

    async def _begin(self, held: LeasedJob) -> bool:
        """True: all was as always, and nothing is left of it in this task."""
        held.feed.tell()
        return await self._run_job(held)

    async def _widen(self, feed: QueueSubscription) -> None:
        try:
            await feed.widen()
        except ChannelClosed:
            if not self._draining.is_set():
                raise

    async def _run_job(self, held: LeasedJob) -> bool:
        began_at = self._now()
        is_done = False
        self._leases.began(held)
        try:
            report = partial(self._settler.report, held)
            outcome = await run_handler(held, self._now, report, self._threads)
            await self._settler.settle(held, outcome, began_at)
            is_done = isinstance(outcome, Done)
        except Exception as exc:  # whatever it is, one job never ends its worker
            await self._settler.cannot_settle(held, exc, began_at)
        finally:
            self._leases.ended(held)
            del self._running[held]
            held.feed.running -= 1
            self.stats.running -= 1
            self._changed.set()
            self._fill()
        return is_done

    def _ended(self, ended: AttemptResult) -> None:
        self.stats.count(ended.what)
        if self._on_end is not None:
            self._on_end(ended)

    def _streams(self, queue: str) -> Streams:
        return next(feed for feed in self._feeds if feed.queue == queue).channel.streams
