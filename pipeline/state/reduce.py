"""The reduction of record batches: the last change of each entity, resets, and rejected records.

The order of batches makes no difference: changes and resets keep their offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from zlib import crc32

import pyarrow as pa

from millpond.pipeline.state.events import Change, Control, Rejected, read_event
from millpond.pipeline.state.schemas import compile_schema

REJECTS, RESETS = -1, -2
"""Buckets of rows that are no changes."""

ROWS = pa.schema(
    [
        ("bucket", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("reason", pa.string()),
    ]
)
IDENTITY = ("topic", "partition", "type", "key")
_Row = tuple[int, str, str, bytes | None, int, Any, str | None]


def reduce_batches(
    batches: Iterable[pa.RecordBatch], buckets: int, schemas: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """The reduced rows of records with the columns of the source."""
    checks = {name: compile_schema(schema, name) for name, schema in schemas.items()}
    for batch in batches:
        if batch.num_rows:
            yield _reduce(batch, buckets, checks)


def bucket_of(type_: str, key: str, buckets: int) -> int:
    """The bucket of an entity, the same in every process."""
    return crc32(f"{type_}\0{key}".encode("utf-8", "surrogatepass")) % buckets


def _reduce(batch: pa.RecordBatch, buckets: int, checks: Mapping[str, Any]) -> pa.RecordBatch:
    names = ("value", "topic", "partition", "offset")
    values, topics, partitions, offsets = (batch.column(name).to_pylist() for name in names)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    last: dict[tuple[str, int, str, str], _Row] = {}
    others: list[tuple[str, int, _Row]] = []
    for body, topic, partition, offset, time in zip(
        values, topics, partitions, offsets, times, strict=True
    ):
        match read_event(body, checks):
            case Change(type=type_, key=key, value=value):
                bucket = bucket_of(type_, key, buckets)
                row = (bucket, type_, key, value, offset, time, None)
                entity = (topic, partition, type_, key)
                before = last.get(entity)
                if before is None or before[4] < offset:
                    last[entity] = row
            case Control(name="reset"):
                others.append((topic, partition, (RESETS, "", "", None, offset, time, None)))
            case Rejected(reason=reason):
                others.append((topic, partition, (REJECTS, "", "", body, offset, time, reason)))
            case _:
                pass
    found = [(topic, partition, row) for (topic, partition, *_), row in last.items()]
    return _batch_of(found + others)


def _batch_of(rows: list[tuple[str, int, _Row]]) -> pa.RecordBatch:
    columns: list[list[Any]] = [[] for _ in ROWS]
    for topic, partition, (bucket, type_, key, value, offset, time, reason) in rows:
        for column, cell in zip(
            columns,
            (bucket, topic, partition, type_, key, value, offset, time, reason),
            strict=True,
        ):
            column.append(cell)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, ROWS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)
