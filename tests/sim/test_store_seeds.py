"""Whole lives of a node's store, by chance: nothing acknowledged is lost, nothing comes back.

MILLPOND_SEEDS=20000 python -m pytest tests/sim/test_store_seeds.py      tries more of them
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from millpond.actors.store.changes import Change
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Commit
from millpond.actors.store.journal import reader as journal_reader
from millpond.node.testing.disk.faults import DiskCall
from millpond.node.testing.disk.simulated import SimulatedFile
from tests.sim.disk import SimDisk
from tests.sim.loop import LogCapture
from tests.sim.plan import Plan
from tests.sim.recording_store import Broken
from tests.sim.scenario import simulate
from tests.sim.world import World

SEEDS = int(os.environ.get("MILLPOND_SEEDS", "1000"))
BLOCK = 50
SEEDS_TO_CATCH = range(50)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_promise_is_broken_whatever_fails(first: int) -> None:
    """P2P-30, PA-08, PA-31, PS-13: acknowledged is kept, acked is gone, shown is durable."""
    for seed in range(first, min(first + BLOCK, SEEDS)):
        simulate(seed)


def test_the_seeds_do_what_they_are_for() -> None:
    """They crash, flush, reclaim, and meet every kind of trouble."""
    worlds = [simulate(seed) for seed in range(20)]
    assert sum(world.boots for world in worlds) > 2 * len(worlds)
    for call in (DiskCall.UNLINK, DiskCall.SQL_COMMIT, DiskCall.CREATE, DiskCall.SYNC):
        assert sum(world.disk.faults.calls[call] for world in worlds) > len(worlds)
    assert sum(world.store_failures for world in worlds) > 0


def test_a_seed_is_a_history() -> None:
    first, again, other = simulate(3), simulate(3), simulate(4)
    assert first.history == again.history != other.history


# Stores and disks that break a promise: the checks must see each of them.


class Liar(World):
    """Its disk claims that a sync was done, and does nothing."""

    def __init__(self, plan: Plan, rng: Random, folder: Path, log_capture: LogCapture) -> None:
        super().__init__(plan, rng, folder, log_capture)
        self.disk.lies = True


class EagerStore(DurableStore):
    """Lets every reply go before anything is written."""

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        super().write(name, changes)
        return None


class Eager(World):
    store_class = EagerStore


class HastyDisk(SimDisk):
    """Forgets the segment before the last whenever there is a new one, flushed or not."""

    def create(self, path: Path, size: int) -> SimulatedFile:
        file = super().create(path, size)
        older = [name for name in self.names(path.parent) if name < path.name]
        if older[-2:-1]:
            self.unlink(path.with_name(older[-2]))
        return file


class Hasty(World):
    disk_class = HastyDisk


def caught(world_class: type[World], seeds: range = SEEDS_TO_CATCH) -> int:
    """How many of the seeds find something."""
    count = 0
    for seed in seeds:
        try:
            simulate(seed, world_class=world_class)
        except Broken:
            count += 1
    return count


@pytest.mark.parametrize("world_class", [Liar, Eager, Hasty])
def test_a_store_that_breaks_its_promise_is_caught(world_class: type[World]) -> None:
    assert caught(world_class) >= 3


def test_a_recovery_that_believes_what_failed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are cut where a write failed; one that ignores it brings refused PUTs back.

    It takes a write that fails behind one that was kept, which is rare: one seed in forty has it.
    """
    monkeypatch.setattr(journal_reader, "merge_cuts", lambda headers: {})
    assert caught(World, range(80, 130)) >= 2
