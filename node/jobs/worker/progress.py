"""The progress of running jobs: what handlers report and log, on its way to the node.

A job's handler may report as often as it likes: the node is told the latest, at most every
`GAP_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from millpond.actors.errors import RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.records import (
    LOG_CHARS_MAX,
    LOG_LINES_MAX,
    PROGRESS_BYTES_MAX,
    TEXT_CHARS_MAX,
    JobRecord,
    encode_record,
)
from millpond.node.jobs.requests import Operation, ask

if TYPE_CHECKING:
    from millpond.node.jobs.worker.subscription import LeasedJob

GAP_S = 0.25


class AttemptReport:
    """The report of an attempt's handler. Any thread may call its methods."""

    __slots__ = ("_logs", "_text", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._text = ""
        self._logs: deque[str] = deque(maxlen=LOG_LINES_MAX)

    def set(self, value: object, text: str) -> None:
        """The latest progress. Raises TypeError for a value that MessagePack cannot encode, and
        ValueError for one that is too large."""
        if (size := len(msgspec.msgpack.encode(value))) > PROGRESS_BYTES_MAX:
            raise ValueError(f"progress has {PROGRESS_BYTES_MAX} bytes at most, not {size}")
        self._value, self._text = value, text[:TEXT_CHARS_MAX]

    def log(self, line: str) -> None:
        """One more line; the oldest go."""
        self._logs.append(line[:LOG_CHARS_MAX])

    def record(self, at: int, attempt: int) -> JobRecord:
        """The record of a job that runs."""
        return JobRecord("progress", None, self._value, self._text, [*self._logs], attempt, at)


class ProgressReports:
    """Tells the node of the reports. `run` it as a task; it sends one request at a time."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._changed: dict[LeasedJob, None] = {}
        self._arrived = anyio.Event()

    def changed(self, leased: LeasedJob) -> None:
        """There is something new of this job."""
        self._changed[leased] = None
        self._arrived.set()

    async def run(self) -> None:
        """Send reports until cancelled. One that cannot be sent is dropped; the next has all of
        it."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            some, self._changed = self._changed, {}
            for leased in some:
                if not leased.is_lost and leased.report is not None:
                    await self._send(leased, self.record_of(leased))
            await anyio.sleep(GAP_S)

    def record_of(self, leased: LeasedJob) -> JobRecord:
        """The record of an attempt now."""
        report = leased.report or AttemptReport()
        return report.record(round(self._wall() * 1000), leased.message.attempt)

    async def _send(self, leased: LeasedJob, record: JobRecord) -> None:
        try:
            channel = leased.subscription.channel
            data = encode_record(record)
            await ask(channel, Operation.PROGRESS, id=leased.message.id, data=data)
        except (RequestError, ConnectionLost, ChannelClosed):
            return
