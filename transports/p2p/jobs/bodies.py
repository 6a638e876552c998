"""Bodies of packets 0x96 and 0x97: the operations about jobs, their requests and answers as maps.

All are MessagePack; docs/reference/wire-protocol.md has the table. Fields with a default may be
left out. Times are milliseconds since 1970, 0: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, assert_never

import msgspec

from millpond.actors.errors import Malformed
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.recurrence import Recurrence
from millpond.actors.messages import JobReply, JobRequest, Rights
from millpond.actors.queue_settings import (
    RATE_PERIOD_MS_MAX,
    QueueSettings,
    QueueShown,
    Rate,
    SetQueue,
)
from millpond.actors.queue_stats import JOB_SECONDS, QueueStats
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.nacks import CODES

IDS_MAX = 1000
PAGE_MAX = 500
REASON_MAX = 200
UNIQUE_BYTES_MAX = 64
SCHEDULE_NAME_BYTES_MAX = 128
CHANNEL_BYTES_MAX = 250

U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
U53 = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Id = Annotated[int, msgspec.Meta(ge=0)]
"""A u64; what msgspec takes is no more."""
ScheduleName = Annotated[bytes, msgspec.Meta(min_length=1, max_length=SCHEDULE_NAME_BYTES_MAX)]
Ids = Annotated[list[Id], msgspec.Meta(min_length=1, max_length=IDS_MAX)]


class JobOperation(IntEnum):
    """Operations about jobs."""

    PUT = 1
    LIST = 2
    SHOW = 3
    RETRY = 4
    CANCEL = 5
    RETRY_DEAD = 6
    PURGE_DEAD = 7
    COUNTS = 8
    REJECT = 9
    PUT_SCHEDULE = 10
    DELETE_SCHEDULE = 11
    PAUSE_SCHEDULE = 12
    RUN_SCHEDULE = 13
    LIST_SCHEDULES = 14
    SHOW_QUEUE = 20
    SET_QUEUE = 21
    LIST_WORKERS = 22
    TAKE = 23
    PUT_MANY = 32
    FINISH = 33
    PROGRESS = 34
    RESULT = 35
    PUT_FLOW = 36
    SHOW_FLOW = 37
    LIST_FLOWS = 38
    RETRY_FLOW = 39
    CANCEL_FLOW = 40


RIGHTS: dict[JobOperation, Rights] = {
    JobOperation.PUT: Rights.PUT,
    JobOperation.LIST: Rights.LIST,
    JobOperation.SHOW: Rights.GET,
    JobOperation.RETRY: Rights.ACK,
    JobOperation.CANCEL: Rights.ACK,
    JobOperation.RETRY_DEAD: Rights.ACK,
    JobOperation.PURGE_DEAD: Rights.ACK,
    JobOperation.COUNTS: Rights.LIST,
    JobOperation.REJECT: Rights.ACK,
    JobOperation.PUT_SCHEDULE: Rights.PUT,
    JobOperation.DELETE_SCHEDULE: Rights.ACK,
    JobOperation.PAUSE_SCHEDULE: Rights.ACK,
    JobOperation.RUN_SCHEDULE: Rights.PUT,
    JobOperation.LIST_SCHEDULES: Rights.LIST,
    JobOperation.SHOW_QUEUE: Rights.LIST,
    JobOperation.SET_QUEUE: Rights.ACK,
    JobOperation.LIST_WORKERS: Rights.LIST,
    JobOperation.TAKE: Rights.PUSH | Rights.ACK,
    JobOperation.PUT_MANY: Rights.PUT,
    JobOperation.FINISH: Rights.ACK,
    JobOperation.PROGRESS: Rights.ACK,
    JobOperation.RESULT: Rights.GET,
    JobOperation.PUT_FLOW: Rights.PUT,
    JobOperation.SHOW_FLOW: Rights.GET,
    JobOperation.LIST_FLOWS: Rights.LIST,
    JobOperation.RETRY_FLOW: Rights.ACK,
    JobOperation.CANCEL_FLOW: Rights.ACK,
}
"""The right that each operation takes in the channel."""


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


# Requests.


class PutBody(_Body, frozen=True):
    """`due` 0: at once; `unique` empty: no matter."""

    key: U32
    data: bytes
    ttl: U32 = 0
    due: U53 = 0
    unique: Annotated[bytes, msgspec.Meta(max_length=UNIQUE_BYTES_MAX)] = b""


class PutManyBody(_Body, frozen=True):
    """A part of a bulk put. `at`: the number of jobs in the parts before it; `more`: parts follow,
    and nothing is stored yet. `ttl` and `due` of the last part count."""

    key: U32
    jobs: Annotated[list[bytes], msgspec.Meta(min_length=1)]
    ttl: U32 = 0
    due: U53 = 0
    at: U32 = 0
    more: bool = False


class FinishBody(_Body, frozen=True):
    """FINISH and PROGRESS. `keep`: seconds; PROGRESS takes none."""

    id: Id
    data: bytes
    keep: U32 = 0


class StepBody(_Body, frozen=True):
    """A step of PUT_FLOW. `channel` empty: that of the connection. `after`: steps before it."""

    data: bytes
    channel: Annotated[bytes, msgspec.Meta(max_length=CHANNEL_BYTES_MAX)] = b""
    after: Annotated[list[U32], msgspec.Meta(max_length=m.STEPS_MAX)] = []
    on_failure: m.OnFailure = m.OnFailure.FAIL
    feeds: bool = False
    ttl: U32 = 0


class PutFlowBody(_Body, frozen=True):
    """PUT_FLOW. `keep`: seconds for which the flow is kept once it has ended."""

    key: U53
    steps: Annotated[list[StepBody], msgspec.Meta(min_length=1, max_length=m.STEPS_MAX)]
    keep: U32 = 86_400


class ListFlowsBody(_Body, frozen=True):
    """LIST_FLOWS."""

    after: Id = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100


class ListBody(_Body, frozen=True):
    """`state` None: jobs of all states."""

    state: m.JobState | None = None
    after: Id = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100


class IdBody(_Body, frozen=True):
    """SHOW, RETRY, CANCEL and TAKE."""

    id: Id


class DeadBody(_Body, frozen=True):
    """RETRY_DEAD and PURGE_DEAD: either of them."""

    ids: Ids | None = None
    all: bool = False


class CountsBody(_Body, frozen=True):
    """`stop`: nothing more is to be pushed here, until CREDIT. `stats`: the counts of the queue
    since the start of the node are wanted as well."""

    stop: bool = False
    stats: bool = False


class RejectBody(_Body, frozen=True):
    """`reason`: so many characters."""

    id: Id
    reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)] = ""


class ScheduleBody(_Body, frozen=True):
    """PUT_SCHEDULE: either `cron`, in the time zone `zone`, or `every` ms."""

    name: ScheduleName
    data: bytes
    cron: str = ""
    zone: str = "UTC"
    every: U53 = 0
    ttl: U32 = 0
    missed: m.Missed = m.Missed.ONE


class NameBody(_Body, frozen=True):
    """DELETE_SCHEDULE."""

    name: ScheduleName


class PauseBody(_Body, frozen=True):
    """PAUSE_SCHEDULE. `paused` false: it goes on."""

    name: ScheduleName
    paused: bool = True


class RunBody(_Body, frozen=True):
    """RUN_SCHEDULE. `at`: the moment that the job names, the same in all retries of the key."""

    name: ScheduleName
    key: U32
    at: U53


class ListSchedulesBody(_Body, frozen=True):
    """`name`: that one alone, with all its data."""

    after: bytes = b""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100
    name: ScheduleName | None = None


class ListWorkersBody(_Body, frozen=True):
    """LIST_WORKERS."""

    after: Id = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100


class RateBody(_Body, frozen=True):
    """`count` jobs in `period` ms, up to `burst` of them at once (0: `count`)."""

    count: U32
    period: Annotated[int, msgspec.Meta(ge=1, le=RATE_PERIOD_MS_MAX)] = 1000
    burst: U32 = 0


class ShowQueueBody(_Body, frozen=True):
    """SHOW_QUEUE."""


class SetQueueBody(_Body, frozen=True):
    """SET_QUEUE. Fields that are left out stay; 0, or a rate of count 0, is no limit."""

    paused: bool | None = None
    concurrency: U32 | None = None
    rate: RateBody | None = None
    key_concurrency: U32 | None = None
    key_rate: RateBody | None = None
    ageing: U53 | None = None


# Answers.


class KeptBody(msgspec.Struct, frozen=True):
    """PUT."""

    id: int
    ttl: int
    existing: bool


class KeptManyBody(msgspec.Struct, frozen=True):
    """PUT_MANY. `runs`: pairs of an id and the number of ids from it on, in the order of the jobs;
    none for a part that others follow."""

    runs: list[tuple[int, int]]
    ttl: int


class RecordBody(msgspec.Struct, frozen=True):
    """RESULT. `state` nil: the job is not in the queue; `final`: `data` is a result, else
    progress, or nil."""

    state: m.JobState | None
    data: bytes | None
    final: bool


class FlowBody(msgspec.Struct, frozen=True):
    """PUT_FLOW, RETRY_FLOW and CANCEL_FLOW."""

    flow: int
    state: m.FlowState


class StepRowBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of SHOW_FLOW."""

    channel: bytes
    state: str
    job: int = 0
    reason: str = ""
    after: tuple[int, ...] = ()
    data: bytes | None = None


class FlowFoundBody(msgspec.Struct, frozen=True):
    """SHOW_FLOW. `last`: the steps that no other one waits for."""

    flow: int
    state: m.FlowState
    created: int
    ended: int
    steps: list[StepRowBody]
    last: tuple[int, ...]


class FlowRowBody(msgspec.Struct, frozen=True):
    """A flow of LIST_FLOWS."""

    flow: int
    state: m.FlowState
    steps: int
    ended: int
    created: int


class FlowPageBody(msgspec.Struct, frozen=True):
    """LIST_FLOWS."""

    flows: list[FlowRowBody]
    more: bool


class RowBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job. `data` is nil where it does not fit; of dead letters and those that were, `origin`
    is the id they had and `reason` what they died of; of jobs of a flow, its number and `step`."""

    id: int
    state: m.JobState
    attempt: int
    due: int
    leased_until: int
    expires: int
    size: int
    data: bytes | None
    origin: int = 0
    reason: str = ""
    flow: int = 0
    step: int = 0


class PageBody(msgspec.Struct, frozen=True):
    """LIST."""

    jobs: list[RowBody]
    more: bool


class StateBody(msgspec.Struct, frozen=True):
    """RETRY, CANCEL and REJECT: the state that the job was in."""

    state: m.JobState


class DeadCountBody(msgspec.Struct, frozen=True):
    """RETRY_DEAD and PURGE_DEAD."""

    count: int
    more: bool


class JobStatsBody(msgspec.Struct, frozen=True):
    """The counts of a queue since the start of the node. `durations`: how many attempts that a
    worker ended took up to each of the `bounds` (seconds), and longer, in `seconds` together."""

    put: int
    done: int
    failed: int
    lost: int
    dead: int
    bounds: tuple[float, ...]
    durations: tuple[int, ...]
    seconds: float

    @classmethod
    def of(cls, stats: QueueStats) -> JobStatsBody:
        """The body of these counts."""
        counts = stats.put, stats.done, stats.failed, stats.lost, stats.dead
        return cls(*counts, JOB_SECONDS, stats.durations, stats.seconds)


class JobCountsBody(msgspec.Struct, frozen=True):
    """COUNTS. `oldest`: since when the oldest ready job is ready; `limited` of them wait for a
    limit. `stats`: where they are wanted, of a queue that has its own."""

    ready: int
    delayed: int
    leased: int
    dead: int
    workers: int
    oldest: int
    paused: bool = False
    limited: int = 0
    stats: JobStatsBody | msgspec.UnsetType = msgspec.UNSET


class ScheduleDoneBody(msgspec.Struct, frozen=True):
    """PUT_SCHEDULE, DELETE_SCHEDULE and PAUSE_SCHEDULE. `next`: the next moment."""

    next: int
    existing: bool


class ScheduleRowBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schedule. `last` and `last_job` are of its last job; `jobs` counts them; `refusal`: the
    code of the refusal of the last moment's job."""

    name: bytes
    cron: str
    zone: str
    every: int
    ttl: int
    missed: m.Missed
    paused: bool
    next: int
    last: int
    last_job: int
    jobs: int
    size: int
    data: bytes
    refusal: int = 0


class SchedulePageBody(msgspec.Struct, frozen=True):
    """LIST_SCHEDULES."""

    schedules: list[ScheduleRowBody]
    more: bool


class WorkerJobBody(msgspec.Struct, frozen=True):
    """A job that a worker holds."""

    id: int
    attempt: int
    since: int
    until: int
    begun: bool
    data: bytes


class WorkerBody(msgspec.Struct, frozen=True):
    """A worker: the number of its connection, the name that it gives itself, and its jobs, the
    first of `held`."""

    connection: int
    identity: bytes | None
    window: int
    takes: bool
    held: int
    jobs: list[WorkerJobBody]
    name: bytes = b""


class WorkerPageBody(msgspec.Struct, frozen=True):
    """LIST_WORKERS."""

    workers: list[WorkerBody]
    more: bool


class QueueBody(msgspec.Struct, frozen=True):
    """SHOW_QUEUE and SET_QUEUE: the settings of the queue. Rates are nil where there is none."""

    paused: bool
    concurrency: int
    rate: RateBody | None
    key_concurrency: int
    key_rate: RateBody | None
    ageing: int


def request_of(
    number: int, operation: JobOperation, body: bytes, answer_bytes_max: int
) -> JobRequest:
    """The request for the channel. Raises Malformed."""
    match operation:
        case JobOperation.PUT:
            put = read_body(body, PutBody)
            return m.PutJob(number, put.key, put.ttl, put.data, put.due / 1000, put.unique)
        case JobOperation.PUT_MANY:
            raise AssertionError("`BulkPuts` takes its parts")
        case JobOperation.PUT_FLOW:
            return _put_flow(number, read_body(body, PutFlowBody))
        case JobOperation.SHOW_FLOW:
            return m.GetFlow(number, read_body(body, IdBody).id, answer_bytes_max)
        case JobOperation.LIST_FLOWS:
            flows = read_body(body, ListFlowsBody)
            return m.ListFlows(number, flows.after, flows.limit)
        case JobOperation.RETRY_FLOW:
            return m.RetryFlow(number, read_body(body, IdBody).id)
        case JobOperation.CANCEL_FLOW:
            return m.CancelFlow(number, read_body(body, IdBody).id)
        case JobOperation.FINISH:
            done = read_body(body, FinishBody)
            return m.FinishJob(number, done.id, done.data, done.keep)
        case JobOperation.PROGRESS:
            finish = read_body(body, FinishBody)
            return m.ReportProgress(number, finish.id, finish.data)
        case JobOperation.RESULT:
            return m.GetResult(number, read_body(body, IdBody).id, answer_bytes_max)
        case JobOperation.LIST:
            wanted = read_body(body, ListBody)
            return m.ListJobs(number, wanted.state, wanted.after, wanted.limit, answer_bytes_max)
        case JobOperation.SHOW:
            return m.GetJob(number, read_body(body, IdBody).id, answer_bytes_max)
        case JobOperation.RETRY:
            return m.RetryJob(number, read_body(body, IdBody).id)
        case JobOperation.CANCEL:
            return m.CancelJob(number, read_body(body, IdBody).id)
        case JobOperation.RETRY_DEAD:
            return m.RetryDeadLetters(number, _ids(body))
        case JobOperation.PURGE_DEAD:
            return m.PurgeDeadLetters(number, _ids(body))
        case JobOperation.COUNTS:
            counted = read_body(body, CountsBody)
            return m.CountJobs(number, counted.stop, counted.stats)
        case JobOperation.REJECT:
            reject = read_body(body, RejectBody)
            return m.RejectJob(number, reject.id, reject.reason)
        case JobOperation.PUT_SCHEDULE:
            return _put_schedule(number, read_body(body, ScheduleBody))
        case JobOperation.DELETE_SCHEDULE:
            return m.DeleteSchedule(number, read_body(body, NameBody).name)
        case JobOperation.PAUSE_SCHEDULE:
            pause = read_body(body, PauseBody)
            return m.PauseSchedule(number, pause.name, pause.paused)
        case JobOperation.RUN_SCHEDULE:
            run = read_body(body, RunBody)
            return m.RunSchedule(number, run.name, run.key, run.at)
        case JobOperation.LIST_SCHEDULES:
            of = read_body(body, ListSchedulesBody)
            return m.ListSchedules(number, of.after, of.limit, answer_bytes_max, of.name)
        case JobOperation.SHOW_QUEUE:
            read_body(body, ShowQueueBody)
            return m.ShowQueue(number)
        case JobOperation.SET_QUEUE:
            return _set_queue(number, read_body(body, SetQueueBody))
        case JobOperation.LIST_WORKERS:
            listed = read_body(body, ListWorkersBody)
            return m.ListWorkers(number, listed.after, listed.limit, answer_bytes_max)
        case JobOperation.TAKE:
            return m.TakeJob(number, read_body(body, IdBody).id, answer_bytes_max)
        case _:
            assert_never(operation)


def answer_body(reply: JobReply) -> bytes:
    """The body of the packet that answers."""
    answer: msgspec.Struct
    match reply:
        case m.JobStored():
            answer = KeptBody(reply.id, reply.ttl, reply.existing)
        case m.FlowDone():
            answer = FlowBody(reply.flow, reply.state)
        case m.FlowFound():
            answer = _flow(reply)
        case m.FlowPage():
            flows = [
                FlowRowBody(each.flow, each.state, each.steps, each.ended, _ms(each.created_at))
                for each in reply.rows
            ]
            answer = FlowPageBody(flows, reply.more)
        case m.RecordFound():
            answer = RecordBody(reply.state, reply.data, reply.is_final)
        case m.JobsStored():
            answer = KeptManyBody(_runs(reply.ids), reply.ttl)
        case m.JobPage():
            answer = PageBody([_row(row) for row in reply.rows], reply.more)
        case m.JobFound():
            answer = _row(reply.row)
        case m.JobDone():
            answer = StateBody(reply.state)
        case m.DeadLettersDone():
            answer = DeadCountBody(reply.count, reply.more)
        case m.ScheduleDone():
            answer = ScheduleDoneBody(_ms(reply.next_at), reply.existing)
        case m.SchedulePage():
            answer = SchedulePageBody([_schedule(row) for row in reply.rows], reply.more)
        case m.WorkerPage():
            answer = WorkerPageBody([_worker(row) for row in reply.rows], reply.more)
        case QueueShown(settings=settings):
            answer = _queue(settings)
        case m.JobCounts(ready=ready, delayed=delayed, leased=leased):
            oldest = _ms(reply.oldest)
            dead, workers, held = reply.dead, reply.workers, (reply.is_paused, reply.limited)
            stats = msgspec.UNSET if reply.stats is None else JobStatsBody.of(reply.stats)
            answer = JobCountsBody(ready, delayed, leased, dead, workers, oldest, *held, stats)
        case _:
            raise AssertionError(f"{reply} is no answer about jobs")
    return msgspec.msgpack.encode(answer)


def _flow(found: m.FlowFound) -> FlowFoundBody:
    steps = [
        StepRowBody(each.channel, each.state, each.job, each.reason, each.after, each.data)
        for each in found.steps
    ]
    times = _ms(found.created_at), _ms(found.ended_at)
    return FlowFoundBody(found.flow, found.state, *times, steps, found.last)


def _put_flow(number: int, body: PutFlowBody) -> m.PutFlow:
    steps = tuple(
        m.FlowStep(
            each.channel, each.data, tuple(each.after), each.on_failure, each.feeds, each.ttl
        )
        for each in body.steps
    )
    return m.PutFlow(number, body.key, body.keep, steps)


def _runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    first = count = 0
    for each in ids:
        if each != first + count:
            if count:
                runs.append((first, count))
            first, count = each, 0
        count += 1
    return [*runs, (first, count)] if count else runs


def _ids(body: bytes) -> tuple[int, ...] | None:
    wanted = read_body(body, DeadBody)
    if wanted.all == (wanted.ids is not None):
        raise Malformed("either ids or all")
    return None if wanted.ids is None else tuple(wanted.ids)


def _row(row: m.JobRow) -> RowBody:
    return RowBody(
        row.id,
        row.state,
        row.attempt,
        _ms(row.due),
        _ms(row.leased_until),
        _ms(row.expires_at),
        row.size,
        row.data,
        row.origin,
        row.reason,
        row.flow,
        row.step,
    )


def _put_schedule(number: int, body: ScheduleBody) -> m.PutSchedule:
    recurrence = Recurrence(body.cron, body.zone, body.every)
    spec = m.ScheduleSpec(recurrence, body.data, body.ttl, body.missed)
    return m.PutSchedule(number, body.name, spec)


def _worker(row: m.WorkerRow) -> WorkerBody:
    jobs = [
        WorkerJobBody(job.id, job.attempt, _ms(job.since), _ms(job.until), job.begun, job.data)
        for job in row.jobs
    ]
    return WorkerBody(row.connection, row.identity, row.window, row.takes, row.held, jobs, row.name)


def _set_queue(number: int, body: SetQueueBody) -> SetQueue:
    return SetQueue(
        number,
        body.paused,
        body.concurrency,
        _rate(body.rate),
        body.key_concurrency,
        _rate(body.key_rate),
        body.ageing,
    )


def _rate(body: RateBody | None) -> Rate | None:
    return None if body is None else Rate(body.count, body.period, body.burst)


def _queue(settings: QueueSettings) -> QueueBody:
    return QueueBody(
        settings.is_paused,
        settings.concurrency,
        _rate_body(settings.rate),
        settings.key_concurrency,
        _rate_body(settings.key_rate),
        settings.ageing_ms,
    )


def _rate_body(rate: Rate | None) -> RateBody | None:
    return None if rate is None else RateBody(rate.count, rate.period_ms, rate.burst)


def _schedule(row: m.ScheduleRow) -> ScheduleRowBody:
    spec, recurrence = row.spec, row.spec.recurrence
    return ScheduleRowBody(
        row.name,
        recurrence.cron,
        recurrence.zone,
        recurrence.every_ms,
        spec.ttl,
        spec.missed,
        row.is_paused,
        _ms(row.next_at),
        _ms(row.last_at),
        row.last_job,
        row.jobs,
        row.size,
        spec.data,
        0 if row.refusal is None else CODES[row.refusal],
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
