"""Every path that a browser can reach, with every Host, Origin and Sec-Fetch-Site, over HTTP/1.1
and HTTP/2; and what pages of listed origins get."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import h2.events
import msgspec
import pytest

from millpond.node.config import LISTENERS, Config
from millpond.node.node import Node
from tests.node.http.clients import Headers, Http1, Http2, Reply, dial, rest

pytestmark = pytest.mark.http

LISTED = "https://app.example"
SETTINGS = {
    **dict.fromkeys(LISTENERS, "127.0.0.1:0"),
    "host_names": ("mill.lan", "*.s2.lan"),
    "origins": (LISTED, "https://pond.example:8443/"),
    "drain_timeout_s": 0.2,
}
JSON, PROTOBUF = "application/json", "application/protobuf"
EVENT = b'{"type":"t","key":"k","headers":{"operation":"upsert"},"value":1}'
APPEND = b'{"records":[{"body":"x"}]}'
SUBSCRIPTION = b'{"type":"pull-wake","streams":["orders"],"wake_stream":"wakes"}'
PART = bytes.fromhex("0a031a0178")  # one record


class Row(NamedTuple):
    """A request that the node serves. Where it has a body that changes something, `media` is the
    type that it needs; None: any type is as good."""

    method: str
    path: str
    body: bytes = b""
    media: str | None = None
    content_type: str = ""
    is_page: bool = False


def posts(path: str, body: bytes, media: str = JSON, method: str = "POST") -> Row:
    return Row(method, path, body, media, media)


S2_ROWS = [
    Row("GET", "/v1/basins"),
    posts("/v1/basins", b'{"basin":"forged-basin"}'),
    posts("/v1/basins/some-basin", b"{}", method="PUT"),
    posts("/v1/basins/millpond", b"{}", method="PATCH"),
    Row("DELETE", "/v1/basins/nothing-here"),
    Row("GET", "/v1/streams"),
    posts("/v1/streams", b'{"stream":"forged"}'),
    posts("/v1/streams/forged", b"{}", method="PUT"),
    posts("/v1/streams/orders", b"{}", method="PATCH"),
    Row("DELETE", "/v1/streams/nothing-here"),
    Row("GET", "/v1/streams/orders/records?seq_num=0"),
    posts("/v1/streams/orders/records", APPEND),
    Row("GET", "/v1/streams/orders/records/tail"),
    Row("GET", "/v1/access-tokens"),
    posts("/v1/access-tokens", b'{"id":"forged","scope":{"op_groups":{"stream":{"read":true}}}}'),
    Row("DELETE", "/v1/access-tokens/nothing"),
    Row("GET", "/v1/metrics?set=active-basins&start=0&end=0"),
    Row("GET", "/v1/locations"),
    posts("/v1/locations/default", b'"local"', method="PUT"),
]
BATCH = "/millpond/v1/transactions/orders/writer/1"
ROWS: dict[tuple[bytes, ...], list[Row]] = {
    (b"health",): [Row("GET", "/health")],
    (b"ping",): [Row("HEAD", "/ping")],
    (b"ready",): [Row("GET", "/ready")],
    (b"metrics",): [Row("GET", "/metrics")],
    (b"",): [Row("GET", "/", is_page=True)],
    (b"millpond",): [
        Row("GET", "/millpond", is_page=True),
        Row("GET", "/millpond/", is_page=True),
        Row("GET", "/millpond/console/app.js"),
        Row("POST", "/millpond/console/login", b"x"),
        Row("POST", "/millpond/console/logout", b"x"),
    ],
    (b"millpond", b"page"): [Row("GET", "/millpond/page/board.js")],
    (b"millpond", b"state"): [
        Row("GET", "/millpond/state/", is_page=True),
        Row("GET", "/millpond/state", is_page=True),
        Row("PUT", "/millpond/state/users"),
        Row("GET", "/millpond/state/users"),
        Row("GET", "/millpond/state/users/t"),
        posts("/millpond/state/users", EVENT),
    ],
    (b"v1", b"stream"): [
        Row("PUT", "/v1/stream/orders"),
        Row("GET", "/v1/stream/orders?offset=-1"),
        Row("HEAD", "/v1/stream/orders"),
        Row("POST", "/v1/stream/orders", b"x", None, "application/octet-stream"),
        Row("DELETE", "/v1/stream/nothing"),
        Row("OPTIONS", "/v1/stream/orders"),
        Row("GET", "/v1/stream/__ds/jwks.json"),
        Row("PUT", "/v1/stream/__ds/subscriptions/forged", SUBSCRIPTION, None, JSON),
        Row("GET", "/v1/stream/__ds/subscriptions/forged"),
        Row("POST", "/v1/stream/__ds/subscriptions/nothing/claim", b'{"worker":"w"}', None, JSON),
        Row("DELETE", "/v1/stream/__ds/subscriptions/nothing"),
    ],
    (b"millpond", b"v1", b"tails"): [posts("/millpond/v1/tails", b'{"prefix":""}')],
    (b"millpond", b"v1", b"replica-files"): [
        posts("/millpond/v1/replica-files", b'{"streams":["orders"]}')
    ],
    (b"millpond", b"v1", b"transactions"): [
        posts(f"{BATCH}/p?at=0", PART, PROTOBUF),
        posts(BATCH, b'{"parts":[]}'),
        Row("DELETE", f"{BATCH}/p"),
    ],
    **{
        (b"v1", name): [row for row in S2_ROWS if row.path.startswith(f"/v1/{name.decode()}")]
        for name in (b"basins", b"streams", b"access-tokens", b"metrics", b"locations")
    },
    (): [Row("GET", "/nothing"), Row("POST", "/nothing", b"x")],
}
"""By the prefix of the API; () is for paths without one."""

OWN_HOSTS = (
    *("{address}", "127.0.0.1", "[::1]:{port}", "10.1.2.3:80", "localhost:{port}", "LOCALHOST"),
    *("localhost.", "basin.localhost:{port}", "mill.lan:{port}", "Mill.LAN.", "a.b.s2.lan"),
    *("app.example", "app.example:443", "pond.example:8443"),
)
FOREIGN_HOSTS = (
    *("evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("mill.lan.evil.example", "evilmill.lan", "x.mill.lan", "s2.lan", "xs2.lan", "pond.example"),
    *("127.0.0.1x", "127.1", "0x7f000001", "millpond", "app.example:7404", "a" * 400, "."),
)
OWN_ORIGINS = ("http://{address}", "https://{address}", LISTED, "https://pond.example:8443")
FOREIGN_ORIGINS = (
    *("null", "http://evil.example", "https://evil.example", "http://127.0.0.1:1"),
    *("http://localhost:{port}", "http://127.0.0.1", "{address}", "ftp://{address}", "http://"),
    *("http://app.example", "https://app.example:444", "https://app.example.evil.example"),
    *("https://pond.example", "HTTPS://APP.EXAMPLE.", "https://app.example/"),
)
VISIT = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
FRAME = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe"))


class Case(NamedTuple):
    """The headers of a client, and the status of the refusal; 0: none."""

    host: str
    headers: Headers
    status: int = 0


def brief_cases(row: Row) -> Iterator[Case]:
    """One of each kind."""
    own, cross = "{address}", ("sec-fetch-site", "cross-site")
    yield Case("evil.example:{port}", (), 421)
    yield Case("evil.example:{port}", (("origin", "http://evil.example:{port}"),), 421)
    yield from (Case(own, (("origin", each),), 403) for each in ("null", "http://evil.example"))
    yield Case(own, (("origin", LISTED), cross))
    yield Case(own, (cross,), 403)
    yield Case(own, (cross, *VISIT), 0 if row.is_page else 403)


def cases(row: Row) -> Iterator[Case]:
    own = "{address}"
    yield from (Case(host, ()) for host in OWN_HOSTS)
    yield from (Case(host, (), 421) for host in FOREIGN_HOSTS)
    yield Case("evil.example:{port}", (("origin", "http://evil.example:{port}"),), 421)
    yield Case("evil.example", (("origin", LISTED),), 421)
    yield from (Case(own, (("origin", origin),)) for origin in OWN_ORIGINS)
    yield from (Case(own, (("origin", origin),), 403) for origin in FOREIGN_ORIGINS)
    yield Case("mill.lan:{port}", (("origin", "http://mill.lan:{port}"),))
    yield Case("mill.lan", (("origin", "https://mill.lan"),))
    yield Case(own, (("origin", LISTED), ("origin", LISTED)), 400)
    for site, status in (("none", 0), ("same-origin", 0), ("same-site", 403), ("cross-site", 403)):
        fetched = ("sec-fetch-site", site)
        yield Case(own, (fetched,), status)
        yield Case(own, (fetched, ("origin", LISTED)))
        yield Case(own, (fetched, ("origin", "http://{address}")), status)
        yield Case(own, (fetched, *FRAME), status)
        yield Case(own, (fetched, *VISIT), 0 if row.is_page else status)


class Dialled(Protocol):
    """A client of one listener."""

    async def send(self, method: str, path: str, host: str, headers: Headers, body: bytes) -> Reply:
        """A request, and its response."""


class Http2Connection:
    """HTTP/2; one connection."""

    def __init__(self, connection: Http2) -> None:
        self._connection = connection

    async def send(self, method: str, path: str, host: str, headers: Headers, body: bytes) -> Reply:
        connection = self._connection
        number = await connection.ask(method, path, *headers, ends=not body, host=host)
        if body:
            await connection.say(number, body, ends=True)
        head = await connection.until(number, h2.events.ResponseReceived)
        await connection.until(number, h2.events.StreamEnded)
        assert isinstance(head, h2.events.ResponseReceived)
        named = {name.decode(): value.decode() for name, value in head.headers}
        pieces = [
            each.data
            for each in connection.events[number]
            if isinstance(each, h2.events.DataReceived)
        ]
        return Reply(int(named[":status"]), named, b"".join(pieces))


class Site(NamedTuple):
    """A running node, and a client of its listener `http`."""

    node: Node
    client: Dialled

    async def send(self, row: Row, host: str = "{address}", headers: Headers = ()) -> Reply:
        address = self.node.listeners["http"]
        values = {"address": address, "port": address.rpartition(":")[2]}
        pairs = [(name, value.format(**values)) for name, value in headers]
        if row.content_type and "content-type" not in dict(headers):
            pairs.append(("content-type", row.content_type))
        if row.path.startswith(("/v1/streams", BATCH)):
            pairs.append(("s2-basin", "millpond"))
        return await self.client.send(row.method, row.path, host.format(**values), pairs, row.body)


@asynccontextmanager
async def site(version: str, **settings: object) -> AsyncIterator[Site]:
    config = Config(**{**SETTINGS, **settings})  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node(config))
        address = node.listeners["http"]
        client: Dialled = Http1(address)
        if version == "2":
            client = Http2Connection(await stack.enter_async_context(Http2(await dial(address))))
        found = Site(node, client)
        await found.send(Row("PUT", "/v1/stream/orders"))
        await found.send(Row("PUT", "/millpond/state/users"))
        yield found


@pytest.fixture(params=["1.1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_each_api_has_rows() -> None:
    """An API that is added needs requests here, which show that no page can reach it."""
    assert all(ROWS.values())


async def test_the_rows_are_those_of_the_apis() -> None:
    async with Node(Config(**SETTINGS)) as node:  # type: ignore[arg-type]
        node._http_application()
        assert node._http is not None
        assert set(node._http.apis) == set(ROWS) - {()}
        assert set(node.listeners) == {"http", "ws", *NOT_HTTP}


@pytest.mark.parametrize("prefix", ROWS, ids=lambda prefix: (b"/" + b"/".join(prefix)).decode())
async def test_only_own_hosts_and_admitted_origins_reach_an_api(
    prefix: tuple[bytes, ...], version: str
) -> None:
    async with site(version) as found:
        for row in ROWS[prefix]:
            await found.send(row)  # what it makes is there from now on
            usual = (await found.send(row)).status
            is_first = row is ROWS[prefix][0]
            for case in cases(row) if is_first else brief_cases(row):
                got = await found.send(row, case.host, case.headers)
                assert got.status == (case.status or usual), (row, case, got)
                if case.status and row.method != "HEAD":
                    assert set(msgspec.json.decode(got.body)) == {"code", "message"}
                check_cors(row, case, got)


def check_cors(row: Row, case: Case, got: Reply) -> None:
    """A listed origin may read whatever it gets, and nobody else may."""
    origin = dict(case.headers).get("origin")
    allowed = got.headers.get("access-control-allow-origin")
    if case.status or origin is None:
        assert allowed is None, (row, case, got)
    elif origin in (LISTED, "https://pond.example:8443"):
        assert allowed == origin
        assert "stream-next-offset" in got.headers["access-control-expose-headers"]
    assert got.headers["vary"] == "origin"


async def test_refused_requests_change_nothing(version: str) -> None:
    forged = posts("/v1/streams/orders/records", APPEND)
    token = posts("/v1/access-tokens", b'{"id":"forged","scope":{}}')
    async with site(version) as found:
        for row in (forged, token, Row("POST", "/v1/stream/orders", b"x"), *S2_ROWS):
            for case in brief_cases(row):
                if case.status:
                    await found.send(row, case.host, case.headers)
        assert (
            (await found.send(Row("HEAD", "/v1/stream/orders")))
            .headers["stream-next-offset"]
            .startswith("0000000000000000")
        )
        assert b"forged" not in (await found.send(Row("GET", "/v1/streams"))).body
        assert b"forged" not in (await found.send(Row("GET", "/v1/access-tokens"))).body
        assert b"forged" not in (await found.send(Row("GET", "/v1/basins"))).body


SIMPLE = (
    *("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", ""),
    *("multipart/form-data; boundary=x", "text/plain; application/json", "*/*"),
)
"""Types that a form can send without being asked, and such that look like JSON."""


async def test_bodies_that_a_form_can_send_change_nothing(version: str) -> None:
    """Of an old browser, which sends no Origin."""
    async with site(version) as found:
        for row in (each for rows in ROWS.values() for each in rows if each.media is not None):
            usual = (await found.send(row)).status
            for media in SIMPLE:
                headers = (("content-type", media),) if media else (("content-type", ""),)
                got = await found.send(row, headers=headers)
                assert got.status in (400, 415), (row, media, got)
            for media in (JSON.upper(), "application/json; charset=utf-8"):
                if row.media == JSON:
                    got = await found.send(row, headers=(("content-type", media),))
                    assert got.status in (usual, 200, 409), (row, media, got)


PREFLIGHT = (
    ("access-control-request-method", "DELETE"),
    ("access-control-request-headers", "authorization,s2-basin,x-own"),
)


@pytest.mark.parametrize("prefix", ROWS, ids=lambda prefix: (b"/" + b"/".join(prefix)).decode())
async def test_preflights_are_answered_at_every_path(
    prefix: tuple[bytes, ...], version: str
) -> None:
    async with site(version) as found:
        for row in ROWS[prefix]:
            asked = Row("OPTIONS", row.path)
            got = await found.send(asked, headers=(("origin", LISTED), *PREFLIGHT))
            assert got.status == 204 and got.body == b""
            assert got.headers["access-control-allow-origin"] == LISTED
            assert {"PATCH", "DELETE"} <= set(
                got.headers["access-control-allow-methods"].upper().split(", ")
            )
            names = got.headers["access-control-allow-headers"].replace(" ", "").split(",")
            assert {"authorization", "s2-basin", "x-own", "content-type", "producer-id"} <= set(
                names
            )
            assert "access-control-allow-private-network" not in got.headers
            local = ("access-control-request-private-network", "true")
            got = await found.send(asked, headers=(("origin", LISTED), *PREFLIGHT, local))
            assert got.headers["access-control-allow-private-network"] == "true"
            got = await found.send(asked, headers=(("origin", "http://evil.example"), *PREFLIGHT))
            assert "access-control-allow-origin" not in got.headers
            got = await found.send(asked, "evil.example", (("origin", LISTED), *PREFLIGHT))
            assert (got.status, "access-control-allow-origin" in got.headers) == (421, False)


async def test_errors_are_readable_for_listed_origins(version: str, tmp_path: Path) -> None:
    """The same refusal by an API, the application and the connection."""
    tokens = tmp_path / "tokens"
    tokens.write_text("reader get stream:*\n")
    tokens.chmod(0o600)
    big = (("x-big", "x" * 40_000),)
    refused: list[tuple[int, Row, Headers]] = [
        (401, Row("GET", "/metrics"), ()),
        (401, Row("GET", "/v1/basins"), ()),
        (403, Row("POST", "/v1/stream/orders", b"x"), (("authorization", "Bearer reader"),)),
        (404, Row("GET", "/v1/stream/none"), (("authorization", "Bearer reader"),)),
        (404, Row("GET", "/nothing"), ()),
        (405, Row("BREW" if version == "2" else "PATCH", "/health"), ()),
        (400, Row("GET", "/v1/stream/%zz"), ()),
        (414, Row("GET", f"/v1/stream/{'x' * 20_000}"), ()),
        (431, Row("GET", "/v1/streams"), big),
    ]
    async with site(version, token_file=str(tokens)) as found:
        for status, row, headers in refused:
            got = await found.send(row, headers=(("origin", LISTED), *headers))
            assert got.status == status, (row, got)
            assert got.headers["access-control-allow-origin"] == LISTED, row
            assert "retry-after" in got.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "path",
    ["/v1/stream/orders?offset=-1&live=sse", "/v1/streams/orders/records", "/millpond/state/users"],
)
async def test_streams_of_events_are_readable_for_listed_origins(path: str) -> None:
    lines = (f"GET {path} HTTP/1.1", "host: localhost", "s2-basin: millpond", f"origin: {LISTED}")
    async with site("1.1") as found, await dial(found.node.listeners["http"]) as stream:
        request = "\r\n".join((*lines, "accept: text/event-stream", "", ""))
        await stream.send(request.encode())
        head = await stream.receive()
        assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head
        assert f"access-control-allow-origin: {LISTED}\r\n".encode() in head


async def test_a_rate_limit_and_a_drain_are_readable_for_listed_origins(version: str) -> None:
    async with site(version, connections_max=1) as found:
        async with await dial(found.node.listeners["p2p"]):
            for _ in range(100):
                got = await found.send(Row("GET", "/v1/streams"), headers=(("origin", LISTED),))
                if got.status == 503:
                    break
                await anyio.sleep(0.02)
            assert got.headers["access-control-allow-origin"] == LISTED
            # No reason to serve it all the same, as for probes.
            refused = await found.send(Row("GET", "/ready"), "evil.example")
            assert refused.status == 421
            got = await found.send(Row("GET", "/v1/streams"), "evil.example")
            assert (got.status, got.headers.get("access-control-allow-origin")) == (421, None)


async def test_input_that_is_no_request_is_refused_readably() -> None:
    origin = b"\r\nhost: localhost\r\norigin: https://app.example\r\n"
    async with site("1.1") as found:
        for head, more in (
            (b"CONNECT a:1 HTTP/1.1", b""),
            (b"POST /v1/streams HTTP/1.1", b"transfer-encoding: gzip\r\n"),
            (b"GET /v1/streams HTTP/1.1", b"x: y\r\n" * 1000),
        ):
            async with await dial(found.node.listeners["http"]) as stream:
                await stream.send(head + origin + more + b"\r\n")
                data = await rest(stream)
            assert b"access-control-allow-origin: https://app.example\r\n" in data, (head, data)


OCTETS = b"content-type: application/octet-stream\r\ncontent-length: 1\r\n\r\nx"


async def test_a_head_that_comes_again_is_refused_again() -> None:
    """Heads of HTTP/1.1 are cached byte for byte with what was decided for them."""
    forged = b"POST /v1/stream/orders HTTP/1.1\r\nhost: %b\r\n" + OCTETS
    async with site("1.1") as found, await dial(found.node.listeners["http"]) as stream:
        for host, status in ((b"evil.example", b"421"), (b"127.0.0.1", b"204")) * 2:
            for _ in range(5):
                await stream.send(forged % host)
                data = await stream.receive()
                assert data.startswith(b"HTTP/1.1 " + status), data


# The WebSocket listener.


def ws_request(line: str, host: str, headers: Headers) -> bytes:
    lines = [line, f"Host: {host}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode()


UPGRADE = (
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", base64.b64encode(bytes(16)).decode()),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Protocol", "p2pbuf.v1.hello"),
)


async def ws_reply(node: Node, line: str, host: str, headers: Headers) -> tuple[int, bytes]:
    """The status and the head; an upgraded connection is left."""
    async with await dial(node.listeners["ws"]) as stream:
        await stream.send(ws_request(line, host, headers))
        data = b""
        with anyio.fail_after(60):
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
        return int(data.split(b" ", 2)[1]), data


async def test_the_websocket_listener_checks_every_path_alike() -> None:
    async with Node(Config(**SETTINGS)) as node:  # type: ignore[arg-type]
        pages = node.web.site
        address = node.listeners["ws"]
        values = {"address": address, "port": address.rpartition(":")[2]}
        rows = [
            *((Row("GET", path, is_page=True), ()) for path in pages.pages),
            *((Row("POST", path), (("Content-Length", "0"),)) for path in pages.forms),
            (Row("GET", "/nothing", is_page=True), ()),
            (Row("GET", "/v1/channels/orders"), UPGRADE),
        ]
        for row, more in rows:
            line = f"{row.method} {row.path} HTTP/1.1"
            usual, _ = await ws_reply(node, line, address, more)
            is_first = row.path in ("/", "/chat/login", "/v1/channels/orders")
            for case in cases(row) if is_first else brief_cases(row):
                headers = [(name, value.format(**values)) for name, value in case.headers]
                status, data = await ws_reply(
                    node, line, case.host.format(**values), (*headers, *more)
                )
                assert status == (case.status or usual), (row, case, data)
                is_listed = dict(case.headers).get("origin") == LISTED and not case.status
                if row.path not in ("/v1/channels/orders",):
                    allows = f"Access-Control-Allow-Origin: {LISTED}\r\n".encode()
                    assert (allows in data) == is_listed, (row, case, data)


async def test_an_operator_sees_that_pages_were_refused() -> None:
    async with site("1.1") as found:
        await found.send(Row("GET", "/v1/streams"), "evil.example")
        await found.send(Row("GET", "/v1/streams"), headers=(("origin", "null"),))
        await found.send(Row("GET", "/v1/streams"), headers=(("sec-fetch-site", "same-site"),))
        line = "GET /v1/channels/orders HTTP/1.1"
        await ws_reply(found.node, line, "evil.example", UPGRADE)
        await ws_reply(found.node, line, "127.0.0.1", (("Origin", "null"), *UPGRADE))
        reasons = found.node.registry.counters.reasons
        assert {"foreign host": 2, "foreign page": 3} == dict(reasons)


# Listeners that speak no HTTP.

NOT_HTTP = {
    "p2p": b"",
    "s3p": b"*2\r\n$6\r\nCREATE\r\n$6\r\nforged\r\n",
    "rustlog": b'\0\0\0\x30{"type":"CreateTopicRequest","topic":"forged","partitions":1}',
}
"""Each with a body that would change something if it were read."""


@pytest.mark.parametrize("listener", NOT_HTTP)
async def test_a_form_that_is_sent_to_another_listener_is_cut_off(listener: str) -> None:
    async with Node(Config(**SETTINGS)) as node:  # type: ignore[arg-type]
        body = NOT_HTTP[listener]
        length = (("Content-Length", str(len(body))), ("Content-Type", "text/plain"))
        async with await dial(node.listeners[listener]) as stream:
            await stream.send(ws_request("POST / HTTP/1.1", "127.0.0.1", length) + body)
            await rest(stream)
        assert list(node.services.directory.names(b"", b"", 10)) == []
