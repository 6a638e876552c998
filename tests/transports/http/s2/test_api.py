"""Routing of requests: paths, basins, refusals, and the form of every error (A.1, A.2, A.9)."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.transports.http.s2.session_client import RECORDS, Speaker, code_of, speaker


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/streams/a/b", (400, "bad_path")),
        ("GET", "/v1/streams/orders/records/tail/x", (400, "bad_path")),
        ("GET", "/v1/streams/%zz", (400, "bad_path")),
        ("GET", "/v1/streams/orders/records?seq_num=%2", (400, "bad_path")),
        ("GET", "/v1/streams/orders/records?seq_num=x", (400, "bad_query")),
        ("GET", "/v1/streams?limit=x", (400, "bad_query")),
        ("GET", "/v1/streams/.", (400, "bad_path")),
        ("GET", "/v1/streams/%2E%2E", (400, "bad_path")),
        ("GET", "/v1/streams/a%00b", (400, "bad_path")),
        ("GET", "/v1/streams/%ff", (400, "bad_path")),
        ("GET", "/v1/streams/" + "n" * 513, (400, "bad_path")),
        ("GET", "/v1/streams/nothing", (404, "stream_not_found")),
        ("GET", "/v1/streams/nothing/records/tail", (404, "stream_not_found")),
        ("GET", "/v1/streams/nothing/records?seq_num=0", (404, "stream_not_found")),
        ("DELETE", "/v1/streams/nothing", (404, "stream_not_found")),
        ("GET", "/v1/basins/nothing-here", (404, "basin_not_found")),
        ("DELETE", "/v1/basins/nothing-here", (404, "basin_not_found")),
        ("PUT", "/v1/basins/short", (400, "bad_path")),
        ("PUT", "/v1/basins/Capitals", (400, "bad_path")),
        ("PUT", "/v1/basins/-begins-so", (400, "bad_path")),
        ("PUT", "/v1/basins/" + "b" * 49, (400, "bad_path")),
        ("POST", RECORDS, (400, "bad_json")),
    ],
)
async def test_a_9_errors_have_a_code_and_a_body(
    method: str, path: str, expected: tuple[int, str]
) -> None:
    async with speaker("orders") as s2:
        assert code_of(await s2.ask(method, path)) == expected


@pytest.mark.parametrize(
    "name",
    ["a/b c", "records", "tail", "%2F", "a?b#c", "a+b", "漢" * 170, "x" * 512, "a%20b", "..."],
)
async def test_0_4_any_name_is_one_segment(name: str) -> None:
    """docs/reference/http-apis.md: the raw path is what counts."""
    path = f"/v1/streams/{quote(name, safe='')}"
    async with speaker() as s2:
        assert (await s2.ask("PUT", path)).json()["name"] == name
        body = b'{"records":[{"body":"x"}]}'
        assert (await s2.ask("POST", f"{path}/records", body)).status == 200
        got = await s2.ask("GET", f"{path}/records/tail")
        assert got.json()["tail"]["seq_num"] == 1
        assert [
            each["name"] for each in (await s2.ask("GET", "/v1/streams")).json()["streams"]
        ] == [name]


async def test_a_1_the_basin_is_the_headers_or_the_hosts() -> None:
    async with speaker("orders") as s2:
        path = "/v1/streams/orders"
        assert (await s2.ask("GET", path)).status == 200
        assert code_of(await s2.ask("GET", path, s2_basin=None)) == (400, "bad_header")
        assert code_of(await s2.ask("GET", path, s2_basin="NO")) == (400, "bad_header")
        assert code_of(await s2.ask("GET", path, s2_basin="\udcff")) == (400, "bad_header")
        absent = await s2.ask("GET", path, s2_basin="nothing-here")
        assert code_of(absent) == (404, "basin_not_found")
        for host, status in (
            ("test-basin.localhost:80", 200),
            ("test-basin", 421),
            ("localhost:80", 400),
            ("127.0.0.1:80", 400),
            ("nothing-here.localhost", 400),
        ):
            assert (await s2.ask("GET", path, s2_basin=None, host=host)).status == status


async def test_a_2_an_answer_without_a_body_has_a_length_and_no_type() -> None:
    async with speaker("orders") as s2:
        for path in ("/v1/streams/orders", "/v1/basins/test-basin"):
            got = await s2.ask("DELETE", path)
            assert (got.status, got.body) == (202, b"")
            assert got.headers[b"content-length"] == b"0"
            assert b"content-type" not in got.headers


async def test_a_9_who_is_refused_before_the_api_hears_it_in_its_form() -> None:
    async with speaker("orders", http_streams_max=100) as s2:
        got = await s2.ask("GET", "/v1/streams?prefix=" + "x" * 20_000)
        assert code_of(got) == (414, "bad_path")
        got = await s2.ask("GET", "/v1/streams", x="y" * 40_000)
        assert code_of(got) == (431, "bad_header")
        big = b'{"records":[' + b" " * 9 * 2**20 + b"]}"
        got = await s2.ask("POST", RECORDS, big)
        assert code_of(got) == (413, "invalid")
        assert code_of(await s2.ask("POST", "/v1/basins", b" " * 70_000)) == (413, "invalid")
        await s2.node.drain()
        got = await s2.ask("GET", "/v1/streams")
        assert code_of(got) == (503, "server_draining")


async def test_a_9_a_body_that_does_not_come_is_waited_for_only_so_long() -> None:
    """And one that comes half leaves no trace (docs/reference/http-apis.md)."""
    async with speaker("orders") as s2:
        headers = [(b"s2-basin", b"test-basin"), (b"content-type", b"application/json")]
        async with s2.client.open("POST", RECORDS, headers) as exchange:
            await exchange.say(b'{"records":[{"bo')
            assert code_of(await exchange.got()) == (408, "request_timeout")
        async with s2.client.open("POST", RECORDS, headers) as exchange:
            await exchange.say(b'{"records":[{"body":"x"}]}')
            await exchange.leave()
        assert await _tail(s2) == 0


async def _tail(s2: Speaker) -> int:
    found = (await s2.ask("GET", f"{RECORDS}/tail")).json()["tail"]["seq_num"]
    assert isinstance(found, int)
    return found


async def test_head_is_get_without_a_body() -> None:
    async with speaker("orders") as s2:
        for path in ("/v1/streams", "/v1/streams/orders", f"{RECORDS}/tail", "/v1/basins"):
            whole, head = await s2.ask("GET", path), await s2.ask("HEAD", path)
            assert (head.status, head.body) == (200, b"")
            assert head.headers[b"content-length"] == b"%d" % len(whole.body)
