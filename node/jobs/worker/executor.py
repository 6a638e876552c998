"""One attempt: calls the handler, in the loop or in a thread, and says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from millpond.node.jobs.errors import PayloadRefused, Reject, Retry
from millpond.node.jobs.job import Job
from millpond.node.jobs.task import finished
from millpond.node.jobs.worker.cancellation import is_cancelled_around, is_for_all, shed
from millpond.node.jobs.worker.leased_job import LeasedJob
from millpond.node.jobs.worker.outcome import (
    Done,
    Failed,
    Outcome,
    Rejected,
    Stopped,
    error_text,
    utf8_text,
)

PASSING = KeyboardInterrupt, GeneratorExit
"""What a handler raises and did not cause."""

Report = Callable[[Any], None]


async def run_handler(
    held: LeasedJob, now: Callable[[], float], report: Report, threads: anyio.CapacityLimiter
) -> Outcome:
    """Run the handler once. What it raises is the outcome, whatever that is.

    Only the cancellation of the whole worker goes on upwards, and KeyboardInterrupt.
    """
    if held.message.attempt > held.limit:
        return Rejected("attempts", "whoever had the last one did not come back")
    outcome: Outcome = Stopped()
    try:
        with anyio.CancelScope() as held.scope:
            if not (held.is_lost or held.is_given_up):
                job = Job(held, now, _reporting(held, report))
                outcome = Done(await _called(held, job, threads))
    except PASSING:
        raise
    except BaseException as exc:  # the border to code that is not ours: any error is an outcome
        if _is_cancellation(exc) and await is_for_all():
            raise
        outcome = _outcome(held, exc)
    await shed()
    return outcome


async def _called(held: LeasedJob, job: Job, threads: anyio.CapacityLimiter) -> Any:
    task = held.task
    call = partial(task.handler, *task.arguments(held.body.payload, job))
    if task.is_async:
        value = call()
    else:
        value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=threads)
    return await run_in_context(finished(value))


def _outcome(held: LeasedJob, error: BaseException) -> Outcome:
    """What an attempt with this error was."""
    assert held.scope is not None
    if isinstance(error, BaseExceptionGroup) and error.subgroup(PASSING) is not None:
        raise error
    if held.scope.cancel_called or is_cancelled_around():
        return Stopped()  # whatever it made of its cancellation: it was ours
    if _is_cancellation(error):
        text = "the handler was cancelled, and not by the worker"
        return Failed(RuntimeError(text).with_traceback(error.__traceback__))
    match error:
        case PayloadRefused():
            return Rejected("payload", utf8_text(str(error)))
        case Reject(reason=reason, __cause__=cause):
            return Rejected(utf8_text(str(reason)), "" if cause is None else error_text(cause))
        case Retry(delay=delay):
            return Failed(error, delay)
        case _:
            return Failed(error)


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, anyio.get_cancelled_exc_class())


def _reporting(held: LeasedJob, report: Report) -> Report:
    """`report` for any thread: also an async handler may have its progress told by one."""
    if held.body.reply_to is None:
        return report
    return partial(_in_loop, threading.get_ident(), anyio.lowlevel.current_token(), report)


def _in_loop(home: int, token: anyio.lowlevel.EventLoopToken, report: Report, value: Any) -> None:
    if threading.get_ident() == home:
        report(value)
    else:
        anyio.from_thread.run_sync(report, value, token=token)


T = TypeVar("T")


@coroutine
def run_in_context(inner: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in a copy of the context: variables that it sets are seen there alone.

    A task of its own would do that too, and costs more.
    """
    run = copy_context().run
    step: Callable[[], Any] = partial(inner.send, None)
    while True:
        try:
            awaited = run(step)
        except StopIteration as end:
            value: T = end.value
            return value
        try:
            result = yield awaited
        except BaseException as exc:  # whatever it is, it is for the coroutine
            step = partial(inner.throw, exc)
        else:
            step = partial(inner.send, result)
