"""Tables of state: whatever the cuts, the batches and the crashes, they are what a straight pass
over all records gives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.events import Change, Control, Rejected, read_event
from millpond.pipeline.state.job import BatchWriter, JobOptions, add_to_buckets, due, finish
from millpond.pipeline.state.reduce import REJECTS, ROWS, reduce_batches
from millpond.pipeline.state.schemas import compile_schema
from millpond.pipeline.state.table import Table, Version, write_whole
from tests.pipeline.histories import (
    RECORDS,
    SCHEMAS,
    change,
    event,
    numbered,
    runs,
    state_of,
    straight,
)


def write(folder: Path, before: Version, rows: list[dict[str, Any]], cuts: int) -> pa.Table:
    """A batch as Spark runs it: records in pieces, in any order, then each bucket."""
    step = max(1, len(rows) // cuts)
    pieces = [
        pa.RecordBatch.from_pylist(rows[i : i + step], RECORDS) for i in range(0, len(rows), step)
    ]
    reduced = [each for piece in reversed(pieces) for each in reduce_batches([piece], 2, SCHEMAS)]
    files = before.files
    found = list(
        add_to_buckets(reduced, str(folder / "table"), str(folder / "dead"), files, before.floors)
    )
    return (
        pa.Table.from_batches(found, found[0].schema)
        if found
        else pa.Table.from_batches([], pa.schema([("bucket", pa.int32())]))
    )


class Killed(BaseException):
    """A kill of the job, as kill -9 of a process: nothing of it goes on."""


@contextmanager
def killed_after(steps: int | None) -> Iterator[None]:
    """The block ends before that many steps of it on the disk: a sync, a replacement, a removal.
    None: it runs to its end."""
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


@settings(deadline=None, max_examples=60)
@given(runs, st.lists(st.integers(0, 40), max_size=14), st.integers(1, 4), st.data())
def test_batches_and_crashes_make_no_difference(
    rows: list[tuple[int, bytes]], cuts: list[int], pieces: int, data: st.DataObject
) -> None:
    all_rows = numbered(rows)
    with TemporaryDirectory() as name:
        folder = Path(name)
        table = Table(folder / "table")
        table.prepare()
        bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for batch, (start, end) in enumerate(pairwise(bounds)):
            for steps in [*data.draw(st.lists(st.integers(0, 14), max_size=2)), None]:
                with killed_after(steps):
                    before = due(table, "q", batch, 2)
                    if before is None:
                        continue
                    written = write(folder, before, all_rows[start:end], pieces)
                    if data.draw(st.booleans()):
                        written = write(folder, before, all_rows[start:end], pieces)
                    finish(table, before, batch, written, folder / "dead")
        assert state_of(table) == straight(rows)
        letters = [
            json.loads(line)
            for file in sorted((folder / "dead").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        places = [(letter["partition"], letter["offset"]) for letter in letters]
        assert len(set(places)) == len(places)
        version = table.current()
        assert version is not None and version.rejected == len(letters)


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


def test_a_table_belongs_to_its_query_and_its_writer(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    with table.lock():
        with pytest.raises(PipelineError, match="table_in_use"), Table(table.folder).lock():
            pass
        table.commit(Version(1, "one", 0))
    assert due(table, "one", 0) is None
    with pytest.raises(PipelineError, match="other_query"):
        due(table, "another", 1)
    write_whole(table.folder / "_versions" / "00000001.json", b"{")
    with pytest.raises(PipelineError, match="bad_table"):
        table.current()


def test_dead_letters_of_two_queries_do_not_replace_each_other(tmp_path: Path) -> None:
    """Both name their files by the numbers of their batches."""

    def go_on(query: str) -> None:
        checkpoint = tmp_path / query
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": query}))
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / "0").touch()
        options = JobOptions({}, tmp_path / f"{query}-table", checkpoint, tmp_path / "dead")
        table = Table(options.table)
        table.prepare()
        table.commit(Version(1, query, 0))
        frame: Any = None
        BatchWriter(options, lambda done: None).apply(frame, 0)

    go_on("one")
    go_on("one")
    with pytest.raises(PipelineError, match=r"other_query.*dead letters"):
        go_on("two")
    go_on("one")


@pytest.mark.parametrize("last", [None, 4])
def test_a_table_that_lacks_batches_of_the_checkpoint_is_refused(
    tmp_path: Path, last: int | None
) -> None:
    """Another folder with the old checkpoint, or a table from a backup: it would never be whole."""
    table = Table(tmp_path / "table")
    table.prepare()
    if last is not None:
        table.commit(Version(5, "q", last))
    with pytest.raises(PipelineError, match="table_behind"):
        due(table, "q", 6)


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
    table = Table(tmp_path / "table")
    table.prepare()
    table.commit(Version(1, "q", 0))
    before = len(synced)
    options = JobOptions({}, table.folder, tmp_path / "checkpoint")
    frame: Any = None
    BatchWriter(options, lambda done: None).apply(frame, 0)
    assert synced[before:] == [str(plan), str(plan.parent)]


@pytest.mark.full
def test_a_task_of_more_than_2_gib_of_values(tmp_path: Path) -> None:
    """Values of Arrow's plain type have 2 GiB at most; a few long ones are enough for that."""
    value = b'"' + b"x" * (16 * 2**20 - 2) + b'"'
    columns: dict[str, Any] = {"topic": ["t"], "partition": [0], "type": ["n"], "value": [value]}
    batches = []
    for offset in range(140):
        row = {**columns, "key": [f"k{offset}"], "offset": [offset], "bucket": [offset % 2]}
        blank = {name: [None] for name in ("timestamp", "reason")}
        batches.append(pa.RecordBatch.from_pydict({**row, **blank}, ROWS))
    table = Table(tmp_path / "table")
    table.prepare()
    found = list(add_to_buckets(batches, str(table.folder), None, {}, {}))
    assert [batch.column("rows")[0].as_py() for batch in found] == [70, 70]
    names = [name for batch in found for name in json.loads(batch.column("files")[0].as_py())]
    assert sum(pq.read_metadata(table.folder / "data" / name).num_rows for name in names) == 140


def test_old_versions_and_their_files_are_removed(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.prepare()
    for batch in range(30):
        rows = numbered([(0, change("cart", "k", "update", batch))])
        rows[0]["offset"] = batch
        before = due(table, "q", batch, 2)
        assert before is not None
        finish(table, before, batch, write(tmp_path, before, rows, 1), None)
    assert state_of(table) == {(0, "cart", "k"): 29}
    assert len(list((tmp_path / "table" / "data").iterdir())) <= 10
    assert len(list((tmp_path / "table" / "_versions").iterdir())) == 2
