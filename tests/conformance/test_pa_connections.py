"""PA-19 to PA-39 (docs/reference/compatibility.md): pushes, malformed input, liveness, ids, limits
and endings."""

from __future__ import annotations

from itertools import chain

import anyio
import pytest

from millpond.actors.ids import created_ms
from tests.conformance import packets as p
from tests.conformance.served import START_S, Serve, virtual_time

PATIENT = {p.KEEP_ALIVE: p.u32(300_000)}
CONSUMING = {p.ROLE: p.CONSUMER}
PRODUCING = {p.ROLE: p.PRODUCER}
ONE = {p.WINDOW: p.u16(1)}


@virtual_time
async def test_pa_19_a_silent_bare_client_is_pushed_to_after_250_ms(serve: Serve) -> None:
    async with serve() as server:
        message_id = await (await server.bare()).put(1, b"x")
        silent = await server.bare(push_starts=False)
        await silent.silent_for(0.24)
        await silent.expect(p.msg(message_id, b"x"), within_s=0.02)


async def test_pa_19_pushes_start_with_the_first_packet_or_the_handshake(serve: Serve) -> None:
    async with serve() as server:
        message_id = await (await server.bare()).put(1, b"x")
        for said in (p.PING, p.list_(), p.ack(42)):
            peer = await server.bare(push_starts=False)
            await peer.send(said)
            got = await peer.packets(2 if said != p.ack(42) else 1)
            assert p.msg(message_id, b"x") in got
        greeted = await server.hello(b"lobby")
        await greeted.expect(p.msg(message_id, b"x"))


HELLO = p.framed(p.hello(b"lobby"))
HELLO_CUTS = (1, 3, 4, 5, 6, 12, len(HELLO) - 1)


@pytest.mark.parametrize("default_channel", ["lobby", ""])
@pytest.mark.parametrize("cut", HELLO_CUTS)
@virtual_time
async def test_pa_19_a_hello_that_has_begun_has_5_s(
    serve: Serve, cut: int, default_channel: str
) -> None:
    """With a default channel as without one: who has sent a byte is not silent."""
    async with serve(default_channel=default_channel) as server:
        producer = await server.hello(b"lobby", tags=PRODUCING)
        message_id = await producer.put(1, b"x")
        half, slow = [await server.dial(b"lobby", bare=True) for _ in range(2)]
        await half.pipe.send(HELLO[:cut])
        await slow.pipe.send(HELLO[:cut])
        await slow.silent_for(4.9)
        await slow.pipe.send(HELLO[cut:])
        p.read_ready(await slow.packet())
        await slow.expect(p.msg(message_id, b"x"))
        await half.silent_for(0.09)
        await half.ends_with(p.ABORT, within_s=0.02)


@virtual_time
async def test_pa_19_a_hello_that_begins_late_has_5_s_as_well(serve: Serve) -> None:
    async with serve() as server:
        message_id = await (await server.bare()).put(1, b"x")
        for cut in (5, len(HELLO) - 1):
            half, slow = [await server.bare(push_starts=False) for _ in range(2)]
            for peer in (half, slow):
                await peer.expect(p.msg(message_id, b"x"), within_s=0.3)
                await peer.pipe.send(HELLO[:cut])
            await slow.silent_for(4.9)
            await slow.pipe.send(HELLO[cut:])
            p.read_ready(await slow.packet())
            await half.silent_for(0.05)
            await half.ends_with(p.ABORT, within_s=0.1)


@virtual_time
async def test_pa_19_a_bare_client_may_take_its_time_for_its_first_packet(serve: Serve) -> None:
    """It is pushed to as soon as that packet tells what it is, and not closed after 5 s."""
    async with serve() as server:
        message_id = await (await server.bare()).put(1, b"x")
        slow = await server.bare(push_starts=False)
        packet = p.framed(p.put(2, b"y" * 100))
        await slow.pipe.send(packet[:20])
        await slow.silent_for(4.9)
        await slow.expect(p.msg(message_id, b"x"), within_s=0.2)
        await anyio.sleep(2)
        await slow.pipe.send(packet[20:])
        assert (await slow.packet())[:5] == b"\x07" + p.u32(2)


async def test_pa_20_pair_hands_to_all_and_the_first_ack_ends_it(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING)
        one, two = await server.hello(tags=CONSUMING), await server.hello(tags=CONSUMING)
        message_id = await producer.put(1, b"x")
        await one.expect(p.msg(message_id, b"x"))
        await two.expect(p.msg(message_id, b"x"))
        await one.send(p.ack(message_id))
        assert await one.ids() == [] and await two.ids() == []


async def test_pa_20_fanout_keeps_until_all_have_acked(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING | {p.MODE: p.FANOUT})
        one, two = await server.hello(tags=CONSUMING), await server.hello(tags=CONSUMING)
        message_id = await producer.put(1, b"x")
        for reader in (one, two):
            await reader.expect(p.msg(message_id, b"x"))
        for reader in (one, two):
            assert await two.ids() == [message_id]
            await reader.send(p.ack(message_id))
            assert await reader.ids() == []
        late = await server.hello(flags=0)
        assert await late.ids() == []


async def test_pa_20_queue_hands_each_to_one(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING | {p.MODE: p.QUEUE})
        workers = [await server.hello(tags=CONSUMING | {p.WINDOW: p.u16(8)}) for _ in range(3)]
        ids = [await producer.put(key, b"job") for key in range(9)]
        got = [await worker.packets(3) for worker in workers]
        for worker in workers:
            await worker.quiet()
        pushed = sorted(int.from_bytes(each[1:9], "big") for each in chain(*got))
        assert pushed == ids


@virtual_time
async def test_pa_21_a_message_in_flight_expires_at_its_deadline(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PATIENT | PRODUCING)
        reader = await server.hello(tags=PATIENT | CONSUMING | ONE)
        first = await producer.put(1, b"a", ttl=10)
        second = await producer.put(2, b"b", ttl=1000)
        await reader.expect(p.msg(first, b"a"))
        await anyio.sleep(9.9)
        await reader.quiet()
        await reader.expect(p.msg(second, b"b"), within_s=0.5)
        assert await reader.ask(p.get(first)) == p.not_found(first)
        await reader.send(p.ack(first))
        await reader.quiet()
        assert await reader.ids() == [second]


_MALFORMED = [
    (b"\x00\x00", b"\xff\x00\xf0"),
    (b"\x02short", b"\xff\x02\xf0short"),
    (b"\x04", b"\xff\x04\xf0"),
    (b"\x04" + bytes(9), b"\xff\x04\xf0" + bytes(8)),
    (b"\x06\x01\x02\x03\x04\x00\x00\x00", b"\xff\x06\xf0\x01\x02\x03\x04"),
    (b"\x08" + bytes(19), b"\xff\x08\xf0"),
]


@pytest.mark.parametrize(("packet", "answer"), _MALFORMED)
async def test_pa_23_a_malformed_packet_is_refused_ten_within_a_minute_close(
    serve: Serve, packet: bytes, answer: bytes
) -> None:
    async with serve() as server:
        bystander, peer = await server.hello(), await server.hello()
        for _ in range(9):
            await peer.send(packet)
            await peer.expect(answer)
        await peer.quiet()
        await peer.send(packet, p.put(1, b"too late"))
        await peer.ends_with(answer, p.ABORT)
        assert await bystander.ids() == []


@virtual_time
async def test_pa_23_nine_a_minute_are_borne(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello(tags=PATIENT)
        for _ in range(5):
            await peer.send(*[b"\x04"] * 9)
            await peer.expect(*[b"\xff\x04\xf0"] * 9)
            await anyio.sleep(60.1)
        await peer.quiet()


@pytest.mark.parametrize(
    "packet", [b"\x01\x00", b"\x03", b"\x03" + bytes(7), b"\x05", b"\x07ab", b"\x09a", b"\xff\x06"]
)
async def test_pa_23_malformed_acks_and_nacks_are_dropped(serve: Serve, packet: bytes) -> None:
    async with serve() as server:
        peer = await server.hello()
        await peer.send(*[packet] * 30)
        await peer.quiet()


async def test_pa_24_an_empty_packet_ends_the_connection(serve: Serve) -> None:
    async with serve() as server:
        for peer in (await server.dial(bare=True), await server.bare(), await server.hello()):
            await peer.send(p.PING, b"", p.PING)
            await peer.ends_with(p.PONG, p.ABORT)
            if server.is_websocket:
                assert peer.close_code == 1002


async def test_pa_25_nack_ff_with_other_codes_is_no_end(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        await peer.send(*(p.nack(0xFF, code) for code in range(1, 255)))
        await peer.quiet()


async def test_pa_26_acks_without_a_request_are_dropped(serve: Serve) -> None:
    async with serve() as server:
        for peer in (await server.bare(), await server.hello()):
            message_id = await peer.put(1, b"x")
            await peer.send(
                p.PONG,
                b"\x01" + bytes(24),
                p.get_ack(message_id, b"x"),
                p.put_ack(1, message_id),
                p.list_ack(message_id),
            )
            await peer.quiet()
            await peer.send(p.ack(message_id))


async def test_pa_27_answers_to_one_type_come_in_order(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        ids = [await peer.put(key, b"x") for key in range(20)]
        await peer.send(*(p.list_(count) for count in range(1, 21)))
        await peer.expect(*(p.list_ack(*ids[:count]) for count in range(1, 21)))
        await peer.send(*(b"\x00" + p.u64(stamp) for stamp in range(20)))
        assert [each[1:9] for each in await peer.packets(20)] == [p.u64(each) for each in range(20)]


@virtual_time
@pytest.mark.parametrize("keep_alive_s", [None, 1, 20, 300])
async def test_pa_28_silence_gets_two_pings_and_a_goodbye(
    serve: Serve, keep_alive_s: int | None
) -> None:
    async with serve() as server:
        if keep_alive_s is None:
            peer = await server.bare()
        else:
            peer = await server.hello(tags={p.KEEP_ALIVE: p.u32(1000 * keep_alive_s)})
        for packet, share in ((p.PING, 1.0), (p.PING, 1.5), (p.GOODBYE, 2.0)):
            await peer.expect(packet, within_s=400)
            silence_s = (keep_alive_s or 20) * share
            assert anyio.current_time() == pytest.approx(silence_s, abs=0.01)
        await peer.ends_with()


@virtual_time
@pytest.mark.parametrize("sign", [p.PONG, p.PING, p.ack(1), b"\x55", b"\xfe"])
async def test_pa_28_any_packet_is_a_sign_of_life(serve: Serve, sign: bytes) -> None:
    async with serve() as server:
        server.network.latency_s = 0.001
        peer = await server.hello()
        for _ in range(30):
            await anyio.sleep(19)
            await peer.send(sign)
        if sign == p.PING:
            await peer.expect(*[p.PONG] * 30)
        await peer.quiet()


@virtual_time
async def test_pa_28_an_answered_ping_keeps_the_connection(serve: Serve) -> None:
    async with serve() as server:
        server.network.latency_s = 0.001
        peer = await server.hello()
        for _ in range(20):
            await peer.expect(p.PING, within_s=21)
            await peer.send(p.PONG)
        assert anyio.current_time() > 390


@virtual_time
async def test_pa_28_a_ping_answered_in_the_same_moment_keeps_the_connection(serve: Serve) -> None:
    """uvloop's clock counts milliseconds, and loopback is quicker than that."""
    async with serve() as server:
        peer = await server.hello()
        for _ in range(4):
            await peer.expect(p.PING, within_s=21)
            await peer.send(p.PONG)


@pytest.mark.parametrize("size", [1, 7, 9, 16, 24, 300])
async def test_pa_29_a_ping_of_another_length_is_malformed(serve: Serve, size: int) -> None:
    async with serve() as server:
        peer = await server.bare()
        assert await peer.ask(bytes(1 + size)) == b"\xff\x00\xf0"
        await peer.quiet()


@virtual_time
async def test_pa_30_ids_have_the_time_of_the_node(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        for stamp in (0, p.U64_MAX):
            answer = await peer.ask(b"\x00" + p.u64(stamp))
            assert answer == b"\x01" + p.u64(stamp) + 2 * p.u64(int(START_S * 1000))
        assert created_ms(await peer.put(1, b"x")) == int(START_S * 1000)


@virtual_time
async def test_pa_31_ids_are_41_bits_of_time_10_of_node_12_of_sequence(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello(tags=PATIENT)
        ids = []
        for start in range(0, 5000, 500):
            await peer.send(*(p.put(key, b"x") for key in range(start, start + 500)))
            got = await peer.packets(500)
            ids += [int.from_bytes(each[9:], "big") for each in got]
        first_ms = int(START_S * 1000) - 1_288_834_974_657
        wanted = [(first_ms + at // 4096) << 22 | 5 << 12 | at % 4096 for at in range(5000)]
        assert ids == wanted and ids[-1] < 2**63
        await anyio.sleep(1)
        later = await peer.put(5000, b"x")
        assert later == (first_ms + 1000) << 22 | 5 << 12


async def test_pa_34_a_message_above_the_limit_is_refused(serve: Serve) -> None:
    async with serve(packet_bytes_max=4096) as server:
        peer, reader = await server.hello(), await server.hello(tags=CONSUMING)
        for size in (4033, 4087):
            assert await peer.ask(p.put(1, bytes(size))) == p.nack(6, 0x24, p.u32(1))
        message_id = await peer.put(1, bytes(4032))
        await reader.expect(p.msg(message_id, bytes(4032)))
        assert await peer.ask(p.get(message_id)) == p.get_ack(message_id, bytes(4032))


async def test_pa_34_a_packet_above_the_limit_ends_the_connection(serve: Serve) -> None:
    async with serve(packet_bytes_max=4096) as server:
        for peer in (await server.dial(bare=True), await server.bare(), await server.hello()):
            await peer.send(bytes(4097))
            await peer.ends_with(p.ABORT)
            if server.is_websocket:
                assert peer.close_code == 1009


@pytest.mark.parametrize(
    "limit",
    [
        {"channel_messages_max": 3},
        {"channel_bytes_max": 3000},
        {"node_messages_max": 3},
        {"node_bytes_max": 3000},
    ],
)
async def test_pa_35_a_full_buffer_refuses_and_loses_nothing(
    serve: Serve, limit: dict[str, int]
) -> None:
    async with serve(**limit) as server:
        peer = await server.hello()
        ids = [await peer.put(key, bytes(1000)) for key in range(3)]
        for _ in range(2):
            assert (await peer.ask(p.put(9, b"x" * 1000)))[:7] == p.nack(6, 0x26, p.u32(9))
        assert await peer.ids() == ids
        await peer.send(p.ack(ids[0]))
        assert await peer.ids() == [*ids[1:], await peer.put(9, b"x" * 1000)][:2]


@virtual_time
async def test_pa_36_a_draining_node_sends_goodbye_and_takes_acks_for_5_s(serve: Serve) -> None:
    async with serve() as server:
        producer, reader = await server.hello(tags=PATIENT), await server.hello(tags=PATIENT)
        silent, waiting = await server.bare(), await server.dial()
        ids = [await producer.put(key, b"x") for key in range(2)]
        await reader.expect(*(p.msg(each, b"x") for each in ids))
        async with anyio.create_task_group() as tasks:
            start = anyio.current_time()
            tasks.start_soon(server.node.drain)
            for peer in (producer, reader, silent, waiting):
                await peer.expect(p.GOODBYE)
            await reader.send(p.ack(ids[0]))
            kept = await producer.put(7, b"not pushed any more")
            await anyio.sleep(4)
            assert await producer.ids() == [ids[1], kept]
            await reader.ends_with(within_s=2)
            assert anyio.current_time() - start == pytest.approx(5, abs=0.5)


@virtual_time
async def test_pa_36_a_stopping_node_is_gone_once_all_have_left(serve: Serve) -> None:
    async with serve() as server:
        peers = [await server.hello() for _ in range(20)]
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.node.drain)
            for peer in peers:
                await peer.expect(p.GOODBYE)
                await peer.send(p.GOODBYE)
        assert anyio.current_time() - start < 1
        with pytest.raises(OSError):
            await server.dial()


@virtual_time
@pytest.mark.parametrize(
    ("nack", "after_s"),
    [
        (p.nack(2, 0x30, b"%s" + p.u32(5000)), 5),
        (p.nack(2, 0x30, b"%s" + p.u32(0)), 0),
        (p.nack(2, 0x30, b"%s"), 4),
        (p.nack(2, 0x32, b"%s"), 4),
        (p.nack(2, 0x77, b"%s"), 4),
    ],
)
async def test_pa_37_a_message_that_is_given_back_comes_again(
    serve: Serve, nack: bytes, after_s: float
) -> None:
    async with serve() as server:
        producer, reader = await server.hello(tags=PRODUCING), await server.hello(tags=CONSUMING)
        message_id = await producer.put(1, b"x")
        await reader.expect(p.msg(message_id, b"x"))
        start = anyio.current_time()
        await reader.send(nack.replace(b"%s", p.u64(message_id)))
        await reader.expect(p.msg(message_id, b"x"), within_s=6)
        assert after_s * 0.6 <= anyio.current_time() - start <= after_s * 1.3
        assert await reader.ids() == [message_id]


async def test_pa_37_a_rejected_message_is_gone(serve: Serve) -> None:
    async with serve() as server:
        producer, reader = await server.hello(tags=PRODUCING), await server.hello(tags=CONSUMING)
        message_id = await producer.put(1, b"x")
        await reader.expect(p.msg(message_id, b"x"))
        await reader.send(p.nack(2, 0x31, p.u64(42)), p.nack(6, 0x31, p.u32(1)))
        assert await reader.ids() == [message_id]
        await reader.send(p.nack(2, 0x31, p.u64(message_id)))
        assert await reader.ids() == []


@pytest.mark.parametrize("mode", [p.PAIR, p.QUEUE])
async def test_pa_38_leases_of_a_lost_connection_end_at_once(serve: Serve, mode: bytes) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PRODUCING | {p.MODE: mode})
        lost = await server.hello(tags=CONSUMING)
        message_id = await producer.put(1, b"x")
        await lost.expect(p.msg(message_id, b"x"))
        await lost.aclose()
        heir = await server.hello(tags=CONSUMING)
        await heir.expect(p.msg(message_id, b"x"))
