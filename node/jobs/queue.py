"""A producer's view of a queue: put jobs, wait for results, look at jobs, retry and cancel them.

`async with Queue("tcp://127.0.0.1:7400", "mail") as queue: await queue.put({"to": "alice"})`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import KeyReused, OutcomeUnknown
from millpond.node.client.channel import Channel
from millpond.node.client.errors import ChannelClosed
from millpond.node.client.idempotency import KEYS
from millpond.node.client.retry import TEMPORARY, RetryBudget
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.node.jobs.connector import ConnectionOptions, Connector
from millpond.node.jobs.handle import Handle, PendingResult
from millpond.node.jobs.history import HistoryEntry, entries_of
from millpond.node.jobs.payload import (
    MAILBOX_BYTES,
    Headers,
    JobMessage,
    ReplyTo,
    channel_of,
    decode_job,
    encode_job,
)
from millpond.node.jobs.requests import (
    PAGE,
    JobInfo,
    JobState,
    Operation,
    QueueCounts,
    ask,
    job_info,
    queue_counts,
)
from millpond.node.jobs.result_watch import ResultWatch
from millpond.node.jobs.results import ResultMailboxes, decode_update, mailbox_name

UNIQUE_BYTES_MAX = 64
DEAD_IDS_MAX = 1000
MAILBOX_WINDOW = 256
AGAIN_S = 0.2

Due = datetime | float


class Queue:
    """A queue of a node, by name; use it with `async with`. Tasks may share it.

    Options as those of `node.connect`. What it asks raises RequestErrors, ConnectionLost and
    ChannelClosed; ValueError and TypeError for arguments.
    """

    name: str

    def __init__(
        self,
        url: str,
        name: str,
        *,
        wall: Callable[[], float] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self.name = name
        self._channel_name = channel_of(name)
        self._way = Connector(url, options)
        self._given_wall = wall
        self._wall: Callable[[], float]
        self._mailbox = b""
        self._waits: WeakValueDictionary[int, PendingResult] = WeakValueDictionary()
        """As long as somebody has the handle."""
        self._waited = 0
        self._joining = anyio.Lock()
        self._has_mailbox = False
        self._stack = AsyncExitStack()
        self._channel: Channel | None = None
        self._tasks: TaskGroup
        self._lookout: ResultWatch

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    async def __aenter__(self) -> Self:
        self._wall = self._given_wall or current_environment().wall
        self._mailbox = self._mailbox or self._way.entropy(MAILBOX_BYTES)
        await self._stack.__aenter__()
        try:
            self._stack.enter_context(single_errors())
            joined = self._way.join(self._channel_name, "producer", mode="queue")
            self._channel = await self._stack.enter_async_context(joined)
            self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
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
        self._tasks.cancel_scope.cancel()
        await self._stack.__aexit__(kind, error, trace)

    @property
    def channel(self) -> Channel:
        """The queue as a channel; what is put there without a name is a job as well."""
        if self._channel is None:
            raise ValueError("the queue is not open: use `async with`")
        return self._channel

    async def put(
        self,
        payload: Any = None,
        *,
        name: str | None = None,
        ttl: int = 0,
        due: Due | None = None,
        unique: str | bytes | None = None,
        attempts: int | None = None,
        headers: Headers | None = None,
        wait: bool = False,
        retry_for: float = 0.0,
    ) -> Handle:
        """Put a job; it is kept when this returns, as durably as the node promises.

        `name` of the task. `due`: not before this moment, or in so many seconds. `unique`: while a
        job of the same `unique` is in the queue, this one is that one, and is not put. `ttl`: it is
        gone so many seconds after it is due (0: the channel's default). `attempts`: instead of the
        task's. `wait`: a result is asked for. `retry_for` as in `Channel.put`.
        """
        mark = unique.encode() if isinstance(unique, str) else unique
        if mark is not None and not 0 < len(mark) <= UNIQUE_BYTES_MAX:
            raise ValueError(f"unique has 1 to {UNIQUE_BYTES_MAX} bytes, not {len(mark)}")
        if wait and mark is not None:
            raise ValueError("the result of a unique job is for who put it first: leave wait out")
        channel = self.channel
        number, waiting = (await self._wait()) if wait else (0, None)
        waiter = ReplyTo(self._mailbox, number) if wait else None
        enqueued_ms = round(self._wall() * 1000)
        try:
            body = encode_job(
                JobMessage(payload, name, waiter, attempts, headers or {}, enqueued_ms)
            )
            # Nobody is pushed what was put under its own identity, but who puts jobs may work, too.
            if due is None and mark is None and not self._way.has_identity:
                receipt = await channel.put(body, ttl=ttl, retry_for=retry_for)
                handle = Handle(receipt.id, receipt.ttl, False, waiting)
            else:
                asked = self._asked(body, ttl, due, mark)
                handle = await self._put_with(asked, retry_for, waiting)
        except BaseException:
            self._waits.pop(number, None)
            raise
        if waiting is not None:
            due_s = max(0.0, self._due_ms(due) / 1000 - self._wall())
            self._lookout.watch(waiting, handle.id, due_s)
        return handle

    async def jobs(self, *states: JobState) -> AsyncIterator[JobInfo]:
        """The jobs that are there, in the order of their ids; of all states if none is named."""
        for state in states or (None,):
            after, more = 0, True
            while more:
                asked = {"after": after, "limit": PAGE}
                if state is not None:
                    asked["state"] = state  # type: ignore[assignment]
                answer = await ask(self.channel, Operation.LIST, **asked)
                rows = [job_info(fields) for fields in answer["jobs"]]
                for row in rows:
                    yield row
                more = bool(answer["more"]) and bool(rows)
                after = rows[-1].id if rows else after

    async def show(self, job: int) -> JobInfo:
        """One job with all its data. Raises NotFound."""
        return job_info(await ask(self.channel, Operation.SHOW, id=job))

    def history(self, job: int) -> AsyncIterator[HistoryEntry]:
        """What workers told of a job, oldest first. Needs the right to administer the node."""
        return entries_of(self.channel.streams, self.name, job)

    async def retry(self, job: int) -> None:
        """A job that rests, or is due later, is due now. Raises NotFound."""
        await ask(self.channel, Operation.RETRY, id=job)

    async def cancel(self, job: int) -> None:
        """The job is gone; who works on it loses the lease, who waits for it is told.

        Raises NotFound.
        """
        waiter = decode_job((await self.show(job)).data or b"").reply_to
        await ask(self.channel, Operation.CANCEL, id=job)
        if waiter is not None:
            async with anyio.create_task_group() as tasks:
                mailboxes = ResultMailboxes(self._way, tasks, self._way.now())
                await mailboxes.tell(self.name, waiter, "cancelled")
                await mailboxes.aclose()

    async def retry_dead(self, ids: Sequence[int] | None = None) -> int:
        """Put dead letters back, all if `ids` is None, with new ids and attempts; how many."""
        return await self._dead(Operation.DEAD_RETRY, ids)

    async def purge_dead(self, ids: Sequence[int] | None = None) -> int:
        """Forget dead letters, all if `ids` is None; how many."""
        return await self._dead(Operation.DEAD_PURGE, ids)

    async def counts(self) -> QueueCounts:
        """How many jobs are in each state, and how many workers there are."""
        return await queue_counts(self.channel)

    def _asked(self, body: bytes, ttl: int, due: Due | None, mark: bytes | None) -> dict[str, Any]:
        asked: dict[str, Any] = {"key": self._way.rng.randrange(KEYS), "ttl": ttl, "data": body}
        if due_ms := self._due_ms(due):
            asked["due"] = due_ms
        if mark is not None:
            asked["unique"] = mark
        return asked

    async def _put_with(
        self, asked: dict[str, Any], retry_for: float, waiting: PendingResult | None
    ) -> Handle:
        """By the request that knows `due` and `unique`; one key, however often it is asked."""
        budget = RetryBudget(retry_for, self._way.rng, self._way.now())
        while True:
            try:
                answer = await ask(self.channel, Operation.PUT, **asked)
            except KeyReused:  # somebody else's, by chance: nothing was stored
                asked["key"] = self._way.rng.randrange(KEYS)
                continue
            except OutcomeUnknown:
                await anyio.sleep(self._way.rng.uniform(0.0, AGAIN_S))
                continue
            except TEMPORARY as error:
                await budget.wait(error)
                continue
            return Handle(answer["id"], answer["ttl"], bool(answer["existing"]), waiting)

    def _due_ms(self, due: Due | None) -> int:
        match due:
            case None:
                return 0
            case datetime():
                at = due.timestamp()
            case _:
                at = self._wall() + due
        return max(0, round(at * 1000))

    async def _dead(self, operation: Operation, ids: Sequence[int] | None) -> int:
        count = 0
        if ids is None:
            more = True
            while more:
                answer = await ask(self.channel, operation, all=True)
                count += int(answer["count"])
                more = bool(answer["more"]) and answer["count"] > 0
            return count
        for start in range(0, len(ids), DEAD_IDS_MAX):
            part = list(ids[start : start + DEAD_IDS_MAX])
            count += int((await ask(self.channel, operation, ids=part))["count"])
        return count

    async def _wait(self) -> tuple[int, PendingResult]:
        """A number of our mailbox, which is open when this returns."""
        async with self._joining:
            if not self._has_mailbox:
                self._lookout = ResultWatch(self._waits, self._way.now())
                await self._tasks.start(self._collect)
                self._tasks.start_soon(self._lookout.run, self.channel)
                self._has_mailbox = True
        self._waited += 1
        wait = self._waits[self._waited] = PendingResult()
        return self._waited, wait

    async def _collect(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take what comes to our mailbox, until the queue is closed."""
        name = mailbox_name(self.name, self._mailbox)
        try:
            async with self._way.join(name, "consumer", window=MAILBOX_WINDOW) as channel:
                task_status.started()
                async for message in channel:
                    self._hear(message.data)
                    await message.ack()
        finally:
            for wait in list(self._waits.values()):
                wait.fail(ChannelClosed("the queue was closed before there was a result"))

    def _hear(self, data: bytes) -> None:
        news = decode_update(data)
        if news is None or (wait := self._waits.get(news.number)) is None:
            return
        wait.hear(news)
        if wait.answer.done:
            self._waits.pop(news.number, None)
