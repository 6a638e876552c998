"""A worker: takes jobs of one or several queues, runs their handlers, and renews the leases.

`async with Worker("tcp://127.0.0.1:7400", [send], concurrency=8) as worker: await worker.run()`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from math import ceil
from types import TracebackType
from typing import Self, Unpack, assert_never

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import RequestError
from millpond.node.client.channel import Message, settle_untraced
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.streams.streams import Streams
from millpond.node.client.tracing import Tracing, hook
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.node.jobs.connector import ConnectionOptions, Connector
from millpond.node.jobs.errors import HandlersHang
from millpond.node.jobs.history import History
from millpond.node.jobs.payload import JobMessage, decode_job, encode_job
from millpond.node.jobs.requests import Operation, ask, is_empty, queue_counts
from millpond.node.jobs.results import ResultMailboxes
from millpond.node.jobs.schedules import schedule_name
from millpond.node.jobs.task import LEASE_S, TaskRegistry, Work
from millpond.node.jobs.worker.batches import Batches
from millpond.node.jobs.worker.cancellation import scope_type
from millpond.node.jobs.worker.completion import JobCompletion
from millpond.node.jobs.worker.executor import (
    LoopThread,
    Middleware,
    WorkerContext,
    run_handler,
)
from millpond.node.jobs.worker.handler_threads import HandlerThreads
from millpond.node.jobs.worker.leases import Leases
from millpond.node.jobs.worker.outcome import (
    AttemptResult,
    Done,
    Failed,
    Outcome,
    Rejected,
    Stopped,
    WorkerStats,
    error_text,
    utf8_text,
)
from millpond.node.jobs.worker.progress import ProgressReports
from millpond.node.jobs.worker.subscription import LeasedJob, QueueSubscription
from millpond.node.jobs.worker.task_pool import TaskPool
from millpond.node.jobs.worker.weighted_queues import WeightedQueues, parse_queues
from millpond.transports.p2p.handshake import NAME_BYTES_MAX

CONCURRENCY = 8
CONCURRENCY_MAX = 10_000
GRACE_S = 30.0
CLOSE_TIMEOUT_S = 5.0
COUNT_TIMEOUT_S = 1.0
IDLE_S = 0.2
"""The time for which a queue has to stay empty to count as empty."""
IDLE_CHECKS_MAX = 25
"""The checks in a row that may find ready jobs that do not come: other workers get them."""

WORDS: dict[type[Outcome], str] = {
    Done: "ack",
    Failed: "nack",
    Rejected: "reject",
    Stopped: "return",
}
"""The spans in which the node is told of an attempt."""

log = logging.getLogger("millpond.node.jobs")


class Worker:
    """Connect with `async with`, then `run`. See docs/guides/jobs.md.

    `work`: one handler, or tasks. `queues`: names, or `NAME=WEIGHT`; by default those of the tasks.
    `name` is shown in lists of workers and in the history, by default host and process. `lease` is
    for a handler that is no task. `grace`: running handlers have so many seconds to end
    when the worker drains. `on_end` is called with the result of each attempt. `log_done`: the
    history has successes as well. Each of `middleware` is called around each handler, the first
    outermost, with the job and what is inside. `lifespan` is entered once, before the first job,
    and left behind the last one; jobs have its value as `state`. Other options as those of
    `connect`.

    Raises ValueError and TypeError for arguments.
    """

    def __init__(
        self,
        url: str,
        work: Work,
        *,
        queues: Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        lease: float = LEASE_S,
        grace: float = GRACE_S,
        name: str | None = None,
        history: bool = True,
        log_done: bool = False,
        on_end: Callable[[AttemptResult], None] | None = None,
        middleware: Sequence[Middleware] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        wall: Callable[[], float] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency must be within 1..{CONCURRENCY_MAX}")
        self.stats = WorkerStats()
        self._tasks = TaskRegistry(work, lease)
        weights = parse_queues(queues or self._tasks.queues)
        if not weights:
            raise ValueError("a worker needs a queue: name one, or give the task one")
        self._connector = Connector(url, options)
        self._slots = concurrency
        self._grace_s = grace
        for queue in weights:
            self._tasks.limits_of(queue, is_only=len(weights) == 1)
        total = sum(weights.values())
        self._subscriptions = [
            self._subscription(
                queue, 0 if len(weights) == 1 else ceil(concurrency * weight / total)
            )
            for queue, weight in weights.items()
        ]
        self._weighted = WeightedQueues({each: weights[each.queue] for each in self._subscriptions})
        self._name, self._wall, self._keeps_history = name, wall, history
        self._history: History | None = None
        self._log_done, self._on_end = log_done, on_end
        self._middleware, self._lifespan = tuple(middleware), lifespan or nullcontext
        self._stack = AsyncExitStack()
        self._running: dict[LeasedJob, None] = {}
        self._draining = anyio.Event()
        self._is_draining = False
        self._changed: anyio.Event | None = None
        """Set by the next change, where something waits for one."""
        self._grace = anyio.CancelScope()
        self._pool: TaskPool | None = None

    @property
    def queues(self) -> list[str]:
        """The names of the queues."""
        return [each.queue for each in self._subscriptions]

    @property
    def oldest_s(self) -> float:
        """Seconds since the longest running job was pushed; 0 if none runs."""
        now = self._now()
        return max((now - leased.taken_at for leased in self._running), default=0.0)

    @property
    def subscriptions(self) -> Sequence[QueueSubscription]:
        """The connections, one for each queue."""
        return self._subscriptions

    def drain(self) -> None:
        """Start no more jobs; `run` returns once the running ones have ended, or after `grace`."""
        self._set_draining()
        self._tell_change()

    def stop(self) -> None:
        """Drain without waiting: handlers are cancelled, and their jobs returned."""
        self._grace.cancel()
        self.drain()

    async def __aenter__(self) -> Self:
        self._now = self._connector.now()
        environment = current_environment()
        name = self._name or environment.name()
        if self._keeps_history:
            self._history = History(self._wall or environment.wall, name)
        shown = _shown_name(name)
        self._leases = Leases(self._now)
        await self._stack.__aenter__()
        try:
            for subscription in self._subscriptions:
                await self._stack.enter_async_context(subscription.open(self._connector, shown))
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

        Raises ConnectionLost when the node refuses the worker for good; otherwise it reconnects.
        Raises HandlersHang, once it has drained, when a handler in a thread has not ended after
        its time-out: at the first one of a task with `on_hang="kill"`, else when there are as many
        as slots.
        Cancelled, it returns no jobs: the node pushes them again once the worker has left.
        """
        with single_errors():
            async with self._lifespan() as state:
                await self._run(burst, state)

    async def _run(self, burst: bool, state: object) -> None:
        async with anyio.create_task_group() as background:
            mailboxes = ResultMailboxes(self._connector, background, self._now)
            rng, log_done = self._connector.rng, self._log_done
            progress = ProgressReports(self._wall or current_environment().wall)
            self._completion = JobCompletion(
                self._leases,
                mailboxes,
                progress,
                self._history,
                rng,
                self._now,
                self._ended,
                log_done,
            )
            self._threads, self._hang = HandlerThreads(self._slots), ""
            batches = Batches(background, self._slots, self._threads.run)
            loop = LoopThread.current()
            report = self._completion.report
            self._shared = WorkerContext(
                loop, report, self._threads, batches, self._middleware, state, scope_type()
            )
            self._background = background
            background.start_soon(self._leases.run)
            background.start_soon(progress.run)
            if self._history is not None:
                background.start_soon(self._history.run, self._streams)
            for subscription in self._subscriptions:
                await self._put_schedules(subscription)
                await self._set_limits(subscription)
            await self._work(background, burst)
            for subscription in self._subscriptions:
                await self._leave(subscription)
            background.cancel_scope.cancel()
        if self._hang:
            raise HandlersHang(f"{self._hang}; the process is to be replaced")

    async def _put_schedules(self, subscription: QueueSubscription) -> None:
        """Have the node keep the schedules of the tasks. A node that refuses one keeps no worker
        from its jobs."""
        is_only = len(self._subscriptions) == 1
        for task in self._tasks.scheduled(subscription.queue, is_only=is_only):
            assert task.timing is not None
            body = encode_job(JobMessage(None, task.name))
            fields = {"name": schedule_name(task.name), "data": body}
            timing = task.timing.fields()
            try:
                await ask(subscription.channel, Operation.PUT_SCHEDULE, **fields, **timing)
            except RequestError as error:
                queue, name = subscription.queue, task.name
                log.warning("schedule not kept: queue=%s task=%s error=%s", queue, name, error)

    async def _set_limits(self, subscription: QueueSubscription) -> None:
        """Have the node hold to the limits of the tasks. A node that refuses them keeps no worker
        from its jobs."""
        is_only = len(self._subscriptions) == 1
        limits = self._tasks.limits_of(subscription.queue, is_only=is_only)
        if limits is not None:
            try:
                await ask(subscription.channel, Operation.SET_QUEUE, **limits.fields())
            except RequestError as error:
                log.warning("limits not set: queue=%s error=%s", subscription.queue, error)

    async def _work(self, background: TaskGroup, burst: bool) -> None:
        async with anyio.create_task_group() as jobs:
            self._pool = TaskPool(jobs, self._run_job)
            for subscription in self._subscriptions:
                background.start_soon(self._receive, subscription)
            if burst:
                await self._until_empty()
            else:
                await self._draining.wait()
            self._set_draining()
            self._leases.end()
            for subscription in self._subscriptions:
                background.start_soon(self._give_back, subscription)
            with self._grace:
                self._grace.deadline = anyio.current_time() + self._grace_s
                await self._until_idle()
            for leased in list(self._running):
                leased.give_up()
            self._pool.close()

    async def _receive(self, subscription: QueueSubscription) -> None:
        try:
            await subscription.receive()
        except ChannelClosed:
            if not self._is_draining:
                raise

    async def _give_back(self, subscription: QueueSubscription) -> None:
        while subscription.waiting:
            await self._completion.give_back(subscription.waiting.popleft())

    async def _until_idle(self) -> None:
        """Leave each queue once none of its jobs runs here: waiting ones are for other workers."""
        left: set[QueueSubscription] = set()
        while True:
            for subscription in self._subscriptions:
                if not subscription.running and subscription not in left:
                    left.add(subscription)
                    self._background.start_soon(self._leave, subscription)
            if not self._running:
                return
            await self._next_change()

    async def _until_empty(self) -> None:
        checks = 0
        while not self._is_draining and checks < IDLE_CHECKS_MAX:
            if self._running or any(each.waiting for each in self._subscriptions):
                checks = 0
                await self._next_change()
                continue
            changed = self._changed = anyio.Event()
            are_empty = await self._are_empty()
            with anyio.move_on_after(IDLE_S):  # jobs that are on their way count as well
                await changed.wait()
            if are_empty and not changed.is_set():
                return
            # While the node is away it pushes no jobs.
            checks += all(each.channel.connected for each in self._subscriptions)
        if checks == IDLE_CHECKS_MAX:
            log.warning("jobs are ready that the node does not push to this worker")

    async def _are_empty(self) -> bool:
        """Whether no queue has a job that is ready. The nodes have a second to answer."""
        with anyio.move_on_after(COUNT_TIMEOUT_S):
            return all([await is_empty(each.channel) for each in self._subscriptions])
        return False

    def _set_draining(self) -> None:
        self._is_draining = True
        self._draining.set()

    def _tell_change(self) -> None:
        """Jobs came, ended or were lost: wake up what waits for a change, if something does."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _next_change(self) -> None:
        changed = self._changed = anyio.Event()
        await changed.wait()

    async def _leave(self, subscription: QueueSubscription) -> None:
        """Return the jobs that wait, write the history, and leave."""
        with (
            suppress(RequestError, ConnectionLost, ChannelClosed),
            anyio.move_on_after(COUNT_TIMEOUT_S),
        ):
            await queue_counts(subscription.channel, stop=True)  # then all pushed jobs are here
            await subscription.take_pushed()
        with anyio.move_on_after(CLOSE_TIMEOUT_S):  # leaving returns them as well
            await self._give_back(subscription)
        if self._history is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT_S):
                await self._history.flush(self._streams)
        await subscription.leave()

    def _subscription(self, queue: str, spare: int) -> QueueSubscription:
        slots = self._slots
        return QueueSubscription(
            queue,
            slots=slots,
            spare=spare,
            on_message=self._pushed,
            on_lost=self._lost,
            on_taken=self._taken,
        )

    def _pushed(self, subscription: QueueSubscription, message: Message) -> None:
        body = decode_job(message.data)
        task = self._tasks.task_for(subscription.queue, body)
        leased = LeasedJob(message, body, subscription, task, self._now())
        self._leases.add(leased)
        subscription.waiting.append(leased)
        if self._changed is not None:
            self._tell_change()
        if self._is_draining:
            self._background.start_soon(self._give_back, subscription)
        else:
            self._fill()

    def _lost(self, subscription: QueueSubscription) -> None:
        self._leases.lose(subscription)
        self._tell_change()

    def _taken(self, subscription: QueueSubscription, message_id: int) -> None:
        self._leases.taken(subscription, message_id)
        self._tell_change()

    def _fill(self) -> None:
        """Start jobs while there are free slots."""
        if self._pool is None or self._is_draining:
            return
        while len(self._running) < self._slots:
            subscription = self._next_subscription()
            if subscription is None:
                return
            leased = subscription.waiting.popleft()
            if leased.is_lost:
                continue
            self._running[leased] = None
            self.stats.running += 1
            subscription.started(leased)
            self._pool.start(leased)
            if subscription.is_short:
                self._background.start_soon(self._widen, subscription)

    def _next_subscription(self) -> QueueSubscription | None:
        """That of the queue whose turn it is; None where no job waits."""
        subscriptions = self._subscriptions
        if len(subscriptions) == 1:
            return subscriptions[0] if subscriptions[0].waiting else None
        return self._weighted.next([each for each in subscriptions if each.waiting])

    async def _widen(self, subscription: QueueSubscription) -> None:
        try:
            await subscription.widen()
        except ChannelClosed:
            if not self._is_draining:
                raise

    async def _run_job(self, leased: LeasedJob) -> bool:
        """Run a job. True: its handler left nothing behind in this task."""
        subscription = leased.subscription
        if subscription.has_unreported:
            subscription.report_starts()
        began_at = self._now()
        is_done = False
        self._leases.started(leased)
        try:
            if hook.active is None:
                outcome = await run_handler(leased, self._now, self._shared)
                is_done = isinstance(outcome, Done)
                if not (is_done and self._completion.acknowledge(leased, began_at)):
                    await self._completion.complete(leased, outcome, began_at)
            else:
                outcome = await self._traced_attempt(hook.active, leased, began_at)
                is_done = isinstance(outcome, Done)
            if leased.thread is not None:
                self._check_threads(leased)
        except Exception as exc:  # no error of one job ends its worker
            await self._completion.fail(leased, exc, began_at)
        finally:
            self._leases.ended(leased)
            del self._running[leased]
            subscription.running -= 1
            self.stats.running -= 1
            if self._changed is not None:
                self._tell_change()
            if subscription.waiting or len(self._subscriptions) > 1:
                self._fill()
        return is_done

    def _check_threads(self, leased: LeasedJob) -> None:
        """Handlers that hang have their threads to themselves: the worker ends before there are
        more of them than slots, or at the first one where its task wants that."""
        if self._is_draining:
            return
        if leased.is_hung:
            job = f"job {leased.message.id} of {leased.subscription.queue}"
            self._hang = f"the handler of {job} did not end after its time-out"
            log.error("a handler does not end after its time-out: task=%s", leased.task.name)
            self.drain()
        elif self._threads.left_behind >= self._slots:
            self._hang = f"{self._slots} handlers did not end after their time-out"
            log.error("handlers do not end after their time-out: threads=%d", self._slots)
            self.drain()

    async def _traced_attempt(
        self, tracing: Tracing, leased: LeasedJob, began_at: float
    ) -> Outcome:
        """An attempt in a span of the trace that put the job. The handler's spans are below it, and
        that of the word to the node."""
        message, content = leased.message, leased.content
        name, task = leased.subscription.name, content.name or ""
        with tracing.process(name, message.id, content.headers, task, message.attempt) as span:
            outcome = await run_handler(leased, self._now, self._shared)
            match outcome:
                case Failed(error=error):
                    span.failed(error, error_text(error))
                case Rejected(reason=reason):
                    span.failed(None, reason)
                case Done() | Stopped():
                    pass
                case _:
                    assert_never(outcome)
            settle_untraced(message)
            with tracing.settle(name, message.id, WORDS[type(outcome)]):
                await self._completion.complete(leased, outcome, began_at)
        return outcome

    def _ended(self, ended: AttemptResult) -> None:
        self.stats.ended(ended)
        if self._on_end is not None:
            self._on_end(ended)

    def _streams(self, queue: str) -> Streams:
        return next(each for each in self._subscriptions if each.queue == queue).channel.streams


def _shown_name(name: str) -> str:
    """The beginning of a worker's name that fits the handshake."""
    return utf8_text(name).encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")
