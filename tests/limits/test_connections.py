"""Limits of connections (docs/reference/limits.md) at each listener: handshakes, the last bytes,
requests without an answer, answers that are not read, and the share of a client."""

from __future__ import annotations

import resource
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from millpond.node.admin import Operation as AdminOperation
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.request import ClientGone, HttpLimits, Request, request_head
from millpond.transports.io.tls_handshake import HANDSHAKES_MAX
from millpond.transports.p2p.streams.operations import Operation
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.conformance import packets as p
from tests.conformance.peer import SocketPipe, connect_tcp
from tests.conformance.rig import RecordedWire, Rig
from tests.limits.listeners import KIB, MIB, NAMES, Client, framed, running
from tests.node.tls.certificate_files import files_of
from tests.transports.http.server.rig import Line, respond, serving
from tests.transports.p2p.identity_rig import is_ready, prove
from tests.transports.p2p.identity_rig import rig as rig_with_identity

ANY = "127.0.0.1:0"
NEAR_S = 30.0
over_p2p = pytest.mark.parametrize("over", ["tcp", "ws"])
at_each = pytest.mark.parametrize("column", NAMES)
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# TLS.


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    files = files_of(tmp_path_factory.mktemp("tls"))
    ports = dict.fromkeys(("p2p", "ws", "s3p", "rustlog", "http"), ANY)
    return {**ports, "tls_cert": files.cert, "tls_key": files.key, "drain_timeout_s": 0.1}


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _client_hello(size: int) -> bytes:
    """A message of so many bytes that says that it is a ClientHello, in records."""
    message = b"\x01" + size.to_bytes(3, "big") + b"\3\3" + bytes(size - 2)
    records = [message[start : start + 2**14] for start in range(0, len(message), 2**14)]
    return b"".join([b"\x16\x03\x01" + p.u16(len(each)) + each for each in records])


async def _is_over(pipe: SocketPipe) -> None:
    with anyio.fail_after(NEAR_S):
        while await pipe.receive():
            pass


@on_asyncio
@pytest.mark.parametrize("listener", ["p2p", "ws", "s3p", "rustlog", "http"])
async def test_a_client_hello_above_16_kib_ends_its_connection(
    listener: str, tls: dict[str, Any]
) -> None:
    """Before its end has come: a shorter one is waited for."""
    async with Node(Config(**tls), rng=Random(7)) as node:
        short = await connect_tcp(node.listeners[listener])
        await short.send(_client_hello(2**14)[:-100])
        long = await connect_tcp(node.listeners[listener])
        await long.send(_client_hello(2**14 + 1)[:-100])
        await _is_over(long)
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await short.receive()
        await short.aclose()
        await long.aclose()


@pytest.mark.wire
@on_asyncio
@pytest.mark.parametrize(
    "listener",
    ["p2p", "http", *(pytest.param(x, marks=pytest.mark.full) for x in ("ws", "s3p", "rustlog"))],
)
@pytest.mark.usefixtures("many_descriptors")
async def test_1024_handshakes_are_in_progress_at_a_listener_and_one_more_ends_the_oldest(
    listener: str, tls: dict[str, Any]
) -> None:
    async with Node(Config(**tls), rng=Random(7)) as node:
        address = node.listeners[listener]
        pipes = [await connect_tcp(address) for _ in range(HANDSHAKES_MAX)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, port = address.rpartition(":")
        served = await anyio.connect_tcp(host, int(port), tls=True, ssl_context=context)
        await _is_over(pipes[0])
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await pipes[1].receive()
        await served.aclose()
        for pipe in pipes:
            await pipe.aclose()


# The end of a connection.


_LAST = {
    "tcp": (framed(p.hello(b"")), p.ABORT),
    "ws": (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400"),
    "s3p": (b"nothing of S3P\r\n", b"-ERR_BAD_FORMAT"),
    "rustlog": (p.u32(2**30), b'"Error"'),
    "http1": (b"GET / HTTP/1.1\r\nno field\r\n\r\n", b"HTTP/1.1 400"),
    "http2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0x40, 1)) + bytes(6), b"\x07"),
}
"""Input that ends a connection, and a part of its last bytes."""


@on_asyncio
@at_each
async def test_the_last_bytes_arrive_although_input_waits(column: str) -> None:
    """A socket that is closed with unread input would be reset, and its last bytes lost."""
    said, last = _LAST[column]
    async with running(column, 64 * MIB, MIB) as node:
        pipe = await connect_tcp(node.node.listeners[NAMES[column]])
        await pipe.send(said + bytes(60 * KIB))
        found = b""
        with anyio.fail_after(NEAR_S):
            while data := await pipe.receive():
                found += data
        assert last in found, found[-200:]
        await pipe.aclose()


# P2P over TCP and over WebSocket.


@over_p2p
def test_a_wrong_token_is_refused_after_200_ms(over: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("the-right-one all chat/*\n")
    tokens.chmod(0o600)
    rig = Rig(token_file=str(tokens))
    line = rig.connect() if over == "tcp" else rig.upgraded()
    line.take_packets()
    assert line.ask(p.hello(b"chat/1", {p.TOKEN: b"wrong"})) == []
    rig.advance(0.199)
    assert line.take_packets() == [] and not line.wire.is_over
    rig.advance(0.001)
    assert line.take_packets() == [p.AUTHENTICATION_FAILED, p.ABORT] and line.wire.is_over


@over_p2p
def test_a_silent_bare_client_counts_as_waiting_after_250_ms(over: str) -> None:
    rig = Rig()
    producer = rig.logged_in(b"lobby", {p.ROLE: p.PRODUCER}, flags=0)
    producer.say(p.put(1, b"x"))
    silent = rig.connect() if over == "tcp" else rig.upgraded("lobby", "p2pbuf.v1")
    assert silent.take_packets() == []
    rig.advance(0.249)
    assert silent.take_packets() == []
    rig.advance(0.001)
    (pushed,) = silent.take_packets()
    assert pushed[0] == 2 and pushed.endswith(b"x")


@over_p2p
def test_64_stream_requests_wait_and_no_more(over: str) -> None:
    rig = Rig()
    line = rig.logged_in(tags={p.EXTENSIONS: b"\x92\x93"}, over=over)
    line.ask(p.stream(0, Operation.CREATE, msgspec.msgpack.encode({"stream": b"s"})))
    read = msgspec.msgpack.encode({"stream": b"s", "bytes_max": 1, "wait_ms": 60_000})
    line.say(*[p.stream(number, Operation.READ, read) for number in range(1, 65)])
    assert line.take_packets() == []
    assert line.ask(p.stream(65, Operation.READ, read)) == [p.nack(0x92, 0x26, p.u32(65))]


# Answers that are not read.


@over_p2p
def test_answers_of_one_moment_above_a_limit_reset_the_connection(over: str) -> None:
    """Few kinds of answers have no other bound: those of the administration are up to 32 KiB, so
    that 16 MiB are made in a turn. The limit is lower here."""
    rig = Rig()
    for number in range(130):
        rig.logged_in(b"%03d" % number + b"n" * 240, flags=0).say(p.put(1, b"x"))
    line = rig.logged_in(tags={p.EXTENSIONS: b"\x90\x91"}, over=over)
    line.wire.reads = False
    info = p.admin(1, AdminOperation.INFO, b"\x80")
    (answer,) = line.ask(info)
    assert 512 * len(answer) < rig.node.services.settings.unsent_bytes_max == 32 * MIB
    within = 100
    limit = replace(rig.node.services.settings, unsent_bytes_max=within * len(answer))
    rig.node.services.settings = limit
    line.read()
    line.say(*[info] * within)
    assert not line.wire.is_over and len(line.take_packets()) == within
    line.read()
    line.say(*[info] * (within + 1))
    assert line.wire.aborted and rig.node.registry.counters.stalled == 1


@on_asyncio
async def test_a_rustlog_client_that_does_not_read_is_read_no_further() -> None:
    """Unread answers at the node have a bound, however much is asked for."""
    async with running("rustlog", 64 * MIB, 4 * MIB) as node:
        writer = await node.client()
        await writer.begin(MIB, 0)
        await writer.finish()
        assert await node.outcome(writer) == "accepted"
        reader = (await node.client()).pipe
        # The requests are long, so that few of them lie in the system's buffers.
        fetch = b'{"type":"Fetch","topic":"small","partition":0,"offset":0,"max_bytes":1048576'
        request = framed(fetch + b',"x":"%b"}' % bytes(32 * KIB).replace(b"\0", b"x"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.send, request * 1000)
            await node.pass_time(5.0)
            connections = node.node.registry.connections
            assert [each for each in connections if each._paused]  # type: ignore[attr-defined]
            assert MIB < node.peak_bytes < 12 * MIB
            tasks.cancel_scope.cancel()


# The share of a client. Connections from other machines are on wires that record.

SHARED = MemorySettings(16 * MIB, 8 * MIB, 4 * MIB, 4 * MIB)
HERE, THERE, ELSEWHERE = "127.0.0.1", "203.0.113.7", "198.51.100.9"
PART = 1000 * KIB


async def _collect(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, HttpLimits(), request_head(scope, (b"x",)))
    with suppress(ClientGone):
        await request.body()
        await respond(send, 200, b"")


@pytest.mark.parametrize("column", ["tcp", "ws", "s3p", "rustlog"])
def test_connections_of_an_address_share_half_of_the_budget(column: str, tmp_path: Path) -> None:
    """Those of this machine do not."""
    access = tmp_path / "access.conf"
    access.write_text("anyone all\n")
    access.chmod(0o600)
    rig = Rig(packet_bytes_max=8 * MIB, access_file=str(access))
    rig.node.services.memory.settings = SHARED
    starts = {
        "tcp": p.u32(4 * MIB) + b"\x06" + bytes(PART),
        "ws": b"\x82\xff" + p.u64(4 * MIB) + bytes(4) + b"\x06" + bytes(PART),
        "s3p": b"*4\r\n$6\r\nAPPEND\r\n$5\r\nsmall\r\n*0\r\n*9\r\n"
        + b"$%d\r\n%b\r\n" % (500 * KIB, bytes(500 * KIB)) * 2,
        "rustlog": p.u32(4 * MIB) + bytes(PART),
    }

    def begin(host: str) -> bool:
        """Does a connection that holds a part of a request wait for memory?"""
        if column in ("tcp", "ws"):
            line = rig.logged_in(over=column, host=host)
            wire, received = line.wire, line.connection.received
        else:
            session, wire = rig.node.new_session(column), RecordedWire(host)
            session.opened(wire)
            received = session.received
        data = starts[column]
        for start in range(0, len(data), 64 * KIB):
            if not wire.paused:
                received(data[start : start + 64 * KIB])
        return wire.paused

    assert [begin(THERE) for _ in range(4)] == [False, False, False, True]
    assert [begin(each) for each in (HERE, ELSEWHERE)] == [False, False]
    rig.node.services.memory.settings = MemorySettings(64 * MIB, 8 * MIB, 4 * MIB, 4 * MIB)
    assert [begin(HERE) for _ in range(6)] == [False] * 6


@over_p2p
def test_connections_of_a_key_share_half_of_the_budget(over: str) -> None:
    """On this machine as well."""
    rig = rig_with_identity(packet_bytes_max=8 * MIB)
    rig.node.services.memory.settings = SHARED
    held = []
    for _ in range(4):
        line = rig.connect(HERE) if over == "tcp" else rig.upgraded(host=HERE)
        line.take_packets()
        assert is_ready(prove(line))
        head = p.u32(4 * MIB) if over == "tcp" else b"\x82\xff" + p.u64(4 * MIB) + bytes(4)
        data = head + b"\x06" + bytes(PART)
        for start in range(0, len(data), 64 * KIB):
            if not line.wire.paused:
                line.connection.received(data[start : start + 64 * KIB])
        held.append(line.wire.paused)
    assert held == [False, False, False, True]


@on_asyncio
@pytest.mark.parametrize("column", ["http1", "http2"])
async def test_connections_of_an_address_share_half_of_the_budget_over_http(column: str) -> None:
    memory = MemoryBudget(SHARED, lambda budget, when: None)
    key = Rig().node.services.principal_key

    async def begin(host: str) -> bool:
        line = rig.connect(host)
        client = Client(column, SocketPipe(_Said(line)))  # type: ignore[arg-type]
        await client.log_in()
        data = client._request(900 * KIB if column == "http2" else PART + KIB)
        for start in range(0, len(data) - KIB, 64 * KIB):
            if not line.wire.is_paused:
                line.say(data[start : min(start + 64 * KIB, len(data) - KIB)])
                await line.read()
        return line.wire.is_paused

    async with serving(_collect, memory=memory, principal_key=key) as rig:
        waits = [await begin(THERE) for _ in range(5)]
        assert waits.index(True) >= 3, waits
        assert [await begin(each) for each in (HERE, ELSEWHERE)] == [False, False]


class _Said:
    """A stream whose bytes are said on a line at once."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def send(self, data: bytes) -> None:
        self._line.say(data)
