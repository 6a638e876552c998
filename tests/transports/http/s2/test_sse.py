"""Read sessions as server-sent events (docs/reference/s2.md)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from millpond.actors.streams.messages import RecordColumns
from millpond.transports.http.s2.codecs.json import Format
from millpond.transports.http.s2.codecs.sse import (
    DONE,
    EventId,
    encode_batch_event,
    encode_error,
    encode_ping,
    read_id,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, StreamPosition
from millpond.transports.http.s2.model import RecordBatch
from tests.transports.http.s2.samples import TS, U64, span_of, spans


def test_events() -> None:
    batch = RecordBatch([span_of([b"a\r\nb"], 4)])
    assert encode_batch_event(batch, Format.RAW, EventId(4, 1, 12)) == (
        b"event: batch\nid: 4,1,12\n"
        b'data: {"records":[{"seq_num":4,"timestamp":1700000000000,"body":"a\\r\\nb"}]}\n\n'
    )
    assert encode_ping(TS, StreamPosition(5, 6)) == (
        b'event: ping\ndata: {"timestamp":1700000000000,"tail":{"seq_num":5,"timestamp":6}}\n\n'
    )
    assert encode_error(CodedError(ErrorCode.UNAVAILABLE, "two\nlines")) == (
        b'event: error\ndata: {"code":"unavailable","message":"two\\nlines"}\n\n'
    )
    assert DONE == b"data: [DONE]\n\n"


@given(spans())
def test_no_record_can_forge_an_event(span: RecordColumns) -> None:
    """One line of data, whatever is in the records."""
    for form in Format:
        event = encode_batch_event(RecordBatch([span]), form, EventId(0, 0, 0))
        *lines, data, last, after = event.decode().split("\n")
        assert (lines, last, after) == (["event: batch", "id: 0,0,0"], "", "")
        assert len(json.loads(data.removeprefix("data: "))["records"]) == len(span.bodies)
        assert "\r" not in data


def test_an_id_comes_back() -> None:
    assert read_id("4,1,12") == EventId(4, 1, 12)
    assert read_id(f"{U64},0,0") == EventId(U64, 0, 0)


@pytest.mark.parametrize(
    "text", ["", "4", "4,1", "4,1,12,9", "4,1,", "-1,0,0", f"{U64 + 1},0,0", "٤,1,2"]
)
def test_other_ids_are_bad_headers(text: str) -> None:
    with pytest.raises(CodedError) as caught:
        read_id(text)
    assert caught.value.code is ErrorCode.BAD_HEADER
