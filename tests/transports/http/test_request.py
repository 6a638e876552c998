"""Requests: raw paths, queries, headers, and bodies that come whole or not at all."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.request import (
    BadPath,
    ClientGone,
    HttpLimits,
    Request,
    parse_query,
    request_head,
    split_path,
)
from millpond.transports.http.response import Response, ResponseWriter
from tests.transports.http.client import Client
from tests.transports.http.running_app import running_app


def _scope(**more: Any) -> dict[str, Any]:
    return {"method": "GET", "headers": [], **more}


def _never() -> Any:
    raise AssertionError("nothing is read")


def _request(headers: list[tuple[bytes, bytes]], **more: Any) -> Request:
    scope = _scope(headers=headers, **more)
    return Request(scope, _never, HttpLimits(), request_head(scope, ()))


@pytest.mark.parametrize(
    ("raw", "segments"),
    [
        (b"/", (b"",)),
        (b"/v1/streams/a%2Fb/records", (b"v1", b"streams", b"a/b", b"records")),
        (b"/v1/streams/%252F", (b"v1", b"streams", b"%2F")),
        (b"/v1/streams/%3F%23%20/", (b"v1", b"streams", b"?# ", b"")),
        (b"/v1//x", (b"v1", b"", b"x")),
        (b"/v1/%FF%00", (b"v1", b"\xff\0")),
        (b"/v1/a+b", (b"v1", b"a+b")),
        (b"/v1/a?b=c", (b"v1", b"a")),
    ],
)
def test_http_0_4_segments_are_decoded_after_the_raw_path_was_split(
    raw: bytes, segments: tuple[bytes, ...]
) -> None:
    assert split_path({"raw_path": raw, "path": "/decoded"}) == segments


@given(st.lists(st.binary(min_size=1), min_size=1))
def test_http_0_4_any_name_arrives_as_it_was_sent(names: list[bytes]) -> None:
    raw = "".join("/" + quote(name, safe="") for name in names)
    assert split_path({"raw_path": raw.encode(), "path": ""}) == tuple(names)


@pytest.mark.parametrize("raw", [b"/a%", b"/a%2", b"/a%zz", b"/%u0041"])
def test_a_broken_escape_is_no_path(raw: bytes) -> None:
    with pytest.raises(BadPath):
        split_path({"raw_path": raw, "path": ""})


def test_what_lies_below_a_mount_is_what_counts() -> None:
    scope = {"raw_path": b"/pond/v1/a%2Fb", "path": "/pond/v1/a/b", "root_path": "/pond"}
    assert split_path(scope) == (b"v1", b"a/b")
    assert split_path({**scope, "raw_path": b"/v1/a"}) == (b"v1", b"a")


def test_a_server_without_raw_paths_has_decoded_them() -> None:
    assert split_path({"path": "/v1/ä%2F"}) == (b"v1", "ä%2F".encode())


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        (b"a=1&a=2&b", [("a", "1"), ("a", "2"), ("b", "")]),
        (b"prefix=a+b%2B%26&&x==", [("prefix", "a b+&"), ("x", "=")]),
        (b"p=%C3%A4%FF", [("p", "ä\udcff")]),
    ],
)
def test_pairs_of_a_query(raw: bytes, pairs: list[tuple[str, str]]) -> None:
    assert parse_query(raw) == pairs


def test_the_last_value_of_a_header_counts() -> None:
    request = _request([(b"x", b"1"), (b"y", b"2"), (b"x", b"3")])
    assert (request.header(b"x"), request.values(b"x")) == (b"3", [b"1", b"3"])
    assert (request.header(b"z"), request.values(b"z")) == (None, [])


@pytest.mark.parametrize(
    ("value", "token"),
    [(b"Bearer a.b", b"a.b"), (b"bearer  x ", b"x"), (b"Basic abc", None), (b"Bearer", None)],
)
def test_a_token_is_a_bearer(value: bytes, token: bytes | None) -> None:
    head = _request([(b"authorization", value)], client=("192.0.2.1", 5)).principal
    assert (head.token, head.address, head.listener) == (token, "192.0.2.1", "http")


# Bodies, over an application.


async def _echo(request: Request, writer: ResponseWriter) -> None:
    await writer.respond(Response(200, (), await request.body(10)))


async def test_a_body_is_read_in_any_pieces() -> None:
    async def pieces() -> Any:
        for each in (b"ab", b"", b"cde", b"f"):
            yield each

    async with running_app(_echo) as application:
        client = Client(application)
        assert (await client.request("POST", "/do", body=pieces())).body == b"abcdef"
        assert (await client.request("POST", "/do", body=b"0123456789")).body == b"0123456789"
        assert (await client.request("POST", "/do")).body == b""


async def test_a_body_that_is_too_large_is_413_before_it_has_come() -> None:
    async with running_app(_echo) as application:
        client = Client(application)
        async with client.open("POST", "/do", [(b"content-length", b"11")]) as exchange:
            assert await exchange.head() == 413
            await exchange.say(b"0123456789a", is_last=True)
        got = await client.request("POST", "/do", body=b"0123456789a")
        assert (got.status, got.json()["code"]) == (413, "body_too_large")


async def test_a_body_that_does_not_come_is_408() -> None:
    async with running_app(_echo) as application:
        async with Client(application).open("POST", "/do") as exchange:
            await exchange.say(b"half")
            assert (await exchange.got()).status == 408


async def test_http_0_8_half_a_body_is_none() -> None:
    bodies: list[bytes] = []

    async def keep(request: Request, writer: ResponseWriter) -> None:
        try:
            bodies.append(await request.body())
        finally:
            ended.set()

    ended = anyio.Event()
    async with running_app(keep) as application:
        async with Client(application).open("POST", "/do") as exchange:
            await exchange.say(b"half")
            await exchange.leave()
            await ended.wait()
        assert bodies == []
        assert (application.services.http.gone, application.services.http.crashed) == (1, 0)
        assert not application.services.registry.connections


async def test_http_0_8_a_body_that_is_shorter_than_it_was_to_be_is_none() -> None:
    """Resets of HTTP/2 look like the end of the body to some servers."""
    async with running_app(_echo) as application:
        async with Client(application).open("POST", "/do", [(b"content-length", b"9")]) as exchange:
            await exchange.say(b"half", is_last=True)
            await anyio.wait_all_tasks_blocked()
        assert (application.services.http.gone, application.services.http.answers) == (
            1,
            {("test", 400): 1},
        )


async def test_a_session_reads_pieces_and_hears_that_its_client_left() -> None:
    pieces: list[bytes] = []

    async def collect(request: Request, writer: ResponseWriter) -> None:
        await writer.start(200, ())
        try:
            async for piece in request.chunks():
                pieces.append(piece)
                await writer.write(b"+")
        except ClientGone:
            pieces.append(b"gone")
            raise
        finally:
            ended.set()

    ended = anyio.Event()
    async with running_app(collect) as application:
        async with Client(application).open("POST", "/do") as exchange:
            assert await exchange.head() == 200
            for each in (b"a", b"b"):
                await exchange.say(each)
                assert await exchange.piece() == b"+"
            await exchange.leave()
            await ended.wait()
    assert pieces == [b"a", b"b", b"gone"]


async def test_who_waits_for_something_else_is_ended_when_the_client_leaves() -> None:
    async def wait(request: Request, writer: ResponseWriter) -> None:
        try:
            await request.run_until_disconnect(anyio.sleep_forever)
        finally:
            ended.set()

    ended = anyio.Event()
    async with running_app(wait) as application:
        async with Client(application).open("GET", "/do") as exchange:
            await exchange.say(b"", is_last=True)
            await anyio.lowlevel.checkpoint()
            await exchange.leave()
            await ended.wait()
        assert application.services.http.gone == 1


async def test_while_here_gives_the_result_or_the_bare_error() -> None:
    async def answer_it(request: Request, writer: ResponseWriter) -> None:
        async def number() -> int:
            return 7

        async def fail() -> int:
            raise LookupError("mine")

        assert await request.run_until_disconnect(number) == 7
        with pytest.raises(LookupError, match="mine"):
            await request.run_until_disconnect(fail)
        await writer.respond(Response(200))

    async with running_app(answer_it) as application:
        assert (await Client(application).request("GET", "/do")).status == 200
