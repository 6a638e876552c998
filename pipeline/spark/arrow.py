"""Records as Arrow batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.client.columns import Columns, Numbers
from millpond.pipeline.client.s2_codec import Headers

KEY = b"key"
"""The header that holds the column `key`, because records of a stream have no key."""
TOMBSTONE = b"tombstone"
"""The header of a record, without a body, whose value is null: a body itself is never null."""
MS_MAX = (2**63 - 1) // 1000
ALONE_BYTES = 2**19
"""A buffer of records from this size on is a batch by itself, and is not copied."""

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_PLAIN = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
_HEADERS = pa.field("headers", pa.list_(pa.field("element", _HEADER)))


def arrow_schema(*, with_headers: bool) -> pa.Schema:
    """The columns of every batch."""
    return _PLAIN.append(_HEADERS) if with_headers else _PLAIN


@dataclass
class ArrowBuilder:
    """A builder of Arrow batches from the records of one partition."""

    topic: str
    partition: int
    with_headers: bool = False
    sequences: list[Numbers] = field(default_factory=list)
    timestamps: list[Numbers] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[Headers] | None = None
    count: int = 0
    size: int = 0

    def add(self, columns: Columns) -> None:
        """Add records."""
        self.sequences.append(columns.sequences)
        self.timestamps.append(columns.timestamps)
        self.bodies.append(columns.bodies)
        self.size += columns.bodies.nbytes
        count = len(columns.sequences)
        if columns.headers is not None and self.headers is None:
            self.headers = [[] for _ in range(self.count)]
        if self.headers is not None:
            self.headers += columns.headers or ([] for _ in range(count))
        self.count += count

    def batch(self) -> pa.RecordBatch:
        """The batch of the added records; the builder is empty after it."""
        count = self.count
        ms = np.minimum(np.concatenate(self.timestamps), np.uint64(MS_MAX))
        us = ms.astype(np.int64) * 1000
        arrays = [
            self._keys(count),
            self._values(),
            _repeated(self.topic, pa.string(), count),
            _repeated(self.partition, pa.int32(), count),
            pa.array(np.concatenate(self.sequences).astype(np.int64)),
            pa.array(us).view(_TIMESTAMP),
            _repeated(0, pa.int32(), count),
        ]
        if self.with_headers:
            arrays.append(self._all_headers(count))
        self.sequences, self.timestamps, self.bodies = [], [], []
        self.headers, self.count, self.size = None, 0, 0
        return pa.RecordBatch.from_arrays(
            arrays, schema=arrow_schema(with_headers=self.with_headers)
        )

    def _values(self) -> pa.Array:
        values = self.bodies[0] if len(self.bodies) == 1 else pa.concat_arrays(self.bodies)
        if self.headers is None:
            return values
        nulls = [any(name == TOMBSTONE for name, _ in row) for row in self.headers]
        if not any(nulls):
            return values
        is_null = pc.and_(pa.array(nulls), pc.equal(pc.binary_length(values), 0))
        return pc.if_else(is_null, pa.scalar(None, pa.binary()), values)

    def _keys(self, count: int) -> pa.Array:
        if self.headers is None:
            return pa.nulls(count, pa.binary())
        keys = [next((value for name, value in row if name == KEY), None) for row in self.headers]
        return pa.array(keys, pa.binary())

    def _all_headers(self, count: int) -> pa.Array:
        if self.headers is None:
            return pa.nulls(count, _HEADERS.type)
        rows = [
            [{"key": name.decode("utf-8", "replace"), "value": value} for name, value in row]
            or None
            for row in self.headers
        ]
        return pa.array(rows, _HEADERS.type)


@lru_cache(maxsize=64)
def _repeated(value: str | int, kind: Any, count: int) -> pa.Array:
    """A column of one value; most batches have as many rows as the one before."""
    return pa.repeat(pa.scalar(value, kind), count)


def batches(
    gathered: ArrowBuilder, found: Iterable[Columns], rows: int, size: int
) -> Iterator[pa.RecordBatch]:
    """Batches of up to `rows` records, or of about `size` bytes."""
    for columns in found:
        is_alone = columns.bodies.nbytes >= ALONE_BYTES
        if gathered.count and (is_alone or gathered.count + len(columns.sequences) > rows):
            yield gathered.batch()
        gathered.add(columns)
        if is_alone or gathered.count >= rows or gathered.size >= size:
            yield gathered.batch()
    if gathered.count:
        yield gathered.batch()
