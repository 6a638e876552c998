"""The cell of the schedules of all queues: at each moment of a schedule it puts a job, once.

A moment is stored as `pending` before its job leaves for the channel. The job is sent again until
the channel says that it is stored, and the channel remembers the last moment of each schedule, so a
crash at any point neither loses nor repeats a job. The cell is a log without records: each schedule
is a key of the log's metadata.

A moment that is less than `LATE_S` ago is not missed. Of those before, the policy of the schedule
decides (`Missed`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple, assert_never

import msgspec

from millpond.actors.channels.idempotency import SCHEDULE_NUMBERS, schedule_origin
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.listing import ROW_BYTES
from millpond.actors.jobs.recurrence import Recurrence
from millpond.actors.jobs.schedule_counters import ScheduleCounters
from millpond.actors.messages import (
    Batch,
    CellMessage,
    CheckSchedules,
    Detach,
    Drain,
    Failed,
    ForgetSchedules,
    JobReply,
    JobRequest,
    MovesDone,
    Port,
    ScheduledJob,
    ScheduledJobStored,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.names import CHANNELS, SCHEDULES

COUNT_MAX = 1000
DATA_BYTES_MAX = 16 * 1024
DATA_SHOWN = 256
LATE_S = 60.0
CATCH_UP_S = 86_400.0
"""`Missed.ALL` goes back so far."""
RETRY_S = 5.0
CLOCKS_APART_S = 5.0
"""A schedule that was computed so far in the future was computed by a clock that was wrong."""
_KEY = b"schedule\0"
_PASSING = (
    Code.BUFFER_FULL,
    Code.STORAGE_FAILED,
    Code.SLOW_DOWN,
    Code.QUARANTINED,
    Code.IDS_EXHAUSTED,
)
"""Refusals that end by themselves: the job is sent again."""

log = logging.getLogger(__name__)


class StoredSchedule(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of a schedule's key, as MessagePack. Times in ms since 1970, 0: none.

    `next_ms` is the first moment that is still to come, as of `computed_ms`; `pending_ms` one whose
    job may not be stored yet.
    """

    channel: bytes
    name: bytes
    spec: m.ScheduleSpec
    computed_ms: int
    next_ms: int
    is_paused: bool = False
    pending_ms: int = 0
    last_ms: int = 0
    last_job: int = 0
    jobs: int = 0
    refusal: str | None = None

    def row(self, data_max: int) -> m.ScheduleRow:
        """The schedule as lists show it."""
        spec = self.spec
        shown = m.ScheduleSpec(spec.recurrence, spec.data[:data_max], spec.ttl, spec.missed)
        return m.ScheduleRow(
            self.name,
            shown,
            self.is_paused,
            self.next_ms / 1000,
            self.last_ms / 1000,
            self.last_job,
            self.jobs,
            len(spec.data),
            None if self.refusal is None else Code[self.refusal],
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredSchedule).decode
_replace = msgspec.structs.replace

EncodeJob = Callable[[bytes, bytes, int, int], bytes]
"""Gives the bytes of a job: of the data of a schedule, its name, a moment and the present, in ms
since 1970. Raises ValueError for data that no job can have."""


class ScheduleTotals(NamedTuple):
    """The schedules of a node now. `waits_s`: for so long the oldest moment waits for its job to be
    stored, in seconds; 0: none does."""

    schedules: int = 0
    paused: int = 0
    waits_s: float = 0.0


class Schedules:
    """The behaviour of the cell. Implements `Behaviour` and `ClockObserver`."""

    __slots__ = (
        "_counters",
        "_encode_job",
        "_is_checked",
        "_numbers",
        "_retry_at",
        "_schedules",
        "deadline",
    )
    unanswered: tuple[()] = ()

    def __init__(
        self,
        snapshot: LogSnapshot,
        encode_job: EncodeJob,
        counters: ScheduleCounters | None = None,
    ) -> None:
        self._encode_job = encode_job
        self._counters = counters or ScheduleCounters()
        self._schedules: dict[int, StoredSchedule] = {
            int.from_bytes(key[len(_KEY) :], "big"): _decode(value)
            for key, value in snapshot.metadata.items()
            if key.startswith(_KEY)
        }
        self._numbers = {(each.channel, each.name): n for n, each in self._schedules.items()}
        self._retry_at: dict[int, float] = {}
        """When a pending job is sent again; those without a time are sent at once."""
        self._is_checked = False
        """The clock did not go back behind what was computed, as far as is known."""
        self.deadline = -inf if self._schedules else inf

    def totals(self, now: float) -> ScheduleTotals:
        """The schedules at this moment."""
        every = self._schedules.values()
        pending = [each.pending_ms for each in every if each.pending_ms]
        waits_s = max(0.0, now - min(pending) / 1000) if pending else 0.0
        return ScheduleTotals(len(every), sum(each.is_paused for each in every), waits_s)

    @property
    def is_empty(self) -> bool:
        return not self._schedules

    @property
    def can_passivate(self) -> bool:
        return not self._schedules

    def clock_moved(self, seconds: float) -> None:
        """Moments that were jumped over are missed, or late."""

    def limit_deadlines(self, now: float) -> None:
        self._is_checked = False
        self._retry_at.clear()
        self.deadline = -inf

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            self._take(batch.port, message, now, effects)
        self._act(now, effects)
        return effects

    def wake(self, now: float) -> Effects:
        effects = Effects()
        self._act(now, effects)
        return effects

    def _take(self, port: Port | None, message: CellMessage, now: float, effects: Effects) -> None:
        match message:
            case m.ScheduleRequest() if port is not None:
                reply = self._answer(port, message, now, effects)
                if reply is not None:
                    effects.batch_replies.append(reply)
            case ForgetSchedules(entry=entry) if port is not None:
                of_channel = [n for (of, _), n in self._numbers.items() if of == entry.channel]
                for number in of_channel:
                    self._delete(number, effects)
                effects.forwards += ((CHANNELS, Batch(port, [entry])),)
            case ScheduledJobStored():
                self._stored(message, now, effects)
            case CheckSchedules(channel=channel, numbers=numbers):
                gone = [n for n in numbers if not self._is_of(channel, n)]
                if gone:
                    effects.posts += ((channel, MovesDone(tuple(map(schedule_origin, gone)))),)
            case Detach() | Drain():
                pass
            case _:
                raise AssertionError(f"{type(message).__name__} is not for schedules")

    def _is_of(self, channel: bytes, number: int) -> bool:
        """Is this the number of a schedule of the channel?"""
        found = self._schedules.get(number)
        return found is not None and found.channel == channel

    # Requests.

    def _answer(
        self, port: Port, asked: m.ScheduleRequest, now: float, effects: Effects
    ) -> JobReply | Failed | None:
        """The reply; None: the queue's channel replies."""
        request = asked.request
        match request:
            case m.ListSchedules():
                return self._list(asked.channel, request)
            case m.PutSchedule():
                return self._put(asked.channel, request, now, effects)
            case m.DeleteSchedule() | m.PauseSchedule() | m.RunSchedule():
                number = self._numbers.get((asked.channel, request.name))
            case _:
                assert_never(request)
        if number is None:
            return Failed(request, Code.NOT_FOUND)
        match request:
            case m.DeleteSchedule():
                self._delete(number, effects)
                return m.ScheduleDone(request.number, 0.0, existing=True)
            case m.PauseSchedule(is_paused=is_paused):
                return self._pause(request, number, now, effects, is_paused=is_paused)
            case m.RunSchedule():
                return self._run(
                    port, asked.channel, request, self._schedules[number].spec, effects
                )
            case _:
                assert_never(request)

    def _run(
        self,
        port: Port,
        channel: bytes,
        request: m.RunSchedule,
        spec: m.ScheduleSpec,
        effects: Effects,
    ) -> Failed | None:
        # A retry has the same bytes: the channel knows it by them, and by its key.
        at_ms = request.at_ms
        try:
            data = self._encode_job(spec.data, request.name, at_ms, at_ms)
        except ValueError:
            return Failed(request, Code.MALFORMED)
        put: JobRequest = m.PutJob(request.number, request.key, spec.ttl, data)
        effects.forwards += ((channel, Batch(port, [put])),)
        return None

    def _list(self, channel: bytes, request: m.ListSchedules) -> JobReply | Failed:
        if request.name is not None:
            number = self._numbers.get((channel, request.name))
            if number is None:
                return Failed(request, Code.NOT_FOUND)
            row = self._schedules[number].row(DATA_BYTES_MAX)
            return m.SchedulePage(request.number, (row,), more=False)
        names = sorted(name for of, name in self._numbers if of == channel and name > request.after)
        rows: list[m.ScheduleRow] = []
        size = 0
        for name in names[: request.limit]:
            row = self._schedules[self._numbers[channel, name]].row(DATA_SHOWN)
            size += 2 * ROW_BYTES + len(name) + DATA_SHOWN
            if rows and size > request.bytes_max:
                break
            rows.append(row)
        return m.SchedulePage(request.number, tuple(rows), more=len(rows) < len(names))

    def _put(
        self, channel: bytes, request: m.PutSchedule, now: float, effects: Effects
    ) -> JobReply | Failed:
        number = self._numbers.get((channel, request.name))
        is_new = number is None
        before = None if number is None else self._schedules[number]
        spec = _anchored(request.spec, before, now)
        if len(spec.data) > DATA_BYTES_MAX:
            return Failed(request, Code.DATA_TOO_LARGE)
        now_ms = round(now * 1000)
        try:
            spec.recurrence.check(now)
            self._encode_job(spec.data, request.name, now_ms, now_ms)
        except ValueError:
            return Failed(request, Code.MALFORMED)
        if before is not None and before.spec == spec:
            return m.ScheduleDone(request.number, before.next_ms / 1000, existing=True)
        if before is None:
            if len(self._schedules) >= COUNT_MAX:
                return Failed(request, Code.BUFFER_FULL)
            number = max(self._schedules, default=0) + 1
            if number >= SCHEDULE_NUMBERS:
                return Failed(request, Code.IDS_EXHAUSTED)
            self._numbers[channel, request.name] = number
            before = StoredSchedule(channel, request.name, spec, 0, 0)
        assert number is not None
        changed = _computed(_replace(before, spec=spec, refusal=None), now)
        self._store(number, changed, effects)
        return m.ScheduleDone(request.number, changed.next_ms / 1000, existing=not is_new)

    def _pause(
        self,
        request: m.PauseSchedule,
        number: int,
        now: float,
        effects: Effects,
        *,
        is_paused: bool,
    ) -> JobReply:
        schedule = self._schedules[number]
        if schedule.is_paused != is_paused:
            # Moments that pass while it is paused are not missed.
            schedule = _computed(_replace(schedule, is_paused=is_paused), now)
            self._store(number, schedule, effects)
        return m.ScheduleDone(request.number, schedule.next_ms / 1000, existing=True)

    def _delete(self, number: int, effects: Effects) -> None:
        schedule = self._schedules.pop(number)
        del self._numbers[schedule.channel, schedule.name]
        self._retry_at.pop(number, None)
        effects.changes.append(MetadataSet(_key(number), None))
        effects.posts += ((schedule.channel, MovesDone((schedule_origin(number),))),)

    # Moments.

    def _act(self, now: float, effects: Effects) -> None:
        """Put the jobs of the moments that have come, and send those again that are not stored."""
        if not self._is_checked:
            self._is_checked = True
            self._check_clock(now, effects)
        for number, schedule in list(self._schedules.items()):
            if schedule.pending_ms:
                if now >= self._retry_at.get(number, -inf):
                    self._send(number, schedule, now, effects)
            elif 0 < schedule.next_ms <= now * 1000:
                self._begin(number, schedule, now, effects)
        self.deadline = min(self._deadlines(), default=inf)

    def _deadlines(self) -> Iterator[float]:
        for number, schedule in self._schedules.items():
            if schedule.pending_ms:
                yield self._retry_at.get(number, -inf)
            elif schedule.next_ms:
                yield schedule.next_ms / 1000

    def _check_clock(self, now: float, effects: Effects) -> None:
        """Compute anew what was computed in the future: the clock was wrong then. Such a schedule
        gets another number, as its channel remembers a moment that is still to come."""
        latest_ms = (now + CLOCKS_APART_S) * 1000
        wrong = [n for n, each in self._schedules.items() if each.computed_ms > latest_ms]
        for number in wrong:
            schedule = self._schedules[number]
            self._delete(number, effects)
            number = max((number, *self._schedules)) + 1
            self._numbers[schedule.channel, schedule.name] = number
            computed = _computed(_replace(schedule, pending_ms=0, last_ms=0, last_job=0), now)
            self._store(number, computed, effects)

    def _begin(self, number: int, schedule: StoredSchedule, now: float, effects: Effects) -> None:
        """A moment has come: its job becomes pending, and leaves once that is stored."""
        moment = _moment_for(schedule, now)
        behind = now if moment is None else moment
        if moment is None:
            name = schedule.name
            log.warning("schedule missed: channel=%r name=%r", schedule.channel, name)
            self._counters.missed += 1
        changed = _replace(
            schedule,
            computed_ms=round(now * 1000),
            next_ms=_ms(schedule.spec.recurrence.next_after(behind)),
            pending_ms=_ms(moment),
        )
        self._store(number, changed, effects)
        if moment is not None:
            self._send(number, changed, now, effects)

    def _send(self, number: int, schedule: StoredSchedule, now: float, effects: Effects) -> None:
        at_ms, spec = schedule.pending_ms, schedule.spec
        try:
            data = self._encode_job(spec.data, schedule.name, at_ms, round(now * 1000))
        except ValueError:  # nothing that `_put` let in, but one must not stop the others
            self._refused(number, schedule, Code.MALFORMED, effects)
            return
        job = ScheduledJob(SCHEDULES, number, at_ms, spec.ttl, data)
        effects.posts += ((schedule.channel, job),)
        self._retry_at[number] = now + RETRY_S

    def _stored(self, answer: ScheduledJobStored, now: float, effects: Effects) -> None:
        number, schedule = answer.number, self._schedules.get(answer.number)
        if schedule is None or schedule.pending_ms != answer.at_ms:
            return  # the schedule was deleted meanwhile, or this was answered before
        code = answer.code
        if code in _PASSING:
            return  # sent again in `RETRY_S`
        self._retry_at.pop(number, None)
        if code is not None:
            self._refused(number, schedule, code, effects)
            return
        self._counters.jobs += 1
        done = _replace(
            schedule,
            pending_ms=0,
            last_ms=answer.at_ms,
            last_job=answer.id,
            jobs=schedule.jobs + 1,
            refusal=None,
        )
        self._store(number, done, effects)

    def _refused(self, number: int, schedule: StoredSchedule, code: Code, effects: Effects) -> None:
        """The pending moment puts no job; the list tells why."""
        channel, name = schedule.channel, schedule.name
        log.warning("scheduled job refused: channel=%r name=%r code=%s", channel, name, code.name)
        self._counters.refused += 1
        self._store(number, _replace(schedule, pending_ms=0, refusal=code.name), effects)

    def _store(self, number: int, schedule: StoredSchedule, effects: Effects) -> None:
        self._schedules[number] = schedule
        effects.changes.append(MetadataSet(_key(number), _encode(schedule)))


def _key(number: int) -> bytes:
    return _KEY + number.to_bytes(4, "big")


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1000)


def _anchored(spec: m.ScheduleSpec, before: StoredSchedule | None, now: float) -> m.ScheduleSpec:
    """An interval counts from the moment at which it was first given."""
    asked = spec.recurrence
    if not asked.every_ms:
        return spec
    anchor_ms = int(now * 1000)  # rounded up it would be a moment itself
    if before is not None and before.spec.recurrence.every_ms == asked.every_ms:
        anchor_ms = before.spec.recurrence.anchor_ms
    anchored = Recurrence(asked.cron, asked.zone, asked.every_ms, anchor_ms)
    return _replace(spec, recurrence=anchored)


def _computed(schedule: StoredSchedule, now: float) -> StoredSchedule:
    """The schedule with its next moment as of now."""
    moment = None if schedule.is_paused else schedule.spec.recurrence.next_after(now)
    return _replace(schedule, computed_ms=round(now * 1000), next_ms=_ms(moment))


def _moment_for(schedule: StoredSchedule, now: float) -> float | None:
    """The moment that a schedule puts a job for, as `next_ms` has passed; None: all that passed are
    missed, and put none."""
    first, recurrence = schedule.next_ms / 1000, schedule.spec.recurrence
    if now - first <= LATE_S:
        return first
    match schedule.spec.missed:
        case m.Missed.ALL:
            earliest = now - CATCH_UP_S
            late = first if first >= earliest else recurrence.next_after(earliest)
            return late if late is not None and late <= now else None
        case m.Missed.ONE | m.Missed.SKIP as policy:
            last = recurrence.last_until(now)
            last = first if last is None else max(first, last)
            return last if policy is m.Missed.ONE or now - last <= LATE_S else None
        case unknown:
            assert_never(unknown)
