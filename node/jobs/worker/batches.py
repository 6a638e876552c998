"""Batches: jobs that one call of a handler takes together (`batch_task`).

Each job keeps its own lease, slot, time-out and outcome; only the call of the handler is shared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import anyio
from anyio.abc import TaskGroup

from millpond.node.jobs.job import Job
from millpond.node.jobs.task import AnyTask, finished
from millpond.node.jobs.worker.cancellation import is_worker_cancelled
from millpond.node.jobs.worker.handler_threads import ThreadCall

NOT_CAUGHT = KeyboardInterrupt, GeneratorExit
Run = Callable[[ThreadCall], Awaitable[Any]]
"""Calls a handler that is not async."""


class _Entry:
    """A job of a batch, and what became of it. `trace` is that of the error where it came from."""

    __slots__ = ("ended", "error", "job", "on_thread", "payload", "trace", "value")

    def __init__(
        self, payload: object, job: Job, on_thread: Callable[[ThreadCall], None] | None
    ) -> None:
        self.payload = payload
        self.job = job
        self.on_thread = on_thread
        self.ended = anyio.Event()
        self.value: object = None
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None

    def end(self, outcome: object, trace: TracebackType | None = None) -> None:
        """The value of the job, or the error that it fails with."""
        if isinstance(outcome, BaseException):
            self.error, self.trace = outcome, trace or outcome.__traceback__
        else:
            self.value = outcome
        self.ended.set()


class _Batch:
    """Jobs for one call of a task's handler."""

    __slots__ = ("entries", "full", "scope", "task")

    def __init__(self, task: AnyTask) -> None:
        self.task = task
        self.entries: list[_Entry] = []
        self.full = anyio.Event()
        self.scope = anyio.CancelScope()


class Batches:
    """The batches of a worker. `slots`: no batch is larger. `run_in_thread` is for handlers that
    are not async."""

    def __init__(self, background: TaskGroup, slots: int, run_in_thread: Run) -> None:
        self._background = background
        self._slots = slots
        self._run_in_thread = run_in_thread
        self._collecting: dict[AnyTask, _Batch] = {}

    async def result(
        self,
        task: AnyTask,
        payload: object,
        job: Job,
        on_thread: Callable[[ThreadCall], None] | None = None,
    ) -> object:
        """The value that the handler gives for this job. Raises the error that it fails with.

        `on_thread` is called with the call of a handler that is not async.
        """
        batch = self._collecting.get(task)
        if batch is None:
            batch = self._collecting[task] = _Batch(task)
            self._background.start_soon(self._run, batch)
        entry = _Entry(payload, job, on_thread)
        batch.entries.append(entry)
        if len(batch.entries) >= min(task.batch_size, self._slots):
            self._close(batch)
        try:
            await entry.ended.wait()
        finally:
            if not entry.ended.is_set():  # the job is cancelled, or its time is over
                batch.entries.remove(entry)
                if not batch.entries:
                    self._close(batch)  # a job that comes now would wait for ever in it
                    batch.scope.cancel()
        if entry.error is not None:
            raise entry.error.with_traceback(entry.trace)
        return entry.value

    def _close(self, batch: _Batch) -> None:
        """Further jobs are for the next batch."""
        if self._collecting.get(batch.task) is batch:
            del self._collecting[batch.task]
        batch.full.set()

    async def _run(self, batch: _Batch) -> None:
        with batch.scope:
            with anyio.move_on_after(batch.task.batch_wait_s):
                await batch.full.wait()
            self._close(batch)
            if batch.entries:
                await self._call(batch)
        self._close(batch)

    async def _call(self, batch: _Batch) -> None:
        task, entries = batch.task, list(batch.entries)
        arguments = [each.payload for each in entries], [each.job for each in entries]
        call = partial(task.handler, *task.of_parameters(*arguments))
        try:
            if task.is_async:
                value = await finished(call())
            else:
                thread = ThreadCall(call)
                for entry in entries:
                    if entry.on_thread is not None:
                        entry.on_thread(thread)
                value = await finished(await self._run_in_thread(thread))
            outcomes = _outcomes(task, value, len(entries))
        except NOT_CAUGHT:
            raise
        except anyio.get_cancelled_exc_class() as exc:
            if await is_worker_cancelled():
                raise
            text = "the handler was cancelled, and not by the worker"
            outcomes = [RuntimeError(text).with_traceback(exc.__traceback__)] * len(entries)
        except BaseException as exc:  # the border to code that is not ours
            outcomes = [exc] * len(entries)
        for entry, outcome in zip(entries, outcomes, strict=True):
            entry.end(outcome)


def _outcomes(task: AnyTask, value: object, count: int) -> Sequence[object]:
    """The outcome of each job: what a handler returned in its place."""
    if value is None:
        return [None] * count
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(value) != count:
        raise TypeError(f"{task!r} returns None or a list of {count} results, not {value!r:.100}")
    return value
