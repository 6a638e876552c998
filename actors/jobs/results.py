"""The results of one queue's jobs, by the ids of the jobs: a cell beside the channel of the queue.

A worker that ends a job with FINISH has the result stored here first, and only then does the
channel remove the job. So a crash between the two leaves the job in the queue, it runs again, and
the first result stays. Progress is stored in the same place while the job runs.

The cell is a log without records: each result is a key of the log's metadata, and goes after its
time. There are at most `COUNT_MAX` with `BYTES_MAX` together: above that the oldest go first.
"""

from __future__ import annotations

from math import inf

import msgspec

from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs.dead_letters import GetDeadLetter
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Failed,
    JobReply,
    JobRequest,
    Port,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet

COUNT_MAX = 10_000
BYTES_MAX = 16 * 2**20
RECORD_BYTES_MAX = 256 * 1024
KEEP_S_MAX = 30 * 86_400
PROGRESS_KEEP_S = 3600
"""Progress of a job that ends without a result goes after this."""
SWEEP_S = 10.0
"""Records are removed up to so long after their time, many at once."""


class StoredRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The value of a key, as MessagePack. `data` are the worker's bytes."""

    until: float
    is_final: bool
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredRecord).decode


class JobResults:
    """The behaviour of the cell. Implements `Behaviour` and `ClockObserver`."""

    __slots__ = ("_bytes", "_channel", "_records", "deadline")
    unanswered: tuple[()] = ()

    def __init__(self, channel: bytes, snapshot: LogSnapshot) -> None:
        self._channel = channel
        found = ((key, _decode(value)) for key, value in snapshot.metadata.items())
        by_age = sorted(found, key=lambda each: each[1].until)
        self._records = {int.from_bytes(key, "big"): record for key, record in by_age}
        self._bytes = sum(len(record.data) for record in self._records.values())
        self.deadline = -inf if self._records else inf

    @property
    def counts(self) -> tuple[int, int]:
        """The number of records, and their bytes."""
        return len(self._records), self._bytes

    @property
    def is_empty(self) -> bool:
        return not self._records

    @property
    def can_passivate(self) -> bool:
        return not self._records

    def clock_moved(self, seconds: float) -> None:
        """Records go by the time of the node."""

    def limit_deadlines(self, now: float) -> None:
        """No record has more time left than it may get."""
        latest = now + KEEP_S_MAX
        for job, record in self._records.items():
            if record.until > latest:
                self._records[job] = msgspec.structs.replace(record, until=latest)
        self.deadline = -inf if self._records else inf

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            self._take(batch.port, message, now, effects)
        return effects

    def wake(self, now: float) -> Effects:
        effects = Effects()
        over = [job for job, record in self._records.items() if record.until <= now]
        for job in over:
            self._remove(job, effects)
        earliest = min((each.until for each in self._records.values()), default=inf)
        self.deadline = max(earliest, now + SWEEP_S)
        return effects

    def _take(self, port: Port | None, message: CellMessage, now: float, effects: Effects) -> None:
        match message:
            case m.StoreRecord():
                self._store(message, now, effects)
                if port is not None:
                    self._stored(port, message, effects)
            case m.FindRecord() if port is not None:
                reply = self._found(port, message, now, effects)
                if reply is not None:
                    effects.batch_replies.append(reply)
            case m.ForgetRecords():
                for job in [*self._records]:
                    self._remove(job, effects)
            case Detach() | Drain():
                pass
            case _:
                raise AssertionError(f"{type(message).__name__} is not for results")

    def _store(self, message: m.StoreRecord, now: float, effects: Effects) -> None:
        known = self._records.get(message.job)
        if known is not None and known.is_final:
            return  # the first result stays
        if known is not None:
            self._remove(message.job, effects)
        until = now + min(message.keep_s, KEEP_S_MAX)
        record = StoredRecord(until, message.is_final, message.data)
        self._records[message.job] = record
        self._bytes += len(record.data)
        effects.changes.append(MetadataSet(_key(message.job), _encode(record)))
        while len(self._records) > COUNT_MAX or self._bytes > BYTES_MAX:
            self._remove(next(iter(self._records)), effects)
        self.deadline = min(self.deadline, until)

    def _stored(self, port: Port, message: m.StoreRecord, effects: Effects) -> None:
        if message.is_final:
            done: JobRequest = m.RecordStored(message.number, message.job)
            effects.forwards += ((self._channel, Batch(port, [done])),)
        else:
            effects.batch_replies.append(m.JobDone(message.number, m.JobState.LEASED))

    def _found(
        self, port: Port, request: m.FindRecord, now: float, effects: Effects
    ) -> JobReply | Failed | None:
        """The reply; None: the dead letters reply."""
        record = self._records.get(request.job)
        if record is not None and record.until <= now:
            record = None
        if request.state is None and (record is None or not record.is_final):
            wanted = m.GetJob(request.number, request.job, request.bytes_max)
            asked: JobRequest = GetDeadLetter(request.number, wanted)
            effects.forwards += ((self._channel + DEAD_SUFFIX, Batch(port, [asked])),)
            return None
        if record is None:
            return m.RecordFound(request.number, request.state, None, is_final=False)
        if len(record.data) > request.bytes_max:
            return Failed(request, Code.TOO_LARGE_FOR_PEER)
        return m.RecordFound(request.number, request.state, record.data, record.is_final)

    def _remove(self, job: int, effects: Effects) -> None:
        record = self._records.pop(job)
        self._bytes -= len(record.data)
        effects.changes.append(MetadataSet(_key(job), None))


def _key(job: int) -> bytes:
    return job.to_bytes(8, "big")
