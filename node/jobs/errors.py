"""What handlers raise to say what becomes of their job, and what those who wait for it catch."""

from __future__ import annotations


class Retry(Exception):
    """Raised by a handler: try the job again, in `delay` seconds; None: as the task backs off."""

    def __init__(self, delay: float | None = None, text: str = "") -> None:
        super().__init__(text or "the handler asks for another attempt")
        self.delay = delay


class Reject(Exception):
    """Raised by a handler: never try the job again. It becomes a dead letter with this reason."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class PayloadRefused(Exception):
    """The payload does not fit what the handler takes."""


class LeaseExpired(Exception):
    """The job was done after its lease was over: it is not acknowledged, others may have it."""


class JobFailed(Exception):
    """The job became a dead letter. `error` is the text of what its last attempt raised."""

    def __init__(self, reason: str, error: str = "") -> None:
        super().__init__(f"{reason}: {error}" if error else reason)
        self.reason = reason
        self.error = error


class JobCancelled(Exception):
    """Somebody cancelled the job."""
