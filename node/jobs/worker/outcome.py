"""The outcome of an attempt."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from millpond.actors.histogram import Histogram
from millpond.actors.queue_stats import JOB_SECONDS

OutcomeName = Literal["done", "failed", "rejected", "lost", "cancelled", "returned"]
OUTCOMES: tuple[OutcomeName, ...] = get_args(OutcomeName)
TASKS_MAX = 100
"""The most tasks of all queues that are counted by name; the others are `_other`."""
OTHER = "_other"


class Done(msgspec.Struct, frozen=True):
    """The handler returned."""

    value: Any


class Failed(msgspec.Struct, frozen=True):
    """The handler raised; another attempt is due after `delay_s`, None: by the task's backoff."""

    error: BaseException
    delay_s: float | None = None


class Rejected(msgspec.Struct, frozen=True):
    """The job becomes a dead letter with this reason. `error` says more, and is of the `cause`."""

    reason: str
    error: str = ""
    cause: BaseException | None = None


class Stopped(msgspec.Struct, frozen=True):
    """The handler was cancelled: the lease is lost, or the worker ends."""


Outcome = Done | Failed | Rejected | Stopped


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt; `Worker(on_end=...)` is called with it.

    `what`: done, failed (there will be another attempt), rejected (a dead letter), lost (the lease
    was over first), cancelled (by somebody), returned (the worker ends). `seconds` it took.
    """

    job: int
    queue: str
    task: str
    attempt: int
    what: OutcomeName
    error: str
    seconds: float
    exception: BaseException | None = None


class AttemptCounts(msgspec.Struct):
    """The number of attempts by outcome."""

    done: int = 0
    failed: int = 0
    rejected: int = 0
    lost: int = 0
    cancelled: int = 0
    returned: int = 0

    def count(self, what: OutcomeName) -> None:
        """One more."""
        if what == "done":
            self.done += 1
        else:
            setattr(self, what, getattr(self, what) + 1)


class TaskStats(AttemptCounts):
    """The attempts of one task of a queue, and their durations in seconds."""

    seconds: Histogram = msgspec.field(default_factory=lambda: Histogram(JOB_SECONDS))


class WorkerStats(AttemptCounts):
    """The attempts since the worker began; `running` now. `tasks` has them by queue and task: the
    first 100, then `_other`."""

    running: int = 0
    tasks: dict[tuple[str, str], TaskStats] = {}

    def ended(self, result: AttemptResult) -> None:
        """Count an attempt."""
        self.count(result.what)
        key = result.queue, result.task
        if key not in self.tasks and len(self.tasks) >= TASKS_MAX:
            key = OTHER, OTHER
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = TaskStats()
        task.count(result.what)
        task.seconds.add(result.seconds)


def error_text(error: BaseException) -> str:
    """An error as one line that can be encoded."""
    try:
        text = str(error)
    except Exception as exc:  # the border to code that is not ours: an error may be broken itself
        text = f"no text, str() of it raises {type(exc).__name__}"
    return utf8_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def utf8_text(text: str) -> str:
    """The text with what UTF-8 cannot say (names of files have it) as `\\udc80`."""
    return text.encode("utf-8", "backslashreplace").decode()
