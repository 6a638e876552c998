"""Lanes: what may block runs elsewhere, in order, and reports back where it came from."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest

from millpond.actors.store.workers import SteppedWorker, WorkerTask, WorkerThread


class Desk:
    """A loop of the test's own: callbacks posted from a thread run when the test takes them."""

    def __init__(self) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
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
            self.posted.get(timeout=5)()


def test_what_gathers_while_the_thread_is_busy_goes_together() -> None:
    desk, gate = Desk(), threading.Event()

    def run(items: list[str]) -> str:
        gate.wait(5)
        return threading.current_thread().name

    lane = WorkerThread("test", desk.work(run), desk.posted.put)
    lane.submit("a")
    while lane._waiting:
        time.sleep(0.001)
    for item in "bcd":
        lane.submit(item)
    gate.set()
    desk.take(2)
    assert desk.done == [(["a"], "millpond-test"), (["b", "c", "d"], "millpond-test")]
    lane.close()


def test_urgent_items_go_first_but_not_for_ever() -> None:
    desk = Desk()
    lane = SteppedWorker(desk.work("".join, batch_max=1))
    for item in "abc":
        lane.submit(item)
    for item in "xyz":
        lane.submit(item, urgent=True)
    while lane.step():
        pass
    assert [result for _, result in desk.done] == ["x", "a", "y", "b", "z", "c"]


def test_a_quick_item_is_done_here_unless_others_come_first() -> None:
    desk, gate = Desk(), threading.Event()

    def run(items: list[str]) -> str:
        if "slow" in items:
            gate.wait(5)
        return threading.current_thread().name

    lane = WorkerThread("test", desk.work(run), desk.posted.put)
    lane.submit("quick", quick=True)
    assert desk.done == [(["quick"], threading.current_thread().name)]
    lane.submit("slow")
    while lane._waiting:
        time.sleep(0.001)
    lane.submit("second", quick=True)
    gate.set()
    desk.take(2)
    assert desk.done[1:] == [(["slow"], "millpond-test"), (["second"], "millpond-test")]
    lane.close()


def test_a_thread_that_sleeps_deep_is_woken_when_a_quick_item_leaves_something_to_do() -> None:
    desk, is_dirty = Desk(), threading.Event()

    def run(items: list[str]) -> str:
        if items:
            is_dirty.set()
            return "written"
        is_dirty.clear()
        return "synced"

    work = desk.work(run, idle_s=lambda: 0.01 if is_dirty.is_set() else None)
    lane = WorkerThread("test", work, desk.posted.put)
    lane.submit("a", quick=True)
    desk.take(1)
    assert desk.done == [(["a"], "written"), ([], "synced")]
    lane.close()


@pytest.mark.parametrize("quick", [False, True])
def test_a_crash_is_told_and_the_lane_goes_on(quick: bool) -> None:
    desk = Desk()

    def run(items: list[str]) -> str:
        if items == ["bad"]:
            raise ValueError(items)
        return "fine"

    lane = WorkerThread("test", desk.work(run), desk.posted.put)
    lane.submit("bad", quick=quick)
    if not quick:
        desk.take(1)
    lane.submit("good")
    desk.take(1)
    assert desk.crashed == [["bad"]] and desk.done == [(["good"], "fine")]
    lane.close()


def test_close_waits_until_everything_submitted_was_worked_on() -> None:
    desk, worked = Desk(), []

    def run(items: list[str]) -> str:
        worked.extend(items)
        return ""

    lane = WorkerThread("test", desk.work(run, batch_max=1), desk.posted.put)
    for item in "abcdef":
        lane.submit(item)
    lane.close()
    assert worked == list("abcdef")


def test_a_quick_item_never_overtakes_a_report() -> None:
    desk, is_dirty = Desk(), threading.Event()
    is_dirty.set()

    def run(items: list[str]) -> str:
        is_dirty.clear()
        return threading.current_thread().name

    lane = WorkerThread(
        "test", desk.work(run, idle_s=lambda: 0.001 if is_dirty.is_set() else None), desk.posted.put
    )
    while is_dirty.is_set() or desk.posted.empty():
        time.sleep(0.001)
    lane.submit("a", quick=True)
    desk.take(2)
    assert desk.done == [([], "millpond-test"), (["a"], "millpond-test")]
    lane.close()
