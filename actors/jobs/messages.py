"""Requests about the jobs of a channel in queue mode, and replies
(docs/reference/wire-protocol.md, "Jobs").

Times are seconds since 1970, sizes bytes. `number` is the sender's own: a reply carries that of
its request. Requests about dead letters go on to the channel that has them, and it answers.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from millpond.actors.errors import Code
from millpond.actors.jobs.recurrence import Recurrence
from millpond.actors.messages import JobReply, JobRequest
from millpond.actors.queue_stats import QueueStats

STEPS_MAX = 1000
"""The most steps of a flow."""


class JobState(Enum):
    """The state of a job."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as lists show it. `data` is its beginning, or None where it does not fit the answer.

    `attempt` counts those that were started. `due` is the end of its delay, `leased_until` of its
    lease; 0: it has none. `expires_at` 0: it does not expire. `origin` is the id that it had before
    it first became a dead letter, and `reason` tells why; 0 and empty: it never did. A job of a
    flow has its number and its `step` there; 0: it is of none.
    """

    id: int
    state: JobState
    attempt: int
    due: float
    leased_until: float
    expires_at: float
    size: int
    data: bytes | None
    origin: int = 0
    reason: str = ""
    flow: int = 0
    step: int = 0


class Missed(Enum):
    """The policy for moments of a schedule that passed while the node was down: none of them puts
    a job, the last one does, or each does."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class ScheduleSpec(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The part of a schedule that its maker gives. `data` are the bytes of its jobs, to which the
    moment is added; `ttl` as in `PutJob`."""

    recurrence: Recurrence
    data: bytes
    ttl: int = 0
    missed: Missed = Missed.ONE


class ScheduleRow(msgspec.Struct, frozen=True, gc=False):
    """A schedule as lists show it, with so many bytes of its data.

    `next_at` 0: it is paused, or no moment comes any more. `last_at` and `last_job` are the moment
    and the id of the last job that it put; 0: none. `refusal` is why the last moment put no job.
    """

    name: bytes
    spec: ScheduleSpec
    is_paused: bool
    next_at: float
    last_at: float
    last_job: int
    jobs: int
    size: int
    refusal: Code | None = None


class OnFailure(Enum):
    """The fate of steps that wait for one that failed: they are skipped, they run all the same, or
    they wait until it is retried."""

    FAIL = "fail"
    IGNORE = "ignore"
    WAIT = "wait"


class FlowState(Enum):
    """The state of a flow. `BLOCKED`: what is left waits for a step that failed."""

    RUNNING = "running"
    BLOCKED = "blocked"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FlowStep(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A step of a flow: `data` are the bytes of its job for `channel`, which is put once the steps
    `after` have ended. `feeds`: their results are its payload. `ttl` as in `PutJob`."""

    channel: bytes
    data: bytes
    after: tuple[int, ...] = ()
    on_failure: OnFailure = OnFailure.FAIL
    feeds: bool = False
    ttl: int = 0


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """A step as it is shown. `data` is the record of the result of a last step, or None."""

    channel: bytes
    state: str
    job: int
    reason: str
    after: tuple[int, ...]
    data: bytes | None


class FlowRow(msgspec.Struct, frozen=True, gc=False):
    """A flow as lists show it; `ended` counts its steps that have."""

    flow: int
    state: FlowState
    steps: int
    ended: int
    created_at: float


# Requests of connections.


class PutJob(JobRequest, frozen=True, gc=False):
    """Store a job that is due at `due` (0: at once); `ttl` counts from then (0: the queue's).

    `unique` is a unique key (empty: none): no other job is stored while one has it. Answered by
    `JobStored`.
    """

    key: int
    ttl: int
    data: bytes
    due: float = 0.0
    unique: bytes = b""


class PutJobs(JobRequest, frozen=True, gc=False):
    """Store jobs that are due at `due` (0: at once), all or none of them. `ttl` as in `PutJob`.

    `key` is that of the first one, and the others have the next ones that are free: a retry finds
    all of them. Answered by `JobsStored`.
    """

    key: int
    ttl: int
    jobs: tuple[bytes, ...]
    due: float = 0.0


class FinishJob(JobRequest, frozen=True, gc=False):
    """End a job that the client holds, once its result is stored. `data` are the worker's bytes,
    kept for `keep_s` (0: only for the flow that the job is of). Answered by `JobDone`."""

    id: int
    data: bytes
    keep_s: int


class ReportProgress(JobRequest, frozen=True, gc=False):
    """Store the progress of a job that the client holds. Answered by `JobDone`."""

    id: int
    data: bytes


class GetResult(JobRequest, frozen=True, gc=False):
    """The result of a job, or its progress. Answered by `RecordFound`, of a dead letter by
    `JobFound`."""

    id: int
    bytes_max: int


class ListJobs(JobRequest, frozen=True, gc=False):
    """Jobs above the id `after`, ascending, about `bytes_max` of them. Answered by `JobPage`."""

    state: JobState | None
    after: int
    limit: int
    bytes_max: int


class GetJob(JobRequest, frozen=True, gc=False):
    """One job with its data, if that is at most `bytes_max`. Answered by `JobFound`."""

    id: int
    bytes_max: int


class RetryJob(JobRequest, frozen=True, gc=False):
    """Make a delayed job due now, or give back one that the client holds. Answered by `JobDone`."""

    id: int


class CancelJob(JobRequest, frozen=True, gc=False):
    """Delete a job, also while a worker has it. Answered by `JobDone`."""

    id: int


class RejectJob(JobRequest, frozen=True, gc=False):
    """Make a dead letter of a job that the client holds. Answered by `JobDone`."""

    id: int
    reason: str


class CountJobs(JobRequest, frozen=True, gc=False):
    """Count the jobs. `stop`: nothing more is pushed to the client until its next `Credit`.
    `with_stats`: with those of the queue. Answered by `JobCounts`."""

    stop: bool = False
    with_stats: bool = False


class RetryDeadLetters(JobRequest, frozen=True, gc=False):
    """Put dead letters back; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


class PurgeDeadLetters(JobRequest, frozen=True, gc=False):
    """Delete dead letters; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


class PutSchedule(JobRequest, frozen=True, gc=False):
    """Make a schedule of the queue, or change the one of this name, which stays paused if it is.
    Answered by `ScheduleDone`."""

    name: bytes
    spec: ScheduleSpec


class DeleteSchedule(JobRequest, frozen=True, gc=False):
    """Delete a schedule; its jobs stay. Answered by `ScheduleDone`."""

    name: bytes


class PauseSchedule(JobRequest, frozen=True, gc=False):
    """Pause a schedule, or have it go on with the next moment. Answered by `ScheduleDone`."""

    name: bytes
    is_paused: bool


class RunSchedule(JobRequest, frozen=True, gc=False):
    """Put a job of the schedule now, besides those of its moments. `key` as in `PutJob`; `at_ms`,
    in ms since 1970, is the moment that the job names. Answered by `JobStored`."""

    name: bytes
    key: int
    at_ms: int


class ListSchedules(JobRequest, frozen=True, gc=False):
    """The schedules of the queue whose names are above `after`, in the order of their names. With
    `name` that one alone, with all its data. Answered by `SchedulePage`."""

    after: bytes
    limit: int
    bytes_max: int
    name: bytes | None = None


class TakeJob(JobRequest, frozen=True, gc=False):
    """Lease a ready job to the client, whatever its window and the limits are; no attempt counts.
    Answered by `JobFound`, with its data if they are at most `bytes_max`."""

    id: int
    bytes_max: int


class ListWorkers(JobRequest, frozen=True, gc=False):
    """The connections that take jobs or hold some, with numbers above `after`, ascending, about
    `bytes_max` of them. Answered by `WorkerPage`."""

    after: int
    limit: int
    bytes_max: int


class ShowQueue(JobRequest, frozen=True, gc=False):
    """The settings of the queue. Answered by `QueueShown`, as is `SetQueue`."""


class PutFlow(JobRequest, frozen=True, gc=False):
    """Keep a flow, and put the jobs of the steps that wait for nothing. `key` makes a retry
    harmless; `keep_s` is for the flow once it has ended. Answered by `FlowDone`."""

    key: int
    keep_s: int
    steps: tuple[FlowStep, ...]


class GetFlow(JobRequest, frozen=True, gc=False):
    """One flow with all steps, and the results of the last ones. Answered by `FlowFound`."""

    flow: int
    bytes_max: int


class ListFlows(JobRequest, frozen=True, gc=False):
    """The flows that were put in this channel, above the number `after`. Answered by `FlowPage`."""

    after: int
    limit: int


class RetryFlow(JobRequest, frozen=True, gc=False):
    """Put the failed steps of a flow again. Answered by `FlowDone`."""

    flow: int


class CancelFlow(JobRequest, frozen=True, gc=False):
    """Cancel the jobs of a flow, and skip what waits. Answered by `FlowDone`."""

    flow: int


# From a channel to the schedules and the flows.


class FlowRequest(JobRequest, frozen=True, gc=False):
    """A request to a channel, for the flows. `number` is that of the request."""

    channel: bytes
    request: PutFlow | GetFlow | ListFlows | RetryFlow | CancelFlow


class EndStep(JobRequest, frozen=True, gc=False):
    """The job of a step is done: the flow is told first. Then `RecordStored` goes to the channel,
    or `StoreRecord` to its results where `keep_s` is not 0."""

    channel: bytes
    flow: int
    step: int
    job: int
    data: bytes
    keep_s: int


class ScheduleRequest(JobRequest, frozen=True, gc=False):
    """A request to a channel, for the schedules. `number` is that of the request."""

    channel: bytes
    request: PutSchedule | DeleteSchedule | PauseSchedule | RunSchedule | ListSchedules


# Between a channel and its results.


class StoreRecord(JobRequest, frozen=True, gc=False):
    """Store the result (`is_final`) or the progress of a job. A result is answered by
    `RecordStored` to the channel, progress by `JobDone` to the client."""

    job: int
    data: bytes
    keep_s: int
    is_final: bool


class RecordStored(JobRequest, frozen=True, gc=False):
    """The result of a job is stored: it leaves the queue. Answered by `JobDone`."""

    job: int


class FindRecord(JobRequest, frozen=True, gc=False):
    """The record of a job, which is in this state; None: it is not in the queue."""

    job: int
    state: JobState | None
    bytes_max: int


class ForgetRecords(JobRequest, frozen=True, gc=False):
    """The queue is deleted, and its results are. It has no answer."""


# Replies.


class JobStored(JobReply, frozen=True, gc=False):
    """A job is stored. `existing`: it is an older one with the same unique key."""

    id: int
    ttl: int
    existing: bool = False


class JobsStored(JobReply, frozen=True, gc=False):
    """Jobs are stored, in the order of their ids."""

    ids: tuple[int, ...]
    ttl: int


class JobPage(JobReply, frozen=True, gc=False):
    """Jobs, ascending by id. `more`: there are some above the last one."""

    rows: tuple[JobRow, ...]
    more: bool


class JobFound(JobReply, frozen=True, gc=False):
    """One job."""

    row: JobRow


class JobDone(JobReply, frozen=True, gc=False):
    """The request is done; `state` is the one that the job was in."""

    state: JobState


class RecordFound(JobReply, frozen=True, gc=False):
    """The record of a job: its result (`is_final`) or its progress; None: there is none. `state`
    None: the job is not in the queue."""

    state: JobState | None
    data: bytes | None
    is_final: bool


class WorkerJobRow(msgspec.Struct, frozen=True, gc=False):
    """A job that a worker holds, with the beginning of its data. `begun`: the worker has begun with
    it, as far as it reports that."""

    id: int
    attempt: int
    since: float
    until: float
    begun: bool
    data: bytes


class WorkerRow(msgspec.Struct, frozen=True, gc=False):
    """A worker of the queue: the number of its connection, the key that it proved, the name that it
    gives itself, and its jobs, the first `WORKER_JOBS_SHOWN` of `held`. `takes`: it may be given
    more."""

    connection: int
    identity: bytes | None
    window: int
    takes: bool
    held: int
    jobs: tuple[WorkerJobRow, ...]
    name: bytes = b""


class WorkerPage(JobReply, frozen=True, gc=False):
    """Workers, ascending by connection. `more`: there are some above the last one."""

    rows: tuple[WorkerRow, ...]
    more: bool


class FlowDone(JobReply, frozen=True, gc=False):
    """The request is done; the flow has this number, and state."""

    flow: int
    state: FlowState


class FlowFound(JobReply, frozen=True, gc=False):
    """One flow. `last` are the steps that no other one waits for."""

    flow: int
    state: FlowState
    created_at: float
    ended_at: float
    steps: tuple[StepRow, ...]
    last: tuple[int, ...]


class FlowPage(JobReply, frozen=True, gc=False):
    """Flows, ascending by number. `more`: there are some above the last one."""

    rows: tuple[FlowRow, ...]
    more: bool


class ScheduleDone(JobReply, frozen=True, gc=False):
    """The request is done. `next_at` is the next moment, 0: none comes. `existing`: there was a
    schedule of this name before."""

    next_at: float
    existing: bool


class SchedulePage(JobReply, frozen=True, gc=False):
    """Schedules in the order of their names. `more`: there are some behind the last one."""

    rows: tuple[ScheduleRow, ...]
    more: bool


class DeadLettersDone(JobReply, frozen=True, gc=False):
    """The number of dead letters that were moved or deleted. `more`: repeat the request."""

    count: int
    more: bool


class JobCounts(JobReply, frozen=True, gc=False):
    """Jobs by state, and workers. `oldest`: the oldest ready job is ready since then; 0: none.
    `limited`: ready jobs that wait for a limit."""

    ready: int
    delayed: int
    leased: int
    workers: int
    oldest: float
    dead: int = 0
    is_paused: bool = False
    limited: int = 0
    stats: QueueStats | None = None
