"""Records that a node wrote, read back by columns in every way."""

from __future__ import annotations

import struct
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import RecordColumns
from millpond.pipeline.client.column_blocks import BlockDecoder
from millpond.pipeline.client.columns import Columns, decode_batch
from millpond.pipeline.client.s2_codec import decode_records
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.spark.arrow import ArrowBuilder, arrow_schema
from millpond.transports.http.s2.codecs.columns import PIECE_BYTES, block, is_large, pieces_of
from millpond.transports.http.s2.codecs.protobuf import encode_batch
from millpond.transports.http.s2.errors import StreamPosition
from millpond.transports.http.s2.model import RecordBatch

headers = st.lists(st.tuples(st.binary(min_size=1, max_size=5), st.binary(max_size=5)), max_size=2)
bodies = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(100, 20_000).map(bytes)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(
    st.integers(0, 2**63), st.integers(0, 2**63), bodies, st.data(), st.booleans(), st.booleans()
)
def test_every_batch_of_a_node(
    first: int, timestamp: int, found: list[bytes], data: st.DataObject, odd: bool, tail: bool
) -> None:
    rows = data.draw(st.lists(headers, min_size=len(found), max_size=len(found))) if odd else None
    times = None
    if odd:
        times = data.draw(st.lists(st.integers(0, 2**63), min_size=len(found), max_size=len(found)))
    span = RecordColumns(first, found, timestamp, Position(1, 1), times, None, rows)
    columns = decode_batch(
        encode_batch(RecordBatch([span], StreamPosition(7, 7) if tail else None))
    )
    assert columns.sequences.tolist() == list(range(first, first + len(found)))
    assert columns.timestamps.tolist() == (times or [timestamp] * len(found))
    assert columns.bodies.to_pylist() == found
    assert columns.headers == (rows if rows and any(rows) else None)
    in_blocks = list(BlockDecoder().decode(b"".join(block(span)) * 2))
    assert len(in_blocks) == 2
    for each in in_blocks:
        each.bodies.validate(full=True)
        assert each.sequences.tolist() == columns.sequences.tolist()
        assert each.timestamps.tolist() == columns.timestamps.tolist()
        assert each.bodies.to_pylist() == found
        assert each.headers == rows


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_hostile_bytes_are_read_alike_or_refused(data: bytes) -> None:
    try:
        sequences, timestamps, found, rows = decode_records(data)
    except ValueError:
        return
    columns = decode_batch(data)
    assert columns.sequences.tolist() == sequences
    assert columns.timestamps.tolist() == timestamps
    assert columns.bodies.to_pylist() == found
    assert columns.headers == rows


@settings(deadline=None)
@given(st.data())
def test_every_cut_of_a_block_and_every_odd_byte_is_read_or_refused(data: st.DataObject) -> None:
    span = RecordColumns(
        3, [b"some", b"", b"x" * 200], 7, Position(1, 1), [1, 2, 3], None, [[(b"k", b"v")], [], []]
    )
    whole = bytearray(b"".join(block(span)))
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PipelineError, match="bad_answer"):
        list(BlockDecoder().decode(bytes(whole[: at or 1])))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        found = list(BlockDecoder().decode(bytes(whole)))
    except PipelineError:
        return
    for each in found:
        each.bodies.validate(full=True)


@pytest.mark.parametrize("more", [1, PIECE_BYTES, 5 * PIECE_BYTES + 3])
def test_a_large_record_comes_in_pieces(more: int) -> None:
    body = bytes(range(256)) * (PIECE_BYTES // 256) + b"x" * more
    span = RecordColumns(7, [body], 5, Position(1, 1), None, None, [[(b"k", b"v")]])
    assert is_large(span)
    frames = [b"".join(each) for each in pieces_of(span)]
    assert max(map(len, frames)) < PIECE_BYTES + 100
    after = RecordColumns(8, [b"next"], 5, Position(1, 2))
    decoder = BlockDecoder()
    found = [each for frame in [*frames, b"".join(block(after))] for each in decoder.decode(frame)]
    assert [each.bodies.to_pylist() for each in found] == [[body], [b"next"]]
    assert [each.sequences.tolist() for each in found] == [[7], [8]]
    assert found[0].headers == [[(b"k", b"v")]]
    decoder = BlockDecoder()
    assert list(decoder.decode(frames[0])) == []
    with pytest.raises(PipelineError, match="bad_answer"):
        list(decoder.decode(b"".join(block(after))))


def test_a_block_takes_no_more_memory_than_it_brings() -> None:
    with pytest.raises(PipelineError, match="bad_answer"):
        list(BlockDecoder().decode(struct.pack("<IIQQII", 2**32 - 1, 0, 0, 0, 0, 0)))


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff", b"\x0a\x05\x08", b"\xff" * 40])
def test_what_is_no_batch_is_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(PipelineError, match="bad_answer"):
        decode_batch(data)


def test_every_cut_of_a_batch_is_read_or_refused() -> None:
    span = RecordColumns(3, [b"some body", b"x" * 200], 1_700_000_000_000, Position(1, 1))
    whole = encode_batch(RecordBatch([span], StreamPosition(9, 9)))
    for end in range(len(whole)):
        try:
            columns = decode_batch(whole[:end])
        except PipelineError:
            continue
        assert columns.bodies.to_pylist() == [b"some body", b"x" * 200][: len(columns.bodies)]


def test_batches_have_the_columns_of_the_kafka_source() -> None:
    gathered = ArrowBuilder("orders", 3, with_headers=True)
    plain = decode_batch(
        encode_batch(
            RecordBatch([RecordColumns(1, [b"a"], 2**63, Position(1, 1))], StreamPosition(1, 1))
        )
    )
    gathered.add(plain)
    row = [(b"key", b"k"), (b"\xff", b"v")]
    keyed = Columns(np.array([2], np.uint64), np.array([5], np.uint64), plain.bodies, [row])
    gathered.add(keyed)
    batch = gathered.batch()
    assert batch.schema == arrow_schema(with_headers=True)
    assert batch.column("key").to_pylist() == [None, b"k"]
    assert batch.column("offset").to_pylist() == [1, 2]
    assert batch.column("timestamp").cast("int64").to_pylist() == [(2**63 - 1) // 1000 * 1000, 5000]
    assert batch.column("headers").to_pylist() == [
        None,
        [{"key": "key", "value": b"k"}, {"key": "\ufffd", "value": b"v"}],
    ]
    assert gathered.count == 0


@pytest.mark.parametrize("with_headers", [False, True])
def test_the_schema_that_spark_is_told_is_the_one_that_batches_have(with_headers: bool) -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    source = import_module("millpond.pipeline.spark.source")
    found = types.to_arrow_schema(source.spark_schema(with_headers=with_headers), timezone="UTC")
    assert found == arrow_schema(with_headers=with_headers)
