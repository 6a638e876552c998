"""Worker threads: blocking work runs off the loop, in order, and its results return to the loop."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from millpond.actors.store.workers import SteppedWorker, WorkerTask, WorkerThread


class CallbackQueue:
    """The callbacks of a worker: those given by a thread run when the test takes them."""

    def __init__(self) -> None:
        self.results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.done: list[tuple[list[str], str]] = []
        self.crashed: list[list[str]] = []

    def work(self, run: Callable[[list[str]], str], **options: object) -> WorkerTask[str, str]:
        return WorkerTask(
            run,
            lambda items, result: self.done.append((items, result)),
            lambda items, exc: self.crashed.append(items),
            **options,  # type: ignore[arg-type]
        )

    def take(self, count: int) -> None:
        for _ in range(count):
            self.results.get(timeout=5)()


def test_what_gathers_while_the_thread_is_busy_goes_together() -> None:
    callbacks, gate = CallbackQueue(), threading.Event()

    def run(items: list[str]) -> str:
        gate.wait(5)
        return threading.current_thread().name

    worker = WorkerThread("test", callbacks.work(run), callbacks.results.put)
    worker.submit("a")
    while worker._waiting:
        time.sleep(0.001)
    for item in "bcd":
        worker.submit(item)
    gate.set()
    callbacks.take(2)
    assert callbacks.done == [(["a"], "millpond-test"), (["b", "c", "d"], "millpond-test")]
    worker.close()


def test_lazy_items_go_with_the_next_one_or_alone_after_their_time() -> None:
    callbacks = CallbackQueue()
    work = callbacks.work("".join, lazy_s=60.0)
    worker = WorkerThread("test", work, callbacks.results.put)
    worker.submit("a", lazy=True)  # nothing was done yet, so it sleeps for long
    callbacks.take(1)
    while not worker._sleeps_briefly:
        time.sleep(0.001)
    worker.submit("b", lazy=True)
    worker.submit("c", lazy=True)
    worker.submit("d")
    callbacks.take(1)
    assert [result for _, result in callbacks.done] == ["a", "bcd"]
    work.lazy_s = 0.01
    worker.submit("e")
    callbacks.take(1)
    for item in "fghi":
        worker.submit(item, lazy=True)
        callbacks.take(1)
    assert [result for _, result in callbacks.done[2:]] == [*"efghi"]
    worker.submit("j", lazy=True)
    worker.close()
    assert not worker._waiting


def test_urgent_items_go_first_but_not_for_ever() -> None:
    callbacks = CallbackQueue()
    worker = SteppedWorker(callbacks.work("".join, batch_max=1))
    for item in "abc":
        worker.submit(item)
    for item in "xyz":
        worker.submit(item, urgent=True)
    while worker.step():
        pass
    assert [result for _, result in callbacks.done] == ["x", "a", "y", "b", "z", "c"]


def test_a_quick_item_is_done_here_unless_others_come_first() -> None:
    callbacks, gate = CallbackQueue(), threading.Event()

    def run(items: list[str]) -> str:
        if "slow" in items:
            gate.wait(5)
        return threading.current_thread().name

    worker = WorkerThread("test", callbacks.work(run), callbacks.results.put)
    worker.submit("quick", quick=True)
    assert callbacks.done == [(["quick"], threading.current_thread().name)]
    worker.submit("slow")
    while worker._waiting:
        time.sleep(0.001)
    worker.submit("second", quick=True)
    gate.set()
    callbacks.take(2)
    assert callbacks.done[1:] == [(["slow"], "millpond-test"), (["second"], "millpond-test")]
    worker.close()


def test_a_thread_that_sleeps_deep_is_woken_when_a_quick_item_leaves_something_to_do() -> None:
    callbacks, is_dirty = CallbackQueue(), threading.Event()

    def run(items: list[str]) -> str:
        if items:
            is_dirty.set()
            return "written"
        is_dirty.clear()
        return "synced"

    work = callbacks.work(run, idle_s=lambda: 0.01 if is_dirty.is_set() else None)
    worker = WorkerThread("test", work, callbacks.results.put)
    worker.submit("a", quick=True)
    callbacks.take(1)
    assert callbacks.done == [(["a"], "written"), ([], "synced")]
    worker.close()


@pytest.mark.parametrize("quick", [False, True])
def test_a_crash_is_reported_and_the_worker_goes_on(quick: bool) -> None:
    callbacks = CallbackQueue()

    def run(items: list[str]) -> str:
        if items == ["bad"]:
            raise ValueError(items)
        return "fine"

    worker = WorkerThread("test", callbacks.work(run), callbacks.results.put)
    worker.submit("bad", quick=quick)
    if not quick:
        callbacks.take(1)
    worker.submit("good")
    callbacks.take(1)
    assert callbacks.crashed == [["bad"]] and callbacks.done == [(["good"], "fine")]
    worker.close()


def test_close_waits_until_everything_submitted_was_worked_on() -> None:
    callbacks, worked = CallbackQueue(), []

    def run(items: list[str]) -> str:
        worked.extend(items)
        return ""

    worker = WorkerThread("test", callbacks.work(run, batch_max=1), callbacks.results.put)
    for item in "abcdef":
        worker.submit(item)
    worker.close()
    assert worked == list("abcdef")


def test_a_quick_item_never_overtakes_a_report() -> None:
    callbacks, is_dirty = CallbackQueue(), threading.Event()
    is_dirty.set()

    def run(items: list[str]) -> str:
        is_dirty.clear()
        return threading.current_thread().name

    worker = WorkerThread(
        "test",
        callbacks.work(run, idle_s=lambda: 0.001 if is_dirty.is_set() else None),
        callbacks.results.put,
    )
    while is_dirty.is_set() or callbacks.results.empty():
        time.sleep(0.001)
    worker.submit("a", quick=True)
    callbacks.take(2)
    assert callbacks.done == [([], "millpond-test"), (["a"], "millpond-test")]
    worker.close()
