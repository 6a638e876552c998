"""Unary appends byte by byte: forms, statuses, conditions, limits (A.3, A.4, A.6, A.9)."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import anyio
import msgspec
import pytest
import zstandard

from millpond.transports.http.s2 import s2_pb2
from tests.transports.http.s2.session_client import (
    PROTO,
    RECORDS,
    Speaker,
    append_message,
    code_of,
    speaker,
)

MIB = 2**20


async def _records(s2: Speaker) -> list[dict[str, Any]]:
    got = await s2.ask("GET", f"{RECORDS}?seq_num=0&count=1000", s2_format="base64")
    return [] if got.status == 416 else got.json()["records"]


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_3_an_ack_in_json_and_in_protobuf() -> None:
    """A.4: the types of request and answer are independent; the first accepted type counts."""
    async with speaker("orders") as s2:
        got = await s2.ask("POST", RECORDS, b'{"records":[{"body":"a"},{"timestamp":null}]}')
        assert got.headers[b"content-type"] == b"application/json"
        stamp = got.json()["start"]["timestamp"]
        assert got.body == (
            b'{"start":{"seq_num":0,"timestamp":%d},"end":{"seq_num":2,"timestamp":%d},'
            b'"tail":{"seq_num":2,"timestamp":%d}}' % (stamp, stamp, stamp)
        )
        for accept, is_protobuf in (
            ("application/protobuf", True),
            ("application/x-protobuf", True),
            ("Application/Protobuf; q=1, application/json", True),
            ("application/json, application/protobuf", False),
            ("*/*", False),
            (None, False),
        ):
            for kind in ("application/protobuf", "application/x-protobuf"):
                body = append_message(b"x")
                got = await s2.ask("POST", RECORDS, body, content_type=kind, accept=accept)
                shown = b"application/protobuf" if is_protobuf else b"application/json"
                assert (got.status, got.headers[b"content-type"]) == (200, shown)
        ack = s2_pb2.AppendAck.FromString(
            (await s2.ask("POST", RECORDS, b'{"records":[{}]}', accept=PROTO)).body
        )
        assert (ack.start.seq_num, ack.end.seq_num, ack.tail.seq_num) == (14, 15, 15)


async def test_a_3_text_and_base64() -> None:
    raw = b'{"records":[{"headers":[["k","\xc3\xbc"]],"body":"\xe6\xbc\xa2"}]}'
    bytes_form = {"records": [{"headers": [[_b64(b"\xff"), _b64(b"")]], "body": _b64(b"\0\xfe")}]}
    async with speaker("orders") as s2:
        for form in (None, "raw", "json", "RAW"):
            assert (await s2.ask("POST", RECORDS, raw, s2_format=form)).status == 200
        for form in ("base64", "json-binsafe"):
            body = msgspec.json.encode(bytes_form)
            assert (await s2.ask("POST", RECORDS, body, s2_format=form)).status == 200
        found = [(each["headers"], each["body"]) for each in await _records(s2)]
        assert found[:4] == [([[_b64(b"k"), _b64("ü".encode())]], _b64("漢".encode()))] * 4
        assert found[4:] == [([[_b64(b"\xff"), ""]], _b64(b"\0\xfe"))] * 2


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"{", {}, (400, "bad_json")),
        (b"7", {}, (400, "bad_json")),
        (b"{}", {}, (400, "bad_json")),
        (b'{"records":{}}', {}, (400, "bad_json")),
        (b'{"records":[{"body":7}]}', {}, (400, "bad_json")),
        (b'{"records":[{"headers":[["a"]]}]}', {}, (400, "bad_json")),
        (b'{"records":[{"timestamp":-1}]}', {}, (400, "bad_json")),
        (b'{"records":[{"timestamp":18446744073709551616}]}', {}, (400, "bad_json")),
        (b'{"records":[{"timestamp":1.5}]}', {}, (400, "bad_json")),
        (b'{"records":[{}],"match_seq_num":-1}', {}, (400, "bad_json")),
        (b'{"records":[{}],"fencing_token":1}', {}, (400, "bad_json")),
        (b'{"records":[{"body":"\xff"}]}', {}, (400, "bad_json")),
        (b"[" * 500_000, {}, (400, "bad_json")),
        (b'{"records":[{}]}', {"content_type": "text/plain"}, (400, "bad_json")),
        (b'{"records":[{}]}', {"content_type": None}, (400, "bad_json")),
        (b'{"records":[{}]}', {"s2_format": "hex"}, (400, "bad_header")),
        (b'{"records":[{"body":"*"}]}', {"s2_format": "base64"}, (422, "invalid")),
        (b'{"records":[]}', {}, (422, "invalid")),
        (b'{"records":[%b{}]}' % (b"{}," * 1000), {}, (422, "invalid")),
        (b'{"records":[{"body":"%b"}]}' % (b"x" * (MIB - 7)), {}, (422, "invalid")),
        (b'{"records":[{"headers":[["","fence"],["a","b"]]}]}', {}, (422, "invalid")),
        (b'{"records":[{"headers":[["","what"]]}]}', {}, (422, "invalid")),
        (b'{"records":[{"headers":[["","trim"]],"body":"123"}]}', {}, (422, "invalid")),
        (
            b'{"records":[{"headers":[["","fence"]],"body":"%b"}]}' % (b"x" * 37),
            {},
            (422, "invalid"),
        ),
        (b'{"records":[{}],"fencing_token":"%b"}' % (b"x" * 37), {}, (400, "bad_json")),
        (b"\xff", {"content_type": PROTO}, (400, "bad_proto")),
        (b"\x0a\x05ab", {"content_type": PROTO}, (400, "bad_proto")),
        (b"\x1a\x01\xff", {"content_type": PROTO}, (400, "bad_proto")),
        (b"{}", {"content_encoding": "br"}, (400, "bad_header")),
        (b"{}", {"content_encoding": "gzip"}, (400, "bad_header")),
        (b"{}", {"content_encoding": "zstd"}, (400, "bad_header")),
    ],
)
async def test_a_9_what_cannot_be_appended_leaves_no_trace(
    body: bytes, headers: dict[str, str | None], expected: tuple[int, str]
) -> None:
    async with speaker("orders") as s2:
        assert code_of(await s2.ask("POST", RECORDS, body, **headers)) == expected
        assert await _records(s2) == []


async def test_a_6_conditions_that_do_not_hold_have_a_body_without_a_code() -> None:
    async with speaker("orders") as s2:
        await s2.append("a", "b", match_seq_num=0, fencing_token="")
        for conditions, body in (
            ({"match_seq_num": 1}, b'{"seq_num_mismatch":2}'),
            ({"fencing_token": "x"}, b'{"fencing_token_mismatch":""}'),
            ({"fencing_token": "x", "match_seq_num": 9}, b'{"fencing_token_mismatch":""}'),
        ):
            given = msgspec.json.encode({"records": [{}], **conditions})
            for accept in (None, PROTO):
                got = await s2.ask("POST", RECORDS, given, accept=accept)
                assert (got.status, got.body) == (412, body)
                assert got.headers[b"content-type"] == b"application/json"
        got = await s2.ask(
            "POST", RECORDS, append_message(b"x", fencing_token="y"), content_type=PROTO
        )
        assert got.body == b'{"fencing_token_mismatch":""}'
        empty = append_message(b"x", fencing_token="", match_seq_num=2)
        assert (await s2.ask("POST", RECORDS, empty, content_type=PROTO)).status == 200


async def test_a_6_the_batch_is_checked_before_the_token() -> None:
    """A.6: batch validity, then token, then match_seq_num, then timestamps."""
    async with speaker() as s2:
        config = b'{"timestamping":{"mode":"client-require"}}'
        await s2.ask("PUT", "/v1/streams/orders", config)
        for given, status in (
            ({"records": [], "fencing_token": "x", "match_seq_num": 5}, 422),
            ({"records": [{}], "fencing_token": "x", "match_seq_num": 5}, 412),
            ({"records": [{}], "match_seq_num": 5}, 412),
            ({"records": [{}]}, 422),
        ):
            assert (await s2.ask("POST", RECORDS, msgspec.json.encode(given))).status == status
        assert (await s2.ask("POST", RECORDS, b'{"records":[{"timestamp":0}]}')).status == 200


async def test_a_6_exactly_the_largest_append_passes() -> None:
    async with speaker("orders") as s2:
        body = append_message(b"x" * (MIB - 8))
        assert (await s2.ask("POST", RECORDS, body, content_type=PROTO)).status == 200
        over = append_message(b"x" * (MIB - 8 - 1001 + 993), b"y")
        got = await s2.ask("POST", RECORDS, over, content_type=PROTO)
        assert code_of(got) == (422, "invalid")
        many = append_message(*[b""] * 1000)
        assert (await s2.ask("POST", RECORDS, many, content_type=PROTO)).status == 200
        header = [["n" * 100_000, "v" * (MIB - 100_000 - 10)]]
        given = msgspec.json.encode({"records": [{"headers": header}]})
        assert (await s2.ask("POST", RECORDS, given)).status == 200
        doubled = msgspec.json.encode({"records": [{"headers": [*header, ["a", ""]]}]})
        assert (await s2.ask("POST", RECORDS, doubled)).status == 422


async def test_a_1_bodies_may_be_compressed_with_and_without_their_size() -> None:
    plain = b'{"records":[{"body":"%b"}]}' % (b"x" * 2000)
    sizeless = zstandard.ZstdCompressor(write_content_size=False)
    async with speaker("orders") as s2:
        for how, data in (
            ("gzip", gzip.compress(plain)),
            ("GZIP", gzip.compress(b'{"records":[{}]}')),
            ("zstd", zstandard.compress(plain)),
            ("zstd", sizeless.compress(plain)),
            ("identity", plain),
        ):
            assert (await s2.ask("POST", RECORDS, data, content_encoding=how)).status == 200


BOMB = 64 * MIB


@pytest.mark.parametrize(
    ("how", "data"),
    [
        ("gzip", gzip.compress(bytes(BOMB), 9)),
        ("zstd", zstandard.compress(bytes(BOMB))),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB))),
    ],
    ids=["gzip", "zstd", "zstd-sizeless"],
)
async def test_0_a_bomb_is_not_unpacked(how: str, data: bytes) -> None:
    async with speaker("orders") as s2:
        for path in (RECORDS, "/v1/streams", "/v1/basins"):
            got = await s2.ask("POST", path, data, content_encoding=how)
            assert code_of(got) == (422, "invalid")


async def test_a_6_a_stream_is_made_once_whoever_comes_first() -> None:
    """create_stream_on_append and the header s2-stream-config (A.6)."""
    config = (
        b'{"create_stream_on_append":true,"default_stream_config":{"retention_policy":{"age":7}}}'
    )
    record = b'{"records":[{"body":"x"}]}'
    async with speaker() as s2:
        assert code_of(await s2.ask("POST", RECORDS, record)) == (404, "stream_not_found")
        await s2.ask("PATCH", "/v1/basins/test-basin", config)
        for bad, word in (("{", "bad_header"), ('{"retention_policy":{"age":0}}', "invalid")):
            got = await s2.ask("POST", RECORDS, record, s2_stream_config=bad)
            assert got.json()["code"] == word
        assert (await s2.ask("GET", "/v1/streams")).json()["streams"] == []
        starts: list[int] = []

        async def append() -> None:
            told = '{"storage_class":"standard"}'
            got = await s2.ask("POST", RECORDS, record, s2_stream_config=told)
            starts.append(got.json()["start"]["seq_num"])

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(append)
        assert sorted(starts) == list(range(20))
        shown = (await s2.ask("GET", "/v1/streams/orders")).json()
        assert (shown["storage_class"], shown["retention_policy"]) == ("standard", {"age": 7})
        got = await s2.ask(
            "POST", RECORDS, record, s2_stream_config='{"retention_policy":{"age":3}}'
        )
        assert got.status == 200
        assert (await s2.ask("GET", "/v1/streams/orders")).json() == shown
