"""Limits of docs/reference/limits.md on real listeners: what is just within them is accepted, and
one more is refused in the form of its protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import anyio
import h2.events as events
import msgspec
import pytest

from millpond.actors.errors import Code, RequestError
from millpond.node.client.streams.connect import connect_streams
from millpond.node.config import Config
from millpond.node.node import Node
from tests.conformance import packets as p
from tests.conformance.peer import Ended, connect_tcp
from tests.conformance.rustlog_peer import RustlogPeer
from tests.conformance.served import serve
from tests.node.http.clients import Http1, Http2, dial

ANY = "127.0.0.1:0"
HEAD = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")]
JSON = ("content-type", "application/json")
BASIN = ("s2-basin", "millpond")
MIB = 2**20

SCHEMES = {"tcp": "p2p", "ws": "ws"}
over_p2p = pytest.mark.parametrize("wiring", ["tcp", "ws"])


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["code"])


Headers = Sequence[tuple[str, str]]
Send = Callable[..., Awaitable[Answer]]


async def _send_1(address: str, method: str, path: str, headers: Headers, body: bytes) -> Answer:
    host = dict(headers).get("host", "localhost")
    rest = [each for each in headers if each[0] != "host"]
    reply = await Http1(address).send(method, path, host, rest, body)
    return Answer(reply.status, reply.body)


async def _send_2(address: str, method: str, path: str, headers: Headers, body: bytes) -> Answer:
    host = dict(headers).get("host", "localhost")
    rest = [each for each in headers if each[0] != "host"]
    async with Http2(await dial(address)) as client:
        number = await client.ask(method, path, *rest, ends=not body, host=host)
        for start in range(0, len(body), 2**14):
            while client.state.local_flow_control_window(number) < 2**14:
                await client.pump()
            is_last = start + 2**14 >= len(body)
            await client.say(number, body[start : start + 2**14], ends=is_last)
        status = await client.status(number)
        await client.until(number, events.StreamEnded)
        return Answer(status, client.data(number))


@pytest.fixture(params=[_send_1, _send_2], ids=["HTTP/1.1", "HTTP/2"])
def send(request: pytest.FixtureRequest) -> Send:
    version: Send = request.param
    return version


def _host(size: int) -> str:
    """A name of so many bytes; names below `localhost` are this machine's."""
    return ".".join(["x" * 50] * 8)[-(size - len(".localhost")) :] + ".localhost"


@asynccontextmanager
async def _http() -> AsyncIterator[str]:
    """The address of a node's HTTP listener."""
    off = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "off")
    config = Config(**{**off, "http": ANY, "drain_timeout_s": 0.2})  # type: ignore[arg-type]
    async with Node(config, rng=Random(7)) as node:
        yield node.listeners["http"]


# P2P, over TCP and over WebSocket.


@over_p2p
async def test_a_channels_name_has_1_to_250_bytes(wiring: str) -> None:
    async with serve(wiring) as server:
        await server.hello(b"n" * 250)
        await server.hello(b"n")
        for name in (b"n" * 251, b"\0n"):
            peer = await server.greet(name)
            await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


@over_p2p
async def test_a_hello_has_4096_bytes(wiring: str) -> None:
    async with serve(wiring) as server:
        room = 4096 - len(p.hello(b"chat/1", {0xFE: b""}))
        await server.hello(b"chat/1", {0xFE: bytes(room)})
        peer = await server.greet(b"chat/1", {0xFE: bytes(room + 1)})
        await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


@over_p2p
async def test_a_packet_before_ready_has_64_kib(wiring: str) -> None:
    """At the limit the packet is read, and is no HELLO; above it its length is enough."""
    async with serve(wiring, default_channel="") as server:
        peer = await server.dial(b"chat/1")
        await peer.send(p.hello(b"chat/1") + bytes(2**16 - len(p.hello(b"chat/1"))))
        await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)
        peer = await server.dial(b"chat/1")
        size = 2**16 + 1
        head = b"\x82\xff" + p.u64(size) + bytes(4) if wiring == "ws" else p.u32(size)
        await peer.pipe.send(head + p.hello(b"chat/1"))
        await peer.ends_with(p.ABORT)
        assert wiring == "tcp" or peer.close_code == 1009


UPGRADE = (
    b"GET /v1/channels/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n"
)


def _upgrade(size: int) -> bytes:
    """A request for a WebSocket of so many bytes, in lines of some kilobytes."""
    head, left = UPGRADE, size - len(UPGRADE) - 2
    while left:
        line_bytes = left if left <= 8000 else 4000
        head += b"X: %b\r\n" % (b"x" * (line_bytes - 5))
        left -= line_bytes
    return head + b"\r\n"


async def _websocket_answer(address: str, head: bytes, piece_bytes: int) -> bytes:
    pipe = await connect_tcp(address)
    try:
        for start in range(0, len(head), piece_bytes):
            await pipe.send(head[start : start + piece_bytes])
        with anyio.fail_after(60):
            return await pipe.receive()
    except Ended:
        return b""  # the refusal may be lost where more comes behind it
    finally:
        await pipe.aclose()


@pytest.mark.parametrize("piece_bytes", [2**17, 2**12], ids=["at once", "in pieces"])
async def test_the_request_of_a_websocket_has_64_kib(piece_bytes: int) -> None:
    async with serve("ws") as server:
        address = server.node.listeners["ws"]
        for size, status in ((2**16, b" 101 "), (2**16 + 1, b" 431 ")):
            answer = await _websocket_answer(address, _upgrade(size), piece_bytes)
            assert status in answer.partition(b"\r\n")[0], size


async def test_the_request_of_a_websocket_has_128_headers_in_lines_of_8_kib() -> None:
    begun = UPGRADE.count(b"\r\n") - 1
    async with serve("ws") as server:
        address = server.node.listeners["ws"]
        for count, status in ((128, b" 101 "), (129, b" 400 ")):
            head = UPGRADE + b"X: x\r\n" * (count - begun) + b"\r\n"
            assert status in await _websocket_answer(address, head, len(head))
        for size, status in ((8192, b" 101 "), (8193, b" 400 ")):
            head = UPGRADE + b"X: %b\r\n\r\n" % (b"x" * (size - 5))
            assert status in await _websocket_answer(address, head, len(head))


async def test_a_host_of_a_websocket_has_300_bytes() -> None:
    async with serve("ws") as server:
        address = server.node.listeners["ws"]
        for size, status in ((300, b" 101 "), (301, b" 421 ")):
            head = UPGRADE.replace(b"localhost", _host(size).encode()) + b"\r\n"
            assert status in await _websocket_answer(address, head, len(head))


@over_p2p
async def test_a_group_of_a_p2p_client_has_256_bytes(wiring: str) -> None:
    async with serve(wiring) as server:
        url = f"{'ws' if wiring == 'ws' else 'tcp'}://{server.node.listeners[SCHEMES[wiring]]}"
        async with connect_streams(url) as streams:
            stream = streams.stream("s")
            await stream.create()
            await stream.append([b"x"])
            await stream.commit("g" * 256, 1)
            assert await stream.committed("g" * 256) == 1
            with pytest.raises(RequestError) as refused:
                await stream.commit("g" * 257, 1)
            assert refused.value.code is Code.MALFORMED


# Streams over HTTP.


async def test_an_s2_append_has_1000_records(send: Send) -> None:
    async with _http() as address:
        await send(address, "PUT", "/v1/streams/s", [BASIN], b"")
        path = "/v1/streams/s/records"
        for count, status in ((1000, 200), (1001, 422)):
            body = json.dumps({"records": [{"body": "x"}] * count}).encode()
            answer = await send(address, "POST", path, [BASIN, JSON], body)
            assert answer.status == status, answer
        assert answer.code == "invalid"


async def test_a_fencing_token_has_36_bytes(send: Send) -> None:
    async with _http() as address:
        await send(address, "PUT", "/v1/streams/s", [BASIN], b"")
        path = "/v1/streams/s/records"
        for size, status in ((36, 200), (37, 422)):
            headers = [["", "fence"]]
            record = {"body": "t" * size, "headers": headers}
            body = json.dumps({"records": [record]}).encode()
            answer = await send(address, "POST", path, [BASIN, JSON], body)
            assert answer.status == status, answer
        assert answer.code == "invalid"


async def test_a_durable_append_has_10_000_messages(send: Send) -> None:
    async with _http() as address:
        path = "/v1/stream/s"
        assert (await send(address, "PUT", path, [JSON], b"")).status == 201
        for count, statuses in ((10_000, (200, 204)), (10_001, (413,))):
            body = json.dumps([0] * count).encode()
            answer = await send(address, "POST", path, [JSON], body)
            assert answer.status in statuses, answer
        assert answer.code == "too_many_messages"


async def test_an_append_of_events_has_1000_of_them_and_1_mib(send: Send) -> None:
    async with _http() as address:
        path = "/millpond/state/s"
        assert (await send(address, "PUT", path, [], b"")).status == 201
        event = b'{"type":"t","key":"k","value":1,"headers":{"operation":"insert"}}'
        for count, status in ((1000, 200), (1001, 422)):
            body = b"[%b]" % b",".join([event] * count)
            answer = await send(address, "POST", path, [JSON], body)
            assert answer.status == status, answer
        for size, status in ((MIB, 200), (MIB + 1, 413)):
            body = event.replace(b":1,", b':"%b",' % bytes(b"x" * (size - len(event) - 1)))
            assert len(body) == size
            assert (await send(address, "POST", path, [JSON], body)).status == status


async def test_a_host_has_300_bytes(send: Send) -> None:
    async with _http() as address:
        for size, status in ((300, 200), (301, 421)):
            answer = await send(address, "GET", "/health", [("host", _host(size))], b"")
            assert answer.status == status, answer


async def test_a_request_has_256_headers(send: Send) -> None:
    """Also one that has bytes left: the host and what the client adds count as well."""
    own = 2 if send is _send_1 else 1
    async with _http() as address:
        for count, status in ((256, 200), (257, 431)):
            headers = [("x", "y")] * (count - own)
            answer = await send(address, "GET", "/health", headers, b"")
            assert answer.status == status, answer


async def test_a_transaction_has_10_000_parts(send: Send) -> None:
    """Within the limits it is found that the parts were never staged."""
    async with _http() as address:
        assert (await send(address, "PUT", "/v1/streams/s", [BASIN], b"")).status < 300
        path = "/millpond/v1/transactions/s/w/1"
        for count, status in ((10_000, 409), (10_001, 422)):
            parts = [{"id": f"p{number}", "rows": 1} for number in range(count)]
            body = json.dumps({"parts": parts}).encode()
            answer = await send(address, "POST", path, [BASIN, JSON], body)
            assert answer.status == status, answer
        for size, status in ((MIB, 409), (MIB + 1, 413)):
            body = json.dumps({"parts": [{"id": "p", "rows": 1}]}).encode().ljust(size)
            assert (await send(address, "POST", path, [BASIN, JSON], body)).status == status


async def test_http2_windows_are_1_mib_a_stream_and_4_mib_a_connection() -> None:
    async with _http() as address, Http2(await dial(address)) as client:
        await client.status(await client.ask("GET", "/health"))
        state = client.state
        assert state.remote_settings.initial_window_size == MIB
        assert state.outbound_flow_control_window == 4 * MIB


async def test_the_hpack_table_of_a_connection_has_4_kib() -> None:
    """A block may begin with a new size of the table."""
    head = b"\x82\x86\x44\x07/health\x41\x09localhost"  # GET, http, the path, the authority
    within, beyond = b"\x3f\xe1\x1f", b"\x3f\xe2\x1f"  # 4096 and 4097
    async with _http() as address:
        for size, kind in ((within, events.ResponseReceived), (beyond, None)):
            async with Http2(await dial(address)) as client:
                client.state.send_headers(1, HEAD, end_stream=True)
                client.state.clear_outbound_data_buffer()
                block = size + head
                frame = len(block).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big")
                await client.send_raw(frame + block)
                if kind is not None:
                    await client.until(1, kind)
                else:
                    await client.until(0, events.ConnectionTerminated)


# RustLog.


async def test_a_group_of_a_rustlog_client_has_256_bytes() -> None:
    async with serve("ws", rustlog=ANY) as server:
        peer = RustlogPeer(await connect_tcp(server.node.listeners["rustlog"]))
        await peer.create("t")
        assert await peer.commit("g" * 256, "t", 0)
        place = {"group": "g" * 257, "topic": "t", "partition": 0}
        await peer.refused({"type": "OffsetCommit", **place, "offset": 0}, 400)
        await peer.pipe.aclose()
