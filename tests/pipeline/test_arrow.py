"""Records of a node, joined to Arrow batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.pipeline.client.columns import Columns
from millpond.pipeline.spark.arrow import ALONE_BYTES, ArrowBuilder, batches


def columns(first: int, bodies: list[bytes]) -> Columns:
    count = len(bodies)
    sequences = np.arange(first, first + count, dtype=np.uint64)
    timestamps = np.arange(first, first + count, dtype=np.uint64) + np.uint64(10**12)
    return Columns(sequences, timestamps, pa.array(bodies, pa.binary()), None)


def joined(found: list[Columns], rows: int, size: int) -> list[pa.RecordBatch]:
    return list(batches(ArrowBuilder("orders", 3), found, rows, size))


def test_a_large_buffer_is_a_batch_by_itself_and_not_copied() -> None:
    small, large = columns(0, [b"a", b"b"]), columns(2, [bytes(ALONE_BYTES // 2)] * 2)
    before, itself, behind = joined([small, large, columns(4, [b"c"])], 10_000, 2**23)
    assert [before.num_rows, itself.num_rows, behind.num_rows] == [2, 2, 1]
    assert itself["value"].buffers()[2].address == large.bodies.buffers()[2].address


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=9), max_size=9),
    st.integers(1, 20),
    st.integers(1, 200),
)
def test_batches_have_all_records_in_their_order(
    pieces: list[list[bytes]], rows: int, size: int
) -> None:
    found, first = [], 0
    for bodies in pieces:
        found.append(columns(first, bodies))
        first += len(bodies)
    seen = [row for batch in joined(found, rows, size) for row in batch.to_pylist()]
    assert [row["value"] for row in seen] == [body for bodies in pieces for body in bodies]
    assert [row["offset"] for row in seen] == list(range(first))
    assert [int(row["timestamp"].timestamp() * 1000) for row in seen] == [
        10**12 + each for each in range(first)
    ]
    plain = {(row["topic"], row["partition"], row["timestampType"], row["key"]) for row in seen}
    assert plain <= {("orders", 3, 0, None)}
