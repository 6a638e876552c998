"""Change feeds as streams of a node: the changes of each batch once, whatever the cuts, the resets
and the kills between the stream and the table."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.change_feed import check_gap
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import existing_feed, table_in
from millpond.pipeline.state.job import BatchWriter, JobOptions
from millpond.pipeline.state.location import location_of
from millpond.pipeline.state.stream_feed import StreamFeed
from tests.pipeline.histories import Rows, add, change, event, numbered, runs, straight
from tests.pipeline.pipeline_nodes import NodeProcess

pytest.importorskip("deltalake")
names = (f"changes-{number}" for number in count())


def feed_of(node: NodeProcess, name: str, query: str = "q") -> StreamFeed:
    feed = StreamFeed(f"stream://{name}", {**node.given, "subscribe": "t"})
    feed.claim(query)
    return feed


def events_of(node: NodeProcess, name: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in node.values(name)]


def folded(events: list[dict[str, Any]]) -> dict[tuple[int, str, str], Any]:
    """The state of one who follows the stream; what an event replaces is its old value."""
    state: dict[tuple[int, str, str], Any] = {}
    for each in events:
        headers = each["headers"]
        place = (int(headers["partition"]), each["type"], each["key"])
        assert (headers["operation"] == "insert") == (place not in state)
        assert state.pop(place, None) == each.get("old_value")
        if headers["operation"] != "delete":
            state[place] = each["value"]
    return state


@settings(deadline=None, max_examples=8)
@given(rows=runs, cuts=st.lists(st.integers(0, 40), max_size=3), data=st.data())
def test_the_stream_is_the_table(
    shared_node: NodeProcess, rows: list[tuple[int, bytes]], cuts: list[int], data: st.DataObject
) -> None:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    all_rows, name = numbered(rows), next(names)
    with TemporaryDirectory() as folder:
        for batch, (start, end) in enumerate(pairwise(bounds)):
            if data.draw(st.booleans()):  # killed when the stream has the batch, the table not
                with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
                    patch.setattr(DeltaState, "commit", interrupted)
                    feed = feed_of(shared_node, name)
                    add(DeltaState(Path(folder)), batch, all_rows[start:end], None, feed)
            feed = feed_of(shared_node, name)
            add(DeltaState(Path(folder)), batch, all_rows[start:end], None, feed)
            assert folded(events_of(shared_node, name)) == straight(rows[:end])
            assert feed.last() == feed_of(shared_node, name).last() == batch
    places = [(each["headers"]["txid"], each["key"]) for each in events_of(shared_node, name)]
    assert [int(batch) for batch, _ in places] == sorted(int(batch) for batch, _ in places)


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_node_that_is_killed_in_between_has_each_change_once(
    node: NodeProcess, tmp_path: Path
) -> None:
    rows = numbered([(0, change("cart", f"k{i}", "insert", i)) for i in range(200)])
    feed = feed_of(node, "changes")
    add(DeltaState(tmp_path / "table"), 0, rows[:100], None, feed)
    node.kill()
    node.start()
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(DeltaState, "commit", interrupted)
        add(DeltaState(tmp_path / "table"), 1, rows[100:], None, feed)
    node.kill()
    node.start()
    add(DeltaState(tmp_path / "table"), 1, rows[100:], None, feed_of(node, "changes"))
    assert [each["value"] for each in events_of(node, "changes")] == list(range(200))


def test_an_event_tells_the_place_of_its_change(shared_node: NodeProcess, tmp_path: Path) -> None:
    name = next(names)
    rows: Rows = numbered([(0, b"{"), (0, change("cart", "a", "insert", {"n": 1}))])
    add(DeltaState(tmp_path), 0, rows, None, feed_of(shared_node, name))
    rows = numbered([(0, b"{"), (0, b"{"), (0, event(headers={"control": "reset"}))])[2:]
    add(DeltaState(tmp_path), 1, rows, None, feed_of(shared_node, name))
    place = {"topic": "t", "partition": "0", "time": "0"}
    assert events_of(shared_node, name) == [
        {
            "type": "cart",
            "key": "a",
            "value": {"n": 1},
            "headers": {"operation": "insert", "txid": "0", "offset": "1", **place},
        },
        {
            "type": "cart",
            "key": "a",
            "old_value": {"n": 1},
            "headers": {"operation": "delete", "txid": "1", "offset": "2", **place},
        },
    ]


def test_a_stream_belongs_to_one_query(shared_node: NodeProcess, tmp_path: Path) -> None:
    name = next(names)
    add(DeltaState(tmp_path), 0, [], None, feed_of(shared_node, name))
    rows = numbered([(0, change("cart", "a", "insert", 1))])
    add(DeltaState(tmp_path), 1, rows, None, feed_of(shared_node, name))
    assert feed_of(shared_node, name).last() == 1
    with pytest.raises(PipelineError, match="other_query"):
        feed_of(shared_node, name, "another")
    shared_node.make("filled")
    shared_node.fill("filled", [b"a record"])
    with pytest.raises(PipelineError, match="other_query"):
        feed_of(shared_node, "filled")


def test_batches_that_ran_without_the_stream_are_noticed(
    shared_node: NodeProcess, tmp_path: Path
) -> None:
    name = next(names)
    add(DeltaState(tmp_path), 0, [], None, feed_of(shared_node, name))
    add(DeltaState(tmp_path), 1, [])
    feed = feed_of(shared_node, name)
    with pytest.raises(PipelineError, match="feed_behind"):
        check_gap(feed.folder, feed.last(), 1)


def test_large_values(shared_node: NodeProcess, tmp_path: Path) -> None:
    """A record has 1 MiB: an old value that does not fit is left out, a new one is an error."""
    name, text = next(names), "x" * 700_000
    bodies = [change("cart", "a", "update", each) for each in (text, text + "y")]
    for batch, row in enumerate(numbered([(0, body) for body in bodies])):
        add(DeltaState(tmp_path), batch, [row], None, feed_of(shared_node, name))
    first, second = events_of(shared_node, name)
    assert (len(first["value"]), len(second["value"])) == (700_000, 700_001)
    assert "old_value" not in second and second["headers"]["operation"] == "update"
    rows = numbered([(0, change("cart", "huge", "insert", "x" * 2**20))])
    with pytest.raises(PipelineError, match="'huge' in batch 2 has 1048578 bytes"):
        add(DeltaState(tmp_path), 2, rows, None, feed_of(shared_node, name))


def test_a_stream_is_no_table(tmp_path: Path) -> None:
    place = location_of("stream://users/changes")
    assert place == "stream://users/changes"
    for use in (table_in, existing_feed):
        with pytest.raises(BadOption):
            use(place)
    with pytest.raises(BadOption):
        location_of("stream://")
    options = JobOptions({"subscribe": "t"}, tmp_path / "table", tmp_path / "c", changes=place)
    assert isinstance(BatchWriter(options, lambda done: None)._feed, StreamFeed)
