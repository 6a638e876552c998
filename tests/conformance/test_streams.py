"""The byte stream of a connection: any split, slow and half-open peers, peers that stop reading."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import anyio
import pytest
from anyio.abc import SocketAttribute
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from millpond.node.environment import rss_bytes
from tests.conformance import packets as p
from tests.conformance.gated_disk import GatedDisk
from tests.conformance.peer import Ended, Peer, Pipe, SocketPipe
from tests.conformance.rig import RecordedConnection, Rig
from tests.conformance.served import Serve, virtual_time

MIB = 2**20
PATIENT = {p.KEEP_ALIVE: p.u32(300_000)}
CONSUMING = {p.ROLE: p.CONSUMER}
PRODUCING = {p.ROLE: p.PRODUCER}
FIRST_ID = 0x1BA3CA3A0FC05000
"""Of the first message of a rig: its clock stands, and it is node 5."""

DIALOGUE = [
    p.hello(b"chat/1", {p.ROLE: p.BOTH, p.EXTENSIONS: b"\x84\x86\x87"}),
    p.put(1, b"first"),
    p.put(2, bytes(300)),
    p.put(1, b"other data"),
    p.list_(),
    p.get(FIRST_ID),
    b"\x04bad",
    b"\x55unknown",
    p.ack(FIRST_ID),
    p.get(FIRST_ID),
    p.touch(FIRST_ID + 1, 5),
    p.put(3, b"third"),
    p.list_(1),
    p.PING,
    p.hello(b"chat/2"),
    p.put(4, b"last"),
    p.GOODBYE,
    p.put(5, b"after the end"),
]
UPGRADE = (
    b"GET /v1/channels/chat%2F1 HTTP/1.1\r\nHost: 127.0.0.1:7401\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
)


def _by_type(packets: list[bytes]) -> dict[bytes, list[bytes]]:
    """Answers of one type keep their order; those of different types may overtake each other."""
    found: dict[bytes, list[bytes]] = {}
    for packet in packets:
        found.setdefault(packet[: 2 if packet[0] == 0xFF else 1], []).append(packet)
    return found


def _cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(wire), *(place % len(wire) for place in places)})
    return [wire[a:b] for a, b in pairwise(edges)]


def _over_tcp(rig: Rig) -> tuple[RecordedConnection, list[bytes]]:
    return rig.connect(), [p.framed(*DIALOGUE)]


def _over_websocket(rig: Rig) -> tuple[RecordedConnection, list[bytes]]:
    frames = [Frame(Opcode.BINARY, packet).serialize(mask=True) for packet in DIALOGUE]
    # Bytes before the 101 are refused, so no client sends them.
    return rig.connect_websocket(), [UPGRADE, b"".join(frames)]


@pytest.mark.wire
@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=40), st.sampled_from([_over_tcp, _over_websocket]))
def test_any_split_of_a_dialogue_has_the_same_outcome(places, over) -> None:  # type: ignore[no-untyped-def]
    outcomes = []
    whole: list[int] = []
    for cuts in (whole, places):
        rig = Rig()
        reader = rig.logged_in(tags=CONSUMING)
        line, parts = over(rig)
        for part in parts:
            for chunk in _cut(part, cuts):
                line.feed(chunk)
        assert line.wire.closed
        # The message that is acked soon is pushed or not, as the cuts have it.
        pushes = [each[9:] for each in reader.take_packets() if each[9:] != b"first"]
        outcomes.append((_by_type(line.take_packets()), pushes, reader.ask(p.list_())))
    assert outcomes[0] == outcomes[1]
    answers, pushes, listed = outcomes[0]
    assert sum(map(len, answers.values())) == 14
    assert pushes == [bytes(300), b"third", b"last"]
    assert listed == [p.list_ack(*(FIRST_ID + at for at in (1, 2, 3)))]


async def _converse(peer: Peer, *, slowly: bool) -> None:
    said = [p.put(1, b"a"), p.list_(), p.put(2, bytes(500)), p.get(1), p.PING]
    stream = b"".join(peer.framing.encode([each]) for each in said)
    step = 1 if slowly else len(stream)
    for at in range(0, len(stream), step):
        await peer.pipe.send(stream[at : at + step])
    assert sorted(each[0] for each in await peer.packets(5)) == [1, 7, 7, 9, 0xFF]


async def test_a_peer_may_send_byte_by_byte(serve: Serve) -> None:
    async with serve() as server:
        slow, quick = await server.hello(), await server.hello(b"chat/2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_converse_slowly, slow)
            await _converse(quick, slowly=False)


async def _converse_slowly(peer: Peer) -> None:
    await _converse(peer, slowly=True)


@virtual_time
async def test_a_network_that_cuts_and_delays_changes_nothing(serve: Serve) -> None:
    async with serve() as server:
        server.network.split = True
        server.network.latency_s = 0.05
        producer, reader = await server.hello(tags=PATIENT), await server.hello(tags=PATIENT)
        for key in range(50):
            message_id = await producer.put(key, bytes((key,)) * 5000)
            await reader.expect(p.msg(message_id, bytes((key,)) * 5000))
            await reader.send(p.ack(message_id))
        assert await reader.ids() == []


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x10\x00\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"*3\r\n$6\r\nCREATE\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
async def test_a_bad_length_is_refused_from_its_four_bytes(serve: Serve, said: bytes) -> None:
    async with serve() as server:
        for peer in (await server.dial(), await server.hello()):
            await peer.pipe.send(said)
            await peer.ends_with(p.ABORT)


async def test_packets_before_a_broken_frame_are_carried_out(serve: Serve) -> None:
    async with serve(packet_bytes_max=4096) as server:
        peer = await server.hello()
        await peer.send(p.put(1, b"x"), bytes(5000), p.put(2, b"y"))
        answer, end = await peer.rest()
        assert answer[0] == 7 and end == p.ABORT
        assert len(await (await server.hello(flags=0)).ids()) == 1


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "ws-asyncio"])
async def test_packets_before_a_broken_frame_are_answered_when_they_are_stored(
    serve: Serve, tmp_path: Path
) -> None:
    disk = GatedDisk()
    async with serve(packet_bytes_max=4096, data=str(tmp_path), disk=disk) as server:
        peer = await server.hello()
        disk.gate.clear()
        try:
            await peer.send(p.put(1, b"x"), p.get(1), bytes(5000), p.put(2, b"y"))
            await peer.silent_for(0.05)
            await peer.pipe.send(bytes(100))  # behind the error: not read
        finally:
            disk.gate.set()
        stored, found, end = await peer.rest()
        assert stored[:5] == b"\x07" + p.u32(1)
        assert found[:2] == b"\xff\x04"
        assert end == p.ABORT
        assert len(await (await server.hello(flags=0)).ids()) == 1


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio"])
async def test_a_half_closed_peer_is_answered_and_then_closed(serve: Serve) -> None:
    async with serve() as server:
        for count in (1, 50, 2000):
            peer = await server.hello(b"chat/%d" % count)
            await peer.send(*(p.put(key, b"x" * 10) for key in range(count)), p.list_(count))
            await peer.pipe.send_eof()
            *receipts, listed = await peer.rest()
            assert [each[:5] for each in receipts] == [b"\x07" + p.u32(k) for k in range(count)]
            assert len(listed) == 1 + 8 * count


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio"])
async def test_a_half_closed_peer_gets_large_answers_whole(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        ids = [await producer.put(key, bytes(MIB - 64)) for key in range(20)]
        peer = await server.hello(flags=0)
        await peer.send(*map(p.get, ids))
        await peer.pipe.send_eof()
        assert [each[:9] for each in await peer.rest()] == [b"\x05" + p.u64(each) for each in ids]


@pytest.mark.parametrize("said", [b"", b"\x00", b"\x00\x00\x00\x05\x06", p.hello(b"chat/1")[:9]])
async def test_a_peer_that_leaves_in_the_middle_harms_nothing(serve: Serve, said: bytes) -> None:
    async with serve() as server:
        bystander = await server.hello()
        for _ in range(5):
            peer = await server.dial()
            if said:
                await peer.pipe.send(said)
            await peer.aclose()
        await bystander.quiet()


@virtual_time
async def test_a_peer_behind_a_dead_network_is_given_up_and_its_messages_go_to_others(
    serve: Serve,
) -> None:
    async with serve() as server:
        server.network.latency_s = 0.01
        producer = await server.hello(tags=PATIENT | PRODUCING | {p.MODE: p.QUEUE})
        lost = await server.dial(b"chat/1", source="far")
        await lost.send(p.hello(b"chat/1", {p.ROLE: p.WORKER}))
        await lost.packet()
        server.network.partition("far", "node")
        message_id = await producer.put(1, b"x", ttl=3600)
        heir = await server.hello(tags=PATIENT | {p.ROLE: p.WORKER})
        await heir.silent_for(20)
        await heir.expect(p.msg(message_id, b"x"), within_s=25)


@virtual_time
async def test_a_handshake_has_5_s(serve: Serve) -> None:
    async with serve(default_channel="") as server:
        silent, dribbling = await server.dial(), await server.dial()
        hello = dribbling.framing.encode([p.hello(b"chat/1")])
        for at in range(9):
            await dribbling.pipe.send(hello[at : at + 1])
            await anyio.sleep(0.5)
        await silent.silent_for(0.4)
        for peer in (silent, dribbling):
            await peer.ends_with(p.ABORT)
        assert anyio.current_time() == pytest.approx(5, abs=0.01)


@virtual_time
async def test_a_silent_bare_client_may_still_send_hello(serve: Serve) -> None:
    async with serve() as server:
        message_id = await (await server.bare()).put(1, b"in the lobby")
        peer = await server.dial()
        await peer.expect(p.msg(message_id, b"in the lobby"))
        await peer.send(p.hello(b"chat/1"))
        p.read_ready(await peer.packet())
        assert await peer.ids() == []
        other = await server.dial()
        await other.expect(p.msg(message_id, b"in the lobby"))


async def test_a_hello_and_its_puts_may_come_together(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.dial(b"chat/1")
        await peer.send(p.hello(b"chat/1"), *(p.put(key, b"x") for key in range(30)), p.list_())
        p.read_ready(await peer.packet())
        assert [each[:5] for each in await peer.packets(30)] == [
            b"\x07" + p.u32(key) for key in range(30)
        ]
        assert len(await peer.packet()) == 1 + 8 * 30


@virtual_time
async def test_a_peer_that_stops_reading_is_closed_after_30_s_and_others_are_served(
    serve: Serve,
) -> None:
    async with serve(window=1024, window_bytes=64 * MIB) as server:
        producer = await server.hello(tags=PATIENT | PRODUCING)
        quick = await server.hello(tags=PATIENT | CONSUMING)
        stalled = await server.dial(b"chat/1", source="far")
        await stalled.send(p.hello(b"chat/1", PATIENT | CONSUMING))
        p.read_ready(await stalled.packet())
        server.network.stall("far")
        for key in range(60):
            message_id = await producer.put(key, bytes(100_000), ttl=3600)
            await quick.expect(p.msg(message_id, bytes(100_000)))
            await quick.send(p.ack(message_id))
        assert anyio.current_time() < 1 and len(server.node.registry.connections) == 3
        await anyio.sleep(29)
        assert len(server.node.registry.connections) == 3
        await anyio.sleep(2)
        assert len(server.node.registry.connections) == 2
        await quick.quiet()


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio"])
async def test_100_000_requests_for_large_messages_do_not_fill_the_memory(serve: Serve) -> None:
    async with serve() as server:
        bystander = await server.hello(tags=PRODUCING)
        message_id = await bystander.put(1, bytes(MIB - 64))
        greedy = await server.hello(flags=0)
        before = rss_bytes()
        peak = 0

        async def ask_for_all() -> None:
            request = p.framed(*[p.get(message_id)] * 1000)
            for _ in range(100):
                await greedy.pipe.send(request)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_for_all)
            for key in range(2, 60):
                await bystander.put(key, b"others are served")
                peak = max(peak, rss_bytes())
                await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
        answers = [(await greedy.packet())[:9] for _ in range(50)]
        assert answers == [b"\x05" + p.u64(message_id)] * 50
        assert peak - before < 64 * MIB


def _reset_on_close(pipe: Pipe) -> None:
    """Close as a crashed machine does: with a reset instead of an end."""
    assert isinstance(pipe, SocketPipe)
    raw = pipe.stream.extra(SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio", "ws-asyncio", "ws-trio"])
async def test_resets_at_any_moment_harm_no_other_connection(serve: Serve) -> None:
    rng = Random(7)
    async with serve() as server:
        bystander = await server.hello(tags=PATIENT | PRODUCING)
        message_id = await bystander.put(1, bytes(MIB - 64))
        requests = [p.put(2, b"x"), p.get(message_id), p.ack(42), b"\x04bad", p.GOODBYE, bytes(2)]
        for _ in range(60):
            peer = await server.dial(b"chat/1")
            said = [p.hello(b"chat/1", {p.ROLE: rng.choice([p.BOTH, p.CONSUMER])})]
            said += rng.choices(requests, k=rng.randrange(30))
            stream = peer.framing.encode(each for each in said if each)
            _reset_on_close(peer.pipe)
            with suppress(Ended):
                await peer.pipe.send(
                    stream[: rng.choice([len(stream), rng.randrange(len(stream))])]
                )
            for _ in range(rng.randrange(3)):
                with anyio.move_on_after(0.002):
                    await peer.pipe.receive()
            await peer.aclose()
        await bystander.put(3, b"still there")
        for _ in range(500):
            if len(server.node.registry.connections) == 1:
                break
            await anyio.sleep(0.01)
        assert len(server.node.registry.connections) == 1
