"""Random events, and the state that a straight pass over them gives."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millpond.pipeline.state.summary import StateTable

RECORDS = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
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
