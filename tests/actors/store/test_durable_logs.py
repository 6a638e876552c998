"""Logs in the durable store: one log, wherever its chunks are, before and after a restart."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MetadataSet,
    Position,
    StoredMessage,
)
from millpond.actors.store.interface import Seek
from tests.actors.store.harness import LAZY, NOW, SMALL, Run, copied, run

LOG = b"streams/orders"
U64_MAX = 2**64 - 1
ALL = Seek(SeekBy.SEQUENCE, bytes_max=2**40)
FROM_THE_START = [ALL, Seek(SeekBy.TIMESTAMP, timestamp=5), Seek(SeekBy.ID, id=Position(1, 1))]


def chunk(first: int, count: int = 10, size: int = 600) -> Chunk:
    """Timestamps are ten times the sequence; ids run with it."""
    last = first + count - 1
    ids = Position(first, 0), Position(last, 0)
    return Chunk(first, count, 10 * first, 10 * last, *ids, bytes([first % 256]) * size)


def firsts(chunks: list[Chunk]) -> list[int]:
    return [each.first for each in chunks]


def append(run: Run, first: int, end: int) -> None:
    for each in range(first, end, 10):
        run.write(LOG, chunk(each))


@pytest.fixture(params=["journal", "file", "both", "restarted", "both restarted"])
def log(request: pytest.FixtureRequest, tmp_path: Path):
    """A log of 100 records, that are in the journal, in its file, or half here and half there."""
    place, settings = request.param, LAZY if request.param == "journal" else SMALL
    opened = Run(tmp_path / "data", settings)
    append(opened, 0, 50)
    if place != "journal":
        opened.flush()
        assert opened.file(LOG).exists()
    append(opened, 50, 100)
    if place == "file":
        opened.flush()
    if "restarted" in place:
        opened.close()
        opened = Run(tmp_path / "data", LAZY)
    if place == "restarted":
        opened.close()
        opened = Run(tmp_path / "data", SMALL)
        opened.flush()
    yield opened
    opened.close()


class TestReading:
    @pytest.mark.parametrize(
        ("seek", "first"),
        [
            (Seek(SeekBy.SEQUENCE, 0), 0),
            (Seek(SeekBy.SEQUENCE, 9), 0),
            (Seek(SeekBy.SEQUENCE, 10), 10),
            (Seek(SeekBy.SEQUENCE, 49), 40),
            (Seek(SeekBy.SEQUENCE, 50), 50),
            (Seek(SeekBy.SEQUENCE, 99), 90),
            (Seek(SeekBy.SEQUENCE, 100), None),
            (Seek(SeekBy.SEQUENCE, U64_MAX), None),
            (Seek(SeekBy.TIMESTAMP, timestamp=0), 0),
            (Seek(SeekBy.TIMESTAMP, timestamp=91), 10),
            (Seek(SeekBy.TIMESTAMP, timestamp=490), 40),
            (Seek(SeekBy.TIMESTAMP, timestamp=491), 50),
            (Seek(SeekBy.TIMESTAMP, timestamp=500), 50),
            (Seek(SeekBy.TIMESTAMP, timestamp=990), 90),
            (Seek(SeekBy.TIMESTAMP, timestamp=991), None),
            (Seek(SeekBy.ID, id=Position(0, 0)), 0),
            (Seek(SeekBy.ID, id=Position(9, 1)), 10),
            (Seek(SeekBy.ID, id=Position(49, 0)), 40),
            (Seek(SeekBy.ID, id=Position(49, 1)), 50),
            (Seek(SeekBy.ID, id=Position(99, 1)), None),
        ],
        ids=str,
    )
    def test_begins_where_it_is_told(self, log: Run, seek: Seek, first: int | None) -> None:
        expected = [] if first is None else list(range(first, 100, 10))
        assert firsts(log.read(LOG, seek)) == expected

    @pytest.mark.parametrize("bytes_max", [1, 600, 1000, 1200, 2**20])
    def test_in_ranges_of_any_size_misses_nothing(self, log: Run, bytes_max: int) -> None:
        assert log.read_all(LOG, bytes_max) == [chunk(each) for each in range(0, 100, 10)]

    def test_the_outline_is_the_whole_log_s(self, log: Run) -> None:
        assert log.log_snapshot(LOG) == LogSnapshot(0, 100, Position(99, 0), 990, {}, 6000)

    def test_what_is_trimmed_is_not_shown(self, log: Run) -> None:
        log.write(LOG, LogTrimmed(35))
        assert firsts(log.read_all(LOG)) == [30, 40, 50, 60, 70, 80, 90]
        outline = log.log_snapshot(LOG)
        assert (outline.trim_point, outline.tail) == (35, 100)

    @pytest.mark.parametrize("seek", FROM_THE_START)
    @pytest.mark.parametrize("bytes_max", [1, 1000])
    def test_a_reader_from_before_the_trim_point_misses_nothing_after_it(
        self, log: Run, seek: Seek, bytes_max: int
    ) -> None:
        log.write(LOG, LogTrimmed(35))
        seek = Seek(seek.by, seek.sequence, seek.timestamp, seek.id, bytes_max)
        assert firsts(log.read(LOG, seek))[:1] == [30]


def test_an_unknown_log_is_empty(tmp_path: Path) -> None:
    with run(tmp_path) as store:
        assert store.log_snapshot(LOG) == LogSnapshot()
        assert store.read(LOG, ALL) == []
        assert not store.file(LOG).exists()


def test_trimming_gives_the_space_back(tmp_path: Path) -> None:
    with run(tmp_path, SMALL) as store:
        for first in range(0, 2000, 10):
            store.write(LOG, chunk(first, size=4096))
        store.flush()
    before = store.file(LOG).stat().st_size
    assert before > 190 * 4096
    with run(tmp_path, SMALL) as store:
        store.write(LOG, LogTrimmed(1990))
        store.flush()
        assert firsts(store.read_all(LOG)) == [1990]
        assert store.log_snapshot(LOG).bytes == 4096
    assert store.file(LOG).stat().st_size < before / 4


@pytest.mark.parametrize("seek", FROM_THE_START)
@pytest.mark.parametrize("bytes_max", [1, 1000])
def test_a_reader_meets_a_trim_that_is_not_in_the_file_yet(
    tmp_path: Path, seek: Seek, bytes_max: int
) -> None:
    with run(tmp_path, SMALL) as store:
        append(store, 0, 80)
        store.flush()
        append(store, 80, 100)
        commit = store.store.write(LOG, [LogTrimmed(35)])
        store.loop.finish_pass()
        _, journal = store.loop.workers
        assert journal.step() and commit is not None and commit.is_done
        seek = Seek(seek.by, seek.sequence, seek.timestamp, seek.id, bytes_max)
        assert firsts(store.read(LOG, seek))[:1] == [30]


@pytest.mark.parametrize("new", [[], [chunk(0, 3)]], ids=["empty", "new incarnation"])
def test_a_reader_meets_a_deletion(tmp_path: Path, new: list[Chunk]) -> None:
    """It sees the log as it was or as it is, never some of both."""
    with run(tmp_path, SMALL) as store:
        append(store, 0, 50)
        store.write(LOG, LogTrimmed(10))
        store.flush()
        append(store, 50, 60)
        answer = store.store.read(LOG, ALL)
        store.store.write(LOG, [LogDeleted(), *new])
        store.loop.finish_pass()
        _, journal = store.loop.workers
        assert journal.step()
        assert store.finish(answer) == new


def test_the_end_of_a_log_survives_its_trimming(tmp_path: Path) -> None:
    for settings in (LAZY, SMALL):
        folder = tmp_path / str(settings.segment_bytes)
        with run(folder, settings) as store:
            append(store, 0, 20)
            store.write(LOG, LogTrimmed(20))
            store.flush()
        with run(folder, settings) as store:
            outline = store.log_snapshot(LOG)
            assert (outline.trim_point, outline.tail, outline.last_id) == (20, 20, Position(19, 0))
            assert outline.last_timestamp == 190
            assert store.read_all(LOG) == []
            append(store, 20, 30)
            assert firsts(store.read_all(LOG)) == [20]


def test_notes_are_kept_changed_and_forgotten(tmp_path: Path) -> None:
    with run(tmp_path, SMALL) as store:
        store.write(
            LOG,
            MetadataSet(b"type", b"text/plain"),
            MetadataSet(b"owner", b"x"),
            MetadataSet(b"empty", b""),
        )
        store.flush()
        store.write(LOG, MetadataSet(b"type", b"text/html"), MetadataSet(b"owner", None))
        assert store.log_snapshot(LOG).metadata == {b"type": b"text/html", b"empty": b""}
    with run(tmp_path, SMALL) as store:
        assert store.log_snapshot(LOG).metadata == {b"type": b"text/html", b"empty": b""}
        store.flush()
        assert store.log_snapshot(LOG).metadata == {b"type": b"text/html", b"empty": b""}


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_deleted_log_leaves_nothing(tmp_path: Path, is_flushed: bool) -> None:
    with run(tmp_path, SMALL) as store:
        append(store, 0, 30)
        store.write(LOG, MetadataSet(b"type", b"text/plain"), LogTrimmed(10))
        if is_flushed:
            store.flush()
        store.write(LOG, LogDeleted())
        assert store.log_snapshot(LOG) == LogSnapshot()
        assert store.read(LOG, ALL) == []
        store.flush()
        assert not store.file(LOG).exists()
        assert store.log_snapshot(LOG) == LogSnapshot()
    with run(tmp_path, SMALL) as store:
        assert store.log_snapshot(LOG) == LogSnapshot()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_new_incarnation_begins_at_0(tmp_path: Path, is_flushed: bool) -> None:
    with run(tmp_path, SMALL) as store:
        append(store, 0, 30)
        store.write(LOG, MetadataSet(b"type", b"text/plain"))
        if is_flushed:
            store.flush()
        new = Chunk(0, 1, 7, 8, Position(7, 0), Position(7, 1), b"new")
        store.write(LOG, LogDeleted(), new, MetadataSet(b"owner", b"y"))
        expected = LogSnapshot(0, 1, Position(7, 1), 8, {b"owner": b"y"}, 3)
        assert store.log_snapshot(LOG) == expected
        assert store.read_all(LOG) == [new]
    with run(tmp_path, SMALL) as store:
        assert (store.log_snapshot(LOG), store.read_all(LOG)) == (expected, [new])
        store.flush()
        assert (store.log_snapshot(LOG), store.read_all(LOG)) == (expected, [new])


@pytest.mark.parametrize("settings", [LAZY, SMALL], ids=["journal", "file"])
def test_all_64_bits_of_timestamps_and_ids(tmp_path: Path, settings) -> None:
    middle = 2**63
    low = Chunk(0, 1, 0, middle - 1, Position(0, U64_MAX), Position(middle - 1, 0), b"low")
    high = Chunk(1, 1, middle, U64_MAX, Position(middle, 0), Position(U64_MAX, U64_MAX), b"high")
    with run(tmp_path, settings) as store:
        store.write(LOG, low, high)
        store.flush()
    with run(tmp_path, settings) as store:
        assert store.read_all(LOG) == [low, high]
        outline = store.log_snapshot(LOG)
        assert (outline.last_id, outline.last_timestamp) == (Position(U64_MAX, U64_MAX), U64_MAX)
        for timestamp, expected in ((0, [low, high]), (middle, [high]), (U64_MAX, [high])):
            assert store.read(LOG, Seek(SeekBy.TIMESTAMP, timestamp=timestamp)) == expected
        for position in (Position(middle - 1, 1), Position(U64_MAX, U64_MAX)):
            assert store.read(LOG, Seek(SeekBy.ID, id=position)) == [high]


def test_logs_and_queues_stand_side_by_side(tmp_path: Path) -> None:
    row = StoredMessage(1, 1, 60, NOW + 60, b"data")
    with run(tmp_path, SMALL) as store:
        store.write(b"channels/orders", row)
        append(store, 0, 20)
        store.flush()
    with run(tmp_path, SMALL) as store:
        assert store.load(b"channels/orders").rows == [row]
        assert firsts(store.read_all(LOG)) == [0, 10]
        assert [kept.name for kept in store.store.stored_queues()] == [b"channels/orders"]


@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_the_same_after_every_step_of_it(tmp_path: Path, seed: int) -> None:
    """Appends, trims, metadata, deletions, compactions and restarts in any order."""
    rng = Random(seed)
    chunks: list[Chunk] = []
    expected = LogSnapshot()
    store = Run(tmp_path, SMALL)
    for _ in range(60):
        match rng.choice("aaaaaatnrffd"):
            case "a":
                new = chunk(expected.tail, rng.randint(1, 9), rng.choice((10, 3000)))
                chunks.append(new)
                expected.tail = new.end
                expected.last_id, expected.last_timestamp = new.last_id, new.last_timestamp
                store.write(LOG, new)
            case "t":
                expected.trim_point = rng.randint(expected.trim_point, expected.tail)
                store.write(LOG, LogTrimmed(expected.trim_point))
            case "n":
                expected.metadata[b"n"] = rng.randbytes(2)
                store.write(LOG, MetadataSet(b"n", expected.metadata[b"n"]))
            case "d":
                chunks, expected = [], LogSnapshot()
                store.write(LOG, LogDeleted())
            case "f":
                store.flush(2)
            case "r":
                store.close()
                store = Run(tmp_path, rng.choice((LAZY, SMALL)))
        chunks = [each for each in chunks if each.end > expected.trim_point]
        outline = store.log_snapshot(LOG)
        assert outline.bytes >= sum(len(each.data) for each in chunks)
        outline.bytes = 0
        assert outline == expected
        assert store.read_all(LOG, rng.choice((1, 5000, 2**30))) == chunks
    store.close()
    assert store.found.damages == []


def test_a_killed_node_reads_the_same_twice(tmp_path: Path) -> None:
    with run(tmp_path / "data", SMALL) as store:
        append(store, 0, 50)
        store.flush(3)
        append(store, 50, 80)
        store.write(LOG, LogTrimmed(20), MetadataSet(b"n", b"v"))
        killed = copied(store.folder, "killed")
        expected = store.log_snapshot(LOG), store.read_all(LOG)
    for _ in range(2):
        left = Run(killed, LAZY)
        again = copied(killed, f"again {_}")
        assert (left.log_snapshot(LOG), left.read_all(LOG)) == expected
        left.close()
        with run(again) as third:
            assert (third.log_snapshot(LOG), third.read_all(LOG)) == expected
