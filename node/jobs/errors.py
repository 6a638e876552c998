"""Errors of jobs: those that handlers raise, and those that producers catch."""

from __future__ import annotations

from math import isnan
from typing import SupportsFloat

from millpond.actors.errors import MillpondError


class Retry(MillpondError):
    """Raised by a handler: try the job again, in `delay` seconds; None: by the task's backoff.

    Raises TypeError for a delay that is no number, ValueError for one below 0. The delay is an hour
    at most.
    """

    delay: float | None = None

    def __init__(self, delay: SupportsFloat | None = None, text: str = "") -> None:
        super().__init__(text or "the handler asks for another attempt")
        self.delay = None if delay is None else seconds_of("a delay", delay)


class Reject(MillpondError):
    """Raised by a handler: never try the job again. It becomes a dead letter with this reason.

    `reason` is taken as text, whatever it is: an error, for example.
    """

    reason: str = "rejected"

    def __init__(self, reason: object = reason) -> None:
        super().__init__(reason)
        self.reason = str(reason) or Reject.reason


class PayloadRefused(MillpondError):
    """The payload does not fit what the handler takes."""


class LeaseExpired(MillpondError):
    """The job was done after its lease was over: it is not acknowledged, and may run again."""


class AttemptTimedOut(MillpondError):
    """An attempt took longer than its task allows; it counts, and the job is tried again."""


class HandlersHang(MillpondError):
    """Handlers in threads did not end after their time-out: one of a task with `on_hang="kill"`, or
    as many as the worker has slots. The worker ends, so that its process can be replaced."""


class JobFailed(MillpondError):
    """The job became a dead letter. `error` is the text of the error of its last attempt."""

    def __init__(self, reason: str, error: str = "") -> None:
        super().__init__(f"{reason}: {error}" if error else reason)
        self.reason = reason
        self.error = error


class JobCancelled(MillpondError):
    """The job was cancelled."""


def seconds_of(name: str, value: SupportsFloat) -> float:
    """A time in seconds, 0 or more. Raises TypeError and ValueError for anything else."""
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} is a number of seconds, and not {value!r}")
    seconds = float(value)
    if isnan(seconds) or seconds < 0:
        raise ValueError(f"{name} is 0 seconds or more, and not {value!r}")
    return seconds
