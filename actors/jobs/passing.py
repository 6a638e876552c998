"""Requests about dead letters on their way from the channel to those, and back.

The asker's own number goes with them, so whichever channel fails, it hears of it.
"""

from __future__ import annotations

from millpond.actors.jobs.messages import GetJob, JobCounts, JobRow, ListJobs
from millpond.actors.messages import JobRequest
from millpond.actors.store.changes import StoredMessage


class ListDeadLetters(JobRequest, frozen=True, gc=False):
    """Finish the page that the channel has begun."""

    asked: ListJobs
    rows: tuple[JobRow, ...]
    more: bool


class GetDeadLetter(JobRequest, frozen=True, gc=False):
    """The channel has no such job."""

    asked: GetJob


class CountDeadLetters(JobRequest, frozen=True, gc=False):
    """Add the dead letters to the counts."""

    counts: JobCounts


class TakeDeadLetters(JobRequest, frozen=True, gc=False):
    """Give these dead letters to the channel they came from."""

    ids: tuple[int, ...] | None


class DeleteDeadLetters(JobRequest, frozen=True, gc=False):
    """Delete these dead letters."""

    ids: tuple[int, ...] | None


class RequeueDeadLetters(JobRequest, frozen=True, gc=False):
    """The channel keeps these again, each under the id of the dead letter as its key."""

    dead_letters: tuple[StoredMessage, ...]
    more: bool


DeadLetterRequest = (
    ListDeadLetters | GetDeadLetter | CountDeadLetters | TakeDeadLetters | DeleteDeadLetters
)
DEAD_LETTER_REQUESTS = (
    ListDeadLetters,
    GetDeadLetter,
    CountDeadLetters,
    TakeDeadLetters,
    DeleteDeadLetters,
)
