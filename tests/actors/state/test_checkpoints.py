"""States that are written down: a restart goes on from there, and what does not fit is dropped."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.positions import Position
from millpond.actors.state.checkpoint_format import (
    BadCheckpointFile,
    Checkpoint,
    RecordFingerprint,
    decode_checkpoint,
    encode_checkpoint,
)
from millpond.actors.state.checkpoint_store import CheckpointStore, state_file
from millpond.actors.state.messages import DescribeState, StateDescribed, StateInfo, StateLimits
from millpond.actors.state.table import StateTable
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.streams import messages as m
from tests.actors.state.test_cell import Pool, check, put
from tests.actors.streams.harness import NAME

RARELY = StateLimits(save_every=50)


class Watched(Pool):
    """Knows from where on the stream is read for the state."""

    reads: list[int]

    def open(self) -> None:
        self.reads = []
        super().open()
        read = self.store.read

        def noted(name: bytes, seek: Any) -> Any:
            self.reads.append(seek.sequence)
            return read(name, seek)

        self.store.read = noted


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Watched]:
    pool = Watched(tmp_path / "data", RARELY)
    pool.create()
    for number in range(120):
        pool.append(put(f"{number % 7}", number))
    yield pool
    pool.close()


def files(pool: Pool) -> list[Path]:
    folder = tuple((pool.folder / "states").glob("*")) if pool.folder else ()
    return sorted(folder)


def described(pool: Pool) -> StateInfo:
    told = pool.answer(DescribeState(0))
    assert isinstance(told, StateDescribed)
    return told.info


def test_a_restart_reads_only_records_after_the_checkpoint(pool: Watched) -> None:
    check(pool)
    before = described(pool)
    pool.settle()
    assert len(files(pool)) == 1
    pool.append(put("new", 1))
    pool.restart()
    assert pool.values() == {"new": 1, **{f"{each % 7}": each for each in range(113, 120)}}
    assert min(pool.reads) >= 100
    after = described(pool)
    assert (after.changes, after.first) == (before.changes + 1, before.first)
    check(pool)


def test_an_idle_state_is_written_and_outlives_a_trim(pool: Watched) -> None:
    pool.append(*[put(f"{number % 7}", number) for number in range(30)])
    values = pool.values()
    pool.advance(700)
    pool.restart()
    pool.ask(m.Trim(0, 140))
    assert pool.values() == values and described(pool).missed == 0
    pool.ask(m.Trim(0, 150))
    assert pool.values() == values


def test_a_stream_trimmed_behind_its_checkpoint_is_read_from_its_start(pool: Watched) -> None:
    pool.values()
    pool.settle()
    pool.append(*[put("late", number) for number in range(20)])
    pool.ask(m.Trim(0, 130))
    pool.restart()
    assert pool.values() == {"late": 19} and described(pool).first == 130


def test_another_stream_of_the_name_has_its_own_state(pool: Watched) -> None:
    pool.values()
    pool.settle()
    old = files(pool)[0].read_bytes()
    pool.ask(m.Delete(0))
    pool.settle()
    assert files(pool) == []
    pool.create()
    pool.append(*[put("other", number) for number in range(130)])
    assert pool.folder is not None
    state_file(pool.folder, NAME).write_bytes(old)
    pool.restart()
    assert pool.values() == {"other": 129}


def test_a_stream_that_lost_its_end_and_has_another_one(pool: Watched, tmp_path: Path) -> None:
    """As after a loss of power, where it promises less than the disk."""
    pool.close()
    shutil.copytree(tmp_path / "data", tmp_path / "before")
    pool.open()
    pool.append(*[put("lost", number) for number in range(60)])
    assert "lost" in (pool.values() if isinstance(pool.values(), dict) else {})
    pool.advance(700)
    pool.close()
    shutil.copytree(
        tmp_path / "data" / "states", tmp_path / "before" / "states", dirs_exist_ok=True
    )
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "before", tmp_path / "data")
    pool.open()
    pool.append(*[put("other", number) for number in range(90)])
    values = pool.values()
    assert isinstance(values, dict) and "lost" not in values and values["other"] == 89
    check(pool)


@pytest.mark.parametrize("cut", [0, 1, 16, 60, -1])
def test_a_damaged_file_is_none(pool: Watched, cut: int) -> None:
    values = pool.values()
    pool.settle()
    [path] = files(pool)
    path.write_bytes(path.read_bytes()[:cut])
    pool.restart()
    assert pool.values() == values and min(pool.reads) == 0
    pool.settle()
    decode_checkpoint(files(pool)[0].read_bytes())


def test_a_disk_without_room_costs_nothing_but_work(pool: Watched) -> None:
    class Full(OsDisk):
        def install(self, path: Path, data: bytes) -> None:
            path.with_name(path.name + ".new").write_bytes(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    assert pool.folder is not None and pool.loop is not None
    pool.checkpoints = CheckpointStore(pool.folder, Full(), pool.loop, 2**20)
    check(pool)
    pool.settle()
    assert files(pool) == []
    pool.append(put("more", 1))
    check(pool)


def saved_of(name: bytes, rng: Random, count: int) -> Checkpoint:
    table = StateTable()
    for number in range(count):
        table.take(put(f"{rng.randrange(10**6)}", number))
    table.take(b"no event")
    witness = RecordFingerprint(count, Position(5, number), 7, b"d" * 32)
    return Checkpoint(name, 9, witness, 3, table.stats, table.state, table.size)


def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "data")
    rng = Random(1)
    assert pool.loop is not None
    folder = tmp_path / "states"
    one = len(encode_checkpoint(saved_of(b"0", rng, 100)))
    checkpoints = CheckpointStore(tmp_path, OsDisk(), pool.loop, 3 * one + 200)
    for number in range(5):
        assert checkpoints.save(saved_of(b"%d" % number, rng, 100))
        assert not checkpoints.save(saved_of(b"%d" % number, rng, 100)), "one at a time"
        pool.work()
        checkpoints.load(b"0")
        pool.work()
    left = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert len(left) == 3 and sum(left.values()) <= 3 * one + 200
    found: list[Checkpoint | None] = []
    for name in (b"0", b"1", b"4"):
        checkpoints.load(name).when_done(found.append)
        pool.work()
    assert [each and each.name for each in found] == [b"0", None, b"4"]
    again = CheckpointStore(tmp_path, OsDisk(), pool.loop, one + 200)
    again.keep_only([b"0", b"4"])
    assert len(list(folder.iterdir())) == 2
    again.save(saved_of(b"5", rng, 100))
    pool.work()
    assert len(list(folder.iterdir())) == 1
    again.save(saved_of(b"5", rng, 1000))
    pool.work()
    assert list(folder.iterdir()) == [], "a state that is too large is not kept at all"
    pool.close()


events = st.lists(
    st.tuples(st.sampled_from("abc"), st.text(max_size=3), st.integers() | st.none()), max_size=30
)


@given(events, st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_there_and_back(rows: list[tuple[str, str, int | None]], incarnation: int) -> None:
    table = StateTable()
    for kind, key, value in rows:
        operation = "delete" if value is None else "insert"
        event = {"type": kind, "key": key, "value": value, "headers": {"operation": operation}}
        table.take(json.dumps(event).encode())
    witness = RecordFingerprint(5, Position(5, 1), 7, b"d" * 32)
    saved = Checkpoint(b"n", incarnation, witness, 3, table.stats, table.state, table.size)
    assert decode_checkpoint(encode_checkpoint(saved)) == saved


@given(st.data())
@settings(max_examples=100)
def test_no_byte_can_be_changed(data: st.DataObject) -> None:
    whole = bytearray(encode_checkpoint(saved_of(b"name", Random(2), 5)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadCheckpointFile):
        decode_checkpoint(bytes(whole))
