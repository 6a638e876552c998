"""The same tables in Iceberg: a batch is one snapshot, whoever is killed when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.batch import batch_of
from millpond.pipeline.state.formats import existing_feed, table_in
from millpond.pipeline.state.iceberg_feed import IcebergFeed
from millpond.pipeline.state.iceberg_table import IcebergState
from millpond.pipeline.state.job import store_batch
from millpond.pipeline.state.location import location_of
from millpond.pipeline.state.table import MAINTAIN_EVERY
from tests.pipeline.histories import (
    Rows,
    add,
    change,
    event,
    numbered,
    reduced,
    runs,
    state_of,
    straight,
)
from tests.pipeline.state.test_change_feed import check_feed

pytest.importorskip("pyiceberg")


class Killed(BaseException):
    """A kill of the job, as kill -9 of a process: nothing of it goes on."""


@contextmanager
def killed_after(steps: int | None) -> Iterator[None]:
    """The block ends before that many steps of it on the disk: a sync, a removal. None: it runs to
    its end."""
    left = iter(range(steps)) if steps is not None else count()

    def counted(step: Any) -> Any:
        def run(*args: Any, **words: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return step(*args, **words)

        return run

    with suppress(Killed), pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield


def add_with_feed(folder: Path, batch: int, rows: Rows) -> None:
    feed = IcebergFeed(folder / "changes")
    feed.claim("q")
    table = IcebergState(folder / "table", kept=2, buckets=3)
    add(table, batch, rows, folder / "dead", feed)


@settings(deadline=None, max_examples=8)
@given(runs, st.lists(st.integers(0, 40), max_size=4), st.data())
def test_batches_and_crashes_make_no_difference(
    rows: list[tuple[int, bytes]], cuts: list[int], data: st.DataObject
) -> None:
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for batch, (start, end) in enumerate(pairwise(bounds)):
            for steps in [*data.draw(st.lists(st.integers(0, 40), max_size=2)), None]:
                with killed_after(steps):
                    add_with_feed(folder, batch, all_rows[start:end])
        table = IcebergState(folder / "table")
        assert state_of(table) == straight(rows)
        check_feed(IcebergFeed(folder / "changes"), bounds, rows)
        lines = [
            line
            for file in (folder / "dead").glob("*.jsonl")
            for line in file.read_text().splitlines()
        ]
        assert len(set(lines)) == len(lines)
        with table.lock():
            table.vacuum(1)
        assert state_of(table) == straight(rows)
        assert len(list((folder / "table" / "data").rglob("*.parquet"))) <= 3


def test_it_belongs_to_its_query_and_lacks_no_batch(tmp_path: Path) -> None:
    table = IcebergState(tmp_path / "all of 100%" / "table")
    with pytest.raises(PipelineError, match="table_behind"):
        table.is_due("q", 3)
    add(table, 0, numbered([(0, b"no event")]))
    assert table.is_due("q", 1) and state_of(table) == {}
    for number, again in ((0, False), (1, True)):
        assert table.is_due("q", number) is again
    with pytest.raises(PipelineError, match="other_query"):
        table.is_due("another", 1)
    with table.lock(), pytest.raises(PipelineError, match="table_in_use"):
        with IcebergState(table.folder).lock():
            pass
    assert isinstance(table_in(table.folder), IcebergState)
    with pytest.raises(BadOption, match="is in iceberg, not in delta"):
        table_in(table.folder, "delta")


def test_of_two_jobs_with_one_batch_the_second_is_refused(tmp_path: Path) -> None:
    """Both have found that the table lacks the batch: a folder has a lock against this."""
    rows = numbered([(0, change("cart", f"k{i}", "insert", i)) for i in range(6)])
    add(IcebergState(tmp_path), 0, rows[:3])
    late = IcebergState(tmp_path)
    opened = late._place.open()
    add(IcebergState(tmp_path), 1, rows[3:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late._place, "open", lambda: opened)
        with pytest.raises(PipelineError, match=r"table_in_use.*another job wrote to"):
            late.commit(batch_of("q", 1, reduced(rows[3:], 1, late.buckets_wanted)))
    assert len(state_of(late)) == 6


def test_a_table_that_is_rolled_back_lacks_batches(tmp_path: Path) -> None:
    table = IcebergState(tmp_path)
    for batch in range(3):
        rows = numbered([(0, change("cart", "a", "update", each)) for each in range(batch + 1)])
        add(table, batch, rows[-1:])
    opened = table._place.open()
    assert opened is not None
    first = opened.snapshots()[0].snapshot_id
    with opened.manage_snapshots() as changing:
        changing.rollback_to_snapshot(first)
    assert state_of(table) == {(0, "cart", "a"): 0}
    with pytest.raises(PipelineError, match="table_behind"):
        table.is_due("q", 3)
    assert table.is_due("q", 1)


def test_snapshots_stay_short_and_name_their_batch(tmp_path: Path) -> None:
    """A snapshot lists the files of its buckets, not those that earlier ones have dropped."""
    table = IcebergState(tmp_path, kept=3, buckets=2)
    for batch in range(12):
        bodies = [change("cart", f"k{i}", "update", batch) for i in range(8)]
        rows = [{**row, "offset": row["offset"] + 8 * batch} for row in numbered_zero(bodies)]
        add(table, batch, rows)
    opened = table._place.open()
    assert opened is not None
    current = opened.current_snapshot()
    assert current is not None and current.summary is not None
    assert (current.summary["millpond.query"], current.summary["millpond.batch"]) == ("q", "11")
    assert len(current.manifests(opened.io)) <= 3
    assert len(opened.snapshots()) <= 6
    assert len(list((tmp_path / "metadata").iterdir())) < 60
    found = IcebergState(tmp_path, at=current.sequence_number)
    assert state_of(found) == state_of(table) == {(0, "cart", f"k{i}"): 11 for i in range(8)}


def numbered_zero(bodies: list[bytes]) -> Rows:
    return numbered([(0, body) for body in bodies])


def test_a_feed_is_merged_and_trimmed(tmp_path: Path) -> None:
    feed = IcebergFeed(tmp_path / "changes", kept=4)
    table = IcebergState(tmp_path / "table", buckets=1)
    for batch in (MAINTAIN_EVERY - 3, MAINTAIN_EVERY - 2, MAINTAIN_EVERY - 1):
        rows = [
            {**row, "offset": batch} for row in numbered_zero([change("c", "a", "update", batch)])
        ]
        found = batch_of("q", batch, reduced(rows, 1, 1))
        store_batch(table, found, None, feed)
    for _ in range(2):  # a kill before the table had the last one
        assert [number for number, _ in feed.batches()] == [47, 48, 49]
        feed.add("q", MAINTAIN_EVERY - 1, existing(feed, MAINTAIN_EVERY - 1))
    assert feed.last() == MAINTAIN_EVERY - 1
    short = IcebergFeed(tmp_path / "changes", kept=1)
    short.add("q", MAINTAIN_EVERY - 1, existing(feed, MAINTAIN_EVERY - 1))
    assert [number for number, _ in existing_feed(tmp_path / "changes").batches()] == [49]
    with pytest.raises(PipelineError, match="feed_trimmed"):
        list(feed.batches(after=46))


def existing(feed: IcebergFeed, batch: int) -> Any:
    return dict(feed.batches())[batch]


def test_a_reset_deletes_in_every_bucket(tmp_path: Path) -> None:
    bodies = [change("cart", f"k{i}", "insert", i) for i in range(20)]
    bodies += [event(headers={"control": "reset"}), change("cart", "k3", "insert", 3)]
    rows = numbered_zero(bodies)
    add_with_feed(tmp_path, 0, rows[:20] + numbered([(1, change("cart", "k3", "insert", 0))]))
    add_with_feed(tmp_path, 1, rows[20:])
    assert state_of(table_in(tmp_path / "table")) == {(0, "cart", "k3"): 3, (1, "cart", "k3"): 0}


def test_names_in_catalogs(tmp_path: Path) -> None:
    assert location_of("iceberg://lake/users.state") == "iceberg://lake/users.state"
    for wrong in ("iceberg://lake", "iceberg://lake/users", "iceberg:///a.b"):
        with pytest.raises(BadOption, match="not iceberg://CATALOG"):
            location_of(wrong)
    with pytest.raises(BadOption, match="an Iceberg table in a store is one"):
        table_in("s3://bucket/table", "iceberg")
