"""A row of `millpond bench store` while it is measured, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from millpond.actors.store.changes import Snapshot
from millpond.actors.store.interface import Fault as StoreFault
from millpond.node.bench.results import Latencies
from millpond.node.bench.verify import Fault, Faults


class StoreResult(msgspec.Struct, frozen=True):
    """What a row found. `count` of what it does took `seconds`; latencies are those of one.

    `syncs`: how often the disk was asked to sync for that; null where a row does not count them.
    """

    row: str
    count: int
    size: int
    seconds: float
    rate: float
    p50_us: int
    p99_us: int
    max_us: int
    syncs: int | None
    faults: dict[str, int]
    first_fault: str
    ok: bool


class StoreRun:
    """A row while it is measured."""

    def __init__(self, now: Callable[[], float], name: str, size: int) -> None:
        self.now = now
        self.faults = Faults()
        self.count = 0
        self.size = size
        self.worked = 0.0
        self._name = name
        self._began = now()
        self._latencies = Latencies()

    @property
    def elapsed(self) -> float:
        return self.now() - self._began

    def add(self, began: float, count: int = 1) -> None:
        """Something that began then is done now."""
        took_s = self.now() - began
        self.worked += took_s
        self.count += count
        self._latencies.add(took_s)

    def check(self, found: Snapshot | StoreFault, wanted: Iterable[bytes], name: bytes) -> None:
        """Compare what a channel holds with what was put."""
        contents = list(wanted)
        if isinstance(found, StoreFault):
            self.faults.note(Fault.LOST, f"{name!r} cannot be read: {found.name}", len(contents))
            return
        missing = len(contents) - len(found.rows)
        if missing > 0:
            self.faults.note(Fault.LOST, f"{missing} messages of {name!r} are gone", missing)
        elif [row.data for row in found.rows] != contents:
            self.faults.note(Fault.DAMAGED, f"{name!r} holds other messages than were put")

    def result(
        self,
        *,
        syncs: int | None = None,
        count: int | None = None,
        seconds: float | None = None,
        size: int | None = None,
    ) -> StoreResult:
        """The figures; without `count` and `seconds` those of the whole row."""
        count = self.count if count is None else count
        seconds = self.elapsed if seconds is None else seconds
        p50_us, p99_us, max_us = self._latencies.percentiles_us(0.5, 0.99, 1.0)
        return StoreResult(
            row=self._name,
            count=count,
            size=self.size if size is None else size,
            seconds=round(seconds, 3),
            rate=round(count / seconds, 1) if seconds else 0.0,
            p50_us=p50_us,
            p99_us=p99_us,
            max_us=max_us,
            syncs=syncs,
            faults={fault.value: number for fault, number in self.faults.counts.items()},
            first_fault=self.faults.first,
            ok=count > 0 and not self.faults,
        )
