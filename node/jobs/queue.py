"""A job queue for producers: put jobs, wait for results, list, retry and cancel jobs.

`async with Queue("tcp://127.0.0.1:7400", "mail") as queue: await queue.put({"to": "alice"})`
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack
from weakref import WeakValueDictionary

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import (
    KeyReused,
    LeaseLost,
    NotAllowed,
    NotAQueue,
    NotFound,
    NotNegotiated,
    OutcomeUnknown,
    RequestError,
)
from millpond.actors.jobs.options import PRIORITY
from millpond.node.client.channel import Channel, link_of, put_untraced
from millpond.node.client.errors import ClientClosed
from millpond.node.client.idempotency import KEYS
from millpond.node.client.openable import Openable
from millpond.node.client.retry import TEMPORARY, RetryBudget
from millpond.node.client.tracing import hook
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.node.jobs.bulk import encoded, send
from millpond.node.jobs.connector import ConnectionOptions, Connector
from millpond.node.jobs.errors import JobCancelled, JobFailed, seconds_of
from millpond.node.jobs.flow import (
    KEEP_S,
    FlowInfo,
    FlowSummary,
    Step,
    flow_fields,
    flow_info,
    flow_results,
    flow_summary,
)
from millpond.node.jobs.handle import Handle, PendingResult
from millpond.node.jobs.history import HistoryEntry, entries_of, expiry_entry
from millpond.node.jobs.limits import Limits, QueueState, queue_state
from millpond.node.jobs.payload import (
    MAILBOX_BYTES,
    Headers,
    JobMessage,
    ReplyTo,
    channel_of,
    decode_job,
    decode_update,
    encode_job,
    mailbox_name,
)
from millpond.node.jobs.records import FoundRecord, JobProgress, found_record, kept_seconds
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
from millpond.node.jobs.results import ResultMailboxes
from millpond.node.jobs.schedules import (
    Missed,
    ScheduleInfo,
    Timing,
    When,
    moment,
    schedule_info,
    schedule_name,
)
from millpond.node.jobs.selection import JobFilter, WorkerInfo, move_key

UNIQUE_BYTES_MAX = 64
DEAD_IDS_MAX = 1000
MAILBOX_WINDOW = 256
RETRY_S = 0.2
RETRY_FLOW_S = 10.0
"""For so long a retry waits for the cancellation of the same flow."""
FLOW_KEYS = 2**53
FIRST_ASK_S, ASK_S_MAX = 0.02, 1.0
"""Delays between two questions for a result."""

Due = datetime | float


class Queue(Openable):
    """A queue of a node, by name. Tasks may share it.

    It is open within `async with`, or from `open` to `close`; then methods raise ClientClosed.

    Options as those of `connect`. Methods raise RequestErrors, ConnectionLost and ClientClosed;
    ValueError and TypeError for arguments.
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
        self._connector = Connector(url, options)
        self._given_wall = wall
        self._wall: Callable[[], float]
        self._mailbox = b""
        self._pending: WeakValueDictionary[int, PendingResult] = WeakValueDictionary()
        """By number, as long as the handle is alive."""
        self._numbers = 0
        self._opening, self._bulk = anyio.Lock(), anyio.Lock()
        self._has_mailbox = False
        self._stack = AsyncExitStack()
        self._channel: Channel | None = None
        self._tasks: TaskGroup
        self._watch: ResultWatch

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    async def __aenter__(self) -> Self:
        self._wall = self._given_wall or current_environment().wall
        self._mailbox = self._connector.entropy(MAILBOX_BYTES)
        self._opening, self._bulk = anyio.Lock(), anyio.Lock()
        self._has_mailbox = False
        self._stack = AsyncExitStack()
        await self._stack.__aenter__()
        try:
            self._stack.enter_context(single_errors())
            joined = self._connector.join(self._channel_name, "producer", mode="queue")
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

    async def _end(self) -> None:
        await self.channel.close()

    @property
    def channel(self) -> Channel:
        """The channel of the queue; a message that is put there directly is a job as well."""
        if self._channel is None:
            raise ClientClosed("the queue is not open: use `async with`, or call open()")
        return self._channel

    async def put(
        self,
        payload: object = None,
        *,
        name: str | None = None,
        ttl: int = 0,
        due: Due | None = None,
        unique: str | bytes | None = None,
        attempts: int | None = None,
        headers: Headers | None = None,
        priority: int = PRIORITY,
        limit_key: str | bytes = b"",
        start_within: float | None = None,
        wait: bool = False,
        keep: int | None = None,
        retry_for: float = 0.0,
    ) -> Handle:
        """Put a job; it is kept when this returns, as durably as the node promises.

        `name` of the task. `due`: not before this moment, or in so many seconds. `unique`: while
        the queue has a job of this unique key, no other one is put, and the handle is that of the
        first. `ttl`: the job becomes a dead letter with the reason `expired` so many seconds after
        it is due (0: as the channel's rule says, else never). `attempts`: instead of the task's.
        `priority` from 0 to 9: higher ones start first. `limit_key`, up to 64 bytes: limits of keys
        hold for all jobs with this one. `start_within`: a job that has not started so many seconds
        after it is due is a dead letter with the reason `not started`. `wait`: the handle gets a
        result. `keep`: the node keeps the result for so many seconds, for `result` (None: as the
        task says). `retry_for` as in `Channel.put`.
        """
        unique_key = unique.encode() if isinstance(unique, str) else unique
        if unique_key is not None and not 0 < len(unique_key) <= UNIQUE_BYTES_MAX:
            raise ValueError(f"unique has 1 to {UNIQUE_BYTES_MAX} bytes, not {len(unique_key)}")
        if wait and unique_key is not None:
            raise ValueError("a unique job's result goes to its first producer: leave out wait")
        self.channel  # noqa: B018  raises where the queue is not open
        number, pending = (await self._new_pending()) if wait else (0, None)
        reply_to = ReplyTo(self._mailbox, number) if wait else None
        options = name, attempts, headers, priority, limit_key, due, start_within, keep
        body = self._message(payload, reply_to, *options)
        how = ttl, due, unique_key, retry_for, pending
        try:
            if hook.active is None:
                handle = await self._put(body, *how)
            else:
                with hook.active.send(self._channel_name, 1, len(encode_job(body))) as span:
                    traced = {**span.carrier, **body.headers}
                    handle = await self._put(msgspec.structs.replace(body, headers=traced), *how)
                    span.sent(handle.id)
        except BaseException:
            self._pending.pop(number, None)
            raise
        if pending is not None:
            due_s = max(0.0, self._due_ms(due) / 1000 - self._wall())
            self._watch.watch(pending, handle.id, due_s)
        return handle

    async def _put(
        self,
        body: JobMessage,
        ttl: int,
        due: Due | None,
        unique_key: bytes | None,
        retry_for: float,
        pending: PendingResult | None,
    ) -> Handle:
        data = encode_job(body)
        # A PUT is not pushed to the identity that put it; a producer may run a worker, too.
        if due is None and unique_key is None and not self._connector.has_identity:
            receipt = await put_untraced(self.channel, data, ttl, retry_for)
            return Handle(receipt.id, receipt.ttl, False, pending)
        fields = self._put_fields(data, ttl, due, unique_key)
        return await self._put_request(fields, retry_for, pending)

    async def put_many(
        self,
        payloads: Iterable[object],
        *,
        name: str | None = None,
        ttl: int = 0,
        due: Due | None = None,
        attempts: int | None = None,
        headers: Headers | None = None,
        priority: int = PRIORITY,
        limit_key: str | bytes = b"",
        start_within: float | None = None,
        keep: int | None = None,
        retry_for: float = 0.0,
    ) -> list[int]:
        """Put a job for each payload, all or none of them, and give their ids in this order.

        They are kept when this returns, as durably as the node promises: after an error or a crash
        none of them is. At most 10,000 jobs of 8 MiB together. Other arguments as in `put`, for all
        of them. Raises ValueError for more, and for what `put` raises it.
        """
        self.channel.connected  # noqa: B018  raises where the queue is not open
        options = name, attempts, headers, priority, limit_key, due, start_within, keep
        body = self._message(None, None, *options)
        if hook.active is None:
            jobs = encoded(payloads, body)
            return await self._put_many(jobs, ttl, due, retry_for) if jobs else []
        some = [*payloads]
        with hook.active.send(self._channel_name, len(some), 0) as span:
            traced = {**span.carrier, **body.headers}
            jobs = encoded(some, msgspec.structs.replace(body, headers=traced))
            ids = await self._put_many(jobs, ttl, due, retry_for) if jobs else []
            if ids:
                span.sent(ids[0])
        return ids

    async def _put_many(
        self, jobs: list[bytes], ttl: int, due: Due | None, retry_for: float
    ) -> list[int]:
        rng = self._connector.rng
        budget = RetryBudget(retry_for, rng, self._connector.now())
        fields = {"key": rng.randrange(KEYS), "ttl": ttl, "due": self._due_ms(due)}
        async with self._bulk:  # the node keeps the parts of few
            while True:
                try:
                    channel = self.channel
                    return await send(channel, link_of(channel).packet_max, jobs, **fields)
                except KeyReused:  # of another client, by chance: nothing was stored
                    fields["key"] = rng.randrange(KEYS)
                except (OutcomeUnknown, NotFound):  # the connection was lost, and its parts with it
                    await anyio.sleep(rng.uniform(0.0, RETRY_S))
                except TEMPORARY as error:
                    await budget.wait(error)

    async def jobs(self, *states: JobState) -> AsyncGenerator[JobInfo]:
        """The jobs of the queue, in the order of their ids; of all states if none is named."""
        for state in states or (None,):
            after, more = 0, True
            while more:
                fields = {"after": after, "limit": PAGE}
                if state is not None:
                    fields["state"] = state  # type: ignore[assignment]
                answer = await ask(self.channel, Operation.LIST, **fields)
                rows = [job_info(fields) for fields in answer["jobs"]]
                for row in rows:
                    yield row
                more = bool(answer["more"]) and bool(rows)
                after = rows[-1].id if rows else after

    async def show(self, job: int) -> JobInfo:
        """One job with all its data. Raises NotFound."""
        return job_info(await ask(self.channel, Operation.SHOW, id=job))

    async def result(self, job: int, timeout: float | None = None) -> object:  # noqa: ASYNC109
        """The result of a job that keeps it (`keep` of the task or the put), once there is one; any
        client with the right `get` may ask.

        Raises JobFailed (a dead letter; with the reason `gone` where the job is not in the queue
        and no result of it is kept), JobCancelled, and TimeoutError after `timeout` seconds.
        """
        delay_s = FIRST_ASK_S
        with anyio.fail_after(timeout):
            while True:
                with suppress(LookupError):
                    return (await self._record(job)).result()
                await anyio.sleep(delay_s)
                delay_s = min(1.5 * delay_s, ASK_S_MAX)

    async def progress(self, job: int) -> JobProgress:
        """The progress of a job and the lines that it logged: of one that runs the latest, half a
        second old at most, of one that ended the last. Raises NotFound."""
        try:
            return (await self._record(job)).progress
        except JobFailed as error:
            raise NotFound(str(error)) from error

    async def _record(self, job: int) -> FoundRecord:
        """Raises JobFailed for a job that is gone."""
        for delay_s in (0.05, 0.5, None):
            try:
                return found_record(await ask(self.channel, Operation.RESULT, id=job))
            except NotFound:
                # Perhaps it is on its way to the dead letters.
                if delay_s is not None:
                    await anyio.sleep(delay_s)
        raise JobFailed("gone", "it is not in the queue, and no result of it is kept")

    async def put_flow(
        self, steps: Step | Sequence[Step], *, keep: int = KEEP_S, retry_for: float = 0.0
    ) -> int:
        """Put a flow: these steps, and all that they wait for; give its number.

        The node keeps it when this returns, and puts the job of each step once those before it
        have ended; also in other queues, where the client may put as well. `keep`: the node keeps
        the flow for so many seconds after it has ended. Raises ValueError for steps that wait for
        one another, and for more than 1,000 of them.
        """
        kept = kept_seconds(keep)
        fields = {"steps": flow_fields(steps, round(self._wall() * 1000)), "keep": kept}
        rng = self._connector.rng
        budget = RetryBudget(retry_for, rng, self._connector.now())
        key = rng.randrange(FLOW_KEYS)
        while True:
            try:
                answer = await ask(self.channel, Operation.PUT_FLOW, key=key, **fields)
                return int(answer["flow"])
            except OutcomeUnknown:
                await anyio.sleep(rng.uniform(0.0, RETRY_S))
            except TEMPORARY as error:
                await budget.wait(error)

    async def flow(self, flow: int) -> FlowInfo:
        """A flow that was put in this queue, with its steps. Raises NotFound."""
        return flow_info(await ask(self.channel, Operation.SHOW_FLOW, id=flow))

    async def flows(self) -> AsyncIterator[FlowSummary]:
        """The flows that were put in this queue, in the order of their numbers."""
        after, more = 0, True
        while more:
            answer = await ask(self.channel, Operation.LIST_FLOWS, after=after, limit=PAGE)
            for fields in answer["flows"]:
                yield flow_summary(fields)
            more = bool(answer["more"]) and bool(answer["flows"])
            after = answer["flows"][-1]["flow"] if answer["flows"] else after

    async def flow_result(
        self,
        flow: int,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> object:
        """The result of the last step of a flow, of several a list, once it has ended.

        Raises JobFailed with the reason of the first step that failed, JobCancelled, NotFound, and
        TimeoutError after `timeout` seconds.
        """
        delay_s = FIRST_ASK_S
        with anyio.fail_after(timeout):
            while True:
                answer = await ask(self.channel, Operation.SHOW_FLOW, id=flow)
                match answer["state"]:
                    case "done":
                        results = flow_results(answer)
                        return results[0] if len(results) == 1 else results
                    case "cancelled":
                        raise JobCancelled("the flow was cancelled")
                    case "failed":
                        failed = [each for each in answer["steps"] if each["state"] == "failed"]
                        reason = failed[0].get("reason", "") if failed else ""
                        raise JobFailed(*(reason.partition(": ")[::2] if reason else ("failed",)))
                    case _:
                        await anyio.sleep(delay_s)
                        delay_s = min(1.5 * delay_s, ASK_S_MAX)

    async def retry_flow(self, flow: int, *, retry_for: float = RETRY_FLOW_S) -> None:
        """Put the failed steps of a flow again; skipped ones wait again. Raises NotFound.

        A flow whose jobs are being cancelled is SlowDown, after the retries of `retry_for`."""
        budget = RetryBudget(retry_for, self._connector.rng, self._connector.now())
        while True:
            try:
                await ask(self.channel, Operation.RETRY_FLOW, id=flow)
                return
            except TEMPORARY as error:
                await budget.wait(error)

    async def cancel_flow(self, flow: int) -> None:
        """Cancel the jobs of a flow, and skip the steps that wait. Raises NotFound."""
        await ask(self.channel, Operation.CANCEL_FLOW, id=flow)

    async def history(self, job: int) -> AsyncIterator[HistoryEntry]:
        """The history of a job, oldest entry first. Needs the right to administer the node."""
        async for entry in entries_of(self.channel.streams, self.name, job):
            yield entry
        with suppress(NotFound, NotAllowed, NotNegotiated, NotAQueue):
            if (last := expiry_entry(await self.show(job))) is not None:
                yield last

    async def retry(self, job: int) -> None:
        """Make a job that is delayed due now. Raises NotFound."""
        await ask(self.channel, Operation.RETRY, id=job)

    async def cancel(self, job: int) -> None:
        """Remove a job: its worker loses the lease, and its producer gets JobCancelled.

        Raises NotFound.
        """
        reply_to = decode_job((await self.show(job)).data or b"").reply_to
        await ask(self.channel, Operation.CANCEL, id=job)
        if reply_to is not None:
            async with anyio.create_task_group() as tasks:
                mailboxes = ResultMailboxes(self._connector, tasks, self._connector.now())
                await mailboxes.send(self.name, reply_to, "cancelled")
                await mailboxes.aclose()

    async def select(self, where: JobFilter, *states: JobState) -> AsyncGenerator[JobInfo]:
        """The jobs that match, with all their data, in the order of their ids; of all states if
        none is named."""
        now_ms = self._wall() * 1000
        async with aclosing(self.jobs(*states)) as rows:
            async for row in rows:
                if where.matches_row(row, now_ms):
                    with suppress(NotFound):  # done meanwhile
                        is_whole = row.data is not None and len(row.data) == row.size
                        job = row if is_whole else await self.show(row.id)
                        if where.matches_data(job):
                            yield job

    async def retry_dead(
        self, ids: Sequence[int] | None = None, *, where: JobFilter | None = None
    ) -> int:
        """Put dead letters back, those of `ids` or all that match `where`, with new ids and
        attempts; their number."""
        return await self._dead_letters(Operation.DEAD_RETRY, ids, where)

    async def purge_dead(
        self, ids: Sequence[int] | None = None, *, where: JobFilter | None = None
    ) -> int:
        """Delete dead letters, those of `ids` or all that match `where`; their number."""
        return await self._dead_letters(Operation.DEAD_PURGE, ids, where)

    async def move(
        self, to: str, ids: Sequence[int] | None = None, *, where: JobFilter | None = None
    ) -> int:
        """Move jobs to another queue, those of `ids` or all waiting ones (ready or delayed) that
        match `where`; their number.

        They keep their data, due times and the rest of their ttl, and get new ids and attempts; a
        unique key ends, and a producer that waits gets no result. Jobs that run stay: a named one
        is LeaseLost. A named job may be a dead letter. Jobs of flows stay as well: a named one is a
        ValueError. After an error or a crash a job may be in both queues; moving it once more puts
        no second one.
        """
        if to == self.name:
            raise ValueError("a queue's jobs do not move to the queue itself")
        async with AsyncExitStack() as stack:
            stack.enter_context(single_errors())
            target = await stack.enter_async_context(
                self._connector.join(channel_of(to), "producer", mode="queue")
            )
            mover = await stack.enter_async_context(
                self._connector.join(
                    self._channel_name, "worker", mode="queue", window=0, begins=True
                )
            )
            count = 0
            if ids is not None:
                for job in ids:
                    await self._move(await self.show(job), mover, target)
                return len(ids)
            waiting = self.select(where or JobFilter(), "ready", "delayed")
            async for row in await stack.enter_async_context(aclosing(waiting)):
                if row.flow:
                    continue
                with suppress(LeaseLost, NotFound):  # a worker was faster
                    await self._move(row, mover, target)
                    count += 1
            return count

    async def _move(self, job: JobInfo, mover: Channel, target: Channel) -> None:
        if job.flow:
            text = f"job {job.id} is step {job.step} of flow {job.flow}"
            raise ValueError(f"{text}, and jobs of flows stay in their queues")
        if job.state not in ("delayed", "dead"):  # no worker gets it meanwhile
            job = job_info(await ask(mover, Operation.TAKE, id=job.id))
        data = await mover.get(job.id) if job.data is None else job.data
        fields: dict[str, Any] = {"key": move_key(self.name, job.id), "data": data}
        if job.state == "delayed":
            fields["due"] = job.due
        if job.expires and job.state != "dead":
            begins_ms = max(job.due, self._wall() * 1000)
            fields["ttl"] = max(1, round((job.expires - begins_ms) / 1000))
        try:
            while True:
                try:
                    put = await ask(target, Operation.PUT, **fields)
                    break
                except KeyReused:  # of another client, by chance: nothing was stored
                    fields["key"] = (fields["key"] + 1) % KEYS
        except RequestError:
            if job.state == "leased":
                await ask(mover, Operation.RETRY, id=job.id)
            raise
        if job.state == "dead":
            await ask(mover, Operation.DEAD_PURGE, ids=[job.id])
            return
        try:
            await ask(mover, Operation.CANCEL, id=job.id)
        except NotFound:
            if job.due <= self._wall() * 1000:  # a worker has done it meanwhile, perhaps
                with suppress(NotFound):
                    await ask(target, Operation.CANCEL, id=put["id"])
            raise  # else another call has moved it: the put was one for both

    async def workers(self) -> AsyncIterator[WorkerInfo]:
        """The connections that take jobs of the queue, with the jobs that they hold."""
        after, more = 0, True
        while more:
            answer = await ask(self.channel, Operation.LIST_WORKERS, after=after, limit=PAGE)
            rows = [msgspec.convert(fields, WorkerInfo) for fields in answer["workers"]]
            for row in rows:
                yield row
            more = bool(answer["more"]) and bool(rows)
            after = rows[-1].connection if rows else after

    async def counts(self) -> QueueCounts:
        """The number of jobs in each state, and of workers."""
        return await queue_counts(self.channel)

    async def state(self) -> QueueState:
        """The settings of the queue."""
        return queue_state(await ask(self.channel, Operation.SHOW_QUEUE))

    async def set_limits(self, limits: Limits) -> QueueState:
        """Limit how many jobs of the queue run at once and how often one starts, of all workers,
        also after a restart of the node; gives all settings. Jobs that a limit holds back wait."""
        return queue_state(await ask(self.channel, Operation.SET_QUEUE, **limits.fields()))

    async def pause(self) -> None:
        """Give workers no jobs until `resume`, also after a restart of the node. Jobs that run go
        on, and so do puts."""
        await ask(self.channel, Operation.SET_QUEUE, paused=True)

    async def resume(self) -> None:
        """Give workers jobs again."""
        await ask(self.channel, Operation.SET_QUEUE, paused=False)

    async def schedule(
        self,
        name: str,
        when: When,
        payload: object = None,
        *,
        tz: str = "UTC",
        missed: Missed = "one",
        task: str | None = None,
        ttl: int = 0,
        attempts: int | None = None,
        headers: Headers | None = None,
        priority: int = PRIORITY,
        limit_key: str | bytes = b"",
    ) -> datetime | None:
        """Have the node put a job at each moment of `when`, once, and give the next moment.

        `when` is a cron expression ("0 7 * * mon-fri"), read in the time zone `tz`, or an interval
        from now on. `missed`: what becomes of moments at which the node was down. `task`: the name
        of the jobs. Other arguments as in `put`. A schedule of this name is changed; it stays
        paused if it is. Raises ValueError.
        """
        key = limit_key.encode() if isinstance(limit_key, str) else limit_key
        body = JobMessage(payload, task, None, attempts, headers or {}, 0, priority, key)
        fields = {"name": schedule_name(name), "ttl": ttl, "data": encode_job(body)}
        timing = Timing(when, tz, missed).fields()
        answer = await ask(self.channel, Operation.PUT_SCHEDULE, **fields, **timing)
        return moment(answer["next"])

    async def schedules(self) -> AsyncIterator[ScheduleInfo]:
        """The schedules of the queue, in the order of their names."""
        after, more = b"", True
        while more:
            answer = await ask(self.channel, Operation.LIST_SCHEDULES, after=after, limit=PAGE)
            for fields in answer["schedules"]:
                yield schedule_info(fields)
            more = bool(answer["more"]) and bool(answer["schedules"])
            after = answer["schedules"][-1]["name"] if answer["schedules"] else after

    async def show_schedule(self, name: str) -> ScheduleInfo:
        """One schedule with all its data. Raises NotFound."""
        wanted = schedule_name(name)
        answer = await ask(self.channel, Operation.LIST_SCHEDULES, name=wanted)
        return schedule_info(answer["schedules"][0])

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its jobs stay. Raises NotFound."""
        await ask(self.channel, Operation.DELETE_SCHEDULE, name=schedule_name(name))

    async def pause_schedule(self, name: str) -> None:
        """Put no jobs until `resume_schedule`. Raises NotFound."""
        await self._pause(name, is_paused=True)

    async def resume_schedule(self, name: str) -> datetime | None:
        """Go on with the next moment, and give it. Raises NotFound."""
        return await self._pause(name, is_paused=False)

    async def _pause(self, name: str, *, is_paused: bool) -> datetime | None:
        fields = {"name": schedule_name(name), "paused": is_paused}
        answer = await ask(self.channel, Operation.PAUSE_SCHEDULE, **fields)
        return moment(answer["next"])

    async def run_schedule(self, name: str, *, retry_for: float = 0.0) -> Handle:
        """Put a job of a schedule now, besides those of its moments. Raises NotFound."""
        key, at_ms = self._connector.rng.randrange(KEYS), round(self._wall() * 1000)
        fields = {"name": schedule_name(name), "key": key, "at": at_ms}
        return await self._put_request(fields, retry_for, None, Operation.RUN_SCHEDULE)

    def _message(
        self,
        payload: object,
        reply_to: ReplyTo | None,
        name: str | None,
        attempts: int | None,
        headers: Headers | None,
        priority: int,
        limit_key: str | bytes,
        due: Due | None,
        start_within: float | None,
        keep: int | None,
    ) -> JobMessage:
        """The message of a job that is put now. Raises ValueError."""
        return JobMessage(
            payload,
            name,
            reply_to,
            attempts,
            headers or {},
            round(self._wall() * 1000),
            priority,
            limit_key.encode() if isinstance(limit_key, str) else limit_key,
            self._start_by_ms(due, start_within),
            None if keep is None else kept_seconds(keep),
        )

    def _put_fields(
        self, data: bytes, ttl: int, due: Due | None, unique_key: bytes | None
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "key": self._connector.rng.randrange(KEYS),
            "ttl": ttl,
            "data": data,
        }
        if due_ms := self._due_ms(due):
            fields["due"] = due_ms
        if unique_key is not None:
            fields["unique"] = unique_key
        return fields

    async def _put_request(
        self,
        fields: dict[str, Any],
        retry_for: float,
        pending: PendingResult | None,
        operation: Operation = Operation.PUT,
    ) -> Handle:
        """Put by the operation that has `due` and `unique`, or by another one that puts a job, with
        one key for all retries."""
        budget = RetryBudget(retry_for, self._connector.rng, self._connector.now())
        while True:
            try:
                answer = await ask(self.channel, operation, **fields)
            except KeyReused:  # of another client, by chance: nothing was stored
                fields["key"] = self._connector.rng.randrange(KEYS)
                continue
            except OutcomeUnknown:
                await anyio.sleep(self._connector.rng.uniform(0.0, RETRY_S))
                continue
            except TEMPORARY as error:
                await budget.wait(error)
                continue
            return Handle(answer["id"], answer["ttl"], bool(answer["existing"]), pending)

    def _due_ms(self, due: Due | None) -> int:
        match due:
            case None:
                return 0
            case datetime():
                at = due.timestamp()
            case _:
                at = self._wall() + due
        return max(0, round(at * 1000))

    def _start_by_ms(self, due: Due | None, start_within: float | None) -> int:
        if start_within is None:
            return 0
        begins_ms = max(self._due_ms(due), round(self._wall() * 1000))
        return begins_ms + max(1, round(seconds_of("start_within", start_within) * 1000))

    async def _dead_letters(
        self, operation: Operation, ids: Sequence[int] | None, where: JobFilter | None
    ) -> int:
        count = 0
        if where is not None:
            if ids is not None:
                raise ValueError("either ids or where")
            ids = [job.id async for job in self.select(where, "dead")]
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

    async def _new_pending(self) -> tuple[int, PendingResult]:
        """A new number of the mailbox, which is open when this returns."""
        async with self._opening:
            if not self._has_mailbox:
                self._watch = ResultWatch(self._pending, self._connector.now())
                await self._tasks.start(self._collect)
                self._tasks.start_soon(self._watch.run, self.channel)
                self._has_mailbox = True
        self._numbers += 1
        wait = self._pending[self._numbers] = PendingResult()
        return self._numbers, wait

    async def _collect(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take updates from the mailbox, until the queue is closed."""
        name = mailbox_name(self.name, self._mailbox)
        try:
            async with self._connector.join(name, "consumer", window=MAILBOX_WINDOW) as channel:
                task_status.started()
                async for message in channel:
                    self._handle(message.data)
                    await message.ack()
        finally:
            for wait in list(self._pending.values()):
                wait.fail(ClientClosed("the queue was closed before there was a result"))

    def _handle(self, data: bytes) -> None:
        update = decode_update(data)
        if update is None or (wait := self._pending.get(update.number)) is None:
            return
        wait.update(update)
        if wait.future.done:
            self._pending.pop(update.number, None)
