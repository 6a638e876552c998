"""Ranges of logs in the durable store: what is on its way counts, and files keep their promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    LogChange,
    LogDeleted,
    LogTrimmed,
    MetadataSet,
    Position,
)
from millpond.actors.store.interface import Deferred, Fault, Seek
from tests.actors.store.harness import LAZY, SMALL, Run, run

LOG = b"log"


def chunk(first: int, count: int = 5, at: int | None = None) -> Chunk:
    ms = 10 * first if at is None else at
    data = b"%05d" % first * 10
    return Chunk(first, count, ms, ms + 1, Position(ms, 0), Position(ms, count - 1), data)


def firsts(chunks: list[Chunk] | Deferred[list[Chunk] | Fault]) -> list[int]:
    assert isinstance(chunks, list)
    return [each.first for each in chunks]


def from_sequence(sequence: int, **limits: int) -> Seek:
    return Seek(SeekBy.SEQUENCE, sequence, **limits)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Run]:
    with run(tmp_path / "data", LAZY) as opened:
        yield opened


def test_what_is_on_its_way_is_read(store: Run) -> None:
    store.write(LOG, MetadataSet(b"a", b"1"), chunk(0), chunk(5))
    commit = store.store.write(LOG, [chunk(10), MetadataSet(b"b", b"2")])
    store.store.write(LOG, [chunk(15)])
    assert commit is not None and not commit.is_done
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0, 5, 10, 15]
    assert firsts(store.store.read(LOG, from_sequence(12))) == [10, 15]
    assert firsts(store.store.read(LOG, Seek(SeekBy.ID, id=Position(150, 0)))) == [15]
    assert firsts(store.store.read(LOG, Seek(SeekBy.TIMESTAMP, timestamp=101))) == [10, 15]
    outline = store.store.log_snapshot(LOG)
    assert not isinstance(outline, Deferred)
    assert (outline.tail, outline.metadata) == (20, {b"a": b"1", b"b": b"2"})


def test_trims_and_deletions_on_their_way_count(store: Run) -> None:
    store.write(LOG, MetadataSet(b"a", b"1"), *map(chunk, range(0, 50, 5)))
    store.store.write(LOG, [LogTrimmed(12)])
    assert firsts(store.store.read(LOG, from_sequence(0)))[0] == 10
    store.store.write(LOG, [LogDeleted(), chunk(0), MetadataSet(b"b", b"2")])
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0]
    store.store.write(LOG, [chunk(5)])
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0, 5]
    store.work()
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0, 5]
    assert store.log_snapshot(LOG).metadata == {b"b": b"2"}


def test_what_failed_is_not_read(store: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(LOG, chunk(0))
    commit = store.store.write(LOG, [chunk(5)])
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0, 5]
    with monkeypatch.context() as patch:
        patch.setattr(store.store._journal, "_write", fail, raising=True)
        assert commit is not None and store.finish(commit) is Fault.NOT_STORED
    assert firsts(store.store.read(LOG, from_sequence(0))) == [0]
    assert store.store.usage.log_bytes == 50


def fail(*_: object) -> None:
    raise OSError(5, "Input/output error")


def test_a_read_gives_no_more_than_it_is_asked_for(store: Run) -> None:
    store.write(LOG, *map(chunk, range(0, 500, 5)))
    read = store.store.read
    assert firsts(read(LOG, from_sequence(7, bytes_max=120))) == [5, 10]
    assert firsts(read(LOG, from_sequence(7, bytes_max=0))) == [5]
    assert firsts(read(LOG, from_sequence(7, count_max=1))) == [5, 10]
    assert firsts(read(LOG, from_sequence(7, count_max=10))) == [5, 10, 15]
    assert len(firsts(read(LOG, from_sequence(0)))) == 100
    assert firsts(read(LOG, from_sequence(500))) == []


def test_files_give_no_more_either(tmp_path: Path) -> None:
    with run(tmp_path / "data", SMALL) as store:
        store.write(LOG, *map(chunk, range(0, 500, 5)))
        store.flush(8)
        assert store.file(LOG).exists()
        assert firsts(store.read(LOG, from_sequence(7, count_max=10))) == [5, 10, 15]
        assert firsts(store.read(LOG, from_sequence(7, bytes_max=1))) == [5]
        assert firsts(store.read(LOG, from_sequence(5, count_max=5))) == [5]


@pytest.mark.parametrize("seed", range(8))
def test_any_read_at_any_time_is_right(tmp_path: Path, seed: int) -> None:
    """Reads are asked for at any moment and answered at a later one: what they give is a range of
    what there was, without holes, and begins where it should."""
    rng = Random(seed)
    with run(tmp_path / "data", SMALL) as store:
        kept: list[Chunk] = []
        trim_point = tail = life = 0
        asked: list[tuple[int, int, int, Deferred[list[Chunk] | Fault] | list[Chunk]]] = []
        for _ in range(400):
            changes: list[LogChange] = []
            match rng.randrange(12):
                case 0 if tail:
                    trim_point = rng.randint(trim_point, tail)
                    changes.append(LogTrimmed(trim_point))
                case 1 if rng.random() < 0.1:
                    changes.append(LogDeleted())
                    kept, trim_point, tail, life = [], 0, 0, life + 1
                case 2:
                    store.flush(1)
                case 3 | 4:
                    store.loop.finish_pass()
                    store.loop.work(idle=False)
                case 5 | 6 | 7:
                    start = rng.randint(0, tail + 2)
                    answer = store.store.read(LOG, from_sequence(start, bytes_max=200))
                    asked.append((life, start, trim_point, answer))
                case _:
                    made = chunk(tail, rng.randint(1, 5), at=10 * tail + life)
                    tail = made.end
                    changes.append(made)
                    kept.append(made)
            if changes:
                store.store.write(LOG, changes)
            asked = [each for each in asked if not settle(each, life, kept, trim_point, tail)]
        store.work()
        asked = [each for each in asked if not settle(each, life, kept, trim_point, tail)]
        assert asked == []


def settle(
    asked: tuple[int, int, int, Deferred[list[Chunk] | Fault] | list[Chunk]],
    life: int,
    kept: list[Chunk],
    trim_point: int,
    tail: int,
) -> bool:
    """Judge an answer once it is there. Answers to requests of a former life count for nothing."""
    asked_life, start, trimmed, answer = asked
    if isinstance(answer, Deferred):
        if not answer.is_done:
            return False
        results: list[list[Chunk] | Fault] = []
        answer.when_done(results.append)
        (found,) = results
    else:
        found = answer
    assert isinstance(found, list)
    if asked_life != life:
        return True
    first = max(start, trimmed)
    if found:
        low = max(first, min(trim_point, found[0].end - 1))
        assert found[0].first <= low < found[0].end or found[0].first <= trim_point
        assert found == [each for each in kept if found[0].first <= each.first <= found[-1].first]
    else:
        assert first >= tail or trim_point >= tail or start >= tail
    return True
