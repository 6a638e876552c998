"""Limits of an append are checked before it is decoded (A.6)."""

from __future__ import annotations

import json

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import append_scan as scan
from millpond.transports.http.s2.codecs import json as json_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.compression import Compression
from millpond.transports.http.s2.errors import CodedError
from millpond.transports.http.s2.model import HEADERS_MAX, RECORDS_MAX, check_append
from tests.transports.http.s2.session_client import (
    PROTO,
    RECORDS,
    append_frame,
    append_message,
    code_of,
    speaker,
)

TINY = b"\x12\x03\x0a\x01x"
"""A header with a name of one byte."""


def field(inner: bytes, tag: bytes = b"\x0a") -> bytes:
    size, written = len(inner), b""
    while size > 127:
        written += bytes((size & 127 | 128,))
        size >>= 7
    return tag + written + bytes((size,)) + inner


def refused(data: bytes) -> str | None:
    try:
        scan.check_protobuf(data)
    except CodedError as error:
        return str(error)
    return None


@pytest.mark.parametrize("body", [b"", b"\n" * 300, b"\x12" * 900])
def test_as_many_as_an_append_may_have(body: bytes) -> None:
    record = field(field(body, b"\x1a") + TINY * 32)
    assert refused(record * RECORDS_MAX) is None
    assert "records" in (refused(record * (RECORDS_MAX + 1)) or "")
    most = field(TINY * HEADERS_MAX)
    assert check_append(protobuf_codec.decode_input(most)) == 8 + 3 * HEADERS_MAX
    assert "headers" in (refused(field(TINY * (HEADERS_MAX + 1))) or "")
    assert "headers" in (refused(most + field(TINY)) or "")
    assert "headers" in (refused(b"\x10\x05" + most + b"\x1a\x01x" + field(TINY)) or "")


def test_bytes_in_a_body_are_no_headers() -> None:
    for body in (TINY * 200_000, b"\x0a\x00" * 500_000, b"\x12" * 2**20):
        data = append_message(body[: 2**20 - 8])
        assert protobuf_codec.decode_input(data).bodies == [body[: 2**20 - 8]]


@given(st.binary(max_size=60), st.integers(0, 3))
def test_whatever_comes_is_gone_through(junk: bytes, times: int) -> None:
    """It comes to an end, and only limits are refused here."""
    scan.check_protobuf(junk + TINY * (HEADERS_MAX + 1) * (times % 2) + junk * times)


@pytest.mark.parametrize(
    "data",
    [b"\x0a\x00" * 2**20, field(b"\x12\x00" * (2**20 - 8)), b"\x78\x00" * 2**22],
    ids=["records", "headers", "bytes"],
)
async def test_too_much_is_refused_over_http(data: bytes) -> None:
    async with speaker("orders") as s2:
        got = await s2.ask("POST", RECORDS, data, content_type=PROTO)
        assert code_of(got) == (422, "invalid")


def _json(headers: int, text: str = "x") -> bytes:
    return json.dumps({"records": [{"body": text, "headers": [["n", text]] * headers}]}).encode()


@pytest.mark.parametrize("text", ["x", '"', "\\", '\\"', "[{", '"[', '\\\\"{'])
def test_json_counts_what_is_outside_of_texts(text: str) -> None:
    many = text * 40_000
    data = json.dumps({"records": [{"body": many}] * 20}).encode()
    found = json_codec.decode_input_in_python(data, json_codec.Format.RAW)
    assert found.bodies == [many.encode()] * 20
    found = json_codec.decode_input_in_python(_json(HEADERS_MAX, text), json_codec.Format.RAW)
    assert found.headers is not None and len(found.headers[0]) == HEADERS_MAX
    with pytest.raises(CodedError, match="headers"):
        check_append(
            json_codec.decode_input_in_python(_json(HEADERS_MAX + 1, text), json_codec.Format.RAW)
        )
    with pytest.raises(CodedError, match="headers"):
        scan.check_json(_json(HEADERS_MAX * 2, text))
    with pytest.raises(CodedError, match="records"):
        scan.check_json(json.dumps({"records": [{"body": text}] * 1001}).encode())


async def test_others_have_their_turn_between_small_frames() -> None:
    """As many as fit into one piece, and those that are large once they are decompressed."""
    zipped = append_frame(b"x" * 900_000, how=Compression.ZSTD)
    for frame, count in ((append_frame(b"x"), 900), (zipped, 40)):
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
            await talk.head()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tick)
                await anyio.lowlevel.checkpoint()
                before = turns
                await talk.say(frame * count, b"\0\0\0")
                for number in range(count):
                    assert await talk.ack() == (number, number + 1)
                assert turns - before > min(count // 300, 3) + (count == 40) * 30
                tasks.cancel_scope.cancel()


def test_frames_are_as_they_were() -> None:
    message = s2_pb2.AppendInput(records=[s2_pb2.AppendRecord(body=b"x")]).SerializeToString()
    assert frames.Decoder().feed(append_frame(b"x")) == [frames.Frame(message)]
