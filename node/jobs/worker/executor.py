"""The executor of one attempt: calls the handler, in the loop or in a thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import CoroutineType, coroutine
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import msgspec

from millpond.node.jobs.errors import AttemptTimedOut, PayloadRefused, Reject, Retry
from millpond.node.jobs.job import Job
from millpond.node.jobs.task import finished
from millpond.node.jobs.worker.batches import Batches
from millpond.node.jobs.worker.cancellation import (
    drop_own_cancellation,
    has_own_cancellation,
    is_cancelled_around,
    is_worker_cancelled,
)
from millpond.node.jobs.worker.handler_threads import HANG_S, HandlerThreads, ThreadCall
from millpond.node.jobs.worker.outcome import (
    Done,
    Failed,
    Outcome,
    Rejected,
    Stopped,
    error_text,
    utf8_text,
)
from millpond.node.jobs.worker.subscription import LeasedJob

NOT_CAUGHT = KeyboardInterrupt, GeneratorExit
"""Exceptions that a handler raises and did not cause."""

Next = Callable[[], Awaitable[object]]
Middleware = Callable[[Job, Next], Awaitable[object]]
"""Is called around a handler: `await call()` runs what is inside, and gives its value."""


async def run_handler(
    leased: LeasedJob, now: Callable[[], float], shared: WorkerContext
) -> Outcome:
    """Run the handler once, for as long as its task allows. An exception that it raises is the
    outcome.

    Only the cancellation of the whole worker is raised, and KeyboardInterrupt.
    """
    if leased.message.attempt > leased.attempts_max:
        return Rejected("attempts", "the worker of the last attempt did not come back")
    outcome: Outcome = Stopped()
    try:
        with leased.handler_scope(shared.scope_type) as scope:
            if leased.task.timeout_s is not None:
                scope.deadline = anyio.current_time() + leased.task.timeout_s
            if not (leased.is_lost or leased.is_given_up):
                job = Job(leased, now, shared.report_from_any_thread, shared.state)
                outcome = Done(await _result(leased, job, shared))
    except NOT_CAUGHT:
        raise
    except BaseException as exc:  # the border to code that is not ours: any error is an outcome
        if _is_cancellation(exc) and await is_worker_cancelled():
            raise
        outcome = _outcome(scope, exc)
    if isinstance(outcome, Stopped) and _is_timed_out(leased, scope):
        leased.is_timed_out = True
        outcome = Failed(AttemptTimedOut(_too_long(leased)))
    if has_own_cancellation():
        await drop_own_cancellation()
    if leased.is_timed_out and leased.task.on_hang == "kill" and leased.thread is not None:
        if await leased.thread.hangs():
            leased.is_hung = True
            text = f"the handler hung: its thread did not end within {HANG_S:g} s more"
            outcome = Failed(AttemptTimedOut(f"{_too_long(leased)}, and {text}"))
    return outcome


def _too_long(leased: LeasedJob) -> str:
    return f"it took longer than {leased.task.timeout_s:g} s"


def _is_timed_out(leased: LeasedJob, scope: anyio.CancelScope) -> bool:
    """Whether nothing but its time-out stopped the handler."""
    return not (leased.is_lost or leased.is_given_up) and anyio.current_time() >= scope.deadline


class LoopThread(msgspec.Struct, frozen=True):
    """The thread of an event loop, and the means to reach the loop from others."""

    thread: int
    token: anyio.lowlevel.EventLoopToken

    @staticmethod
    def current() -> LoopThread:
        """That of the caller."""
        return LoopThread(threading.get_ident(), anyio.lowlevel.current_token())


class WorkerContext(msgspec.Struct, frozen=True):
    """The parts that the handlers of a worker share: the loop, threads, batches, what is called
    around each of them, and the value of the worker's lifespan. `report` is called in the loop."""

    loop: LoopThread
    report: Callable[[LeasedJob, Any], None]
    threads: HandlerThreads
    batches: Batches
    middleware: tuple[Middleware, ...] = ()
    state: object = None
    scope_type: type[anyio.CancelScope] = anyio.CancelScope

    def report_from_any_thread(self, leased: LeasedJob, value: Any) -> None:
        """Report progress: an async handler may do so from a thread, too."""
        if threading.get_ident() == self.loop.thread:
            self.report(leased, value)
        else:
            anyio.from_thread.run_sync(self.report, leased, value, token=self.loop.token)


async def _result(leased: LeasedJob, job: Job, shared: WorkerContext) -> object:
    if not shared.middleware:
        return await run_in_context(_handled(leased, job, shared))
    call: Next = partial(_handled, leased, job, shared)
    for around in reversed(shared.middleware):
        call = partial(around, job, call)
    return await run_in_context(finished(call()))


async def _handled(leased: LeasedJob, job: Job, shared: WorkerContext) -> object:
    """The value of the handler."""
    task = leased.task
    arguments = task.arguments(leased.content.payload, job)
    if task.batch_size:
        payload = arguments[0] if arguments else None
        return await shared.batches.result(task, payload, job, leased.runs_in)
    if task.is_async:
        value = task.handler(*arguments)
    else:
        thread = ThreadCall(partial(task.handler, *arguments))
        leased.runs_in(thread)
        value = await shared.threads.run(thread)
    if type(value) is CoroutineType:  # as of most handlers
        return await value
    return await finished(value)


def _outcome(scope: anyio.CancelScope, error: BaseException) -> Outcome:
    """The outcome of an attempt that raised this error, in its scope."""
    if isinstance(error, BaseExceptionGroup) and error.subgroup(NOT_CAUGHT) is not None:
        raise error
    if scope.cancel_called or is_cancelled_around():
        return Stopped()  # the worker cancelled it, whatever it raised then
    if _is_cancellation(error):
        text = "the handler was cancelled, and not by the worker"
        return Failed(RuntimeError(text).with_traceback(error.__traceback__))
    match error:
        case PayloadRefused():
            return Rejected("payload", utf8_text(str(error)))
        case Reject(reason=reason, __cause__=cause):
            text = "" if cause is None else error_text(cause)
            return Rejected(utf8_text(str(reason)), text, cause)
        case Retry(delay=delay):
            return Failed(error, delay)
        case _:
            return Failed(error)


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, anyio.get_cancelled_exc_class())


T = TypeVar("T")


@coroutine
def run_in_context(inner: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in a copy of the context: variables that it sets are seen there alone.

    A task of its own would do that too, and costs more.
    """
    run = copy_context().run
    step: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        try:
            awaited = run(step, value)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            value = yield awaited
        except BaseException as exc:  # whatever it is, it is for the coroutine
            step, value = inner.throw, exc
        else:
            step = inner.send
