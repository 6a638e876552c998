"""The clock file of a running node: no id is later than the bound that is stored there, unless the
disk fails or another thread is just storing it; then the next try comes soon."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from millpond.actors.ids import IdSource, created_ms
from millpond.node.clock import IDS_LEAD_S, Clock
from millpond.node.clock_file import ClockStore, stored_reading

START_S = 1_763_683_200.0


class Slow:
    """A monotonic clock that a test moves, and that has one thread wait."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: int | None = None
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> float:
        if threading.get_ident() == self.waits:
            self.has_begun.set()
            assert self.may_end.wait(30)
        return self.seconds


class Reserving:
    """A node's ids and the file that bounds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.monotonic = Slow()
        self.clock = Clock(self.monotonic, lambda: START_S)
        self.ids = IdSource(7)
        self.store = ClockStore(folder, self.clock)
        self.store.reserve_ids(self.ids)

    def next_at(self, seconds: float) -> float:
        """The time of an id that is given out so long after the start."""
        self.monotonic.seconds = seconds
        return created_ms(self.ids.next(self.clock.now())) / 1000

    def until(self) -> float:
        """The bound that is stored."""
        found = stored_reading(self.folder)
        return 0.0 if found is None else found.ids_until


@pytest.fixture
def reserving(tmp_path: Path) -> Reserving:
    (tmp_path / "data").mkdir()
    return Reserving(tmp_path / "data")


def test_a_bound_is_stored_before_ids_reach_it(reserving: Reserving) -> None:
    for seconds in (0.0, 80.0, IDS_LEAD_S + 1, 1000.0):
        assert reserving.next_at(seconds) <= reserving.until()


def test_a_bound_that_could_not_be_stored_is_tried_again_soon(reserving: Reserving) -> None:
    """Meanwhile ids go on: the disk that failed refuses what it cannot store."""
    shutil.rmtree(reserving.folder)
    assert reserving.next_at(100.0) > 0
    reserving.folder.mkdir()
    assert reserving.next_at(111.0) <= reserving.until()


def test_while_another_thread_stores_the_bound_stays_as_it_is(reserving: Reserving) -> None:
    """That thread fails in the end: the next id stores what nobody did."""
    slow, shared = reserving.monotonic, reserving.store

    def reserve() -> None:
        slow.waits = threading.get_ident()
        shared.reserve_ids(reserving.ids)

    other = threading.Thread(target=reserve)
    other.start()
    assert slow.has_begun.wait(30)
    before = reserving.until()
    assert reserving.next_at(100.0) > before, "ids do not wait for a disk that hangs"
    assert reserving.until() == before
    shutil.rmtree(reserving.folder)
    slow.may_end.set()
    other.join(30)
    slow.waits = None
    reserving.folder.mkdir()
    assert reserving.next_at(111.0) <= reserving.until()
