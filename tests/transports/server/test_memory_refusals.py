"""Requests for whose rest there was no memory for some seconds: each protocol refuses them in its
own form, drops what came of them, and goes on where it can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from websockets.frames import Opcode

from millpond.transports.http.asgi import OutOfMemory, Receive, Scope, Send
from millpond.transports.http.request import HttpLimits, Request, request_head
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.settings import RustlogSettings
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.memory_budget import (
    FAVOURED_AFTER_S,
    REFUSED_AFTER_S,
    TICK_S,
    MemoryBudget,
    MemorySettings,
)
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, RecordedWire, Rig
from tests.transports.http.server.http2_client import Client
from tests.transports.http.server.rig import answers, serving
from tests.transports.server.scripted_node import ScriptedNode
from tests.transports.websocket.test_framing import from_client, request_of

MIB = 2**20
HALF = bytes(MIB // 2)
SETTINGS = MemorySettings(4 * MIB, 4 * MIB, 4 * MIB, MIB)
OF_OTHERS = SETTINGS.bytes_max + SETTINGS.overrun_bytes_max
"""So much that not even the work that waited longest has room."""


def _pass_time(memory: MemoryBudget, now: float, seconds: float) -> None:
    until = now + seconds
    while now < until:
        now += TICK_S
        memory.wake(now)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(packet_bytes_max=8 * MIB)
    rig.node.services.memory.settings = SETTINGS
    yield rig
    rig.advance(1)
    assert rig.node.services.memory.used_bytes == 0


def _start_put(line: RecordedConnection, rig: Rig, packet: bytes) -> None:
    """Send half of a packet of 1 MiB while others hold all memory, and let time pass."""
    memory = rig.node.services.memory
    memory.promised_bytes = OF_OTHERS
    line.feed(p.u32(MIB) + packet + HALF)
    assert line.wire.paused and memory.waiting == 1
    rig.advance(REFUSED_AFTER_S - 1)
    assert line.take_packets() == [] and line.wire.paused, "waiting comes first"
    rig.advance(1 + 2 * TICK_S)
    assert memory.stats.refused == 1 and memory.waiting == 0 and memory.used_bytes == 0
    assert not line.wire.paused


def test_p2p_refuses_half_a_put_with_a_nack_and_serves_the_connection_on(rig: Rig) -> None:
    line = rig.logged_in()
    _start_put(line, rig, b"\x06" + p.u32(7) + p.u32(60))
    assert line.take_packets() == [p.nack(0x06, 0x26, p.u32(7))]
    line.feed(bytes(MIB - 9 - len(HALF)))
    assert line.take_packets() == [], "the rest of it is read and dropped"
    (stored,) = line.ask(p.put(7, b"again"))
    assert stored[:5] == b"\x07" + p.u32(7)
    assert not line.wire.is_over


def test_p2p_refuses_half_a_request_about_a_stream(rig: Rig) -> None:
    line = rig.logged_in(tags={p.EXTENSIONS: b"\x92\x93"})
    _start_put(line, rig, b"\x92" + p.u32(9) + b"\x06")
    assert line.take_packets() == [p.nack(0x92, 0x26, p.u32(9))]


def test_p2p_drops_a_packet_that_has_no_answer(rig: Rig) -> None:
    line = rig.logged_in()
    _start_put(line, rig, b"\x42" + bytes(8))
    assert line.take_packets() == []
    line.feed(bytes(MIB - 9 - len(HALF)))
    assert line.ask(p.PING) == [p.PONG]


@pytest.mark.parametrize(
    ("packet", "cut"), [(p.get(5), 4), (p.put(7, b"x" * 100), 3), (p.put(7, bytes(MIB)), 3)]
)
def test_p2p_drops_no_packet_that_is_small_or_of_which_the_id_has_not_come(
    rig: Rig, packet: bytes, cut: int
) -> None:
    memory, line = rig.node.services.memory, rig.logged_in()
    memory.promised_bytes, line.wire.unsent_bytes = OF_OTHERS, 40_000
    line.feed(p.framed(b"\x42" + bytes(40_000)) + p.framed(packet)[: 4 + cut])
    line.take_packets()
    assert line.wire.paused and memory.waiting == 1
    line.wire.unsent_bytes = 0
    rig.advance(REFUSED_AFTER_S + 2 * TICK_S)
    assert line.take_packets() == [] and memory.stats.refused == 0
    memory.promised_bytes = 0
    rig.advance(1)
    line.feed(p.framed(packet)[4 + cut :])
    (answer,) = line.take_packets()
    assert answer[:1] in (b"\x07", b"\xff") and len(answer) > 6


def test_a_websocket_refuses_half_a_put_but_waits_on_with_fragments(rig: Rig) -> None:
    memory = rig.node.services.memory
    memory.promised_bytes = OF_OTHERS
    line = rig.connect_websocket()
    line.feed(request_of())
    line.feed(from_client(Opcode.BINARY, p.hello(b"chat/1")))
    line.take_packets()
    put = from_client(Opcode.BINARY, p.put(7, 2 * HALF))
    line.feed(put[: len(HALF)])
    rig.advance(REFUSED_AFTER_S + 2 * TICK_S)
    assert line.take_packets() == [p.nack(0x06, 0x26, p.u32(7))]
    line.feed(put[len(HALF) :] + from_client(Opcode.BINARY, p.PING))
    assert line.take_packets() == [p.PONG]
    line.feed(from_client(Opcode.BINARY, p.put(8, HALF), fin=False))
    rig.advance(REFUSED_AFTER_S + 2 * TICK_S)
    assert line.take_packets() == [] and memory.waiting == 1 and line.wire.paused
    memory.promised_bytes = 0
    rig.advance(2 * FAVOURED_AFTER_S)
    line.feed(from_client(Opcode.CONT, b"end"))
    (stored,) = line.take_packets()
    assert stored[:5] == b"\x07" + p.u32(8)


def test_s3p_refuses_half_a_command_with_an_error_and_closes() -> None:
    node, wire = ScriptedNode(), RecordedWire()
    node.memory.settings, node.memory.promised_bytes = SETTINGS, OF_OTHERS
    connection = s3p_connection(1, node, S3pSettings())
    connection.opened(wire)
    connection.received(b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n*2\r\n$%d\r\n" % MIB)
    connection.received(HALF)
    assert wire.paused
    _pass_time(node.memory, node.now(), REFUSED_AFTER_S - 1)
    assert not wire.written
    _pass_time(node.memory, node.now() + REFUSED_AFTER_S - 1, 1 + TICK_S)
    assert wire.written.startswith(b"-ERR_LIMITS the node has no memory") and wire.closed
    assert node.memory.used_bytes == 0 and not node.asked


PING = b'{"type":"Ping"}'


def test_rustlog_refuses_half_a_frame_in_its_place_and_serves_the_connection_on() -> None:
    node, wire = ScriptedNode(), RecordedWire()
    node.memory.settings, node.memory.promised_bytes = SETTINGS, OF_OTHERS
    connection = rustlog_connection(1, node, RustlogSettings())
    connection.opened(wire)
    connection.received(p.framed(PING) + p.u32(MIB) + HALF)
    assert wire.paused and wire.written.endswith(b'{"type":"Pong"}')
    wire.written.clear()
    _pass_time(node.memory, node.now(), REFUSED_AFTER_S + TICK_S)
    assert b'"code":507' in wire.written and wire.written.count(b'"type"') == 1
    assert not wire.paused and node.memory.used_bytes == 0 and not node.refusals
    wire.written.clear()
    connection.received(bytes(MIB - len(HALF)) + p.framed(PING))
    assert wire.written == p.framed(b'{"type":"Pong"}')


async def _collect(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, HttpLimits(), request_head(scope, (b"x",)))
    status = 200
    try:
        await request.body()
    except OutOfMemory:
        status = 503
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})
    await request.linger()


async def test_http_refuses_half_a_body_that_waits_to_be_read() -> None:
    memory = MemoryBudget(SETTINGS, lambda budget, when: None)
    head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % MIB
    async with serving(_collect, memory=memory) as rig:
        line = rig.connect()
        assert await line.ask(head + HALF[:20_000]) == b""
        memory.promised_bytes = OF_OTHERS
        assert await line.ask(HALF[:20_000]) == b""
        assert line.wire.is_paused and memory.waiting > 0
        _pass_time(memory, rig.now(), REFUSED_AFTER_S - 1)
        assert await line.read() == b""
        _pass_time(memory, rig.now() + REFUSED_AFTER_S - 1, 1 + TICK_S)
        (answer,) = answers(await line.read())
        assert answer.status == 503
        assert line.session.held_bytes == 0 and not line.wire.is_paused


async def test_a_body_is_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its connection waits to read on, and the application to keep what has come of it."""
    memory = MemoryBudget(SETTINGS, lambda budget, when: None)
    memory.promised_bytes = OF_OTHERS
    head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % MIB
    async with serving(_collect, memory=memory) as rig:
        line = rig.connect()
        assert await line.ask(head + HALF[:40_000]) == b""
        assert memory.waiting == 2
        _pass_time(memory, rig.now(), REFUSED_AFTER_S + TICK_S)
        (answer,) = answers(await line.read())
        assert answer.status == 503
        assert line.session.held_bytes == 0 and not caplog.records


async def test_http_2_refuses_the_bodies_that_are_under_way_and_answers_the_other_streams() -> None:
    memory = MemoryBudget(SETTINGS, lambda budget, when: None)
    async with serving(_collect, memory=memory) as rig:
        client = Client(rig.connect())
        await client.read()
        half = client.ask("POST", "/x", HALF[:16_000], ends=False)
        client.say(half, HALF[:16_000])
        memory.promised_bytes = OF_OTHERS
        client.say(half, HALF[:16_000])
        await client.read()
        assert client.line.wire.is_paused and memory.waiting > 0
        _pass_time(memory, rig.now(), REFUSED_AFTER_S + TICK_S)
        await client.read()
        assert client.status(half) == 503 and not client.line.wire.is_paused
        whole = client.ask("POST", "/x", b"small")
        await client.read()
        assert client.status(whole) == 200
