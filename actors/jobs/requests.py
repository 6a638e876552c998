"""Requests about jobs, as a channel in queue mode answers them.

Requests about dead letters go on to their channel, and those about schedules to their cell, with
the port of the client, and these answer; settings go to the catalog of channels.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.dead_letters import (
    DEAD_SUFFIX,
    PendingDeadLetters,
    is_dead_letter_channel,
)
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.idempotency import IdempotencyKeys, is_same
from millpond.actors.channels.publish import Publisher
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.attributes import JobAttributes
from millpond.actors.jobs.dead_letters import (
    CountDeadLetters,
    DeadLetterRequest,
    DeleteDeadLetters,
    GetDeadLetter,
    ListDeadLetters,
    RequeueDeadLetters,
    TakeDeadLetters,
    answer_dead_letter_request,
)
from millpond.actors.jobs.flow_keys import RESERVED, flow_step_of
from millpond.actors.jobs.listing import JobView, with_all_data
from millpond.actors.jobs.results import PROGRESS_KEEP_S, RECORD_BYTES_MAX
from millpond.actors.messages import (
    Batch,
    DeadLettersRequeued,
    Failed,
    FlowJobFailed,
    FlowJobRequeued,
    JobReply,
    JobRequest,
    Mode,
    Nack,
    NackReason,
    Port,
    Put,
    Touch,
)
from millpond.actors.queue_settings import QueueShown, SetQueue, StoreQueueSettings
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import AttemptsSet, Origin, StoredMessage
from millpond.actors.streams.names import CHANNELS, FLOWS, SCHEDULES, results_cell

DUE_S_MAX = 366 * 86_400
"""The furthest time ahead at which a job may be due, in seconds."""
OLDEST_AMONG = 1000


class JobChannel(Protocol):
    """A channel, as far as its jobs are concerned."""

    name: bytes
    acked: int
    settings: ChannelSettings
    context: ChannelContext
    buffer: Buffer
    keys: IdempotencyKeys
    delivery: Delivery
    publisher: Publisher
    dead_letters: PendingDeadLetters

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove expired messages, to make room."""

    def remove(self, message_id: int, effects: Effects) -> None:
        """Delete a message."""

    def give_up(self, message_id: int, reason: str, now: float, effects: Effects) -> None:
        """Make a dead letter of a message."""

    def time_attempt(self, consumer: Consumer, message_id: int, now: float) -> None:
        """A consumer has ended its attempt at a job."""

    def attributes_of(self, message_id: int) -> tuple[float, bytes]:
        """The time at which a message is due, and its unique key."""


def answer_job_request(
    request: JobRequest,
    channel: JobChannel,
    attributes: JobAttributes,
    port: Port,
    now: float,
    effects: Effects,
) -> JobReply | Failed | None:
    """The reply of a channel, or of a dead-letter channel; None: the other one replies."""
    if isinstance(request, DeadLetterRequest):
        return answer_dead_letter_request(request, channel, port, now, effects)
    if channel.delivery.mode is not Mode.QUEUE or is_dead_letter_channel(channel.name):
        return Failed(request, Code.NOT_A_QUEUE)
    return _JobHandler(channel, attributes, port, now, effects).answer(request)


class JobTotals(NamedTuple):
    """The jobs of a queue: those that are ready, delayed and running (leased), and the connections
    that take some. `oldest_s`: the age of the oldest ready one, in seconds, 0 for none; it is
    looked for among the first 1,000."""

    ready: int
    delayed: int
    running: int
    workers: int
    oldest_s: float


def job_totals(channel: JobChannel, now: float, *, with_oldest: bool = True) -> JobTotals:
    """The jobs of a queue now. Without the oldest one it takes no time, however many there are."""
    delivery, pending = channel.delivery, len(channel.dead_letters)
    running = delivery.leased
    delayed = delivery.delay_count - pending
    ready = len(channel.buffer.rows) - running - delayed - pending
    view = JobView(channel.buffer, delivery, channel.dead_letters, now)
    since = view.oldest_ready(OLDEST_AMONG) if ready and with_oldest else 0.0
    oldest_s = max(0.0, now - since) if since else 0.0
    return JobTotals(ready, delayed, running, len(delivery.receivers), oldest_s)


class _JobHandler:
    """One request of one connection."""

    __slots__ = ("_attributes", "_channel", "_effects", "_now", "_port")

    def __init__(
        self,
        channel: JobChannel,
        attributes: JobAttributes,
        port: Port,
        now: float,
        effects: Effects,
    ) -> None:
        self._channel = channel
        self._attributes = attributes
        self._port = port
        self._now = now
        self._effects = effects

    def answer(self, request: JobRequest) -> JobReply | Failed | None:
        """The reply; None: another cell replies."""
        match request:
            case m.PutJob():
                return self._put(request)
            case m.PutJobs():
                return self._put_all(request)
            case m.RetryJob():
                return self._retry(request)
            case m.CancelJob():
                return self._cancel(request)
            case m.RejectJob():
                return self._reject(request)
            case m.FinishJob():
                return self._finish(request)
            case m.ReportProgress():
                return self._report(request)
            case m.RecordStored():
                return self._finished(request)
            case m.PutFlow() | m.GetFlow() | m.ListFlows() | m.RetryFlow() | m.CancelFlow():
                of_flow = m.FlowRequest(request.number, self._channel.name, request)
                self._effects.forwards += ((FLOWS, Batch(self._port, [of_flow])),)
            case m.GetResult():
                self._result(request)
            case m.ListJobs():
                return self._list(request)
            case m.GetJob():
                return self._get(request)
            case m.TakeJob():
                return self._take(request)
            case m.ListWorkers():
                return m.WorkerPage(request.number, *self._view().workers(request))
            case m.CountJobs(stop=stop, with_stats=with_stats):
                delivery = self._channel.delivery
                if stop and (consumer := delivery.consumers.get(self._port)) is not None:
                    delivery.stop(consumer)
                counts = self._counts(request.number, with_stats)
                self._pass_on(CountDeadLetters(request.number, counts))
            case m.RetryDeadLetters():
                self._pass_on(TakeDeadLetters(request.number, request.ids))
            case m.PurgeDeadLetters():
                self._pass_on(DeleteDeadLetters(request.number, request.ids))
            case RequeueDeadLetters():
                return self._requeue(request)
            case (
                m.PutSchedule()
                | m.DeleteSchedule()
                | m.PauseSchedule()
                | m.RunSchedule()
                | m.ListSchedules()
            ):
                asked = m.ScheduleRequest(request.number, self._channel.name, request)
                self._effects.forwards += ((SCHEDULES, Batch(self._port, [asked])),)
            case m.ShowQueue():
                settings = self._channel.context.queue_table.of(self._channel.name)
                return QueueShown(request.number, settings)
            case SetQueue():
                change = StoreQueueSettings(request.number, self._channel.name, request)
                self._effects.forwards += ((CHANNELS, Batch(self._port, [change])),)
            case _:
                raise AssertionError(f"no channel answers {request}")
        return None

    def _pass_on(self, request: JobRequest) -> None:
        dead = self._channel.name + DEAD_SUFFIX
        self._effects.forwards += ((dead, Batch(self._port, [request])),)

    def _view(self) -> JobView:
        channel = self._channel
        dead, attributes = channel.dead_letters, self._attributes
        return JobView(channel.buffer, channel.delivery, dead, self._now, attributes)

    # New jobs.

    def _put(self, put: m.PutJob) -> JobReply | Failed:
        channel, now, effects = self._channel, self._now, self._effects
        known = channel.keys.rows.get(put.key)
        if known is not None and known.until > now:
            if is_same(known, put.data):
                return m.JobStored(put.number, known.id, known.ttl)
            return Failed(put, Code.KEY_REUSED)
        existing = self._job_with(put.unique) if put.unique else None
        if existing is not None:
            return m.JobStored(put.number, existing.id, existing.ttl, existing=True)
        if not put.data and channel.settings.empty is not EmptyPolicy.STORE:
            return Failed(put, Code.EMPTY_DATA)
        if put.due > now + DUE_S_MAX:
            return Failed(put, Code.TTL_REFUSED)
        if put.unique.startswith(RESERVED):
            return Failed(put, Code.MALFORMED)
        plain = Put(put.key, put.ttl, put.data)
        if (refusal := channel.publisher.refusal(plain, now, effects, channel)) is not None:
            return Failed(put, refusal)
        ttl = channel.publisher.ttl_of(put.ttl)
        due = put.due if put.due > now else 0.0
        message_id = channel.publisher.add(put.key, ttl, put.data, now, effects, since=due)
        if not message_id:
            return Failed(put, Code.IDS_EXHAUSTED)
        if due:
            channel.delivery.delay((message_id, 0), due)
            self._attributes.delay(message_id, due, effects.changes)
        if put.unique:
            self._attributes.claim(message_id, put.unique, effects.changes)
        return m.JobStored(put.number, message_id, ttl)

    def _put_all(self, put: m.PutJobs) -> JobReply | Failed:
        channel, now, effects = self._channel, self._now, self._effects
        if put.due > now + DUE_S_MAX:
            return Failed(put, Code.TTL_REFUSED)
        known = channel.keys.rows.get(put.key)
        if known is not None and known.until > now:
            ids = channel.keys.ids_of_run(put.key, put.jobs)
            if ids is None:
                return Failed(put, Code.KEY_REUSED)
            return m.JobsStored(put.number, tuple(ids), known.ttl)
        due = put.due if put.due > now else 0.0
        stored = channel.publisher.add_all(
            put.key, put.ttl, put.jobs, now, effects, channel, since=due
        )
        if isinstance(stored, Code):
            return Failed(put, stored)
        if due:
            for row in stored:
                channel.delivery.delay((row.id, 0), due)
                self._attributes.delay(row.id, due, effects.changes)
        return m.JobsStored(put.number, tuple([row.id for row in stored]), stored[0].ttl)

    def _job_with(self, unique: bytes) -> StoredMessage | None:
        """The job of that unique key; a dead letter is none, also before it has arrived."""
        found = self._attributes.find(unique)
        if found is None or found in self._channel.dead_letters:
            return None
        return self._channel.buffer.get(found, self._now)

    # Existing jobs.

    def _retry(self, request: m.RetryJob) -> JobReply | Failed:
        view, delivery = self._view(), self._channel.delivery
        if view.find(request.id) is None:
            return Failed(request, Code.NOT_FOUND)
        state, holder = view.state(request.id), view.holder(request.id)
        if holder is not None:
            if holder.port is self._port:
                delivery.give_back(holder, request.id)
        elif state is m.JobState.DELAYED:
            delivery.end_delay_now(request.id)
            self._attributes.end_delay(request.id, self._effects.changes)
        return m.JobDone(request.number, state)

    def _take(self, request: m.TakeJob) -> JobReply | Failed:
        view, delivery = self._view(), self._channel.delivery
        row, consumer = view.find(request.id), delivery.consumers.get(self._port)
        if row is None:
            return Failed(request, Code.NOT_FOUND)
        if consumer is None or view.state(request.id) is not m.JobState.READY:
            return Failed(request, Code.LEASE_LOST)
        delivery.lease_by_id(consumer, row, self._now)
        found = view.row(row, len(row.data))
        return m.JobFound(request.number, with_all_data(found, request.bytes_max))

    def _cancel(self, request: m.CancelJob) -> JobReply | Failed:
        view = self._view()
        if view.find(request.id) is None:
            return Failed(request, Code.NOT_FOUND)
        state = view.state(request.id)
        place = flow_step_of(self._attributes.attributes_of(request.id)[1])
        if place is not None:
            failed = FlowJobFailed(self._channel.name, *place, request.id, "cancelled")
            self._effects.posts += ((FLOWS, failed),)
        self._remove_held(request.id)
        cancelled = m.StoreRecord(0, request.id, b"", PROGRESS_KEEP_S, is_final=True)
        self._effects.posts += ((results_cell(self._channel.name), cancelled),)
        return m.JobDone(request.number, state)

    def _reject(self, request: m.RejectJob) -> JobReply | Failed:
        channel, now = self._channel, self._now
        consumer = channel.delivery.consumers.get(self._port)
        if consumer is None or channel.buffer.get(request.id, now) is None:
            return Failed(request, Code.LEASE_LOST)
        channel.time_attempt(consumer, request.id, now)
        count = channel.delivery.nack(consumer, Nack(request.id, NackReason.REJECT), now)
        if count is None:
            return Failed(request, Code.LEASE_LOST)
        channel.context.counters.nacks += 1
        self._effects.changes.append(AttemptsSet(request.id, count))
        reason = request.reason or NackReason.REJECT.value
        channel.give_up(request.id, reason, now, self._effects)
        return m.JobDone(request.number, m.JobState.LEASED)

    # Results.

    def _finish(self, request: m.FinishJob) -> Failed | None:
        """Have the result stored; `_finished` removes the job behind that, and replies."""
        refusal = self._record_refusal(request, request.id, request.data)
        place = flow_step_of(self._attributes.attributes_of(request.id)[1])
        if refusal is None and place is not None:
            channel = self._channel.name
            end = m.EndStep(
                request.number, channel, *place, request.id, request.data, request.keep_s
            )
            self._effects.forwards += ((FLOWS, Batch(self._port, [end])),)
        elif refusal is None:
            final = m.StoreRecord(
                request.number, request.id, request.data, request.keep_s, is_final=True
            )
            self._to_results(final)
        return refusal

    def _report(self, request: m.ReportProgress) -> Failed | None:
        refusal = self._record_refusal(request, request.id, request.data)
        if refusal is None:
            keep_s = PROGRESS_KEEP_S
            record = m.StoreRecord(request.number, request.id, request.data, keep_s, is_final=False)
            self._to_results(record)
        return refusal

    def _record_refusal(self, request: JobRequest, job: int, data: bytes) -> Failed | None:
        consumer = self._channel.delivery.consumers.get(self._port)
        if consumer is None or job not in consumer.leases:
            return Failed(request, Code.LEASE_LOST)
        if len(data) > RECORD_BYTES_MAX:
            return Failed(request, Code.DATA_TOO_LARGE)
        return None

    def _finished(self, request: m.RecordStored) -> JobReply:
        """The job has a result: it leaves, whoever holds it by now."""
        channel, job = self._channel, request.job
        if job in channel.buffer.rows:
            channel.context.counters.acks += 1
            channel.acked += 1
            holder = self._view().holder(job)
            if holder is not None:
                channel.time_attempt(holder, job, self._now)
            self._remove_held(job)
        return m.JobDone(request.number, m.JobState.LEASED)

    def _remove_held(self, job: int) -> None:
        """Remove a job, and tell a worker that has it, and is not the client."""
        holder = self._view().holder(job)
        self._channel.remove(job, self._effects)
        if holder is not None and holder.port is not self._port:
            self._effects.port_replies.append((holder.port, Failed(Touch(job, 0), Code.LEASE_LOST)))

    def _result(self, request: m.GetResult) -> None:
        view = self._view()
        state = None if view.find(request.id) is None else view.state(request.id)
        self._to_results(m.FindRecord(request.number, request.id, state, request.bytes_max))

    def _to_results(self, request: JobRequest) -> None:
        cell = results_cell(self._channel.name)
        self._effects.forwards += ((cell, Batch(self._port, [request])),)

    def _list(self, request: m.ListJobs) -> JobReply | None:
        if request.state is m.JobState.DEAD:
            self._pass_on(ListDeadLetters(request.number, request, (), more=False))
            return None
        rows, more = self._view().page(request)
        if request.state is None:
            self._pass_on(ListDeadLetters(request.number, request, rows, more))
            return None
        return m.JobPage(request.number, rows, more)

    def _get(self, request: m.GetJob) -> JobReply | None:
        view = self._view()
        row = view.find(request.id)
        if row is None:
            self._pass_on(GetDeadLetter(request.number, request))
            return None
        found = view.row(row, len(row.data))
        return m.JobFound(request.number, with_all_data(found, request.bytes_max))

    def _counts(self, number: int, with_stats: bool) -> m.JobCounts:
        now = job_totals(self._channel, self._now)
        oldest = self._view().oldest_ready()
        delivery = self._channel.delivery
        counts = (now.ready, now.delayed, now.running, now.workers, oldest)
        queues = self._channel.context.queues
        return m.JobCounts(
            number,
            *counts,
            is_paused=delivery.is_paused,
            limited=min(now.ready, delivery.limited_count),
            stats=queues.stats_of(self._channel.name) if with_stats and queues else None,
        )

    # Dead letters that come back.

    def _requeue(self, request: RequeueDeadLetters) -> JobReply | Failed:
        """Store dead letters as jobs. The id of one is its key here, so that one that is put back
        twice is stored once."""
        channel, count, done = self._channel, 0, []
        for row in request.rows:
            if row.id not in channel.keys.rows:
                if not self._add_again(row, request.flow_keys.get(row.id, b"")):
                    break
                count += 1
            done.append(row.id)
        if not done:
            is_full = channel.publisher.quota.is_writable
            return Failed(request, Code.BUFFER_FULL if is_full else Code.STORAGE_FAILED)
        self._effects.posts += ((channel.name + DEAD_SUFFIX, DeadLettersRequeued(tuple(done))),)
        more = request.more or len(done) < len(request.rows)
        return m.DeadLettersDone(request.number, count, more)

    def _add_again(self, row: StoredMessage, flow_key: bytes) -> bool:
        channel, now, effects = self._channel, self._now, self._effects
        publisher, size = channel.publisher, len(row.data)
        if not publisher.quota.fits(size):
            channel.sweep(now, effects)
            if not publisher.quota.fits(size):
                return False
        ttl, origin = publisher.ttl_of(0), row.origin or Origin(row.id, 0, "")
        message_id = publisher.add(row.id, ttl, row.data, now, effects, 0, origin)
        place = flow_step_of(flow_key)
        if message_id and place is not None and self._attributes.find(flow_key) is None:
            # It is the job of its step again, unless the flow has put another one meanwhile.
            self._attributes.claim(message_id, flow_key, effects.changes)
            effects.posts += ((FLOWS, FlowJobRequeued(*place, message_id)),)
        return bool(message_id)
