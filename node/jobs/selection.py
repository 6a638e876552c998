"""The selection of jobs by what they are: by task, by reason, by age."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from millpond.node.client.idempotency import KEYS
from millpond.node.jobs.history import id_ms
from millpond.node.jobs.payload import decode_job
from millpond.node.jobs.requests import JobInfo


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that match all that is given. `task`: the name of their task; "" for none. `error`: a
    part of the reason of a dead letter, which has the text of the last error. `older_than`: in
    seconds since the put, of a dead letter since it became one."""

    task: str | None = None
    error: str | None = None
    older_than: float | None = None

    @property
    def needs_data(self) -> bool:
        """True: the row of a list may not be enough."""
        return self.task is not None

    def matches_row(self, job: JobInfo, now_ms: float) -> bool:
        """False: whatever the data of the job are, it does not match."""
        if self.error is not None and self.error not in job.reason:
            return False
        return self.older_than is None or id_ms(job.id) <= now_ms - self.older_than * 1000

    def matches_data(self, job: JobInfo) -> bool:
        """Whether the data match, all of which the job has."""
        if self.task is None:
            return True
        name = None if job.data is None else decode_job(job.data).name
        return (name or "") == self.task


def move_key(queue: str, job: int) -> int:
    """The idempotency key of a job that moves to another queue: the same however often it does."""
    return int.from_bytes(sha256(f"{queue}\0{job}".encode()).digest()[:8]) % KEYS


class WorkerJob(msgspec.Struct, frozen=True):
    """A job that a worker holds: since when and until when, in ms since 1970. `begun` False: it
    waits in the worker for a slot."""

    id: int
    attempt: int
    since: int
    until: int
    begun: bool
    data: bytes


class WorkerInfo(msgspec.Struct, frozen=True):
    """A connection that takes jobs of a queue. `connection` is its number in the node (`millpond
    top`), `identity` its key if it proved one, `held` the number of its jobs, of which `jobs` has
    the first 100. `window`: so many it takes at most; `takes` False: it takes no more now. `name`:
    the one that the worker gives itself, by default host and process."""

    connection: int
    identity: bytes | None
    window: int
    takes: bool
    held: int
    jobs: list[WorkerJob]
    name: bytes = b""
