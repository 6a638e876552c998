"""Lists of jobs: the state of each, in pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge, nsmallest
from itertools import islice

from msgspec.structs import replace

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, Lease
from millpond.actors.channels.dead_letters import PendingDeadLetters
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.settings import TTL_UNLIMITED
from millpond.actors.jobs.attributes import JobAttributes
from millpond.actors.jobs.flow_keys import flow_step_of
from millpond.actors.jobs.messages import (
    JobRow,
    JobState,
    ListJobs,
    ListWorkers,
    WorkerJobRow,
    WorkerRow,
)
from millpond.actors.store.changes import StoredMessage

ROW_BYTES = 200
"""The size of a row in a reply at most, without its data and its reason."""
WORKER_JOBS_SHOWN = 100
DATA_SHOWN = 256
"""Lists show so many bytes of the data of a job."""

Page = tuple[tuple[JobRow, ...], bool]
"""Rows, ascending by id, and whether there are more above the last one."""


class JobView:
    """The jobs of a channel at one moment, without those on their way to the dead letters."""

    __slots__ = ("_attributes", "_buffer", "_dead_letters", "_delivery", "_leases", "_now")

    def __init__(
        self,
        buffer: Buffer,
        delivery: Delivery,
        dead_letters: PendingDeadLetters,
        now: float,
        attributes: JobAttributes | None = None,
    ) -> None:
        self._attributes = attributes
        self._buffer = buffer
        self._delivery = delivery
        self._dead_letters = dead_letters
        self._now = now
        self._leases: dict[int, tuple[Consumer, Lease]] = {
            message_id: (consumer, lease)
            for consumer in delivery.consumers.values()
            for message_id, lease in consumer.leases.items()
        }

    def find(self, message_id: int) -> StoredMessage | None:
        """The job, if it exists and is no dead letter."""
        return None if message_id in self._dead_letters else self._buffer.get(message_id, self._now)

    def holder(self, message_id: int) -> Consumer | None:
        """The consumer that has a lease on the job."""
        found = self._leases.get(message_id)
        return None if found is None else found[0]

    def state(self, message_id: int) -> JobState:
        """The state of an existing job."""
        if message_id in self._leases:
            return JobState.LEASED
        return JobState.DELAYED if self._delivery.delayed_until(message_id) else JobState.READY

    def row(self, row: StoredMessage, data_max: int) -> JobRow:
        """The row of a job, with so many bytes of its data."""
        _, lease = self._leases.get(row.id, (None, None))
        unique = b"" if self._attributes is None else self._attributes.attributes_of(row.id)[1]
        attempt = self._delivery.attempts.get(row.id, 0) if lease is None else lease.attempt
        return JobRow(
            row.id,
            self.state(row.id),
            attempt,
            self._delivery.delayed_until(row.id) if lease is None else 0.0,
            0.0 if lease is None else lease.until,
            0.0 if row.ttl == TTL_UNLIMITED else row.expires_at,
            len(row.data),
            row.data[:data_max],
            *origin_of(row),
            *place_of(unique),
        )

    def workers(self, request: ListWorkers) -> tuple[tuple[WorkerRow, ...], bool]:
        """The first workers above a connection's number, and whether there are more."""
        consumers = sorted(
            (each for each in self._delivery.consumers.values() if each.receives or each.leases),
            key=lambda each: each.port.number,
        )
        above = [each for each in consumers if each.port.number > request.after]
        rows: list[WorkerRow] = []
        size = 0
        for consumer in above[: request.limit]:
            row = self._worker(consumer)
            size += ROW_BYTES + sum(ROW_BYTES + len(job.data) for job in row.jobs)
            if rows and size > request.bytes_max:
                break
            rows.append(row)
        return tuple(rows), len(rows) < len(above)

    def _worker(self, consumer: Consumer) -> WorkerRow:
        held = islice(consumer.leases.items(), WORKER_JOBS_SHOWN)
        jobs = tuple(
            WorkerJobRow(
                message_id,
                lease.attempt,
                lease.since,
                lease.until,
                lease.started,
                self._buffer.rows[message_id].data[:DATA_SHOWN],
            )
            for message_id, lease in held
            if message_id in self._buffer
        )
        options, count = consumer.options, len(consumer.leases)
        return WorkerRow(
            consumer.port.number,
            options.identity,
            consumer.window,
            consumer.receives,
            count,
            jobs,
            options.name,
        )

    def page(self, request: ListJobs) -> Page:
        """The first jobs of the requested state above an id."""
        found = (
            self.row(row, DATA_SHOWN)
            for row in self._candidates(request)
            if row.id not in self._dead_letters
            and (request.state is None or self.state(row.id) is request.state)
        )
        return first_page(found, request.limit, request.bytes_max)

    def _candidates(self, request: ListJobs) -> Iterable[StoredMessage]:
        """All messages, or fewer where the state leaves only a few."""
        match request.state:
            case JobState.LEASED:
                ids: Iterable[int] = self._leases
            case JobState.DELAYED:
                ids = self._delivery.delayed
            case _:
                return self._buffer.after(request.after, self._now)
        # Some of these may be on their way to the dead letters, which are few.
        wanted = request.limit + 1 + len(self._dead_letters)
        lowest = nsmallest(wanted, (each for each in ids if each > request.after))
        rows = (self._buffer.get(each, self._now) for each in lowest)
        return (row for row in rows if row is not None)

    def oldest_ready(self, among: int | None = None) -> float:
        """The time since which the first ready job is ready, about; 0: there is none `among` the
        first so many."""
        for row in islice(self._buffer.after(0, self._now), among):
            if row.id not in self._dead_letters and self.state(row.id) is JobState.READY:
                return row.expires_at - row.ttl
        return 0.0


def origin_of(row: StoredMessage) -> tuple[int, str]:
    """The id that a dead letter had as a job, and its reason."""
    return (0, "") if row.origin is None else (row.origin.id, row.origin.reason)


def place_of(unique: bytes) -> tuple[int, int]:
    """The flow and the step of the job that has this unique key; zeros for others."""
    return flow_step_of(unique) or (0, 0)


def dead_letter_row(row: StoredMessage, unique: bytes, data_max: int) -> JobRow:
    """The row of a dead letter, with its unique key if it is of a flow."""
    attempts = 0 if row.origin is None else row.origin.attempts
    shown, size = row.data[:data_max], len(row.data)
    origin, place = origin_of(row), place_of(unique)
    return JobRow(
        row.id, JobState.DEAD, attempts, 0.0, 0.0, row.expires_at, size, shown, *origin, *place
    )


def with_all_data(row: JobRow, bytes_max: int) -> JobRow:
    """The row with all its data, or without any where that is too large."""
    if row.size + ROW_BYTES + len(row.reason.encode()) <= bytes_max:
        return row
    return replace(row, data=None)


def first_page(rows: Iterable[JobRow], limit: int, bytes_max: int) -> Page:
    """The first rows, one at least if there is any."""
    page: list[JobRow] = []
    size = 0
    for row in rows:
        size += ROW_BYTES + len(row.data or b"") + len(row.reason.encode())
        if len(page) == limit or (page and size > bytes_max):
            return tuple(page), True
        page.append(row)
    return tuple(page), False


def merge_pages(first: Page, second: Page, limit: int, bytes_max: int) -> Page:
    """One page of two. Rows above the end of a page that has more behind it are for the next."""
    ends = [rows[-1].id for rows, more in (first, second) if more]
    end = min(ends, default=None)
    both: Iterator[JobRow] = merge(first[0], second[0], key=_id)
    page, more = first_page((r for r in both if end is None or r.id <= end), limit, bytes_max)
    return page, more or end is not None


def _id(row: JobRow) -> int:
    return row.id
