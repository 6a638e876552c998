"""What a channel in queue mode is asked about its jobs, and what it answers
(docs/reference/wire-protocol.md, "Jobs").

Times are seconds since 1970, sizes bytes. `number` is the asker's own: an answer carries that of
its request. Requests about dead letters go on to the channel that has them, and it answers.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from millpond.actors.messages import JobReply, JobRequest


class JobState(Enum):
    """Where a job stands."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A job as it is shown. `data` is its beginning, or None where it does not fit the answer.

    `attempt`: how many attempts were begun. `due`: when its rest ends, `leased_until`: when its
    lease does; 0: it has none. `origin` is the id that it had before it died first, and `reason`
    what it died of; 0 and empty for one that never did.
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
    """Keep a job, and hand it out at `due` (0: at once); `ttl` counts from then.

    `unique`: not while there is one of this name (empty: no matter). Answered by `JobStored`.
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
    """A job that delays is due now, one that the asker holds is given back. `JobDone` answers."""

    id: int


class CancelJob(JobRequest, frozen=True, gc=False):
    """The job is gone, whoever works on it. Answered by `JobDone`."""

    id: int


class RejectJob(JobRequest, frozen=True, gc=False):
    """The job that the asker holds is a dead letter, for this reason. Answered by
    `JobDone`."""

    id: int
    reason: str


class CountJobs(JobRequest, frozen=True, gc=False):
    """Answered by `JobCounts`. `stop`: nothing more is pushed to the asker, until it asks for more
    (`Credit`)."""

    stop: bool = False


class RetryDeadLetters(JobRequest, frozen=True, gc=False):
    """Put dead letters back; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


class PurgeDeadLetters(JobRequest, frozen=True, gc=False):
    """Delete dead letters; None: all. Answered by `DeadLettersDone`."""

    ids: tuple[int, ...] | None


# Answers.


class JobStored(JobReply, frozen=True, gc=False):
    """`existing`: nothing was kept, a job of the same unique name is there already."""

    id: int
    ttl: int
    existing: bool = False


class JobPage(JobReply, frozen=True, gc=False):
    """`more`: there are some above the last one."""

    rows: tuple[JobRow, ...]
    more: bool


class JobFound(JobReply, frozen=True, gc=False):
    """A job."""

    row: JobRow


class JobDone(JobReply, frozen=True, gc=False):
    """Done; `state` is the one that the job was in."""

    state: JobState


class DeadLettersDone(JobReply, frozen=True, gc=False):
    """So many; `more`: not all of those asked for, ask again."""

    count: int
    more: bool


class JobCounts(JobReply, frozen=True, gc=False):
    """How many jobs there are, and who works on them. `oldest` is since when the oldest ready one
    is ready; 0: there is none."""

    ready: int
    delayed: int
    leased: int
    workers: int
    oldest: float
    dead: int = 0
