"""Random events, and the state that a straight pass over them gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millpond.pipeline.state.batch import batch_of
from millpond.pipeline.state.change_feed import ChangeFeed
from millpond.pipeline.state.dead_letters import DeadLetters
from millpond.pipeline.state.files import LocalFiles
from millpond.pipeline.state.job import store_batch
from millpond.pipeline.state.reduce import ROWS, reduce_batches
from millpond.pipeline.state.table import StateTable

RECORDS = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
Rows = list[dict[str, Any]]
SCHEMAS = {"user": {"type": "integer"}}


def event(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def change(type_: str, key: str, operation: str, value: Any) -> bytes:
    return event(type=type_, key=key, value=value, headers={"operation": operation})


changes = st.builds(
    change,
    st.sampled_from(["user", "cart"]),
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(["insert", "update", "upsert", "delete"]),
    st.one_of(st.integers(0, 9), st.just("text"), st.none()),
)
controls = st.sampled_from(["reset", "snapshot-start", "snapshot-end", "up-to-date", "nonsense"])
records = st.one_of(
    changes, changes, controls.map(lambda name: event(headers={"control": name})), st.just(b"{")
)
runs = st.lists(st.tuples(st.sampled_from([0, 1]), records), max_size=40)


def straight(rows: list[tuple[int, bytes]]) -> dict[tuple[int, str, str], Any]:
    """The table, by a pass over all records in their order."""
    state: dict[tuple[int, str, str], Any] = {}
    for partition, body in rows:
        try:
            found = json.loads(body)
        except ValueError:
            continue
        headers = found["headers"]
        if headers.get("control") == "reset":
            state = {place: value for place, value in state.items() if place[0] != partition}
        if "control" in headers:
            continue
        place = (partition, found["type"], found["key"])
        if headers["operation"] == "delete":
            state.pop(place, None)
        elif found["type"] != "user" or type(found["value"]) is int:
            state[place] = found["value"]
    return state


def numbered(rows: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
    offsets = {0: 0, 1: 0}
    found = []
    for partition, body in rows:
        place = {"topic": "t", "partition": partition, "offset": offsets[partition], "timestamp": 0}
        found.append({"value": body, **place})
        offsets[partition] += 1
    return found


def state_of(table: StateTable) -> dict[tuple[int, str, str], Any]:
    rows = table.read().to_pylist()
    found = {(row["partition"], row["type"], row["key"]): json.loads(row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


def reduced(rows: Rows, pieces: int, buckets: int) -> pa.Table:
    """Records as Spark's tasks give them on: in pieces, the last one first."""
    step = max(1, -(-len(rows) // pieces))
    cut = [rows[i : i + step] for i in range(0, len(rows), step)]
    batches = [pa.RecordBatch.from_pylist(each, RECORDS) for each in reversed(cut)]
    return pa.Table.from_batches(reduce_batches(batches, buckets, SCHEMAS), ROWS)


def add(
    table: StateTable,
    batch: int,
    rows: Rows,
    letters: Path | None = None,
    feed: ChangeFeed | None = None,
    pieces: int = 2,
) -> None:
    """A batch as the job runs it, unless the table has it."""
    if table.is_due("q", batch):
        found = batch_of("q", batch, reduced(rows, pieces, table.buckets_wanted))
        dead = None if letters is None else DeadLetters(LocalFiles(letters))
        store_batch(table, found, dead, feed)
