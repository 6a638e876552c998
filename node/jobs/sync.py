"""A blocking job queue: `with Queue("tcp://127.0.0.1:7400", "mail") as queue`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Generic, Unpack

from millpond.actors.jobs.options import PRIORITY
from millpond.node.client.sync.channel import Channel
from millpond.node.client.sync.portal import Blocking, BlockingContext
from millpond.node.jobs.connector import ConnectionOptions
from millpond.node.jobs.flow import KEEP_S, FlowInfo, FlowSummary, Step
from millpond.node.jobs.handle import Handle as AsyncHandle
from millpond.node.jobs.handle import R
from millpond.node.jobs.history import HistoryEntry
from millpond.node.jobs.limits import Limits, QueueState
from millpond.node.jobs.payload import Headers
from millpond.node.jobs.queue import RETRY_FLOW_S, Due
from millpond.node.jobs.queue import Queue as AsyncQueue
from millpond.node.jobs.records import JobProgress
from millpond.node.jobs.requests import JobInfo, JobState, QueueCounts
from millpond.node.jobs.schedules import Missed, ScheduleInfo, When
from millpond.node.jobs.selection import JobFilter, WorkerInfo


class Handle(Blocking[AsyncHandle[R]], Generic[R]):
    """A job that was put: its `id`, and its result where it was put with `wait=True`.

    `R` is the type of the result, which `Task.put` takes from the handler.

    `existing`: a job of the same unique key was in the queue already, and this is that one.
    """

    @property
    def id(self) -> int:
        return self._async.id

    @property
    def ttl(self) -> int:
        return self._async.ttl

    @property
    def existing(self) -> bool:
        return self._async.existing

    def result(self, timeout: float | None = None) -> R:
        """The value that the handler returned.

        Raises JobFailed, JobCancelled, and TimeoutError after `timeout` seconds. That a job expired
        or used up the attempts of its queue is noticed late. ValueError if the job was put without
        `wait=True`.
        """
        return self._await(self._async.result, timeout)

    def progress(self) -> Iterator[object]:
        """The progress that the handler reports, until there is a result.

        Where several tasks read, each value is for one of them.
        """
        return self._iterate(self._async.progress())


class Queue(BlockingContext[AsyncQueue]):
    """A queue of a node, by name. Tasks may share it.

    It is open within `with`, or from `open` to `close`; then methods raise ClientClosed.

    Options as those of `connect`. Methods raise RequestErrors, ConnectionLost and ClientClosed;
    ValueError and TypeError for arguments.
    """

    @property
    def name(self) -> str:
        return self._async.name

    def __init__(
        self,
        url: str,
        name: str,
        *,
        wall: Callable[[], float] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(partial(AsyncQueue, url, name, wall=wall, **options))

    @property
    def channel(self) -> Channel:
        """The channel of the queue; a message that is put there directly is a job as well."""
        return Channel.over(self._async.channel, self._portal)

    def put(
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
        return Handle(
            self._await(
                self._async.put,
                payload,
                name=name,
                ttl=ttl,
                due=due,
                unique=unique,
                attempts=attempts,
                headers=headers,
                priority=priority,
                limit_key=limit_key,
                start_within=start_within,
                wait=wait,
                keep=keep,
                retry_for=retry_for,
            ),
            self._portal,
        )

    def put_many(
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
        return self._await(
            self._async.put_many,
            payloads,
            name=name,
            ttl=ttl,
            due=due,
            attempts=attempts,
            headers=headers,
            priority=priority,
            limit_key=limit_key,
            start_within=start_within,
            keep=keep,
            retry_for=retry_for,
        )

    def jobs(self, *states: JobState) -> Iterator[JobInfo]:
        """The jobs of the queue, in the order of their ids; of all states if none is named."""
        return self._iterate(self._async.jobs(*states))

    def show(self, job: int) -> JobInfo:
        """One job with all its data. Raises NotFound."""
        return self._await(self._async.show, job)

    def result(self, job: int, timeout: float | None = None) -> object:
        """The result of a job that keeps it (`keep` of the task or the put), once there is one; any
        client with the right `get` may ask.

        Raises JobFailed (a dead letter; with the reason `gone` where the job is not in the queue
        and no result of it is kept), JobCancelled, and TimeoutError after `timeout` seconds.
        """
        return self._await(self._async.result, job, timeout)

    def progress(self, job: int) -> JobProgress:
        """The progress of a job and the lines that it logged: of one that runs the latest, half a
        second old at most, of one that ended the last. Raises NotFound.
        """
        return self._await(self._async.progress, job)

    def put_flow(
        self, steps: Step | Sequence[Step], *, keep: int = KEEP_S, retry_for: float = 0.0
    ) -> int:
        """Put a flow: these steps, and all that they wait for; give its number.

        The node keeps it when this returns, and puts the job of each step once those before it
        have ended; also in other queues, where the client may put as well. `keep`: the node keeps
        the flow for so many seconds after it has ended. Raises ValueError for steps that wait for
        one another, and for more than 1,000 of them.
        """
        return self._await(self._async.put_flow, steps, keep=keep, retry_for=retry_for)

    def flow(self, flow: int) -> FlowInfo:
        """A flow that was put in this queue, with its steps. Raises NotFound."""
        return self._await(self._async.flow, flow)

    def flows(self) -> Iterator[FlowSummary]:
        """The flows that were put in this queue, in the order of their numbers."""
        return self._iterate(self._async.flows())

    def flow_result(self, flow: int, timeout: float | None = None) -> object:
        """The result of the last step of a flow, of several a list, once it has ended.

        Raises JobFailed with the reason of the first step that failed, JobCancelled, NotFound, and
        TimeoutError after `timeout` seconds.
        """
        return self._await(self._async.flow_result, flow, timeout)

    def retry_flow(self, flow: int, *, retry_for: float = RETRY_FLOW_S) -> None:
        """Put the failed steps of a flow again; skipped ones wait again. Raises NotFound.

        A flow whose jobs are being cancelled is SlowDown, after the retries of `retry_for`.
        """
        self._await(self._async.retry_flow, flow, retry_for=retry_for)

    def cancel_flow(self, flow: int) -> None:
        """Cancel the jobs of a flow, and skip the steps that wait. Raises NotFound."""
        self._await(self._async.cancel_flow, flow)

    def history(self, job: int) -> Iterator[HistoryEntry]:
        """The history of a job, oldest entry first. Needs the right to administer the node."""
        return self._iterate(self._async.history(job))

    def retry(self, job: int) -> None:
        """Make a job that is delayed due now. Raises NotFound."""
        self._await(self._async.retry, job)

    def cancel(self, job: int) -> None:
        """Remove a job: its worker loses the lease, and its producer gets JobCancelled.

        Raises NotFound.
        """
        self._await(self._async.cancel, job)

    def select(self, where: JobFilter, *states: JobState) -> Iterator[JobInfo]:
        """The jobs that match, with all their data, in the order of their ids; of all states if
        none is named.
        """
        return self._iterate(self._async.select(where, *states))

    def retry_dead(
        self, ids: Sequence[int] | None = None, *, where: JobFilter | None = None
    ) -> int:
        """Put dead letters back, those of `ids` or all that match `where`, with new ids and
        attempts; their number.
        """
        return self._await(self._async.retry_dead, ids, where=where)

    def purge_dead(
        self, ids: Sequence[int] | None = None, *, where: JobFilter | None = None
    ) -> int:
        """Delete dead letters, those of `ids` or all that match `where`; their number."""
        return self._await(self._async.purge_dead, ids, where=where)

    def move(
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
        return self._await(self._async.move, to, ids, where=where)

    def workers(self) -> Iterator[WorkerInfo]:
        """The connections that take jobs of the queue, with the jobs that they hold."""
        return self._iterate(self._async.workers())

    def counts(self) -> QueueCounts:
        """The number of jobs in each state, and of workers."""
        return self._await(self._async.counts)

    def state(self) -> QueueState:
        """The settings of the queue."""
        return self._await(self._async.state)

    def set_limits(self, limits: Limits) -> QueueState:
        """Limit how many jobs of the queue run at once and how often one starts, of all workers,
        also after a restart of the node; gives all settings. Jobs that a limit holds back wait.
        """
        return self._await(self._async.set_limits, limits)

    def pause(self) -> None:
        """Give workers no jobs until `resume`, also after a restart of the node. Jobs that run go
        on, and so do puts.
        """
        self._await(self._async.pause)

    def resume(self) -> None:
        """Give workers jobs again."""
        self._await(self._async.resume)

    def schedule(
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
        return self._await(
            self._async.schedule,
            name,
            when,
            payload,
            tz=tz,
            missed=missed,
            task=task,
            ttl=ttl,
            attempts=attempts,
            headers=headers,
            priority=priority,
            limit_key=limit_key,
        )

    def schedules(self) -> Iterator[ScheduleInfo]:
        """The schedules of the queue, in the order of their names."""
        return self._iterate(self._async.schedules())

    def show_schedule(self, name: str) -> ScheduleInfo:
        """One schedule with all its data. Raises NotFound."""
        return self._await(self._async.show_schedule, name)

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its jobs stay. Raises NotFound."""
        self._await(self._async.delete_schedule, name)

    def pause_schedule(self, name: str) -> None:
        """Put no jobs until `resume_schedule`. Raises NotFound."""
        self._await(self._async.pause_schedule, name)

    def resume_schedule(self, name: str) -> datetime | None:
        """Go on with the next moment, and give it. Raises NotFound."""
        return self._await(self._async.resume_schedule, name)

    def run_schedule(self, name: str, *, retry_for: float = 0.0) -> Handle:
        """Put a job of a schedule now, besides those of its moments. Raises NotFound."""
        return Handle(
            self._await(self._async.run_schedule, name, retry_for=retry_for), self._portal
        )
