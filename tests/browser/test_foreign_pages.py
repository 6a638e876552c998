"""Pages of strangers in a real browser: a name that was pointed at the node after the page was
loaded (DNS rebinding), forms and requests of other sites, and pages whose origin is listed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.abc import ByteStream

from millpond.node.config import LISTENERS, Config
from millpond.node.node import Node
from tests.browser.chromium import Browser, Tab
from tests.node.http.clients import Http1, Reply
from tests.ports import free_port

PAGES_PORT = free_port()
S2 = {"s2-basin": "millpond", "content-type": "application/json"}
APPEND = json.dumps({"records": [{"body": "forged"}]})
TOKEN = json.dumps({"id": "forged", "scope": {"op_groups": {"account": {"read": True}}}})
ACCOUNT: list[tuple[str, str, str | None]] = [
    ("GET", "/v1/streams", None),
    ("GET", "/v1/streams/chat%2Fbob/records?seq_num=0", None),
    ("POST", "/v1/streams/chat%2Fbob/records", APPEND),
    ("POST", "/v1/access-tokens", TOKEN),
    ("POST", "/v1/basins", json.dumps({"basin": "forged-basin"})),
    ("POST", "/v1/streams", json.dumps({"stream": "forged"})),
    ("PATCH", "/v1/streams/chat%2Fbob", "{}"),
    ("DELETE", "/v1/streams/chat%2Fbob", None),
    ("GET", "/v1/metrics?set=active-basins&start=0&end=0", None),
    ("GET", "/v1/locations", None),
]
OTHERS: list[tuple[str, str, str | None]] = [
    ("GET", "/v1/stream/chat/bob?offset=-1", None),
    ("PUT", "/v1/stream/forged", None),
    ("POST", "/v1/stream/chat/bob", "forged"),
    ("DELETE", "/v1/stream/chat/bob", None),
    ("GET", "/millpond/state/", None),
    ("GET", "/millpond/page/board.js", None),
    ("GET", "/millpond/state/chat%2Fbob", None),
    ("PUT", "/millpond/state/forged", None),
    ("POST", "/millpond/state/chat%2Fbob", "{}"),
    ("POST", "/millpond/v1/transactions/chat%2Fbob/writer/1", '{"parts":[]}'),
    ("GET", "/metrics", None),
    ("GET", "/ready", None),
    ("GET", "/health", None),
]
PAGES: list[tuple[str, str, str | None]] = [
    ("GET", "/chat", None),
    ("GET", "/chat.js", None),
    ("POST", "/chat/login", "mpw1.secret"),
    ("POST", "/chat/logout", "mpw1.secret"),
]
SEND = """(async (base, requests, options) => {
    const outcomes = [];
    for (const [method, path, body] of requests) {
        const request = {method, ...options};
        if (body !== null) request.body = body;
        try {
            const response = await fetch(base + path, request);
            const text = response.type === "opaque" ? "" : await response.text();
            outcomes.push([path, response.type === "opaque" ? 0 : response.status, text]);
        } catch (error) {
            outcomes.push([path, -1, String(error)]);
        }
    }
    return outcomes;
})"""
SOCKET = """((url) => new Promise((resolve) => {
    const socket = new WebSocket(url, "p2pbuf.v1.hello");
    socket.onopen = () => { socket.close(); resolve("open"); };
    socket.onerror = () => resolve("refused");
}))"""
FORM = """((action, text) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.name = "sink" + Math.random();
    document.body.append(frame);
    const form = document.createElement("form");
    const field = document.createElement("input");
    [form.method, form.action, form.enctype] = ["post", action, "text/plain"];
    form.target = frame.name;
    [field.name, field.value] = [text.slice(0, -2), text.slice(-2)];
    form.append(field);
    document.body.append(form);
    frame.onload = () => resolve("answered");
    form.submit();
}))"""


class Victim:
    """A node with default rights on this machine, and with something to lose."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.http = node.listeners["http"]
        self.ws = node.listeners["ws"]
        self._client = Http1(self.http)

    async def ask(self, method: str, path: str, body: bytes = b"") -> Reply:
        """A request of a client on this machine that is no page."""
        headers = (("s2-basin", "millpond"), ("content-type", "application/octet-stream"))
        return await self._client.send(method, path, self.http, headers, body)

    async def kept(self) -> list[bytes]:
        """The streams, the history and the tokens, which no page is to change."""
        paths = ("/v1/streams", "/v1/stream/chat/bob", "/v1/access-tokens", "/v1/basins")
        return [(await self.ask("GET", path)).body for path in paths]


@pytest.fixture
async def victim() -> AsyncIterator[Victim]:
    config = Config(
        **dict.fromkeys(LISTENERS, "127.0.0.1:0"),  # type: ignore[arg-type]
        origins=(f"http://app.example:{PAGES_PORT}",),
    )
    async with Node(config) as node:
        found = Victim(node)
        await found.ask("PUT", "/v1/stream/chat/bob")
        await found.ask("POST", "/v1/stream/chat/bob", b"a secret")
        yield found


@pytest.fixture
async def tab(chromium: Browser) -> Tab:
    """A page of a stranger; what its browser complains of is no matter."""
    return await chromium.tab()


async def _serve(stream: ByteStream) -> None:
    async with stream:
        await stream.receive()
        body = b"<!doctype html><title>page</title><body>"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n"
        await stream.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)


@pytest.fixture
async def pages() -> AsyncIterator[str]:
    """The web server of the strangers, by its port."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=PAGES_PORT)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, _serve)
        yield str(PAGES_PORT)
        tasks.cancel_scope.cancel()


def call(function: str, *values: object) -> str:
    """A call of a function in the page."""
    return f"{function}({', '.join(map(json.dumps, values))})"


async def test_a_name_that_was_pointed_at_the_node_reaches_nothing(
    tab: Tab, victim: Victim
) -> None:
    """The origin of such a page is its name with the port of the node, so it may do what pages of
    the node may."""
    before = await victim.kept()
    for address, requests in ((victim.http, ACCOUNT + OTHERS), (victim.ws, PAGES)):
        port = address.rpartition(":")[2]
        await tab.open(f"http://evil.example:{port}/")
        assert await tab.until("document.body && location.host") == f"evil.example:{port}"
        outcomes = await tab.run(call(SEND, "", requests, {"headers": S2}))
        assert [(path, status) for path, status, _ in outcomes] == [
            (path, 421) for _, path, _ in requests
        ]
        assert not any("secret" in text for _, _, text in outcomes)
    socket = f"ws://evil.example:{victim.ws.rpartition(':')[2]}/v1/channels/millpond!chat"
    assert await tab.run(call(SOCKET, socket)) == "refused"
    assert await victim.kept() == before


async def test_a_page_of_another_site_reaches_nothing(tab: Tab, victim: Victim, pages: str) -> None:
    """By fetch, with and without a wish to read, by forms and by a WebSocket."""
    before = await victim.kept()
    await tab.open(f"http://evil.example:{pages}/")
    await tab.until("document.title === 'page'")
    for address, requests in ((victim.http, ACCOUNT + OTHERS), (victim.ws, PAGES)):
        base = f"http://{address}"
        read = await tab.run(call(SEND, base, requests, {"headers": S2}))
        assert {status for _, status, _ in read} == {-1}
        simple = [row for row in requests if row[0] in ("GET", "POST")]
        await tab.run(call(SEND, base, simple, {"mode": "no-cors"}))
        for method, path, body in requests:
            if method == "POST":
                assert await tab.run(call(FORM, base + path, body)) == "answered"
    socket = f"ws://{victim.ws}/v1/channels/millpond!chat"
    assert await tab.run(call(SOCKET, socket)) == "refused"
    assert await victim.kept() == before


async def test_a_page_of_a_listed_origin_does_all_it_has_rights_to(
    tab: Tab, victim: Victim, pages: str
) -> None:
    await tab.open(f"http://app.example:{pages}/")
    await tab.until("document.title === 'page'")
    base = f"http://{victim.http}"
    outcomes = await tab.run(call(SEND, base, ACCOUNT[:6], {"headers": S2}))
    assert [status for _, status, _ in outcomes] == [200, 200, 200, 201, 201, 201]
    missing = [("GET", "/v1/streams/none", None), ("GET", "/v1/stream/none", None)]
    refused = await tab.run(
        call(SEND, base, [*missing, ("POST", "/v1/basins", "x")], {"headers": S2})
    )
    assert [status for _, status, _ in refused] == [404, 404, 400]
    offset = f"fetch({json.dumps(base + '/v1/stream/chat/bob')}).then((got) => got.headers.get("
    assert await tab.run(offset + "'stream-next-offset'))")
    socket = f"ws://{victim.ws}/v1/channels/orders"
    assert await tab.run(call(SOCKET, socket)) == "open"
    deleted = await tab.run(call(SEND, base, [ACCOUNT[7]], {"headers": S2}))
    assert deleted[0][1] == 202


async def test_html_in_a_stream_is_no_page_of_the_node(tab: Tab, victim: Victim) -> None:
    """A client that may append to one stream does not act for a person that looks at it."""
    script = b"<title>old</title><script>document.title = 'ran'</script>"
    headers = (("content-type", "text/html"),)
    client = Http1(victim.http)
    for method, body in (("PUT", b""), ("POST", script)):
        await client.send(method, "/v1/stream/page", victim.http, headers, body)
    await tab.open(f"http://{victim.http}/v1/stream/page?offset=-1")
    assert await tab.until("document.title") == "old"


async def test_a_link_of_another_site_opens_the_pages_of_the_node(
    tab: Tab, victim: Victim, pages: str
) -> None:
    for address, path in ((victim.http, "/millpond/state/"), (victim.ws, "/chat")):
        await tab.open(f"http://evil.example:{pages}/")
        await tab.until("document.title === 'page'")
        await tab.run(f"location.assign('http://{address}{path}')")
        await tab.until(f"location.host === '{address}' && document.scripts.length > 0")
