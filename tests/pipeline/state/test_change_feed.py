"""Change feeds: each batch's changes are the difference of the tables before and after it, whatever
the cuts, the resets and the crashes, in both formats."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.change_feed import ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_table import MAINTAIN_EVERY, DeltaState
from millpond.pipeline.state.formats import existing_feed
from millpond.pipeline.state.job import add_to_buckets, due, finish
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.reduce import ROWS, reduce_batches
from millpond.pipeline.state.table import Table
from tests.pipeline.histories import RECORDS, SCHEMAS, change, event, numbered, runs, straight
from tests.pipeline.state.test_job import killed_after

Rows = list[dict[str, Any]]
Feed = ChangeFeed | DeltaFeed


def reduced(rows: Rows, pieces: int, buckets: int) -> list[pa.RecordBatch]:
    """Records as Spark's tasks give them on: in pieces, the last one first."""
    step = max(1, -(-len(rows) // pieces))
    cut = [rows[i : i + step] for i in range(0, len(rows), step)]
    batches = [pa.RecordBatch.from_pylist(each, RECORDS) for each in reversed(cut)]
    return list(reduce_batches(batches, buckets, SCHEMAS, resets_in_buckets=buckets > 1))


def add_to_parquet(folder: Path, batch: int, rows: Rows, pieces: int = 2) -> None:
    table, feed = Table(folder / "table"), ChangeFeed(folder / "changes")
    table.prepare()
    feed.claim("q")
    before = due(table, "q", batch, 2)
    if before is None:
        return
    names = (str(folder / "table"), str(folder / "dead"))
    found = reduced(rows, pieces, 2)
    written: list[pa.RecordBatch] = []
    for _ in range(2):  # a task that Spark runs twice: one of its results counts
        written = list(
            add_to_buckets(found, *names, before.files, before.floors, str(folder / "changes"))
        )
    blank = pa.schema([("bucket", pa.int32()), ("changes", pa.string())])
    table_of = pa.Table.from_batches(written, written[0].schema if written else blank)
    feed.commit(batch, table_of.column("changes").drop_null().to_pylist())
    finish(table, before, batch, table_of, folder / "dead")


def add_to_delta(folder: Location, batch: int, rows: Rows, pieces: int = 2) -> None:
    table = DeltaState(folder / "table" if isinstance(folder, Path) else f"{folder}/table")
    feed = DeltaFeed(folder / "changes" if isinstance(folder, Path) else f"{folder}/changes")
    feed.claim("q")
    if table.is_due("q", batch):
        found = pa.Table.from_batches(reduced(rows, pieces, 1), ROWS)
        table.add("q", batch, found, None, feed)


def difference(before: dict[Any, Any], after: dict[Any, Any], again: set[Any]) -> dict[Any, Any]:
    """The changes by entity; `again`: entities that were set, maybe to the same value."""
    return {
        place: (before.get(place), after.get(place))
        for place in before.keys() | after.keys()
        if before.get(place, ()) != after.get(place, ()) or (place in again and place in after)
    }


def set_by(rows: list[tuple[int, bytes]]) -> set[Any]:
    return set(straight(rows))


def check_feed(feed: Feed, bounds: list[int], rows: list[tuple[int, bytes]]) -> None:
    """Each batch is what a straight pass over all records before its end makes of it."""
    found = dict(feed.batches())
    for batch, (start, end) in enumerate(pairwise(bounds)):
        before, after = straight(rows[:start]), straight(rows[:end])
        expected = difference(before, after, set_by(rows[start:end]))
        changes = found.pop(batch).to_pylist() if batch in found else []
        told = {}
        for row in changes:
            place = (row["partition"], row["type"], row["key"])
            told[place] = tuple(row[name] and json.loads(row[name]) for name in ("before", "after"))
            is_there = (place in before, place in after)
            operation = {(True, True): "update", (False, True): "insert", (True, False): "delete"}
            assert row["operation"] == operation[is_there]
            assert rows_at(rows, start, end, row)
        assert told == expected and len(changes) == len(told)
    assert not found


def rows_at(rows: list[tuple[int, bytes]], start: int, end: int, row: dict[str, Any]) -> bool:
    """The record of a change is in its batch: its own, or the reset that cleared it."""
    places = numbered(rows)[start:end]
    (record,) = [
        each
        for each in places
        if (each["partition"], each["offset"]) == (row["partition"], row["offset"])
    ]
    fields = json.loads(record["value"])
    if row["operation"] == "delete" and fields["headers"].get("control") == "reset":
        return True
    return (fields["type"], fields["key"]) == (row["type"], row["key"])


@settings(deadline=None, max_examples=40)
@given(runs, st.lists(st.integers(0, 40), max_size=12), st.integers(1, 3), st.data())
def test_a_feed_of_parquet_files(
    rows: list[tuple[int, bytes]], cuts: list[int], pieces: int, data: st.DataObject
) -> None:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for batch, (start, end) in enumerate(pairwise(bounds)):
            for steps in [*data.draw(st.lists(st.integers(0, 24), max_size=2)), None]:
                with killed_after(steps):
                    add_to_parquet(folder, batch, all_rows[start:end], pieces)
        check_feed(ChangeFeed(folder / "changes"), bounds, rows)
        files = (folder / "changes").rglob("*")
        assert all("batch=" in str(each) or "_query-" in str(each) for each in files)


@settings(deadline=None, max_examples=8)
@given(runs, st.lists(st.integers(0, 40), max_size=3), st.data())
def test_a_feed_in_delta(
    rows: list[tuple[int, bytes]], cuts: list[int], data: st.DataObject
) -> None:
    pytest.importorskip("deltalake")
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for batch, (start, end) in enumerate(pairwise(bounds)):
            if data.draw(st.booleans()):  # killed between the feed and the table
                with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(DeltaState, "_commit", interrupted)
                    add_to_delta(folder, batch, all_rows[start:end])
                    raise KeyboardInterrupt
            add_to_delta(folder, batch, all_rows[start:end])
        check_feed(DeltaFeed(folder / "changes"), bounds, rows)


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


ADD = {"parquet": add_to_parquet, "delta": add_to_delta}


@pytest.fixture(params=["parquet", "delta"])
def add(request: pytest.FixtureRequest) -> Any:
    if request.param == "delta":
        pytest.importorskip("deltalake")
    return ADD[request.param]


def test_before_and_after_are_json_and_null_is_a_value(add: Any, tmp_path: Path) -> None:
    bodies = [change("cart", "a", "insert", None), change("cart", "b", "insert", {"n": 1})]
    rows = numbered([(0, body) for body in [*bodies, change("cart", "a", "delete", None)]])
    add(tmp_path, 0, rows[:2])
    add(tmp_path, 1, rows[2:])
    (_, first), (_, second) = existing_feed(tmp_path / "changes").batches()
    assert [(row["before"], row["after"]) for row in first.to_pylist()] == [
        (None, b"null"),
        (None, b'{"n": 1}'),
    ]
    assert [(row["before"], row["after"]) for row in second.to_pylist()] == [(b"null", None)]


def test_a_reset_deletes_what_it_clears_with_its_own_place(add: Any, tmp_path: Path) -> None:
    """Also entities of buckets in which the batch sets nothing."""
    bodies = [change("cart", f"k{i}", "insert", i) for i in range(20)]
    bodies += [event(headers={"control": "reset"}), change("cart", "k3", "insert", 3)]
    rows = numbered([(0, body) for body in bodies])
    other = numbered([(1, change("cart", "k3", "insert", 0))])
    add(tmp_path, 0, rows[:20] + other)
    add(tmp_path, 1, rows[20:])
    ((_, found),) = existing_feed(tmp_path / "changes").batches(after=0)
    told = {row["key"]: (row["operation"], row["offset"]) for row in found.to_pylist()}
    assert told == {f"k{i}": ("update", 21) if i == 3 else ("delete", 20) for i in range(20)}


def test_a_feed_belongs_to_its_query(add: Any, tmp_path: Path) -> None:
    add(tmp_path, 0, numbered([(0, change("cart", "a", "insert", 1))]))
    feed = existing_feed(tmp_path / "changes")
    feed.claim("q")
    with pytest.raises(PipelineError, match="other_query"):
        type(feed)(feed.folder).claim("another")
    with pytest.raises(PipelineError, match="no_table"):
        existing_feed(tmp_path / "nothing")


def test_old_batches_are_removed_and_missed_ones_are_told(tmp_path: Path) -> None:
    feed = ChangeFeed(tmp_path, kept=3)
    for batch in range(6):
        feed.commit(batch, [])
    assert [batch for batch, _ in feed.batches()] == [3, 4, 5]
    assert [batch for batch, _ in feed.batches(after=4)] == [5]
    assert [batch for batch, _ in feed.batches(after=2)] == [3, 4, 5]
    with pytest.raises(PipelineError, match=r"feed_trimmed.*no batches 2 to 2"):
        list(feed.batches(after=1))


def test_old_batches_leave_a_delta_feed(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    for batch in range(MAINTAIN_EVERY - 2, MAINTAIN_EVERY):
        rows = numbered([(0, change("cart", "a", "insert", batch))])
        rows[0]["offset"] = batch
        table = DeltaState(tmp_path / "table")
        found = pa.Table.from_batches(reduced(rows, 1, 1), ROWS)
        feed = DeltaFeed(tmp_path / "changes", kept=1)
        table.add("q", batch, found, None, feed)
    assert [batch for batch, _ in feed.batches()] == [MAINTAIN_EVERY - 1]
    with pytest.raises(PipelineError, match="feed_trimmed"):
        list(feed.batches(after=MAINTAIN_EVERY - 3))


def test_other_tools_read_the_files_with_the_batch_as_a_column(tmp_path: Path) -> None:
    for batch in range(2):
        rows = numbered([(0, change("cart", f"k{batch}", "insert", batch))])
        rows[0]["offset"] = batch
        add_to_parquet(tmp_path, batch, rows)
    found = pq.read_table(tmp_path / "changes").to_pylist()
    assert {(row["batch"], row["key"]) for row in found} == {(0, "k0"), (1, "k1")}
