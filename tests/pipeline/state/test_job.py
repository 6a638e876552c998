"""The job without Spark: events of any bytes, its dead letters, and the plan of a batch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import batch_of
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.events import Change, Control, Rejected, read_event
from millpond.pipeline.state.job import BatchWriter, JobOptions
from millpond.pipeline.state.reduce import REJECTS, ROWS, reduce_batches
from millpond.pipeline.state.schemas import compile_schema
from tests.pipeline.histories import RECORDS, SCHEMAS, add, change, event, numbered, reduced


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (change("user", "a", "insert", 1), Change("user", "a", b"1")),
        (change("user", "a", "delete", 1), Change("user", "a", None)),
        (event(headers={"control": "reset", "operation": "insert"}), Control("reset")),
        (event(headers={"control": "up-to-date"}), Control("up-to-date")),
        (b'{"type":"n","key":"k","value":1e400,"headers":{"operation":"update"}}', None),
        (
            b'{"type":"n","key":"k","value":123456789012345678901234567890,'
            b'"headers":{"operation":"update"}}',
            Change("n", "k", b"123456789012345678901234567890"),
        ),
    ],
)
def test_events(body: bytes, found: Any) -> None:
    told = read_event(body, {})
    assert isinstance(told, Rejected) if found is None else told == found


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "no event"),
        (b"[]", "no event"),
        (b"\xff", "no event"),
        (b'{"type":"n","key":"\xff","value":1,"headers":{"operation":"insert"}}', "no event"),
        (b'{"type":"n","key":"k","value":"\xff","headers":{"operation":"insert"}}', "value: "),
        (b'{"type":"n","key":"k","value":{"\xff":1},"headers":{"operation":"insert"}}', "value: "),
        (b'{"type":"n","key":"k","value":1,"headers":{"operation":"\xff"}}', "no event"),
        (b"[" * 100_000, "no event"),
        (event(type="user"), "no event"),
        (event(headers={}), "neither"),
        (event(headers={"control": "boo"}), "unknown control"),
        (event(type="", key="k", headers={"operation": "insert"}), "no type"),
        (event(type="t", key="k", headers={"operation": "merge"}), "unknown operation"),
        (event(type="t", key="k", headers={"operation": "insert"}), "no value"),
        (change("user", "a", "insert", "x"), "schema: $: 'x' is not of type 'integer'"),
    ],
)
def test_what_is_no_event_is_rejected_with_a_reason(body: bytes | None, reason: str) -> None:
    told = read_event(body, {"user": compile_schema(SCHEMAS["user"], "user")})
    assert isinstance(told, Rejected) and reason in told.reason


def json_with_odd_bytes() -> st.SearchStrategy[bytes]:
    """JSON of any shape, whose texts are any bytes, also such as are no UTF-8 or end the text."""
    texts = st.one_of(
        st.sampled_from([b"type", b"key", b"value", b"headers", b"operation", b"user", b"insert"]),
        st.binary(max_size=8),
        st.sampled_from(
            [rb"\ud800", rb"\u0000", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
        ),
    ).map(lambda text: b'"%b"' % text)
    numbers = st.sampled_from([b"0", b"-1", b"1e400", b"9" * 400, b"1.5E-400", b"NaN", b"true"])
    return st.recursive(
        st.one_of(texts, numbers, st.just(b"null")),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda each: b"[%b]" % b",".join(each)),
            st.lists(st.tuples(texts, inner), max_size=4).map(
                lambda pairs: b"{%b}" % b",".join(b"%b:%b" % pair for pair in pairs)
            ),
        ),
        max_leaves=12,
    )


odd_values = json_with_odd_bytes()
odd_events = st.builds(
    lambda key, value, type_: (
        b'{"type":%b,"key":%b,"value":%b,"headers":{"operation":"insert"}}' % (type_, key, value)
    ),
    odd_values,
    odd_values,
    st.sampled_from([b'"user"', b'"cart"', b'"odd"']),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(odd_events, odd_values, st.binary(max_size=40)), max_size=8))
def test_whatever_bytes_come_are_changes_controls_or_rejected(bodies: list[bytes]) -> None:
    """A record that stops the job would stop it again whenever it is started."""
    schemas = {**SCHEMAS, "odd": {"multipleOf": 0.01, "uniqueItems": True, "pattern": "^a"}}
    rows = numbered([(0, body) for body in bodies])
    found = list(reduce_batches([pa.RecordBatch.from_pylist(rows, RECORDS)], 2, schemas))
    fates = [read_event(body, {}) for body in bodies]
    reduced = [row for batch in found for row in batch.to_pylist()]
    assert {row["offset"] for row in reduced if row["bucket"] == REJECTS} >= {
        offset for offset, fate in enumerate(fates) if isinstance(fate, Rejected)
    }
    for row in reduced:
        if row["bucket"] >= 0:
            json.loads(row["value"])
        elif row["bucket"] == REJECTS:
            assert row["reason"] and row["value"] == bodies[row["offset"]]


def test_dead_letters_of_two_queries_do_not_replace_each_other(tmp_path: Path) -> None:
    """Both name their files by the numbers of their batches."""

    def go_on(query: str) -> None:
        checkpoint = tmp_path / query
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / "0").touch()
        options = JobOptions({}, tmp_path / f"{query}-table", checkpoint, tmp_path / "dead")
        nothing = batch_of(query, 0, reduced([], 1, 1))
        table = DeltaState(options.table)
        if table.is_due(query, 0):
            table.commit(nothing)
        frame: Any = None
        BatchWriter(options, lambda done: None).apply(frame, 0)

    go_on("one")
    go_on("one")
    with pytest.raises(PipelineError, match=r"other_query.*dead letters"):
        go_on("two")
    go_on("one")


def test_what_a_batch_reads_is_on_the_disk_before_the_table_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "checkpoint" / "offsets" / "0"
    plan.parent.mkdir(parents=True)
    plan.touch()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "q"}')
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    table = DeltaState(tmp_path / "table")
    add(table, 0, [])
    before = len(synced)
    options = JobOptions({}, table.folder, tmp_path / "checkpoint")
    frame: Any = None
    BatchWriter(options, lambda done: None).apply(frame, 0)
    assert synced[before:] == [str(plan), str(plan.parent)]


@pytest.mark.full
def test_a_batch_of_more_than_2_gib_of_values(tmp_path: Path) -> None:
    """Values of Arrow's plain type have 2 GiB at most; a few long ones are enough for that."""
    value = b'"' + b"x" * (16 * 2**20 - 2) + b'"'
    columns: dict[str, Any] = {"topic": ["t"], "partition": [0], "type": ["n"], "value": [value]}
    batches = []
    for offset in range(140):
        row = {**columns, "key": [f"k{offset}"], "offset": [offset], "bucket": [0]}
        blank = {name: [None] for name in ("timestamp", "reason")}
        batches.append(pa.RecordBatch.from_pydict({**row, **blank}, ROWS))
    table = DeltaState(tmp_path / "table")
    table.commit(batch_of("q", 0, pa.Table.from_batches(batches, ROWS)))
    assert sum(piece.num_rows for piece in table.pieces()) == 140
