"""PS-01 to PS-14 (docs/reference/compatibility.md): handshake, modes, credit, extensions and dead
letters."""

from __future__ import annotations

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, Served, virtual_time
from tests.transports.p2p.identity_packets import ALICE, MALLORY, auth, hello, is_signed

PATIENT = {p.KEEP_ALIVE: p.u32(300_000)}
CONSUMING = {p.ROLE: p.CONSUMER}
PRODUCING = {p.ROLE: p.PRODUCER}
ONE = {p.WINDOW: p.u16(1)}


def told(packet: bytes) -> p.Tags:
    return p.read_ready(packet)[1]


async def test_ps_01_a_public_key_needs_a_nonce(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1", {p.PUBLIC_KEY: bytes(32)})
        await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


async def _challenged(server: Served, first: bytes) -> tuple[Peer, bytes]:
    peer = await server.dial(b"chat/1")
    challenge = await peer.ask(first)
    assert is_signed(first, challenge, server.node.peer_services.keyring.identity.public)
    return peer, challenge


async def test_ps_01_an_identity_is_proved_both_ways(serve: Serve) -> None:
    first = hello(ALICE)
    async with serve() as server:
        peer, challenge = await _challenged(server, first)
        p.read_ready(await peer.ask(auth(first, challenge, ALICE)))
        await peer.put(1, b"x")
        assert server.node.services.counters.identified == 1


@virtual_time
async def test_p2p_25_ps_01_ps_08_pa_39_a_bad_proof_is_refused_like_a_bad_token(
    serve: Serve,
) -> None:
    """After the same delay, with the same bytes, and never served as anonymous."""
    first = hello(ALICE)
    async with serve() as server:
        peer, challenge = await _challenged(server, first)
        await peer.send(auth(first, challenge, MALLORY), p.put(1, b"x"), p.PING, p.hello(b"chat/1"))
        await peer.silent_for(0.19)
        await peer.ends_with(p.AUTHENTICATION_FAILED, p.ABORT, within_s=1)
        assert await (await server.hello()).ids() == []


@virtual_time
async def test_ps_08_requests_before_the_proof_are_dropped(serve: Serve) -> None:
    first = hello(ALICE)
    async with serve() as server:
        peer, challenge = await _challenged(server, first)
        await peer.send(p.put(1, b"x"), p.PING, p.hello(b"chat/1"), p.list_())
        await peer.silent_for(1)
        p.read_ready(await peer.ask(auth(first, challenge, ALICE)))
        assert await peer.ids() == []


async def test_ps_02_the_first_ack_gives_credit_back_to_all_consumers(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        readers = [await server.hello(tags=CONSUMING | ONE) for _ in range(3)]
        first, second = await producer.put(1, b"a"), await producer.put(2, b"b")
        for reader in readers:
            await reader.expect(p.msg(first, b"a"))
            await reader.quiet()
        await readers[0].send(p.ack(first))
        for reader in readers:
            await reader.expect(p.msg(second, b"b"))


async def test_ps_03_credit_opens_a_window_of_0(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        reader = await server.greet(b"chat/1", {p.WINDOW: p.u16(0), p.EXTENSIONS: b"\x84"})
        tags = told(await reader.packet())
        assert tags[p.WINDOW] == p.u16(0) and tags[p.EXTENSIONS] == b"\x84"
        ids = [await producer.put(key, b"x") for key in range(5)]
        await reader.quiet()
        await reader.send(p.credit(2))
        await reader.expect(*(p.msg(each, b"x") for each in ids[:2]))
        await reader.quiet()
        await reader.send(p.ack(ids[0]), p.credit(1))
        await reader.expect(*(p.msg(each, b"x") for each in ids[2:4]))
        await reader.quiet()


async def test_ps_03_a_lowered_window_is_reported(serve: Serve) -> None:
    async with serve() as server:
        wide = await server.greet(b"chat/1", {p.WINDOW: p.u16(65_535)})
        assert told(await wide.packet())[p.WINDOW] == p.u16(1024)
        queue = await server.greet(b"jobs", {p.WINDOW: p.u16(100), p.MODE: p.QUEUE})
        assert told(await queue.packet())[p.WINDOW] == p.u16(8)
        ordered = await server.greet(b"chat/1", {p.WINDOW: p.u16(100)}, flags=5)
        flags, tags = p.read_ready(await ordered.packet())
        assert flags == 5 and tags[p.WINDOW] == p.u16(1)


async def test_ps_03_the_window_is_32_messages_and_1_mib(serve: Serve) -> None:
    async with serve() as server:
        producer, reader = await server.hello(tags=PRODUCING), await server.hello(tags=CONSUMING)
        bare = await server.hello(b"chat/2", PRODUCING)
        for key in range(40):
            await producer.put(key, b"x")
        await reader.packets(32)
        await reader.quiet()
        for key in range(5):
            await bare.put(key, bytes(500_000))
        heavy = await server.hello(b"chat/2", CONSUMING)
        await heavy.packets(3)
        await heavy.quiet()


@pytest.mark.parametrize(
    ("role", "flags", "is_pushed"),
    [
        (None, 1, True),
        (None, 0, False),
        (p.PRODUCER, 1, False),
        (p.CONSUMER, 1, True),
        (p.CONSUMER, 0, False),
        (p.BOTH, 1, True),
        (p.WORKER, 1, True),
    ],
)
async def test_ps_04_pushes_go_where_role_and_flag_want_them(
    serve: Serve, role: bytes | None, flags: int, is_pushed: bool
) -> None:
    async with serve() as server:
        peer = await server.hello(tags={p.ROLE: role} if role else {}, flags=flags)
        message_id = await (await server.hello(tags=PRODUCING)).put(1, b"x")
        if is_pushed:
            await peer.expect(p.msg(message_id, b"x"))
        await peer.quiet()


@pytest.mark.parametrize("role", [p.CONSUMER, p.WORKER])
async def test_ps_04_put_needs_a_producer(serve: Serve, role: bytes) -> None:
    async with serve() as server:
        peer = await server.hello(tags={p.ROLE: role})
        assert await peer.ask(p.put(7, b"x")) == p.nack(6, 0x25, p.u32(7))


async def test_ps_04_a_worker_has_a_window_of_1_and_the_extensions_of_jobs(serve: Serve) -> None:
    async with serve() as server:
        worker = await server.greet(b"jobs", {p.ROLE: p.WORKER, p.MODE: p.QUEUE})
        tags = told(await worker.packet())
        assert tags[p.WINDOW] == p.u16(1) and set(tags[p.EXTENSIONS]) >= {0x84, 0x86, 0x87}
        producer = await server.hello(b"jobs", PRODUCING)
        ids = [await producer.put(key, b"job") for key in range(2)]
        await worker.expect(p.msg(ids[0], b"job"))
        await worker.quiet()
        assert await worker.ask(p.touch(ids[0], 60_000)) == p.touch_ack(ids[0], 60_000)
        assert await worker.ask(p.touch(ids[1], 60_000)) == p.nack(0x86, 0x28, p.u64(ids[1]))


async def test_ps_05_the_first_hello_sets_the_mode_and_ready_has_it(serve: Serve) -> None:
    async with serve() as server:
        plain = await server.greet(b"plain")
        assert told(await plain.packet())[p.MODE] == p.PAIR
        first = await server.greet(b"chat/1", {p.MODE: p.FANOUT})
        assert told(await first.packet())[p.MODE] == p.FANOUT
        second = await server.greet(b"chat/1", {p.MODE: p.QUEUE})
        assert told(await second.packet())[p.MODE] == p.FANOUT
        message_id = await first.put(1, b"x")
        await first.send(p.GOODBYE)
        await second.send(p.GOODBYE)
        await first.ends_with()
        await second.rest()
        third = await server.greet(b"chat/1", {p.MODE: p.QUEUE})
        assert told(await third.packet())[p.MODE] == p.FANOUT, "it still holds a message"
        await third.send(p.ack(message_id))


async def test_ps_05_an_empty_channel_may_change_its_mode(serve: Serve) -> None:
    async with serve() as server:
        first = await server.hello(tags={p.MODE: p.QUEUE})
        await first.send(p.ack(await first.put(1, b"x")), p.GOODBYE)
        await first.ends_with()
        second = await server.greet(b"chat/1", {p.MODE: p.FANOUT})
        assert told(await second.packet())[p.MODE] == p.FANOUT


async def test_ps_05_an_unknown_mode_is_malformed(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1", {p.MODE: b"\x03"})
        await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


async def test_ps_06_a_subscriber_gets_later_messages_or_those_after_its_id(
    serve: Serve,
) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING | {p.MODE: p.FANOUT})
        early = [await producer.put(key, b"early") for key in range(3)]
        new = await server.hello(tags=CONSUMING)
        resuming = await server.hello(tags=CONSUMING | {p.RESUME_AFTER: p.u64(early[0])})
        everything = await server.hello(tags=CONSUMING | {p.RESUME_AFTER: p.u64(0)})
        late = await producer.put(9, b"late")
        await new.expect(p.msg(late, b"late"))
        await resuming.expect(*(p.msg(each, b"early") for each in early[1:]), p.msg(late, b"late"))
        await everything.expect(*(p.msg(each, b"early") for each in early), p.msg(late, b"late"))
        await new.send(p.ack(late))
        assert await new.ids() == early
        assert await resuming.ids() == [*early, late]


_BAD_HELLOS = {
    "a repeated tag": {"tail": p.tlv(p.ROLE, p.BOTH) * 2},
    "an unknown critical tag": {"tail": p.tlv(0x7F, b"")},
    "a role of two bytes": {"tail": p.tlv(p.ROLE, bytes(2))},
    "an unknown role": {"tail": p.tlv(p.ROLE, b"\x05")},
    "a window of one byte": {"tail": p.tlv(p.WINDOW, b"\x01")},
    "a value past the end": {"tail": b"\x04\x00\x02\x01"},
    "half a tag": {"tail": b"\x04\x00"},
    "an empty channel": {"tail": b"", "channel": b""},
    "versions upside down": {"versions": (2, 1)},
    "more than 4 KiB": {"tail": p.tlv(0x80, bytes(4096))},
}


@pytest.mark.parametrize("how", _BAD_HELLOS.values(), ids=_BAD_HELLOS)
async def test_ps_07_a_bad_hello_is_refused(serve: Serve, how: dict[str, object]) -> None:
    async with serve() as server:
        peer = await server.dial(b"chat/1")
        await peer.send(p.hello(**({"channel": b"chat/1"} | how)))  # type: ignore[arg-type]
        await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


async def test_ps_07_unknown_tags_from_80_are_ignored(serve: Serve) -> None:
    async with serve() as server:
        tail = p.tlv(0x80, b"test/1") + p.tlv(0xFE, b"?" * 1000)
        await (await server.hello(tail=tail)).quiet()


async def test_ps_07_a_second_hello_is_refused_and_changes_nothing(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        for _ in range(20):
            assert await peer.ask(p.hello(b"chat/2")) == p.MALFORMED_HELLO
        await peer.put(1, b"x")
        assert await (await server.hello(b"chat/2")).ids() == []
        bare = await server.bare()
        assert await bare.ask(p.hello(b"lobby")) == p.MALFORMED_HELLO


async def test_ps_08_type_80_without_the_magic_is_an_unknown_packet(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.dial(b"chat/1")
        await peer.send(b"\x80", b"\x80P2P", b"\x80HTTP/1.1", b"\x80p2pb\x01\x01\x01")
        await peer.send(p.hello(b"chat/1"))
        p.read_ready(await peer.packet())
        await peer.send(b"\x80?")
        await peer.quiet()


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
@pytest.mark.parametrize("settings", [{"default_channel": ""}, {"require_hello": True}])
async def test_ps_09_a_bare_client_without_a_channel_is_refused(
    serve: Serve, settings: dict[str, object]
) -> None:
    async with serve(**settings) as server:
        for packet in (p.PING, p.put(1, b"x"), p.get(1), p.list_(), p.ack(1)):
            peer = await server.dial()
            await peer.send(packet)
            await peer.ends_with(p.nack(packet[0], 0xF6), p.ABORT)


async def test_ps_09_a_hello_without_a_channel_gets_the_default_or_the_paths(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.dial(b"lobby")
        await peer.send(p.hello(None))
        p.read_ready(await peer.packet())
        await peer.put(1, b"x")
        assert len(await (await server.hello(b"lobby", flags=0)).ids()) == 1
    async with serve(default_channel="") as server:
        peer = await server.dial(b"chat/1")
        await peer.send(p.hello(None))
        if server.is_websocket:
            p.read_ready(await peer.packet())
        else:
            await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


async def test_ps_10_an_anonymous_ack_of_ones_own_message_deletes(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        await peer.send(p.ack(await peer.put(1, b"x")))
        assert await peer.ids() == []


async def test_ps_11_a_client_caps_the_packets_it_gets(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        tiny = await server.hello(tags=CONSUMING | {p.PACKET_MAX: p.u32(1)})
        large = await producer.put(1, bytes(1100))
        small = await producer.put(2, bytes(1000))
        await tiny.expect(p.msg(small, bytes(1000)))
        await tiny.quiet()
        assert await tiny.ask(p.get(large)) == p.nack(4, 0x27, p.u64(large))
        for key in range(3, 200):
            await producer.put(key, b"x" * 1100)
        assert 100 < len(await tiny.ids()) <= 127


@pytest.mark.parametrize(("asked", "granted"), [(0, 1000), (7000, 7000), (2**32 - 1, 300_000)])
async def test_ps_11_the_keep_alive_is_clamped_and_reported(
    serve: Serve, asked: int, granted: int
) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1", {p.KEEP_ALIVE: p.u32(asked)})
        assert told(await peer.packet())[p.KEEP_ALIVE] == p.u32(granted)


async def test_ps_11_resume_skips_but_keeps(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        ids = [await producer.put(key, b"x") for key in range(3)]
        reader = await server.hello(tags=CONSUMING | {p.RESUME_AFTER: p.u64(ids[1])})
        await reader.expect(p.msg(ids[2], b"x"))
        await reader.quiet()
        assert await reader.ids() == ids


async def test_ps_12_msg_at_the_node_is_dropped(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        await peer.send(p.msg(1, b"x"), p.msg(2, b""), p.msgx(3, 1, b"y"))
        await peer.quiet()
        assert await peer.ids() == []


async def test_ps_12_a_truncated_packet_is_refused_with_its_correlation(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        for size in range(4):
            assert await peer.ask(b"\x06abc"[: size + 1]) == b"\xff\x06\xf0" + b"abc"[:size]


async def _dead(peer: Peer) -> list[tuple[int, bytes]]:
    letters = []
    for message_id in await peer.ids():
        answer = await peer.ask(p.get(message_id))
        letters.append((message_id, answer[9:]))
    return letters


async def test_ps_14_a_rejected_job_goes_to_the_dead_letters_with_a_new_id(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(b"jobs", PRODUCING | {p.MODE: p.QUEUE})
        worker = await server.hello(b"jobs", {p.ROLE: p.WORKER})
        message_id = await producer.put(1, b"job")
        await worker.expect(p.msg(message_id, b"job"))
        await worker.send(p.nack(2, 0x31, p.u64(message_id)))
        await worker.quiet()
        # It is listed in its channel until that of the dead letters has stored it.
        with anyio.fail_after(10):
            while listed := await worker.ids():
                assert listed == [message_id]
                await anyio.sleep(0.01)
        ((dead_id, data),) = await _dead(await server.hello(b"jobs!dead", flags=0))
        assert dead_id > message_id and data == b"job"


@virtual_time
async def test_ps_14_a_job_whose_attempts_are_used_up_is_a_dead_letter(serve: Serve) -> None:
    async with serve(attempts_max=3) as server:
        producer = await server.hello(b"jobs", PATIENT | PRODUCING | {p.MODE: p.QUEUE})
        message_id = await producer.put(1, b"job", ttl=86_400)
        tags = PATIENT | {p.ROLE: p.WORKER, p.EXTENSIONS: b"\x88"}
        worker = await server.hello(b"jobs", tags)
        for attempt in (1, 2, 3):
            await worker.expect(p.msgx(message_id, attempt, b"job"), within_s=200)
            await producer.send(p.PONG)
            await worker.send(p.nack(2, 0x30, p.u64(message_id) + p.u32(0)))
        await anyio.sleep(1)
        await worker.quiet()
        assert await worker.ids() == []
        assert [data for _, data in await _dead(await server.hello(b"jobs!dead", flags=0))] == [
            b"job"
        ]


async def test_ps_14_only_the_node_writes_to_names_with_its_mark(serve: Serve) -> None:
    async with serve() as server:
        for name in (b"jobs!dead", b"chat/1!keys"):
            peer = await server.hello(name)
            assert await peer.ask(p.put(1, b"x")) == p.nack(6, 0xF6, p.u32(1))
            assert await peer.ids() == []


async def test_ps_14_names_have_1_to_250_bytes(serve: Serve) -> None:
    async with serve() as server:
        await server.hello(b"n" * 250)
        for size in (251, 255):
            peer = await server.greet(b"n" * size)
            await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)


async def test_after_a_goodbye_behind_an_ack_nothing_is_pushed(serve: Serve) -> None:
    """A push to a closing client would use up an attempt of a job that no worker has seen."""
    async with serve() as server:
        producer = await server.hello(b"jobs", PATIENT | PRODUCING | {p.MODE: p.QUEUE})
        first = await producer.put(1, b"first")
        await producer.put(2, b"second")
        tags = {p.ROLE: p.WORKER, p.EXTENSIONS: b"\x88"}
        leaving = await server.hello(b"jobs", tags)
        await leaving.expect(p.msgx(first, 1, b"first"))
        await leaving.send(p.ack(first), p.GOODBYE)
        staying = await server.hello(b"jobs", tags)
        pushed = await staying.packet()
        assert pushed[0] == 0x88 and pushed[9:11] == b"\x00\x01" and pushed[11:] == b"second"
