"""Change feeds: each batch's changes are the difference of the tables before and after it, whatever
the cuts, the resets and the crashes, in every format."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import batch_of
from millpond.pipeline.state.change_feed import ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import existing_feed
from millpond.pipeline.state.job import store_batch
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.table import MAINTAIN_EVERY
from tests.pipeline.histories import Rows, add, change, event, numbered, reduced, runs, straight

pytest.importorskip("deltalake")


def add_to_delta(folder: Location, batch: int, rows: Rows, pieces: int = 2) -> None:
    table = DeltaState(folder / "table" if isinstance(folder, Path) else f"{folder}/table")
    feed = DeltaFeed(folder / "changes" if isinstance(folder, Path) else f"{folder}/changes")
    feed.claim("q")
    add(table, batch, rows, None, feed, pieces)


def difference(before: dict[Any, Any], after: dict[Any, Any], again: set[Any]) -> dict[Any, Any]:
    """The changes by entity; `again`: entities that were set, maybe to the same value."""
    return {
        place: (before.get(place), after.get(place))
        for place in before.keys() | after.keys()
        if before.get(place, ()) != after.get(place, ()) or (place in again and place in after)
    }


def set_by(rows: list[tuple[int, bytes]]) -> set[Any]:
    return set(straight(rows))


def check_feed(feed: ChangeFeed, bounds: list[int], rows: list[tuple[int, bytes]]) -> None:
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


@settings(deadline=None, max_examples=8)
@given(runs, st.lists(st.integers(0, 40), max_size=3), st.data())
def test_a_feed_in_delta(
    rows: list[tuple[int, bytes]], cuts: list[int], data: st.DataObject
) -> None:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for batch, (start, end) in enumerate(pairwise(bounds)):
            if data.draw(st.booleans()):  # killed between the feed and the table
                with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(DeltaState, "commit", interrupted)
                    add_to_delta(folder, batch, all_rows[start:end])
                    raise KeyboardInterrupt
            add_to_delta(folder, batch, all_rows[start:end])
        check_feed(DeltaFeed(folder / "changes"), bounds, rows)


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


def test_before_and_after_are_json_and_null_is_a_value(tmp_path: Path) -> None:
    bodies = [change("cart", "a", "insert", None), change("cart", "b", "insert", {"n": 1})]
    rows = numbered([(0, body) for body in [*bodies, change("cart", "a", "delete", None)]])
    add_to_delta(tmp_path, 0, rows[:2])
    add_to_delta(tmp_path, 1, rows[2:])
    (_, first), (_, second) = existing_feed(tmp_path / "changes").batches()
    assert [(row["before"], row["after"]) for row in first.to_pylist()] == [
        (None, b"null"),
        (None, b'{"n": 1}'),
    ]
    assert [(row["before"], row["after"]) for row in second.to_pylist()] == [(b"null", None)]


def test_a_reset_deletes_what_it_clears_with_its_own_place(tmp_path: Path) -> None:
    """Also entities of buckets in which the batch sets nothing."""
    bodies = [change("cart", f"k{i}", "insert", i) for i in range(20)]
    bodies += [event(headers={"control": "reset"}), change("cart", "k3", "insert", 3)]
    rows = numbered([(0, body) for body in bodies])
    other = numbered([(1, change("cart", "k3", "insert", 0))])
    add_to_delta(tmp_path, 0, rows[:20] + other)
    add_to_delta(tmp_path, 1, rows[20:])
    ((_, found),) = existing_feed(tmp_path / "changes").batches(after=0)
    told = {row["key"]: (row["operation"], row["offset"]) for row in found.to_pylist()}
    assert told == {f"k{i}": ("update", 21) if i == 3 else ("delete", 20) for i in range(20)}


def test_a_feed_belongs_to_its_query(tmp_path: Path) -> None:
    add_to_delta(tmp_path, 0, numbered([(0, change("cart", "a", "insert", 1))]))
    feed = existing_feed(tmp_path / "changes")
    feed.claim("q")
    with pytest.raises(PipelineError, match="other_query"):
        type(feed)(feed.folder).claim("another")
    with pytest.raises(PipelineError, match="no_table"):
        existing_feed(tmp_path / "nothing")


def test_old_batches_leave_the_feed_and_missed_ones_are_told(tmp_path: Path) -> None:
    for batch in range(MAINTAIN_EVERY - 2, MAINTAIN_EVERY):
        rows = numbered([(0, change("cart", "a", "insert", batch))])
        rows[0]["offset"] = batch
        table = DeltaState(tmp_path / "table")
        feed = DeltaFeed(tmp_path / "changes", kept=1)
        store_batch(table, batch_of("q", batch, reduced(rows, 1, 1)), None, feed)
    assert [batch for batch, _ in feed.batches()] == [MAINTAIN_EVERY - 1]
    with pytest.raises(PipelineError, match="feed_trimmed"):
        list(feed.batches(after=MAINTAIN_EVERY - 3))
