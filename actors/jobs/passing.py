"""Requests about dead letters on their way from the channel to those, and back.

The asker's own number goes with them, so whichever channel fails, it hears of it.
"""

from __future__ import annotations

from millpond.actors.jobs.messages import JobCounts, JobRow, ListJobs, ShowJob
from millpond.actors.messages import JobRequest
from millpond.actors.store.changes import Row


class ListDead(JobRequest, frozen=True, gc=False):
    """Finish the page that the channel has begun."""

    asked: ListJobs
    rows: tuple[JobRow, ...]
    more: bool


class ShowDead(JobRequest, frozen=True, gc=False):
    """The channel has no such job."""

    asked: ShowJob


class CountDead(JobRequest, frozen=True, gc=False):
    """Add the dead letters to the counts."""

    counts: JobCounts


class Exhume(JobRequest, frozen=True, gc=False):
    """Give these dead letters to the channel they came from."""

    ids: tuple[int, ...] | None


class Purge(JobRequest, frozen=True, gc=False):
    """Delete these dead letters."""

    ids: tuple[int, ...] | None


class Revive(JobRequest, frozen=True, gc=False):
    """The channel keeps these again, each under the id of the dead letter as its key."""

    letters: tuple[Row, ...]
    more: bool


DeadRequest = ListDead | ShowDead | CountDead | Exhume | Purge
DEAD_REQUESTS = (ListDead, ShowDead, CountDead, Exhume, Purge)
