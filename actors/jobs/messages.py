"""Requests about the jobs of a channel in queue mode, and replies
(docs/reference/wire-protocol.md, "Jobs").

Times are seconds since 1970, sizes bytes. `number` is the sender's own: a reply carries that of
its request. Requests about dead letters go on to the channel that has them, and it answers.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from millpond.actors.messages import JobReply, JobRequest


class JobState(Enum):
    """The state of a job."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as lists show it. `data` is its beginning, or None where it does not fit the answer.

    `attempt` counts those that were started. `due` is the end of its delay, `leased_until` of its
    lease; 0: it has none. `expires_at` 0: it does not expire. `origin` is the id that it had before
    it first became a dead letter, and `reason` tells why; 0 and empty: it never did.
    """

    id: int
    state: JobState
    attempt: int
    due: float
    leased_until: float
    expires_at: float
    size: int
    data: bytes | None
    origin: int = 0
    reason: str = ""


# Requests of connections.


class PutJob(JobRequest, frozen=True, gc=False):
    """Store a job that is due at `due` (0: at once); `ttl` counts from then (0: the queue's).

    `unique` is a unique key (empty: none): no other job is stored while one has it. Answered by
    `JobStored`.
    """

    key: int
    ttl: int
    data: bytes
    due: float = 0.0
    unique: bytes = b""


class ListJobs(JobRequest, frozen=True, gc=False):
    """Jobs above the id `after`, ascending, about `bytes_max` of them. Answered by `JobPage`."""

    state: JobState | None
    after: int
    limit: int
    bytes_max: int


class GetJob(JobRequest, frozen=True, gc=False):
    """One job with its data, if that is at most `bytes_max`. Answered by `JobFound`."""

    id: int
    bytes_max: int


class RetryJob(JobRequest, frozen=True, gc=False):
    """Make a delayed job due now, or give back one that the client holds. Answered by `JobDone`."""

    id: int


class CancelJob(JobRequest, frozen=True, gc=False):
    """Delete a job, also while a worker has it. Answered by `JobDone`."""

    id: int


class RejectJob(JobRequest, frozen=True, gc=False):
    """Make a dead letter of a job that the client holds. Answered by `JobDone`."""

    id: int
    reason: str


class CountJobs(JobRequest, frozen=True, gc=False):
    """Count the jobs. `stop`: nothing more is pushed to the client until its next `Credit`.
    Answered by `JobCounts`."""

    stop: bool = False


class RetryDeadLetters(JobRequest, frozen=True, gc=False):
    """Put dead letters back; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


class PurgeDeadLetters(JobRequest, frozen=True, gc=False):
    """Delete dead letters; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


# Replies.


class JobStored(JobReply, frozen=True, gc=False):
    """A job is stored. `existing`: it is an older one with the same unique key."""

    id: int
    ttl: int
    existing: bool = False


class JobPage(JobReply, frozen=True, gc=False):
    """Jobs, ascending by id. `more`: there are some above the last one."""

    rows: tuple[JobRow, ...]
    more: bool


class JobFound(JobReply, frozen=True, gc=False):
    """One job."""

    row: JobRow


class JobDone(JobReply, frozen=True, gc=False):
    """The request is done; `state` is the one that the job was in."""

    state: JobState


class DeadLettersDone(JobReply, frozen=True, gc=False):
    """The number of dead letters that were moved or deleted. `more`: repeat the request."""

    count: int
    more: bool


class JobCounts(JobReply, frozen=True, gc=False):
    """Jobs by state, and workers. `oldest`: the oldest ready job is ready since then; 0: none."""

    ready: int
    delayed: int
    leased: int
    workers: int
    oldest: float
    dead: int = 0
