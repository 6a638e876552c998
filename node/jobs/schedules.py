"""Schedules of a queue: what puts a job at each moment of a cron expression or an interval.

The node keeps them and puts the jobs, whether a worker runs or not (docs/guides/jobs.md).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from millpond.actors.errors import RequestError
from millpond.actors.jobs.recurrence import Recurrence
from millpond.node.jobs.payload import JobMessage, decode_job
from millpond.transports.p2p.nacks import decode_refused
from millpond.transports.p2p.packets import JOBS, Refused

NAME_BYTES_MAX = 128

When = str | timedelta
"""A cron expression of five or six fields, or an interval."""
Missed = Literal["skip", "one", "all"]
"""The policy for moments that passed while the node was down: none of them puts a job, the last one
does, or each of the last day does."""


class Timing(msgspec.Struct, frozen=True):
    """The moments of a schedule. Raises ValueError for a cron expression, an interval or a time
    zone that cannot be read."""

    when: When
    tz: str = "UTC"
    missed: Missed = "one"

    def __post_init__(self) -> None:
        if self.missed not in ("skip", "one", "all"):
            raise ValueError(f"missed is skip, one or all, not {self.missed!r}")
        self.recurrence().check(0.0)

    def recurrence(self) -> Recurrence:
        """The same as the node has it."""
        match self.when:
            case timedelta():
                return Recurrence(every_ms=round(self.when.total_seconds() * 1000))
            case str(cron):
                return Recurrence(cron, self.tz)

    def fields(self) -> dict[str, str | int]:
        """The fields of the request."""
        found = self.recurrence()
        return {
            "cron": found.cron,
            "zone": found.zone,
            "every": found.every_ms,
            "missed": self.missed,
        }


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule as the node has it.

    `next` is None while it is paused. `last` and `last_job` are of the last job that it put, `jobs`
    is their number. `refused` tells why the last moment put none. `body` are its jobs, with a
    payload that lists cut: None there if it was cut.
    """

    name: str
    timing: Timing
    ttl: int
    paused: bool
    next: datetime | None
    last: datetime | None
    last_job: int
    jobs: int
    body: JobMessage | None
    refused: RequestError | None = None


class _Row(msgspec.Struct):
    name: bytes
    cron: str
    zone: str
    every: int
    ttl: int
    missed: Missed
    paused: bool
    next: int
    last: int
    last_job: int
    jobs: int
    size: int
    data: bytes
    refusal: int = 0


def schedule_name(name: str) -> bytes:
    """The bytes of a name. Raises ValueError for one that no schedule can have."""
    encoded = name.encode()
    if not 0 < len(encoded) <= NAME_BYTES_MAX:
        raise ValueError(f"the name of a schedule has 1 to {NAME_BYTES_MAX} bytes, not {name!r}")
    return encoded


def schedule_info(fields: dict[str, Any]) -> ScheduleInfo:
    """A schedule of an answer."""
    row = msgspec.convert(fields, _Row)
    when: When = timedelta(milliseconds=row.every) if row.every else row.cron
    refused = decode_refused(Refused(JOBS, row.refusal, bytes(4))) if row.refusal else None
    return ScheduleInfo(
        row.name.decode("utf-8", "replace"),
        Timing(when, row.zone, row.missed),
        row.ttl,
        row.paused,
        moment(row.next),
        moment(row.last),
        row.last_job,
        row.jobs,
        decode_job(row.data) if len(row.data) == row.size else None,
        refused,
    )


def moment(ms: int) -> datetime | None:
    """A time of an answer; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
