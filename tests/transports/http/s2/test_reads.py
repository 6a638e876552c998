"""Unary reads byte by byte: queries, statuses, forms, waiting (A.3, A.5)."""

from __future__ import annotations

import gzip
from typing import Any

import anyio
import pytest
import zstandard

from millpond.transports.http.s2 import s2_pb2
from tests.node.http.clients import eventually
from tests.transports.http.s2.session_client import (
    CLOCKED,
    PROTO,
    RECORDS,
    Speaker,
    code_of,
    speaker,
)


async def _fill(s2: Speaker, count: int = 5) -> int:
    """Records "0", "1" and so on, 10 ms apart; gives the first one's timestamp."""
    first = int(s2.node.clock.now() * 1000) - 1000
    rows = ",".join(f'{{"timestamp":{first + 10 * n},"body":"{n}"}}' for n in range(count))
    assert (await s2.ask("POST", RECORDS, f'{{"records":[{rows}]}}'.encode())).status == 200
    return first


def _bodies(found: Any) -> list[str]:
    return [each["body"] for each in found["records"]]


async def test_a_3_a_batch_in_json_leaves_out_what_is_empty() -> None:
    async with speaker("orders") as s2:
        given = b'{"records":[{"body":"a\\"b"},{"headers":[["k",""]]},{}]}'
        stamp = (await s2.ask("POST", RECORDS, given)).json()["start"]["timestamp"]
        got = await s2.ask("GET", f"{RECORDS}?seq_num=0&count=2")
        assert got.headers[b"content-type"] == b"application/json"
        assert got.body == (
            b'{"records":[{"seq_num":0,"timestamp":%d,"body":"a\\"b"},'
            b'{"seq_num":1,"timestamp":%d,"headers":[["k",""]]}]}' % (stamp, stamp)
        )
        got = await s2.ask("GET", f"{RECORDS}?seq_num=2")
        assert got.json()["records"] == [{"seq_num": 2, "timestamp": stamp}]


async def test_a_3_bytes_that_are_no_text() -> None:
    async with speaker("orders") as s2:
        await s2.ask("POST", RECORDS, b'{"records":[{"body":"/wBh"}]}', s2_format="base64")
        found = {
            form: (await s2.ask("GET", f"{RECORDS}?seq_num=0", s2_format=form)).json()
            for form in ("raw", "json", "base64", "json-binsafe")
        }
        assert [_bodies(each) for each in found.values()] == [
            ["\ufffd\0a"],
            ["\ufffd\0a"],
            ["/wBh"],
            ["/wBh"],
        ]
        got = await s2.ask("GET", f"{RECORDS}?seq_num=0", s2_format="hex")
        assert code_of(got) == (400, "bad_header")


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ("seq_num=0", "01234"),
        ("seq_num=4", "4"),
        ("seq_num=0&count=2", "01"),
        ("seq_num=0&count=0", ""),
        ("seq_num=0&bytes=18", "01"),
        ("seq_num=0&bytes=17", "0"),
        ("seq_num=0&bytes=8", ""),
        ("tail_offset=2", "34"),
        ("tail_offset=99", "01234"),
        ("timestamp=0", "01234"),
        ("timestamp={20}", "234"),
        ("timestamp={21}", "34"),
        ("timestamp={40}", "4"),
        ("seq_num=1&until={30}", "12"),
        ("seq_num=1&until={31}", "123"),
        ("seq_num=3&until={0}", ""),
        ("seq_num=0&count=18446744073709551615&bytes=18446744073709551615", "01234"),
        ("seq_num=0&nobody=knows&clamp=false", "01234"),
        ("seq_num=99&clamp=true&wait=1", ""),
    ],
)
async def test_a_5_starts_and_limits(query: str, bodies: str) -> None:
    async with speaker("orders") as s2:
        first = await _fill(s2)
        for offset in (0, 20, 21, 30, 31, 40):
            query = query.replace(f"{{{offset}}}", str(first + offset))
        got = await s2.ask("GET", f"{RECORDS}?{query}")
        assert (got.status, "".join(_bodies(got.json()))) == (200, bodies)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "tail_offset=0",
        "seq_num=5",
        "seq_num=6",
        "seq_num=6&wait=9",
        "seq_num=6&clamp=true",
        "seq_num=6&clamp=true&wait=0",
        "timestamp={41}",
        "timestamp={41}&clamp=true",
        "timestamp=18446744073709551615&wait=1",
    ],
)
async def test_a_5_nothing_there_is_416_with_the_tail(query: str) -> None:
    async with speaker("orders") as s2:
        first = await _fill(s2)
        query = query.replace("{41}", str(first + 41))
        for accept in (None, PROTO):
            got = await s2.ask("GET", f"{RECORDS}?{query}", accept=accept)
            assert got.status == 416
            assert got.body == b'{"tail":{"seq_num":5,"timestamp":%d}}' % (first + 40)
            assert got.headers[b"content-type"] == b"application/json"
        tail = await s2.ask("GET", f"{RECORDS}/tail")
        assert (tail.status, tail.body) == (200, got.body)


async def test_a_5_an_empty_stream_has_nothing_from_0() -> None:
    async with speaker("orders") as s2:
        for query in ("seq_num=0", "timestamp=0", "tail_offset=5"):
            got = await s2.ask("GET", f"{RECORDS}?{query}")
            assert (got.status, got.body) == (416, b'{"tail":{"seq_num":0,"timestamp":0}}')


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0&timestamp=0", (422, "invalid")),
        ("seq_num=0&tail_offset=0", (422, "invalid")),
        ("timestamp=5&until=5", (422, "invalid")),
        ("seq_num=-1", (400, "bad_query")),
        ("seq_num=", (400, "bad_query")),
        ("seq_num=1.0", (400, "bad_query")),
        ("seq_num=18446744073709551616", (400, "bad_query")),
        ("seq_num=%D9%A1", (400, "bad_query")),
        ("seq_num=0&seq_num=0", (400, "bad_query")),
        ("seq_num=0&clamp=yes", (400, "bad_query")),
        ("seq_num=0&wait=soon", (400, "bad_query")),
        ("seq_num=0&count=+1", (400, "bad_query")),
    ],
)
async def test_a_5_queries_that_mean_nothing(query: str, expected: tuple[int, str]) -> None:
    async with speaker("orders") as s2:
        await _fill(s2)
        assert code_of(await s2.ask("GET", f"{RECORDS}?{query}")) == expected


async def test_a_4_a_batch_in_protobuf() -> None:
    async with speaker("orders") as s2:
        first = await _fill(s2, 2)
        got = await s2.ask("GET", f"{RECORDS}?seq_num=0&count=1", accept="application/x-protobuf")
        assert got.headers[b"content-type"] == b"application/protobuf"
        record = s2_pb2.SequencedRecord(seq_num=0, timestamp=first, body=b"0")
        assert got.body == s2_pb2.ReadBatch(records=[record]).SerializeToString()


async def test_a_1_long_answers_are_compressed_for_who_takes_it() -> None:
    async with speaker("orders") as s2:
        await s2.append("x" * 2000)
        plain = await s2.ask("GET", f"{RECORDS}?seq_num=0")
        assert b"content-encoding" not in plain.headers
        for accepts, encoding in (("gzip", b"gzip"), ("gzip, zstd", b"zstd"), ("zstd;q=0", None)):
            got = await s2.ask("GET", f"{RECORDS}?seq_num=0", accept_encoding=accepts)
            assert got.headers.get(b"content-encoding") == encoding
            match encoding:
                case b"gzip":
                    assert gzip.decompress(got.body) == plain.body
                case b"zstd":
                    assert zstandard.decompress(got.body) == plain.body
                case _:
                    assert got.body == plain.body
            assert got.headers[b"content-length"] == b"%d" % len(got.body)
        short = await s2.ask("GET", f"{RECORDS}/tail", accept_encoding="zstd")
        assert b"content-encoding" not in short.headers


@CLOCKED
@pytest.mark.parametrize(("asked_s", "waited_s"), [(3, 3), (60, 60), (3600, 60)])
async def test_a_5_a_wait_ends_without_records(asked_s: int, waited_s: int) -> None:
    """A.5 4: after 60 s at most, in virtual time."""
    async with speaker("orders") as s2:
        await s2.append("x")
        began = anyio.current_time()
        got = await s2.ask("GET", f"{RECORDS}?wait={asked_s}")
        assert anyio.current_time() - began == pytest.approx(waited_s, abs=0.1)
        assert (got.status, got.json()["records"]) == (200, [])


@CLOCKED
async def test_a_5_a_wait_ends_with_the_first_batch() -> None:
    async with speaker("orders") as s2:
        found: list[Any] = []

        async def wait() -> None:
            found.append((await s2.ask("GET", f"{RECORDS}?seq_num=0&wait=50")).json())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(20)
            assert not found
            began = anyio.current_time()
            await s2.append("a", "b")
        assert anyio.current_time() - began < 1
        assert _bodies(found[0]) == ["a", "b"]


async def test_a_reader_that_leaves_is_forgotten() -> None:
    async with speaker("orders") as s2:
        pairs = [(b"s2-basin", b"test-basin")]
        async with s2.client.open("GET", f"{RECORDS}?seq_num=0&wait=50", pairs) as exchange:
            await exchange.say(b"", is_last=True)
            await anyio.sleep(0.02)
            await exchange.leave()
            await eventually(lambda: not s2.node.registry.connections)
        await s2.append("x")


@CLOCKED
async def test_s2x_60_age_counts_from_the_arrival() -> None:
    """Hidden after the age, whatever the timestamps say; sequences go on."""
    config = b'{"retention_policy":{"age":60},"timestamping":{"uncapped":true}}'
    async with speaker() as s2:
        await s2.ask("PUT", "/v1/streams/orders", config)
        for stamp in (1234, 2**53):
            given = b'{"records":[{"timestamp":%d,"body":"a"}]}' % stamp
            assert (await s2.ask("POST", RECORDS, given)).status == 200
            await anyio.sleep(40)
            got = (await s2.ask("GET", f"{RECORDS}?seq_num=0")).json()
            assert got["records"][-1] == {"seq_num": stamp >> 53, "timestamp": stamp, "body": "a"}
        assert [each["seq_num"] for each in got["records"]] == [1]
        await anyio.sleep(21)
        got = await s2.ask("GET", f"{RECORDS}?seq_num=0&wait=1")
        assert got.json() == {"records": [], "tail": {"seq_num": 2, "timestamp": 2**53}}


@CLOCKED
async def test_a_6_a_stream_that_is_empty_for_long_enough_goes() -> None:
    """delete_on_empty, in virtual time: a stream that is written to stays."""
    async with speaker() as s2:
        config = b'{"retention_policy":{"age":30},"delete_on_empty":{"min_age_secs":60}}'
        for name in ("empty", "orders"):
            await s2.ask("PUT", f"/v1/streams/{name}", config)
        await s2.append("x")
        for _ in range(20):
            await anyio.sleep(60)
            await s2.append("x")
        names = [each["name"] for each in (await s2.ask("GET", "/v1/streams")).json()["streams"]]
        assert names == ["orders"]
        await anyio.sleep(1200)
        assert (await s2.ask("GET", "/v1/streams")).json()["streams"] == []
