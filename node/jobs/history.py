"""The history of jobs: JSON records in the stream `jobs/QUEUE` of the node."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import NotAllowed, NotNegotiated, RequestError, UnknownStream
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams
from millpond.node.jobs.payload import UNREADABLE
from millpond.node.jobs.requests import JobInfo
from millpond.node.jobs.worker.outcome import utf8_text

AGE_S = 7 * 86_400
BYTES_MAX = 64 * 2**20
WAITING_MAX = 10_000
BATCH_MAX = 200
BATCH_BYTES_MAX = 256 * 1024
"""The most bytes of records in one append, if it is not of one alone."""
WAITING_TRACEBACK_BYTES_MAX = 4 * 2**20
"""While entries with so many bytes of tracebacks wait, others go without theirs."""
ERROR_CHARS_MAX = 2000
SNOWFLAKE_EPOCH_MS = 1_288_834_974_657
EXPIRED = "expired"
"""The reason of a dead letter whose time to live was over."""
ID_AHEAD_S = 10.0
"""Ids may run ahead of the clock that gives records their time."""

log = logging.getLogger(__name__)


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record: `at` in ms since 1970, `what` as in `AttemptResult`, `worker` wrote it.

    `traceback` is that of `error`, of 4 KiB at most; empty from workers of earlier versions, and
    for errors without frames.

    The last entry of a job that expired is of the node: `what` is `expired`, and `worker` empty.
    """

    job: str
    attempt: int
    at: int
    what: str
    error: str = ""
    worker: str = ""
    traceback: str = ""


class History:
    """Writes entries in the background. No job waits for it; entries that fail are dropped."""

    def __init__(self, wall: Callable[[], float], worker: str) -> None:
        self._wall = wall
        self._worker = utf8_text(worker)
        self._waiting: deque[tuple[str, HistoryEntry]] = deque(maxlen=WAITING_MAX)
        self._traceback_bytes = 0
        self._arrived = anyio.Event()
        self._off = False
        self._writing = anyio.Lock()

    def add(
        self, queue: str, job: int, attempt: int, what: str, error: str = "", traceback: str = ""
    ) -> None:
        """Write this soon. `traceback`: as `traceback_text` gives it."""
        if self._off:
            return
        at = round(self._wall() * 1000)
        text = utf8_text(error[:ERROR_CHARS_MAX])
        size = len(traceback.encode())
        if self._traceback_bytes + size > WAITING_TRACEBACK_BYTES_MAX:
            traceback, size = "", 0
        if len(self._waiting) == WAITING_MAX:
            self._take()  # the oldest is lost
        self._traceback_bytes += size
        self._waiting.append(
            (queue, HistoryEntry(str(job), attempt, at, what, text, self._worker, traceback))
        )
        self._arrived.set()

    async def run(self, streams: Callable[[str], Streams]) -> None:
        """Write, for ever, over the connections of the queues."""
        while not self._off:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            await self.flush(streams)

    async def flush(self, streams: Callable[[str], Streams]) -> None:
        """Write what waits."""
        async with self._writing:
            await self._flush(streams)

    async def _flush(self, streams: Callable[[str], Streams]) -> None:
        while self._waiting and not self._off:
            queue, batch = self._batch()
            try:
                await _append(streams(queue).stream(stream_name(queue)), batch)
            except (NotAllowed, NotNegotiated) as exc:
                log.warning("the history of jobs is off: %s (it needs the right `admin`)", exc)
                self._off = True
            except (RequestError, ConnectionLost, ChannelClosed, *UNREADABLE) as exc:
                log.warning("%d entries of history are lost: %s", len(batch), exc)

    def _batch(self) -> tuple[str, list[bytes]]:
        """The next entries of one queue, as records."""
        queue = self._waiting[0][0]
        batch: list[bytes] = []
        size = 0
        while self._waiting and self._waiting[0][0] == queue and len(batch) < BATCH_MAX:
            record = msgspec.json.encode(self._waiting[0][1])  # six bytes for some characters
            size += len(record)
            if batch and size > BATCH_BYTES_MAX:
                break
            self._take()
            batch.append(record)
        return queue, batch

    def _take(self) -> HistoryEntry:
        entry = self._waiting.popleft()[1]
        self._traceback_bytes -= len(entry.traceback.encode())
        return entry


def stream_name(queue: str) -> str:
    """The stream of a queue's history."""
    return f"jobs/{queue}"


async def _append(stream: Stream, records: list[bytes]) -> None:
    try:
        await stream.append(records)
    except UnknownStream:
        await stream.create(age_s=AGE_S, bytes_max=BYTES_MAX, exist_ok=True)
        await stream.append(records)


def id_ms(job: int) -> int:
    """The time at which a job was put, in ms since 1970, which is part of its id."""
    return (job >> 22) + SNOWFLAKE_EPOCH_MS


async def entries_of(streams: Streams, queue: str, job: int) -> AsyncIterator[HistoryEntry]:
    """The entries of a job, from the millisecond of its id on; none without a stream."""
    since = datetime.fromtimestamp(id_ms(job) / 1000 - ID_AHEAD_S, UTC)
    wanted = str(job)
    try:
        async for record in streams.stream(stream_name(queue)).records(since):
            entry = _entry(record.data)
            if entry is not None and entry.job == wanted:
                yield entry
    except UnknownStream:
        return


def expiry_entry(job: JobInfo) -> HistoryEntry | None:
    """The last entry of a job that expired, from its dead letter; None: it did not."""
    if job.state != "dead" or job.reason != EXPIRED:
        return None
    return HistoryEntry(str(job.origin), job.attempt, id_ms(job.id), EXPIRED)


def _entry(data: Any) -> HistoryEntry | None:
    try:
        return msgspec.json.decode(data, type=HistoryEntry)
    except UNREADABLE:
        return None
