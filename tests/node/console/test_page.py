"""The console as the HTTP listener serves it: the page, its login, and its WebSocket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millpond import Config, Node, connect
from millpond.node.client.errors import ConnectionLost, HandshakeRefused
from millpond.node.config import LISTENERS
from millpond.node.console.login import PREFIX, SESSION_S, console_login
from millpond.node.console.page import FILES
from tests.node.http.clients import Http1, Reply, dial, rest

HTML = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8")
PROBE = "millpond!probe"


@asynccontextmanager
async def node(**settings: object) -> AsyncIterator[Node]:
    off = {**dict.fromkeys(LISTENERS, "off"), "p2p": "127.0.0.1:0", "http": "127.0.0.1:0"}
    async with Node(Config(**{**off, "drain_timeout_s": 0.2, **settings})) as running:
        yield running


async def ask(
    running: Node, method: str, path: str, *headers: tuple[str, str], body: bytes = b""
) -> Reply:
    address = running.listeners["http"]
    return await Http1(address).send(method, path, address, headers, body)


async def test_browsers_are_led_to_the_page_and_other_clients_get_the_404() -> None:
    async with node() as running:
        led = [await ask(running, "GET", path, HTML) for path in ("/", "/millpond")]
        plain = await ask(running, "GET", "/", ("accept", "*/*"))
        page = await ask(running, "GET", "/millpond/", HTML)
        other = await ask(running, "GET", "/millpond/nothing", HTML)
    assert [(each.status, each.headers["location"]) for each in led] == [(303, "/millpond/")] * 2
    assert plain.status == 404 and plain.headers["content-type"] == "application/json"
    assert page.status == 200 and b"<title>Millpond console</title>" in page.body
    assert other.status == 404


async def test_files_forbid_everything_that_the_page_did_not_bring() -> None:
    async with node() as running:
        for name, (_, file, kind) in FILES.items():
            path = f"/millpond/console/{name.decode()}" if name else "/millpond/"
            found = await ask(running, "GET", path)
            assert (found.status, found.headers["content-type"]) == (200, kind.lower()), file
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert found.headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in page_file() and b"style=" not in page_file()


def page_file() -> bytes:
    return (Path(__file__).parents[3] / "node/console/static/console.html").read_bytes()


async def test_a_link_logs_in_once_with_the_rights_of_the_operator(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("somebody-else list *\n")
    tokens.chmod(0o600)
    async with node(token_file=str(tokens)) as running:
        url = f"ws://{running.listeners['http']}"
        with pytest.raises(HandshakeRefused):
            await refused(url, None)
        secret = running.console.login.new_link().encode()
        first = await ask(running, "POST", "/millpond/console/login", body=secret)
        second = await ask(running, "POST", "/millpond/console/login", body=secret)
        assert (first.status, second.status) == (200, 403)
        token = first.body.decode().split('"')[3]
        assert token.startswith("mpc1.")
        async with connect(url, PROBE, window=0, token=token, reconnect=False) as channel:
            assert (await channel.admin(17, {}))["version"]
            assert "peers" in await channel.peers(2, {})
        out = await ask(running, "POST", "/millpond/console/logout", body=token.encode())
        assert out.status == 204
        with pytest.raises(HandshakeRefused):
            await refused(url, token)


async def refused(url: str, token: str | None) -> None:
    async with connect(url, PROBE, window=0, token=token, reconnect=False) as channel:
        await channel.admin(17, {})


def test_a_session_ends_by_itself(tmp_path: Path) -> None:
    now = 1000.0
    login = console_login(str(tmp_path), lambda: now, os.urandom)
    token = login.exchange(login.new_link())
    assert token is not None and token.startswith(PREFIX)
    now += SESSION_S - 1
    assert console_login(str(tmp_path), lambda: now, os.urandom).is_session(token.encode())
    now += 1
    assert not login.is_session(token.encode())


async def test_the_http_port_takes_websockets_of_channels() -> None:
    async with node() as running:
        url = f"ws://{running.listeners['http']}"
        async with connect(url, "chat/1", role="producer") as sender:
            await sender.put(b"over HTTP's port")
        async with connect(url, "chat/1", role="consumer") as receiver:
            message = await anext(aiter(receiver))
            assert message.data == b"over HTTP's port"
            await message.ack()


UPGRADE = (
    "GET /v1/channels/chat%2f1 HTTP/1.1",
    "host: {host}",
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol: p2pbuf.v1.hello",
)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("{address}", None, 101),
        ("{address}", "http://{address}", 101),
        ("{address}", "http://evil.example", 403),
        ("{address}", "null", 403),
        ("evil.example", "http://evil.example", 421),
    ],
)
async def test_pages_of_others_get_no_websocket(host: str, origin: str | None, status: int) -> None:
    async with node() as running:
        address = running.listeners["http"]
        lines = [each.format(host=host.format(address=address)) for each in UPGRADE]
        if origin is not None:
            lines.append(f"origin: {origin.format(address=address)}")
        data = "\r\n".join([*lines, "", ""]).encode()
        async with await dial(address) as stream:
            for byte in data[:40]:  # its first bytes decide, however they are cut
                await stream.send(bytes([byte]))
            await stream.send(data[40:])
            head = await stream.receive() if status == 101 else await rest(stream)
    assert head.startswith(b"HTTP/1.1 %d " % status)


async def test_a_request_for_a_channel_without_an_upgrade_is_refused_in_words() -> None:
    async with node() as running:
        found = await ask(running, "GET", "/v1/channels/chat")
        near = await ask(running, "GET", "/v1/channel")
    assert found.status in (400, 426) and near.status == 404


async def test_an_open_websocket_ends_with_the_node() -> None:
    async with node() as running:
        url = f"ws://{running.listeners['http']}"
        async with connect(url, PROBE, window=0, reconnect=False) as channel:
            await running.drain()
            with pytest.raises(ConnectionLost):
                await channel.admin(17, {})
