"""The same tables in Delta: a batch is one commit, whoever is killed when."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import existing, table_in
from tests.pipeline.histories import (
    add,
    change,
    numbered,
    runs,
    state_of,
    straight,
)

pytest.importorskip("deltalake")


@settings(deadline=None, max_examples=10)
@given(runs, st.lists(st.integers(0, 40), max_size=4), st.data())
def test_batches_and_crashes_make_no_difference(
    rows: list[tuple[int, bytes]], cuts: list[int], data: st.DataObject
) -> None:
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for batch, (start, end) in enumerate(pairwise(bounds)):
            for _ in range(data.draw(st.integers(1, 2))):  # the second: killed, and run again
                table = DeltaState(folder / "table")
                add(table, batch, all_rows[start:end], folder / "dead")
        assert state_of(DeltaState(folder / "table")) == straight(rows)
        lines = [
            line
            for file in (folder / "dead").glob("*.jsonl")
            for line in file.read_text().splitlines()
        ]
        assert len(set(lines)) == len(lines)


def rows_of(*bodies: bytes, topic: str = "t", first: int = 0) -> list[dict[str, Any]]:
    rows = numbered([(0, body) for body in bodies])
    return [{**row, "topic": topic, "offset": row["offset"] + first} for row in rows]


def test_a_reset_counts_for_its_stream_alone_whatever_that_is_called(tmp_path: Path) -> None:
    table = DeltaState(tmp_path / "table")
    kept = rows_of(change("cart", "a", "insert", 1))
    add(table, 0, kept + rows_of(change("cart", "b", "insert", 2), topic="it's"), None)
    add(table, 1, rows_of(b'{"headers":{"control":"reset"}}', topic="it's", first=1), None)
    assert [row["key"] for row in table.read().to_pylist()] == ["a"]
    assert not table.is_due("q", 1) and table.is_due("q", 2)


def test_it_belongs_to_its_query_and_its_job(tmp_path: Path) -> None:
    table = DeltaState(tmp_path / "table")
    add(table, 0, rows_of(change("cart", "a", "insert", 1)), None)
    with pytest.raises(PipelineError, match="other_query"):
        table.is_due("another", 1)
    with table.lock(), pytest.raises(PipelineError, match="table_in_use"):
        with DeltaState(table.folder).lock():
            pass
    with pytest.raises(PipelineError, match="no_table"):
        existing(tmp_path / "nothing")


def test_it_is_there_from_the_first_batch_on_and_lacks_none(tmp_path: Path) -> None:
    table = DeltaState(tmp_path / "table")
    with pytest.raises(PipelineError, match="table_behind"):
        table.is_due("q", 3)
    add(table, 0, rows_of(b"no event"), None)
    assert table.is_due("q", 1) and state_of(table) == {}


def test_many_files_become_few_and_old_ones_go(tmp_path: Path) -> None:
    table = DeltaState(tmp_path / "table")
    for batch in range(5):
        add(table, batch, rows_of(change("cart", f"k{batch}", "insert", batch), first=batch), None)
    before = state_of(table)
    assert isinstance(table.folder, Path)
    (table.folder / "part-of-a-killed-job.parquet").touch()
    assert table.compact() == 5
    with table.lock():
        assert table.vacuum(1) >= 5
    assert state_of(table) == before and len(before) == 5
    assert len(list(table.folder.glob("*.parquet"))) == 1
    found = table.summary()
    assert found is not None and found.batch == 4


def entry(table: DeltaState, number: int) -> Path:
    assert isinstance(table.folder, Path)
    return table.folder / "_delta_log" / f"{number:020}.json"


def emptied(file: Path) -> None:
    """As a loss of power leaves a file whose name is on the disk, and whose bytes are not."""
    file.write_bytes(b"")


@pytest.mark.parametrize("lost", ["entry", "half of the entry", "bytes of a file", "a file"])
def test_a_commit_that_a_loss_of_power_tears_is_taken_back(tmp_path: Path, lost: str) -> None:
    table = DeltaState(tmp_path / "all of 100%" / "table")
    for batch in range(2):
        add(table, batch, rows_of(change("cart", "a", "update", batch), first=batch), None)
    before = table.summary()
    assert before is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millpond.pipeline.state.delta_table.sync_commits", lambda *of: None)
        add(table, 2, rows_of(change("cart", "a", "update", 2), first=2), None)
    last = entry(table, before.version + 1)
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    (name,) = (each["add"]["path"] for each in lines if "add" in each)
    match lost:
        case "entry":
            emptied(last)
        case "half of the entry":
            last.write_bytes(last.read_bytes()[:-20])
        case "bytes of a file":
            emptied(table.folder / unquote(name))
        case _:
            (table.folder / unquote(name)).unlink()
    with table.lock():
        assert table.is_due("q", 2) and state_of(table) == {(0, "cart", "a"): 1}
        add(table, 2, rows_of(change("cart", "a", "update", 2), first=2), None)
    with table.lock():
        assert not table.is_due("q", 2) and state_of(table) == {(0, "cart", "a"): 2}


def test_a_damaged_commit_that_was_told_of_is_not_taken_back(tmp_path: Path) -> None:
    """It is lost, and a batch of Spark's that is done does not run again."""
    table = DeltaState(tmp_path / "table")
    for batch in range(2):
        add(table, batch, rows_of(change("cart", "a", "update", batch), first=batch), None)
    found = table.summary()
    assert found is not None
    emptied(entry(table, found.version))
    with table.lock(), pytest.raises(PipelineError, match="table_behind"):
        table.is_due("q", 2)


def test_a_commit_is_on_the_disk_before_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaState(tmp_path / "table")
    add(table, 0, rows_of(change("cart", "a", "insert", 1)), None)
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink().name
        synced.append(name.removesuffix(f".{os.getpid()}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    add(table, 1, rows_of(change("cart", "b", "insert", 1), first=1), None)
    found = table.summary()
    assert found is not None
    last = entry(table, found.version)
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    names = [each["add"]["path"] for each in lines if "add" in each]
    assert synced == [*names, last.name, "_delta_log", "table", "._synced", "table"]


@pytest.mark.parametrize("torn", [(0,), (1,), (0, 1)])
def test_a_new_table_that_a_loss_of_power_tears_begins_anew(
    tmp_path: Path, torn: tuple[int, ...]
) -> None:
    """Also where the first of two commits is torn, and the second is whole."""
    table = DeltaState(tmp_path / "table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millpond.pipeline.state.delta_table.sync_commits", lambda *of: None)
        add(table, 0, rows_of(change("cart", "a", "insert", 1)), None)
    for number in torn:
        emptied(entry(table, number))
    with table.lock():
        assert table_in(table.folder).folder == table.folder and table.is_due("q", 0)
        add(table, 0, rows_of(change("cart", "a", "insert", 1)), None)
        assert state_of(table) == {(0, "cart", "a"): 1} and not table.is_due("q", 0)
