"""Connections that are closed for lack of memory free what they hold at once: others read on in the
same pass of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from websockets.frames import Opcode

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.request import ClientGone, HttpLimits, Request, request_head
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.settings import RustlogSettings
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.conformance import packets as p
from tests.conformance.rig import RecordedWire, Rig
from tests.transports.http.server.rig import serving
from tests.transports.server.scripted_node import ScriptedNode
from tests.transports.websocket.test_framing import from_client, request_of

MIB = 2**20
HALF = bytes(MIB)
CONNECTIONS = 20
SETTINGS = MemorySettings(4 * MIB, 4 * MIB, 4 * MIB, MIB)
"""Less than the connections of a test send, without one of them being gone in between."""


def _open_p2p(rig: Rig) -> Callable[[bytes], None]:
    return rig.logged_in().connection.received


def _open_websocket(rig: Rig) -> Callable[[bytes], None]:
    line = rig.connect_websocket()
    line.feed(request_of())
    line.feed(from_client(Opcode.BINARY, p.hello(b"chat/1")))
    return line.connection.received


@pytest.mark.parametrize(
    ("connect", "head"),
    [
        pytest.param(_open_p2p, p.u32(4 * MIB) + b"\x06", id="p2p"),
        pytest.param(
            _open_websocket,
            b"\x82\xff" + (4 * MIB).to_bytes(8, "big") + bytes(4) + b"\x06",
            id="websocket",
        ),
        pytest.param(
            _open_websocket,
            from_client(Opcode.BINARY, b"\x06" + HALF, fin=False),
            id="websocket fragments",
        ),
    ],
)
def test_half_packets_are_freed_before_their_connections_are_gone(
    connect: Callable[[Rig], Callable[[bytes], None]], head: bytes
) -> None:
    rig = Rig(packet_bytes_max=8 * MIB)
    memory = rig.node.services.memory
    memory.settings = SETTINGS
    for _ in range(CONNECTIONS):
        received = connect(rig)
        received(head)
        received(HALF)
    _assert_bounded(memory)


def _s3p(node: ScriptedNode) -> Callable[[bytes], None]:
    connection = s3p_connection(1, node, S3pSettings())
    connection.opened(RecordedWire())
    return connection.received


def _rustlog(node: ScriptedNode) -> Callable[[bytes], None]:
    connection = rustlog_connection(1, node, RustlogSettings())
    connection.opened(RecordedWire())
    return connection.received


@pytest.mark.parametrize(
    ("connect", "head"),
    [
        pytest.param(_s3p, b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*9\r\n", id="s3p"),
        pytest.param(_rustlog, p.u32(4 * MIB), id="rustlog"),
    ],
)
def test_half_requests_are_freed_before_their_connections_are_gone(
    connect: Callable[[ScriptedNode], Callable[[bytes], None]], head: bytes
) -> None:
    node = ScriptedNode()
    node.memory.settings = SETTINGS
    size = b"$%d\r\n" % MIB
    for _ in range(CONNECTIONS):
        received = connect(node)
        received(head)
        received(size + HALF[: -len(size) - 2])
    _assert_bounded(node.memory)


async def _collect(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, HttpLimits(), request_head(scope, (b"x",)))
    with suppress(ClientGone):
        BODIES.append(await request.body())


BODIES: list[bytes] = []
"""The whole bodies that the application got."""


@pytest.mark.parametrize("sends_twice", [False, True])
async def test_half_bodies_are_freed_before_their_connections_are_gone(sends_twice: bool) -> None:
    memory = MemoryBudget(SETTINGS, lambda budget, when: None)
    head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % (8 * MIB)
    async with serving(_collect, memory=memory) as rig:
        lines = [rig.connect() for _ in range(CONNECTIONS)]
        for line in lines:
            line.say(head + HALF[: MIB // 2])
            if sends_twice:
                await line.read()  # the application takes what came
        for line in lines:
            line.say(HALF[: MIB // 2])
        _assert_bounded(memory)
        assert any(line.wire.is_aborted for line in lines)
        assert any(line.session.held_bytes for line in lines)


async def test_a_body_that_was_freed_is_not_taken_for_a_whole_one() -> None:
    """The body is there whole, and waits for memory when its connection is closed."""
    memory = MemoryBudget(SETTINGS, lambda budget, when: None)
    BODIES.clear()
    async with serving(_collect, memory=memory) as rig:
        line = rig.connect()
        assert memory.promise(SETTINGS.bytes_max - memory.connections_bytes)
        line.say(b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % MIB)
        line.say(HALF)
        await line.read()
        assert memory.waiting > 0 and BODIES == []
        line.session.close_for_memory()
        assert line.session.held_bytes == 0
        await line.read()
    assert BODIES == []


def _assert_bounded(memory: MemoryBudget) -> None:
    assert memory.stats.closed > 0
    bound = memory.settings.bytes_max + memory.settings.overrun_bytes_max
    assert memory.used_bytes <= bound, f"{memory.used_bytes / MIB:.1f} MiB"
