"""One attempt: calls the handler, in the loop or in a thread, and says what became of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from node.jobs.errors import PayloadRefused, Reject, Retry
from node.jobs.held import Held
from node.jobs.job import Job
from node.jobs.outcome import Done, Failed, Outcome, Rejected, Stopped
from node.jobs.task import finished

Report = Callable[[Any], None]


async def perform(
    held: Held, now: Callable[[], float], report: Report, threads: anyio.CapacityLimiter
) -> Outcome:
    """Run the handler once. What it raises is the outcome; only cancellation goes on upwards."""
    task = held.task
    if held.message.attempt > held.limit:
        return Rejected("attempts", "whoever had the last one did not come back")
    if not task.is_async:
        report = partial(_from_thread, report)
    job = Job(held, now, report)
    try:
        arguments = task.arguments(held.body.payload, job)
    except PayloadRefused as exc:
        return Rejected("payload", str(exc))
    with anyio.CancelScope() as held.scope:
        if held.is_lost or held.is_given_up:
            return Stopped()
        try:
            if task.is_async:
                return Done(await task.handler(*arguments))
            call = partial(task.handler, *arguments)
            value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=threads)
            return Done(await finished(value))
        except Reject as exc:
            return Rejected(exc.reason, str(exc.__cause__ or ""))
        except Retry as exc:
            return Failed(exc, exc.delay)
        except Exception as exc:  # the border to code that is not ours: any error is an outcome
            return Failed(exc)
    return Stopped()


def _from_thread(report: Report, value: Any) -> None:
    anyio.from_thread.run_sync(report, value)
