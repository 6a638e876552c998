"""The cell of the results of a queue's jobs: which records stay, and for how long."""

from __future__ import annotations

import pytest

from millpond.actors.errors import Code
from millpond.actors.jobs import messages as m
from millpond.actors.jobs import results
from millpond.actors.jobs.results import JobResults
from millpond.actors.messages import Batch
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from tests.actors.jobs.harness import asked, job_harness, put, taken, worker

NOW = 1_000_000.0


class Cell:
    """The cell, and what the disk has of it."""

    def __init__(self) -> None:
        self.disk: dict[bytes, bytes] = {}
        self.results = JobResults(b"jobs/a", LogSnapshot())

    def store(self, job: int, data: bytes, now: float = NOW, *, keep: int = 60) -> None:
        record = m.StoreRecord(1, job, data, keep, is_final=True)
        self._keep(self.results.handle(Batch(None, [record]), now))

    def wake(self, now: float) -> None:
        self._keep(self.results.wake(now))

    def restart(self) -> None:
        self.results = JobResults(b"jobs/a", LogSnapshot(metadata=dict(self.disk)))

    def _keep(self, effects: Effects) -> None:
        for change in effects.changes:
            assert isinstance(change, MetadataSet)
            if change.value is None:
                del self.disk[change.name]
            else:
                self.disk[change.name] = change.value


def test_the_oldest_records_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "COUNT_MAX", 3)
    monkeypatch.setattr(results, "BYTES_MAX", 100)
    cell = Cell()
    for job in range(1, 6):
        cell.store(job, b"x", NOW + job)
    assert [int.from_bytes(key) for key in cell.disk] == [3, 4, 5]
    cell.restart()
    cell.store(6, b"x" * 99, NOW + 6)
    assert [int.from_bytes(key) for key in cell.disk] == [5, 6]


def test_a_record_is_no_larger_and_stays_no_longer() -> None:
    cell = Cell()
    cell.store(1, b"x", keep=results.KEEP_S_MAX + 1000)
    cell.restart()
    cell.wake(NOW + results.KEEP_S_MAX - 1)
    assert cell.disk
    cell.wake(NOW + results.KEEP_S_MAX)
    assert not cell.disk and cell.results.is_empty
    harness = job_harness()
    producer, hand = harness.producer(), worker(harness)
    job = put(producer).id
    assert taken(hand).id == job
    large = b"x" * (results.RECORD_BYTES_MAX + 1)
    assert asked(hand, m.FinishJob, job, large, 60) is Code.DATA_TOO_LARGE
    assert asked(producer, m.FinishJob, job, b"x", 60) is Code.LEASE_LOST


def test_the_first_result_stays_and_progress_does_not() -> None:
    cell = Cell()
    progress = m.StoreRecord(1, 7, b"half", 60, is_final=False)
    cell._keep(cell.results.handle(Batch(None, [progress]), NOW))
    cell.store(7, b"first")
    cell.store(7, b"second")
    (value,) = cell.disk.values()
    assert b"first" in value
    cell.wake(NOW + 61)
    assert not cell.disk
