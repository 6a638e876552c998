"""Whole lives of a node's store, by chance: nothing acknowledged is lost, nothing comes back.

MILLPOND_SEEDS=20000 python -m pytest tests/sim/test_store_seeds.py      tries more of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from sqlite3 import Connection

import pytest

from millpond.actors.store import catalog_recovery, recovery
from millpond.actors.store.changes import Change
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Commit
from millpond.actors.store.journal import reader as journal_reader
from millpond.actors.store.journal.format import Header, Scan
from millpond.actors.store.journal.reader import SegmentsKnown
from millpond.actors.store.journal.segments import SegmentEnd
from millpond.actors.store.partitions import files, queue_tables, subscriber_tables
from millpond.actors.store.partitions.catalog import CATALOG, Listed
from millpond.actors.store.partitions.files import PartitionFiles
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.repair.quarantine import Damage
from millpond.actors.store.snapshot import FilesSnapshot
from millpond.node.testing.disk.damage import DamageKind
from millpond.node.testing.disk.faults import DiskCall
from millpond.node.testing.disk.simulated import SimulatedFile
from tests.sim.disk import SimDisk
from tests.sim.loop import LogCapture
from tests.sim.plan import (
    WITHOUT_PAGES,
    Plan,
    draw,
    draw_damaged,
    draw_misplaced,
    draw_with_files,
    draw_with_older_pages,
    draw_with_snapshots,
    draw_without_catalog,
)
from tests.sim.recording_store import Broken
from tests.sim.scenario import simulate
from tests.sim.seeds import blocks
from tests.sim.world import World

SEEDS_TO_CATCH = range(50)
SEEDS_OF_HARM = 200
"""Each is found within as many from the seed where a search begins."""
SEEDS_OF_MISPLACED = 20
draw_earlier = partial(draw_damaged, among=WITHOUT_PAGES)


@pytest.mark.parametrize("seeds", blocks(usual=100, full=2000))
def test_no_promise_is_broken_whatever_fails(seeds: range) -> None:
    """P2P-30, PA-08, PA-31, PS-13: acknowledged is kept, acked is gone, shown is durable."""
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("seeds", blocks(usual=60, full=1000, one_in=2))
def test_a_damaged_cell_refuses_or_gives_a_right_answer(seeds: range) -> None:
    """Never a wrong or shorter answer, no id twice, a report; other cells are served."""
    for seed in seeds:
        simulate(seed, draw_plan=draw_damaged)


@pytest.mark.parametrize("seeds", blocks(usual=5, full=200, one_in=10, size=5))
def test_older_pages_of_channels_are_not_served(seeds: range) -> None:
    """Those of subscribers, acks and attempts too, which as many rows have."""
    for seed in seeds:
        simulate(seed, draw_plan=draw_with_older_pages)


@pytest.mark.parametrize("seeds", blocks(usual=20, full=200, one_in=10))
def test_without_the_catalog_nothing_wrong_is_served_whatever_else_is_lost(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, draw_plan=draw_without_catalog)


@pytest.mark.parametrize("seeds", blocks(usual=10, full=400, one_in=5, size=10))
def test_a_snapshot_has_what_was_acknowledged_before_it_and_nothing_later(seeds: range) -> None:
    """Writes, flushes, full disks and crashes while it is copied change nothing of it."""
    worlds = [simulate(seed, draw_plan=draw_with_snapshots) for seed in seeds]
    assert sum(world.snapshots.compared for world in worlds) >= len(worlds)


def files_are_copied_as_they_are_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FilesSnapshot, "keep", lambda self, path: None)


def the_last_segment_is_left_out(patch: pytest.MonkeyPatch) -> None:
    begin = PartitionFiles.begin_snapshot
    patch.setattr(
        PartitionFiles, "begin_snapshot", lambda self, last, lsn: begin(self, last - 1, lsn)
    )


@pytest.mark.parametrize(
    ("harm", "seeds"),
    [
        pytest.param(files_are_copied_as_they_are_now, range(2), id="files"),
        pytest.param(the_last_segment_is_left_out, range(1, 3), id="segment"),
    ],
)
def test_a_wrong_snapshot_is_caught(
    harm: Callable[[pytest.MonkeyPatch], None], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm(monkeypatch)
    assert caught(World, seeds, draw_with_snapshots)


@pytest.mark.parametrize(
    ("seed", "plans"),
    [
        pytest.param(4577, draw, id="segments wait for an open one, and nobody writes"),
        pytest.param(2609, draw_earlier, id="the same, of a sound disk"),
        pytest.param(9388, draw_earlier, id="a write over a record and the ones after it"),
        pytest.param(2045, draw_earlier, id="the header of a small segment, with an old catalog"),
    ],
)
def test_seeds_that_found_something(seed: int, plans: Callable[[Random, int], Plan]) -> None:
    simulate(seed, draw_plan=plans)


@pytest.mark.full
def test_the_damaged_seeds_do_what_they_are_for() -> None:
    """Files are damaged, cells are refused for it, and often not all of them."""
    worlds = [simulate(seed, draw_plan=draw_damaged) for seed in range(60)]
    assert sum(bool(world.damage.places) for world in worlds) > len(worlds) // 4
    refused = [world for world in worlds if world.refused]
    assert len(refused) > len(worlds) // 8
    assert sum(bool(world.served) for world in refused) > len(refused) // 4


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


# Stores and disks that break a promise: the checks must see each of them, in the full run.


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


def caught(
    world_class: type[World],
    seeds: range = SEEDS_TO_CATCH,
    draw_plan: Callable[[Random, int], Plan] = draw,
) -> int:
    """The number of seeds that find something."""
    count = 0
    for seed in seeds:
        try:
            simulate(seed, world_class=world_class, draw_plan=draw_plan)
        except Broken:
            count += 1
    return count


@pytest.mark.full
@pytest.mark.parametrize("world_class", [Liar, Eager, Hasty])
def test_a_store_that_breaks_its_promise_is_caught(world_class: type[World]) -> None:
    assert caught(world_class) >= 3


@pytest.mark.full
def test_a_recovery_that_believes_what_failed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments end where a write failed, as cuts and the list of segments say; a recovery that
    ignores it brings refused PUTs back.

    It takes a write that fails behind one that was kept, which is rare: one seed in forty has it.
    """

    def scan(data: bytes, end: int | None, header: Header) -> Scan:
        return Scan(data, None, header)

    monkeypatch.setattr(journal_reader, "Scan", scan)
    assert caught(World, range(280, 340)) >= 2


# Stores that do not look for damage: the damaged seeds must find each of them.


def no_segment_is_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_reader._Reader, "_find_missing", lambda self: None)


def a_missing_file_is_empty(patch: pytest.MonkeyPatch) -> None:
    def found(*_: object) -> Iterator[Damage]:
        yield from ()

    def check_listed(row: Listed | None, metadata: PartitionMetadata | None) -> None: ...

    patch.setattr(recovery, "unlisted_damages", found)
    patch.setattr(recovery, "check_listed", check_listed)
    patch.setattr(files, "check_listed", check_listed)


def an_old_file_is_taken(patch: pytest.MonkeyPatch) -> None:
    checked = files.check_listed

    def check_listed(row: Listed | None, metadata: PartitionMetadata | None) -> None:
        if row is None or metadata is None:
            checked(row, metadata)

    patch.setattr(recovery, "check_listed", check_listed)
    patch.setattr(files, "check_listed", check_listed)


def a_zeroed_tail_is_torn(patch: pytest.MonkeyPatch) -> None:
    """The rows of segments do not count, nor does what a header says of the one before."""
    unknown, decode = SegmentsKnown(), journal_reader.decode_header
    patch.setattr(recovery, "segments_known", lambda *_: unknown)
    patch.setattr(
        journal_reader,
        "decode_header",
        lambda data: journal_reader.msgspec.structs.replace(decode(data), previous=SegmentEnd()),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("harm", "kind", "first"),
    [
        (no_segment_is_missed, DamageKind.MISSING, 10),
        (a_missing_file_is_empty, DamageKind.MISSING, 0),
        (an_old_file_is_taken, DamageKind.STALE, 75),
        (a_zeroed_tail_is_torn, DamageKind.ZEROED, 10),
    ],
)
def test_a_store_that_does_not_look_for_damage_is_caught(
    harm: Callable[[pytest.MonkeyPatch], None],
    kind: DamageKind,
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = partial(draw_with_files, among=(kind,))
    with monkeypatch.context() as patch:
        harm(patch)
        each = (range(seed, seed + 1) for seed in range(first, first + SEEDS_OF_HARM))
        found = next(seeds for seeds in each if caught(World, seeds, plan))
    assert not caught(World, found, plan), "the store as it is passes that seed"


def older_attempts_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_tables, "attempts_crc", lambda *_: 0)


def older_rows_are_taken(patch: pytest.MonkeyPatch, table: str) -> None:
    """Those of a table of subscribers are in no sum."""
    crcs_of = subscriber_tables._crcs_of

    def crcs(connection: Connection, of: str, which: str = "TRUE", *values: int | str) -> int:
        return 0 if of == table else crcs_of(connection, of, which, *values)

    patch.setattr(subscriber_tables, "_crcs_of", crcs)


@pytest.mark.full
@pytest.mark.parametrize(
    ("harm", "first"),
    [
        pytest.param(older_attempts_are_taken, 16, id="attempts"),
        pytest.param(partial(older_rows_are_taken, table="acks"), 74, id="acks"),
        pytest.param(partial(older_rows_are_taken, table="members"), 106, id="members"),
    ],
)
def test_a_store_that_serves_older_rows_of_a_channel_is_caught(
    harm: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        harm(patch)
        each = (range(seed, seed + 1) for seed in range(first, first + SEEDS_OF_HARM))
        found = next(seeds for seeds in each if caught(World, seeds, draw_with_older_pages))
    assert not caught(World, found, draw_with_older_pages), "the store as it is passes that seed"


@pytest.mark.full
def test_a_store_that_takes_groups_for_those_of_their_place_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = range(SEEDS_OF_MISPLACED)
    assert not caught(World, seeds, draw_misplaced)
    monkeypatch.setattr(journal_reader.Scan, "_is_misplaced", lambda *_: False)
    assert caught(World, seeds, draw_misplaced) >= 2


@pytest.mark.full
def test_a_store_that_believes_a_catalog_it_has_just_made_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = (range(seed, seed + 1) for seed in range(SEEDS_OF_HARM))
    with monkeypatch.context() as patch:
        patch.setattr(catalog_recovery, "lost_catalog", partial(Damage, CATALOG))
        found = next(seeds for seeds in each if caught(World, seeds, draw_without_catalog))
    assert not caught(World, found, draw_without_catalog)
