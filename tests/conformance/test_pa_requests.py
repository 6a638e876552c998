"""PA-01 to PA-18, PA-22 (docs/reference/compatibility.md): what is settled about PUT, GET, LIST and
acks."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest
import trio
from trio.testing import MockClock

from millpond.actors.channels.settings import EmptyPolicy
from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, virtual_time

DAY_S = 86_400
PATIENT = {p.KEEP_ALIVE: p.u32(300_000)}
CONSUMING = {p.ROLE: p.CONSUMER}


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
async def test_pa_01_packets_lie_behind_a_big_endian_length_of_the_packet_alone(
    serve: Serve,
) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.pipe.send(bytes.fromhex("00000013 08 0000 0000000000000000 0000000000000000"))
        assert await peer.pipe.receive() == bytes.fromhex("00000001 09")


async def test_pa_02_a_hello_names_the_channel_and_the_version(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1")
        ready = await peer.packet()
        assert ready[:2] == b"\x83\x01"
        await peer.quiet()


async def test_pa_02_ready_has_the_granted_values(serve: Serve) -> None:
    async with serve() as server:
        plain = await server.greet(b"chat/1")
        assert p.read_ready(await plain.packet()) == (
            1,
            {
                p.WINDOW: p.u16(32),
                p.PACKET_MAX: p.u32(2**20),
                p.KEEP_ALIVE: p.u32(20_000),
                p.MODE: p.PAIR,
                p.DURABILITY: b"\x00",
            },
        )
        greedy = await server.greet(b"chat/1", {p.EXTENSIONS: bytes(range(256))[:255]}, flags=0xFF)
        flags, tags = p.read_ready(await greedy.packet())
        assert flags == 5, "duplex is not offered"
        assert set(tags[p.EXTENSIONS]) == {0x84, *range(0x86, 0x8A), *range(0x90, 0x98)}


async def _ten(peer: Peer) -> list[int]:
    return [await peer.put(key, b"x") for key in range(10)]


async def test_pa_03_list_is_inclusive_and_ascending_and_0_is_open(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        ids = await _ten(peer)
        assert await peer.ids(p.list_(0, ids[2], ids[5])) == ids[2:6]
        assert await peer.ids(p.list_(0, ids[4], ids[4])) == [ids[4]]
        assert await peer.ids(p.list_(0, ids[4] + 1, 0)) == ids[5:]
        assert await peer.ids(p.list_(0, 0, ids[4])) == ids[:5]
        assert await peer.ids(p.list_(0, ids[9] + 1, 0)) == []
        assert await peer.ids(p.list_(0, 0, 1)) == []
        assert await peer.ids(p.list_(0, 0, p.U64_MAX)) == ids


async def test_pa_03_cursors_are_exclusive_where_they_were_negotiated(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1", {p.LIST_MODE: b"\x01"})
        _, tags = p.read_ready(await peer.packet())
        assert tags[p.LIST_MODE] == b"\x01"
        ids = await _ten(peer)
        assert await peer.ids(p.list_(100, ids[2], ids[5])) == ids[3:5]
        assert await peer.ids(p.list_(100, ids[2], 0)) == ids[3:]
        assert await peer.ids(p.list_(0, 0, 0)) == []


async def test_pa_04_from_above_to_is_newest_first(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        ids = await _ten(peer)
        assert await peer.ids(p.list_(0, ids[5], ids[2])) == ids[2:6][::-1]
        assert await peer.ids(p.list_(0, p.U64_MAX, 0)) == ids[::-1]
        assert await peer.ids(p.list_(3, p.U64_MAX, 0)) == ids[:6:-1]
        assert await peer.ids(p.list_(0, p.U64_MAX, 1)) == ids[::-1]


async def test_pa_05_limit_0_is_the_servers_page(serve: Serve) -> None:
    async with serve(list_page=4) as server:
        peer = await server.hello()
        ids = await _ten(peer)
        assert await peer.ids(p.list_(0)) == ids[:4]
        assert await peer.ids(p.list_(3)) == ids[:3]
        assert await peer.ids(p.list_(65_535)) == ids


async def test_pa_06_ttl_0_is_the_default(serve: Serve) -> None:
    async with serve() as server:
        answer = await (await server.hello()).ask(p.put(1, b"x", ttl=0))
        assert answer[5:9] == p.u32(DAY_S)
    async with serve(ttl_default_s=77) as server:
        answer = await (await server.hello()).ask(p.put(1, b"x", ttl=0))
        assert answer[5:9] == p.u32(77)


async def test_pa_06_strict_nodes_refuse_it(serve: Serve) -> None:
    async with serve(ttl_strict=True) as server:
        peer = await server.hello()
        for ttl in (0, 7 * DAY_S + 1):
            assert await peer.ask(p.put(1, b"x", ttl=ttl)) == p.nack(6, 0x20, p.u32(1))
        assert await peer.put(1, b"x", ttl=7 * DAY_S)


async def test_pa_07_a_long_ttl_is_clamped(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        for key, ttl in ((1, 7 * DAY_S + 1), (2, 2**32 - 1)):
            answer = await peer.ask(p.put(key, b"x", ttl=ttl))
            assert answer[5:9] == p.u32(7 * DAY_S)


async def test_pa_08_keys_belong_to_their_channel(serve: Serve) -> None:
    async with serve() as server:
        one, two = await server.hello(b"one"), await server.hello(b"two")
        assert await one.put(1, b"for one") != await two.put(1, b"for two")


async def let_pass(seconds: float) -> None:
    """Jump over most of the virtual time: a day of the node's timers takes 10 s of CPU time."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(seconds - 30)
    await anyio.sleep(30)


@virtual_time
@pytest.mark.parametrize(("ttl", "kept_s"), [(1, 600), (60, 600), (900, 900), (7 * DAY_S, DAY_S)])
async def test_pa_08_a_key_is_kept_for_its_ttl_within_10_minutes_and_a_day(
    serve: Serve, ttl: int, kept_s: int
) -> None:
    async with serve() as server:
        peer = await server.hello()
        first = await peer.ask(p.put(1, b"x", ttl=ttl))
        await peer.send(p.ack(int.from_bytes(first[9:], "big")), p.GOODBYE)
        await let_pass(kept_s - 2)
        assert await (await server.hello()).ask(p.put(1, b"x", ttl=ttl)) == first
        await anyio.sleep(4)
        again = await (await server.hello()).ask(p.put(1, b"x", ttl=ttl))
        assert again[0] == 7 and again[9:] > first[9:]


@virtual_time
async def test_pa_09_a_retry_gets_the_same_bytes_though_the_message_is_gone(serve: Serve) -> None:
    async with serve() as server:
        peer, reader = (
            await server.hello(tags=PATIENT),
            await server.hello(tags=PATIENT | CONSUMING),
        )
        acked, expiring = await peer.ask(p.put(1, b"a")), await peer.ask(p.put(2, b"b", ttl=5))
        pushed = await reader.packets(2)
        await reader.send(p.ack(int.from_bytes(acked[9:], "big")))
        await anyio.sleep(6)
        assert await peer.ids() == []
        assert await peer.ask(p.put(1, b"a")) == acked
        assert await peer.ask(p.put(2, b"b", ttl=5)) == expiring
        assert [each[0] for each in pushed] == [2, 2]
        await reader.quiet()
        assert await peer.ids() == []


async def test_pa_10_a_key_with_other_data_is_refused_and_stores_nothing(serve: Serve) -> None:
    async with serve() as server:
        peer, reader = await server.hello(), await server.hello(tags=CONSUMING)
        first = await peer.ask(p.put(0x0A0B0C0D, b"hi"))
        message_id = int.from_bytes(first[9:], "big")
        assert (await peer.ask(p.put(0x0A0B0C0D, b"ho"))).hex() == "ff06220a0b0c0d"
        assert await peer.ask(p.put(0x0A0B0C0D, b"hi", ttl=9)) == first
        await reader.expect(p.msg(message_id, b"hi"))
        await reader.send(p.ack(message_id))
        await reader.quiet()
        assert await peer.ask(p.put(0x0A0B0C0D, b"ho")) == p.nack(6, 0x22, p.u32(0x0A0B0C0D))
        assert await peer.ids() == []


async def test_pa_11_key_0_is_an_ordinary_key(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        first = await peer.ask(p.put(0, b"x"))
        assert await peer.ask(p.put(0, b"x")) == first
        assert await peer.ask(p.put(0, b"y")) == p.nack(6, 0x22, p.u32(0))


async def test_pa_12_each_refusal_has_its_code(serve: Serve) -> None:
    async with serve(packet_bytes_max=4096, channel_messages_max=2) as server:
        producer = await server.hello(tags={p.ROLE: p.PRODUCER})
        consumer = await server.hello(tags=CONSUMING | {p.EXTENSIONS: b"\x86\x87"})
        narrow = await server.hello(tags={p.PACKET_MAX: p.u32(1024)}, flags=0)
        message_id = await producer.put(1, bytes(2000))
        assert await producer.ask(p.get(message_id)) == p.nack(4, 0x25, p.u64(message_id))
        assert await producer.ask(p.list_()) == p.nack(8, 0x25)
        assert await producer.ask(p.put(2, bytes(4050))) == p.nack(6, 0x24, p.u32(2))
        assert await consumer.packet() == p.msg(message_id, bytes(2000))
        assert await consumer.ask(p.put(3, b"x")) == p.nack(6, 0x25, p.u32(3))
        assert await consumer.ask(p.touch(5, 10)) == p.nack(0x86, 0x28, p.u64(5))
        assert await narrow.ask(p.get(message_id)) == p.nack(4, 0x27, p.u64(message_id))
        await producer.put(4, b"x")
        assert (await producer.ask(p.put(5, b"x")))[:7] == p.nack(6, 0x26, p.u32(5))


@virtual_time
async def test_pa_13_pushes_are_repeated_after_30_s_then_ever_later(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello(tags=PATIENT | {p.ROLE: p.PRODUCER})
        consumer = await server.hello(tags=PATIENT | CONSUMING)
        message_id = await producer.put(1, b"x", ttl=DAY_S)
        times = []
        for _ in range(4):
            assert await consumer.packet(within_s=400) == p.msg(message_id, b"x")
            times.append(anyio.current_time())
            await producer.send(p.PONG)
            await consumer.send(p.PONG)
        gaps = [late - early for early, late in pairwise(times)]
        for gap, timeout_s in zip(gaps, (30, 45, 67.5), strict=True):
            assert 0.8 * 1.1 * timeout_s <= gap <= 1.2 * 1.1 * timeout_s


@virtual_time
async def test_pa_14_gone_is_like_never_there(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello(tags=PATIENT)
        acked, expired = await peer.put(1, b"a"), await peer.put(2, b"b", ttl=1)
        await peer.send(p.ack(acked))
        await anyio.sleep(1.1)
        for message_id in (acked, expired, 42):
            assert await peer.ask(p.get(message_id)) == p.not_found(message_id)


async def test_pa_15_a_message_in_flight_elsewhere_can_be_had(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello()
        leasing = await server.hello(tags=CONSUMING | {p.WINDOW: p.u16(1)})
        first, second = await producer.put(1, b"a"), await producer.put(2, b"b")
        await leasing.expect(p.msg(first, b"a"))
        await leasing.quiet()
        reader = await server.hello(flags=0)
        assert await reader.ask(p.get(first)) == p.get_ack(first, b"a")
        await reader.send(p.ack(first))
        await leasing.expect(p.msg(second, b"b"))
        assert await reader.ids() == [second]


async def test_pa_16_strange_acks_are_ignored(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        message_id = await peer.put(1, b"x")
        await peer.send(*(p.ack(each) for each in (0, 42, p.U64_MAX, message_id, message_id)))
        await peer.quiet()
        assert await peer.ids() == []


async def test_pa_17_a_listed_message_may_be_acked(serve: Serve) -> None:
    async with serve() as server:
        producer = await server.hello()
        message_id = await producer.put(1, b"x")
        reader = await server.hello(tags=CONSUMING, flags=0)
        assert await reader.ids() == [message_id]
        await reader.send(p.ack(message_id))
        assert await reader.ids() == []


async def test_pa_18_the_sender_lists_and_gets_its_own_but_is_not_pushed_it(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        message_id = await peer.put(1, b"mine")
        assert await peer.ids() == [message_id]
        assert await peer.ask(p.get(message_id)) == p.get_ack(message_id, b"mine")
        await peer.quiet()
        again = await server.hello()
        await again.expect(p.msg(message_id, b"mine"))


@pytest.mark.parametrize("policy", list(EmptyPolicy))
async def test_pa_22_empty_data_is_ignored_refused_or_stored(
    serve: Serve, policy: EmptyPolicy
) -> None:
    async with serve(empty_put=policy) as server:
        peer, reader = await server.hello(), await server.hello(tags=CONSUMING)
        match policy:
            case EmptyPolicy.IGNORE:
                await peer.send(p.put(1, b""))
                await peer.quiet()
                assert await peer.ids() == []
            case EmptyPolicy.REFUSE:
                assert await peer.ask(p.put(1, b"")) == p.nack(6, 0x23, p.u32(1))
            case EmptyPolicy.STORE:
                message_id = await peer.put(1, b"")
                await reader.expect(p.msg(message_id, b""))
                assert await peer.ask(p.get(message_id)) == p.get_ack(message_id, b"")
        await reader.quiet()
