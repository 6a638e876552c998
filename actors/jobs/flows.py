"""The cell of the flows of all queues: jobs that wait for other jobs, over any queues of the node.

**Ownership.** A flow is a list of steps, each a job to be; a step waits for steps before it. This
cell owns all of them until the flow has ended and its time is over. A queue's channel has a job of
a flow only while it can run, under the unique key `flow_key`. The cell is a log without records:
the flow, each step and the status of each step are keys of the log's metadata, so that a step that
ends is one small write.

**Kills.** At any point a step is in one of these states, and stored:
- `waiting`: only here. Nothing was sent.
- `pending`: its job was sent to the channel, or is about to be. After a crash it is sent again, and
  again every `RETRY_S`; the channel has at most one job of the unique key, so it is stored once.
- `queued`: the channel has the job. It runs at least once, like any job: a worker that is killed
  leaves it there. A worker ends it by FINISH, and then the outcome is stored here first and the job
  leaves behind that. A crash in between leaves the job in the queue: it runs again, the first
  outcome stays, and what waited for it is not put twice, as the outcome and the `pending` of those
  steps are one write.
- `failed`: likewise; a job stays in its channel until it is a dead letter and this cell knows it.
- A job that left in another way (cancelled, purged, its queue deleted) is told at once, and if that
  is lost it is found out: every `CHECK_S` channels are asked for the jobs that should be there.

**Failure.** A step that failed, or was skipped, does one of three to those that wait for it: `fail`
skips them, `ignore` lets them run with the failure among their results, `wait` holds them until the
step is retried or the flow cancelled.

A flow that is cancelled ends once the channels have answered that its jobs are gone. It cannot be
retried before: an answer would be taken for one about the next job of the step.

A dead letter of a step that is put back (`FlowJobRequeued`) is the job of the step again: the step
is `queued`, and those that were skipped for it wait again. Its result counts also where that word
was lost.

**Bounds.** `FLOWS_MAX` flows, `STEPS_MAX` steps in each, `BYTES_MAX` for the bytes of all. Above
that the flows that ended first are forgotten, and then new ones are refused (BUFFER_FULL). Results
of steps go up to `RESULTS_MAX`: a step whose result finds no room has failed. A result is forgotten
once all steps that wait for it are done, except that of a last step. Flows that do not end stay
until they are cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import inf
from struct import Struct
from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.messages import (
    Batch,
    CancelFlowJob,
    CellMessage,
    CheckFlowJobs,
    Detach,
    Drain,
    Failed,
    FlowJob,
    FlowJobFailed,
    FlowJobKnown,
    FlowJobRequeued,
    FlowJobsGone,
    FlowJobStored,
    JobReply,
    JobRequest,
    Port,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.names import FLOWS, results_cell

FLOWS_MAX = 10_000
BYTES_MAX = 64 * 2**20
RESULTS_MAX = 2 * BYTES_MAX
"""The bytes of all flows with the results of their steps."""
KEEP_S_MAX = 30 * 86_400
RETRY_S = 5.0
CHECK_S = 30.0
CHECKED_MAX = 1000
"""The jobs that one question to a channel asks for."""
_FLOW, _STEP, _STATUS = b"flow\0", b"step\0", b"status\0"
_NUMBER = Struct(">Q")
_STEP_KEY = Struct(">QH")
_PASSING = (
    Code.BUFFER_FULL,
    Code.STORAGE_FAILED,
    Code.SLOW_DOWN,
    Code.QUARANTINED,
    Code.IDS_EXHAUSTED,
)
"""Refusals that end by themselves: the job is sent again."""

NO_ROOM = "there is no room for its result"

log = logging.getLogger(__name__)


class StepState(StrEnum):
    """The state of a step."""

    WAITING = "waiting"
    PENDING = "pending"
    QUEUED = "queued"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


_ENDED = (StepState.DONE, StepState.FAILED, StepState.SKIPPED)
_OPEN_JOB = (StepState.PENDING, StepState.QUEUED)


class StoredFlow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A flow without its steps. Times in ms since 1970, 0: not yet. `key` is the client's."""

    channel: bytes
    key: int
    keep_s: int
    steps: int
    created_ms: int
    ended_ms: int = 0
    is_cancelled: bool = False


class StepStatus(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The status of a step. `job` is the latest one of it. `data` is the record of its result,
    `reason` why it has none."""

    state: StepState = StepState.WAITING
    job: int = 0
    data: bytes = b""
    reason: str = ""


class Flow:
    """A flow in memory."""

    __slots__ = ("followers", "header", "number", "size", "statuses", "steps")

    def __init__(
        self,
        number: int,
        header: StoredFlow,
        steps: Sequence[m.FlowStep],
        statuses: list[StepStatus],
    ) -> None:
        self.number = number
        self.header = header
        self.steps = steps
        self.statuses = statuses
        self.followers: list[list[int]] = [[] for _ in steps]
        """Of each step, those that wait for it."""
        for at, step in enumerate(steps):
            for each in step.after:
                self.followers[each].append(at)
        self.size = sum(len(step.data) for step in steps)
        self.size += sum(len(status.data) for status in statuses)

    @property
    def has_ended(self) -> bool:
        """Every step has."""
        return all(status.state in _ENDED for status in self.statuses)

    @property
    def is_being_cancelled(self) -> bool:
        """Queues have not answered yet that its jobs are gone."""
        return self.header.is_cancelled and not self.has_ended

    @property
    def last_steps(self) -> list[int]:
        """The steps that no other one waits for."""
        return [at for at, followers in enumerate(self.followers) if not followers]

    @property
    def state(self) -> m.FlowState:
        """The state of the whole."""
        states = [status.state for status in self.statuses]
        if not self.has_ended:
            runs = any(each in _OPEN_JOB for each in states)
            return m.FlowState.RUNNING if runs else m.FlowState.BLOCKED
        if self.header.is_cancelled:
            return m.FlowState.CANCELLED
        is_done = all(states[at] is StepState.DONE for at in self.last_steps)
        return m.FlowState.DONE if is_done else m.FlowState.FAILED

    def next_state(self, at: int) -> StepState:
        """The state that a step that waits has now."""
        state = StepState.PENDING
        for each in self.steps[at].after:
            match self.statuses[each].state:
                case StepState.DONE:
                    pass
                case StepState.FAILED | StepState.SKIPPED:
                    policy = self.steps[each].on_failure
                    if policy is m.OnFailure.FAIL:
                        return StepState.SKIPPED
                    if policy is m.OnFailure.WAIT:
                        state = StepState.WAITING
                case _:
                    state = StepState.WAITING
        return state


_encode = msgspec.msgpack.Encoder().encode
_decode_flow = msgspec.msgpack.Decoder(StoredFlow).decode
_decode_step = msgspec.msgpack.Decoder(m.FlowStep).decode
_decode_status = msgspec.msgpack.Decoder(StepStatus).decode
_replace = msgspec.structs.replace

EncodeFlowJob = Callable[[bytes, Sequence[tuple[bytes, str]], bool, int], bytes]
"""Gives the bytes of a job: of the data of its step, the records of the steps that it waited for
(with the reason of each that failed), whether they are its payload, and the time in ms since 1970.
Raises ValueError for what no job can have."""


class Flows:
    """The behaviour of the cell. Implements `Behaviour` and `ClockObserver`."""

    __slots__ = (
        "_by_key",
        "_bytes",
        "_check_at",
        "_encode_job",
        "_ended",
        "_expiries",
        "_flows",
        "_retry_at",
        "deadline",
    )
    unanswered: tuple[()] = ()

    def __init__(self, snapshot: LogSnapshot, encode_job: EncodeFlowJob) -> None:
        self._encode_job = encode_job
        self._flows: dict[int, Flow] = {}
        for key, value in sorted(snapshot.metadata.items()):
            if key.startswith(_FLOW):
                (number,) = _NUMBER.unpack(key[len(_FLOW) :])
                self._flows[number] = _loaded(number, _decode_flow(value), snapshot.metadata)
        self._by_key = {
            (each.header.channel, each.header.key): number for number, each in self._flows.items()
        }
        self._bytes = sum(flow.size for flow in self._flows.values())
        self._expiries: DeadlineHeap[int] = DeadlineHeap(self._is_expiry)
        self._ended: dict[int, None] = {}
        """The flows that have ended, the first ones first."""
        ended = [flow for flow in self._flows.values() if flow.header.ended_ms]
        for flow in sorted(ended, key=lambda flow: flow.header.ended_ms):
            self._add_ended(flow)
        self._retry_at: dict[tuple[int, int], float] = {}
        """When the job of each pending step is sent again, in flows that are not cancelled."""
        self._retry_all()
        self._check_at = -inf
        self.deadline = -inf if self._flows else inf

    @property
    def is_empty(self) -> bool:
        return not self._flows

    @property
    def can_passivate(self) -> bool:
        return not self._flows

    def clock_moved(self, seconds: float) -> None:
        """Flows wait for jobs, and jobs for the clock."""

    def limit_deadlines(self, now: float) -> None:
        self._retry_all()
        self._check_at = self.deadline = -inf

    @property
    def counts(self) -> tuple[int, int, int]:
        """Flows that have not ended, those that have, and the bytes of all."""
        return len(self._flows) - len(self._ended), len(self._ended), self._bytes

    def _retry_all(self) -> None:
        """Send the jobs of all pending steps again."""
        for flow in self._flows.values():
            if not flow.header.ended_ms and not flow.header.is_cancelled:
                for at, status in enumerate(flow.statuses):
                    if status.state is StepState.PENDING:
                        self._retry_at[flow.number, at] = -inf

    def _is_expiry(self, when: float, number: int) -> bool:
        return number in self._ended and _expiry(self._flows[number]) == when

    def _add_ended(self, flow: Flow) -> None:
        self._ended[flow.number] = None
        self._expiries.add(_expiry(flow), flow.number)

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            self._take(batch.port, message, now, effects)
        self._set_deadline()
        return effects

    def wake(self, now: float) -> Effects:
        effects = Effects()
        for number in self._expiries.due(now):
            self._forget(self._flows[number], effects)
        for number, at in list(self._retry_at):
            if now >= self._retry_at.get((number, at), inf):
                self._send(self._flows[number], at, now, effects)
        if now >= self._check_at:
            self._check_at = now + CHECK_S
            self._check(effects)
        self._set_deadline()
        return effects

    def _set_deadline(self) -> None:
        has_open = len(self._flows) > len(self._ended)
        check_at = self._check_at if has_open else inf
        retry_at = min(self._retry_at.values(), default=inf)
        self.deadline = min(self._expiries.next_at, check_at, retry_at)

    def _take(self, port: Port | None, message: CellMessage, now: float, effects: Effects) -> None:
        match message:
            case m.FlowRequest() if port is not None:
                effects.batch_replies.append(self._answer(message, now, effects))
            case m.EndStep():
                self._end(port, message, now, effects)
            case FlowJobStored():
                self._stored(message, now, effects)
            case FlowJobFailed():
                self._failed(message, now, effects)
            case FlowJobRequeued():
                self._requeued(message, now, effects)
            case FlowJobsGone(places=places):
                for number, at in places:
                    self._fail(number, at, "gone", now, effects, only_queued=True)
            case Detach() | Drain():
                pass
            case _:
                raise AssertionError(f"{type(message).__name__} is not for flows")

    # Requests.

    def _answer(self, asked: m.FlowRequest, now: float, effects: Effects) -> JobReply | Failed:
        request = asked.request
        match request:
            case m.PutFlow():
                return self._put(asked.channel, request, now, effects)
            case m.ListFlows():
                return self._list(asked.channel, request)
            case m.GetFlow() | m.RetryFlow() | m.CancelFlow():
                flow = self._flows.get(request.flow)
            case _:
                assert_never(request)
        if flow is None or flow.header.channel != asked.channel:
            return Failed(request, Code.NOT_FOUND)
        match request:
            case m.GetFlow():
                return self._found(request, flow)
            case m.RetryFlow():
                if flow.is_being_cancelled:
                    return Failed(request, Code.SLOW_DOWN)
                self._retry(flow, now, effects)
            case m.CancelFlow():
                self._cancel(flow, now, effects)
            case _:
                assert_never(request)
        return m.FlowDone(request.number, flow.number, flow.state)

    def _put(
        self, channel: bytes, request: m.PutFlow, now: float, effects: Effects
    ) -> JobReply | Failed:
        known = self._by_key.get((channel, request.key))
        if known is not None:
            return m.FlowDone(request.number, known, self._flows[known].state)
        steps = request.steps
        if not 0 < len(steps) <= m.STEPS_MAX:
            return Failed(request, Code.MALFORMED)
        for at, step in enumerate(steps):
            if any(not 0 <= each < at for each in step.after):
                return Failed(request, Code.MALFORMED)
        number = next(reversed(self._flows), 0) + 1
        number = max(number, round(now * 1000))  # no number comes again, also of forgotten flows
        keep_s = min(request.keep_s, KEEP_S_MAX)
        header = StoredFlow(channel, request.key, keep_s, len(steps), round(now * 1000))
        flow = Flow(number, header, steps, [StepStatus()] * len(steps))
        self._make_room(flow.size, effects)
        if len(self._flows) >= FLOWS_MAX or self._bytes + flow.size > BYTES_MAX:
            return Failed(request, Code.BUFFER_FULL)
        self._flows[number] = flow
        self._by_key[channel, request.key] = number
        self._bytes += flow.size
        effects.changes.append(MetadataSet(_flow_key(number), _encode(header)))
        for at, step in enumerate(steps):
            effects.changes.append(MetadataSet(_place_key(_STEP, number, at), _encode(step)))
        self._check_at = max(self._check_at, now + CHECK_S)
        self._advance(flow, now, effects)
        return m.FlowDone(request.number, number, flow.state)

    def _make_room(self, size: int, effects: Effects) -> None:
        """Forget flows that have ended, the first ones first."""
        while self._ended and (len(self._flows) >= FLOWS_MAX or self._bytes + size > BYTES_MAX):
            self._forget(self._flows[next(iter(self._ended))], effects)

    def _found(self, request: m.GetFlow, flow: Flow) -> JobReply:
        last = set(flow.last_steps)
        left = request.bytes_max // 2
        rows = []
        for at, (step, status) in enumerate(zip(flow.steps, flow.statuses, strict=True)):
            data = status.data if at in last and len(status.data) <= left else None
            left -= len(data or b"")
            rows.append(
                m.StepRow(
                    step.channel, status.state.value, status.job, status.reason, step.after, data
                )
            )
        created, ended = flow.header.created_ms / 1000, flow.header.ended_ms / 1000
        return m.FlowFound(
            request.number,
            flow.number,
            flow.state,
            created,
            ended,
            tuple(rows),
            tuple(sorted(last)),
        )

    def _list(self, channel: bytes, request: m.ListFlows) -> JobReply:
        found = sorted(
            number
            for number, flow in self._flows.items()
            if flow.header.channel == channel and number > request.after
        )
        rows = []
        for number in found[: request.limit]:
            flow = self._flows[number]
            done = sum(each.state in _ENDED for each in flow.statuses)
            created = flow.header.created_ms / 1000
            rows.append(m.FlowRow(number, flow.state, len(flow.steps), done, created))
        return m.FlowPage(request.number, tuple(rows), more=len(found) > request.limit)

    def _retry(self, flow: Flow, now: float, effects: Effects) -> None:
        """Failed steps run again, and skipped ones wait again."""
        if all(each.state not in (StepState.FAILED, StepState.SKIPPED) for each in flow.statuses):
            return
        for at, status in enumerate(flow.statuses):
            if status.state in (StepState.FAILED, StepState.SKIPPED):
                self._set(flow, at, StepStatus(job=status.job), effects)
        self._reopen(flow, effects)
        self._advance(flow, now, effects)

    def _reopen(self, flow: Flow, effects: Effects) -> None:
        """The flow goes on."""
        self._ended.pop(flow.number, None)
        self._set_header(flow, _replace(flow.header, ended_ms=0, is_cancelled=False), effects)

    def _cancel(self, flow: Flow, now: float, effects: Effects) -> None:
        if flow.has_ended:
            return
        self._set_header(flow, _replace(flow.header, is_cancelled=True), effects)
        for at in range(len(flow.steps)):
            self._retry_at.pop((flow.number, at), None)
        for at, status in enumerate(flow.statuses):
            if status.state is StepState.WAITING:
                skipped = StepStatus(StepState.SKIPPED, reason="cancelled")
                self._set(flow, at, skipped, effects)
            elif status.state in _OPEN_JOB:
                effects.posts += ((flow.steps[at].channel, CancelFlowJob(FLOWS, flow.number, at)),)
        self._advance(flow, now, effects)

    # Steps.

    def _advance(self, flow: Flow, now: float, effects: Effects) -> None:
        """Put the steps that have nothing to wait for, and skip those that cannot run."""
        for at, status in enumerate(flow.statuses):
            if status.state is not StepState.WAITING:
                continue
            match flow.next_state(at):
                case StepState.PENDING:
                    self._set(flow, at, StepStatus(StepState.PENDING, status.job), effects)
                    self._send(flow, at, now, effects)
                case StepState.SKIPPED:
                    skipped = StepStatus(StepState.SKIPPED, reason="a job before it failed")
                    self._set(flow, at, skipped, effects)
                case _:
                    pass
        if flow.has_ended and not flow.header.ended_ms:
            header = _replace(flow.header, ended_ms=max(1, round(now * 1000)))
            self._set_header(flow, header, effects)
            self._add_ended(flow)

    def _send(self, flow: Flow, at: int, now: float, effects: Effects) -> None:
        step, statuses = flow.steps[at], flow.statuses
        found = [(statuses[each].data, statuses[each].reason) for each in step.after]
        try:
            data = self._encode_job(step.data, found, step.feeds, round(now * 1000))
        except ValueError as exc:
            log.warning("job of a flow not encoded: flow=%d step=%d: %s", flow.number, at, exc)
            failed = StepStatus(StepState.FAILED, reason="its payload cannot be encoded")
            self._retry_at.pop((flow.number, at), None)
            self._set(flow, at, failed, effects)
            self._advance(flow, now, effects)
            return
        self._retry_at[flow.number, at] = now + RETRY_S
        job = FlowJob(FLOWS, flow.number, at, step.ttl, data)
        effects.posts += ((step.channel, job),)

    def _stored(self, answer: FlowJobStored, now: float, effects: Effects) -> None:
        found = self._find(answer.flow, answer.step)
        if found is None or found.statuses[answer.step].state is not StepState.PENDING:
            return  # it has ended already
        is_former = answer.code is None and answer.id == found.statuses[answer.step].job
        if answer.code in _PASSING or is_former:
            return  # sent again in `RETRY_S`; a former job of the step is on its way out
        self._retry_at.pop((answer.flow, answer.step), None)
        if answer.code is not None:
            failed = StepStatus(StepState.FAILED, reason=f"refused: {answer.code.name}")
            self._set(found, answer.step, failed, effects)
            self._advance(found, now, effects)
            return
        self._set(found, answer.step, StepStatus(StepState.QUEUED, answer.id), effects)

    def _end(self, port: Port | None, message: m.EndStep, now: float, effects: Effects) -> None:
        """The job of a step is done. Then it leaves its queue, or its result is stored first."""
        flow = self._find(message.flow, message.step)
        if flow is not None and self._may_end(flow, message.step):
            self._retry_at.pop((message.flow, message.step), None)
            if flow.statuses[message.step].state is StepState.FAILED:
                self._revive(flow, effects)
            self._make_room(len(message.data), effects)
            ended = StepStatus(StepState.DONE, message.job, message.data)
            if self._bytes + len(message.data) > RESULTS_MAX:
                ended = StepStatus(StepState.FAILED, message.job, reason=NO_ROOM)
            self._set(flow, message.step, ended, effects)
            self._drop_results(flow, message.step, effects)
            self._advance(flow, now, effects)
        if port is None:
            return
        number, job = message.number, message.job
        stored: JobRequest = m.RecordStored(number, job)
        cell = message.channel
        if message.keep_s:
            stored = m.StoreRecord(number, job, message.data, message.keep_s, is_final=True)
            cell = results_cell(message.channel)
        effects.forwards += ((cell, Batch(port, [stored])),)

    def _may_end(self, flow: Flow, at: int) -> bool:
        """Does a job that is done end the step? One that was a dead letter does so too."""
        state = flow.statuses[at].state
        if state is StepState.FAILED:
            return not flow.header.is_cancelled
        return state in _OPEN_JOB

    def _revive(self, flow: Flow, effects: Effects) -> None:
        """A step that failed has a job again, or is done: those that were skipped wait again."""
        self._reopen(flow, effects)
        for at, status in enumerate(flow.statuses):
            if status.state is StepState.SKIPPED:
                self._set(flow, at, StepStatus(job=status.job), effects)

    def _requeued(self, message: FlowJobRequeued, now: float, effects: Effects) -> None:
        flow = self._find(message.flow, message.step)
        if flow is None or flow.header.is_cancelled:
            return
        if flow.statuses[message.step].state is StepState.FAILED:
            self._revive(flow, effects)
            queued = StepStatus(StepState.QUEUED, message.id)
            self._set(flow, message.step, queued, effects)
            self._advance(flow, now, effects)

    def _drop_results(self, flow: Flow, at: int, effects: Effects) -> None:
        """Forget the results that only this step and others that are done have waited for."""
        if flow.statuses[at].state is not StepState.DONE:
            return
        for each in flow.steps[at].after:
            status = flow.statuses[each]
            followers = (flow.statuses[other].state for other in flow.followers[each])
            if status.data and all(state is StepState.DONE for state in followers):
                self._set(flow, each, _replace(status, data=b""), effects)

    def _failed(self, message: FlowJobFailed, now: float, effects: Effects) -> None:
        if not self._is_former(message):
            self._fail(message.flow, message.step, message.reason, now, effects)
        effects.posts += ((message.sender, FlowJobKnown(message.id)),)

    def _is_former(self, message: FlowJobFailed) -> bool:
        """Is this said of a job before the one that the step has, or is about to have?"""
        flow = self._find(message.flow, message.step)
        if flow is None or not message.id:
            return False
        status = flow.statuses[message.step]
        if status.state is StepState.PENDING:
            return status.job == message.id
        return status.state is StepState.QUEUED and status.job != message.id

    def _fail(
        self,
        number: int,
        at: int,
        reason: str,
        now: float,
        effects: Effects,
        *,
        only_queued: bool = False,
    ) -> None:
        flow = self._find(number, at)
        states = (StepState.QUEUED,) if only_queued else _OPEN_JOB
        if flow is None or flow.statuses[at].state not in states:
            return
        self._retry_at.pop((number, at), None)
        failed = StepStatus(StepState.FAILED, flow.statuses[at].job, reason=reason)
        self._set(flow, at, failed, effects)
        self._advance(flow, now, effects)

    def _check(self, effects: Effects) -> None:
        """Ask the channels for the jobs that they should have; those of flows that are cancelled
        are to go."""
        queued: dict[bytes, list[tuple[int, int]]] = {}
        for flow in self._flows.values():
            if flow.header.ended_ms:
                continue
            for at, status in enumerate(flow.statuses):
                if status.state not in _OPEN_JOB:
                    continue
                channel = flow.steps[at].channel
                if flow.header.is_cancelled:
                    effects.posts += ((channel, CancelFlowJob(FLOWS, flow.number, at)),)
                elif status.state is StepState.QUEUED:
                    queued.setdefault(channel, []).append((flow.number, at))
        for channel, places in queued.items():
            for start in range(0, len(places), CHECKED_MAX):
                some = tuple(places[start : start + CHECKED_MAX])
                effects.posts += ((channel, CheckFlowJobs(FLOWS, some)),)

    # The store.

    def _find(self, number: int, at: int) -> Flow | None:
        flow = self._flows.get(number)
        return flow if flow is not None and at < len(flow.steps) else None

    def _set(self, flow: Flow, at: int, status: StepStatus, effects: Effects) -> None:
        grown = len(status.data) - len(flow.statuses[at].data)
        flow.size += grown
        self._bytes += grown
        flow.statuses[at] = status
        key = _place_key(_STATUS, flow.number, at)
        effects.changes.append(MetadataSet(key, _encode(status)))

    def _set_header(self, flow: Flow, header: StoredFlow, effects: Effects) -> None:
        flow.header = header
        effects.changes.append(MetadataSet(_flow_key(flow.number), _encode(header)))

    def _forget(self, flow: Flow, effects: Effects) -> None:
        number = flow.number
        del self._flows[number]
        self._ended.pop(number, None)
        del self._by_key[flow.header.channel, flow.header.key]
        self._bytes -= flow.size
        effects.changes.append(MetadataSet(_flow_key(number), None))
        for at in range(len(flow.steps)):
            effects.changes.append(MetadataSet(_place_key(_STEP, number, at), None))
            effects.changes.append(MetadataSet(_place_key(_STATUS, number, at), None))


def _expiry(flow: Flow) -> float:
    """The time at which a flow that has ended is forgotten."""
    return flow.header.ended_ms / 1000 + flow.header.keep_s


def _loaded(number: int, header: StoredFlow, metadata: dict[bytes, bytes]) -> Flow:
    steps, statuses = [], []
    for at in range(header.steps):
        steps.append(_decode_step(metadata[_place_key(_STEP, number, at)]))
        status = metadata.get(_place_key(_STATUS, number, at))
        statuses.append(StepStatus() if status is None else _decode_status(status))
    return Flow(number, header, steps, statuses)


def _flow_key(number: int) -> bytes:
    return _FLOW + _NUMBER.pack(number)


def _place_key(kind: bytes, number: int, at: int) -> bytes:
    return kind + _STEP_KEY.pack(number, at)
