"""One test for each requirement P2P-01 to P2P-29 (docs/reference/compatibility.md) that shows on
the wire."""

from __future__ import annotations

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import START_S, Serve, virtual_time

START_MS = int(START_S * 1000)
WORKED_ID = 0x1BA3CA3A0FC05007


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
async def test_p2p_01_a_packet_is_a_type_and_a_body_behind_a_length(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.pipe.send(bytes.fromhex("00000001 00"))
        assert await peer.pipe.receive() == bytes.fromhex("00000001 01")
        await peer.pipe.send(bytes.fromhex("0000000b 06 00000001 0000003c 6869"))
        answer = await peer.pipe.receive()
        assert answer[:13] == bytes.fromhex("00000011 07 00000001 0000003c")
        assert len(answer) == 21


@virtual_time
async def test_p2p_01_the_worked_bytes_of_3i(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.dial()
        other = await server.hello(b"chat/1")

        async def dialogue(said: str, *answers: str) -> None:
            await peer.pipe.send(bytes.fromhex(said))
            await peer.expect(*(bytes.fromhex(answer)[4:] for answer in answers))

        await peer.pipe.send(
            bytes.fromhex("0000001a 80 50325042 01 01 03  01 0006 636861742f31  04 0001 03")
            + bytes.fromhex("07 0002 0020")
        )
        flags, tags = p.read_ready(await peer.packet())
        assert flags == 1 and tags[p.PACKET_MAX].hex() == "00100000"
        assert tags[p.KEEP_ALIVE].hex() == "00004e20" and tags[p.WINDOW].hex() == "0020"
        await dialogue("00000013 08 0000 0000000000000000 0000000000000000", "00000001 09")
        for key in range(7):
            await peer.send(p.ack(await peer.put(key, b"earlier")))
        await dialogue(
            "0000000b 06 0a0b0c0d 0000003c 6869",
            "00000011 07 0a0b0c0d 0000003c 1ba3ca3a0fc05007",
        )
        pushed = await other.packets(8)
        assert pushed[-1] == bytes.fromhex("02 1ba3ca3a0fc05007 6869")
        await dialogue("00000009 04 1ba3ca3a0fc05007", "0000000b 05 1ba3ca3a0fc05007 6869")
        await dialogue(
            "00000013 08 0000 0000000000000000 0000000000000000",
            "00000009 09 1ba3ca3a0fc05007",
        )
        await dialogue("0000000b 06 0a0b0c0d 0000003c 686a", "00000007 ff 06 22 0a0b0c0d")
        await dialogue("00000009 03 1ba3ca3a0fc05007")
        await dialogue("00000009 04 1ba3ca3a0fc05007", "0000000b ff 04 02 1ba3ca3a0fc05007")
        await dialogue("00000001 00", "00000001 01")
        await dialogue("00000009 00 0000019aa3b5ec00", "00000019 01" + 3 * "0000019aa3b5ec00")
        await peer.pipe.send(bytes.fromhex("00000003 ff ff 00"))
        await peer.ends_with()


async def test_p2p_02_types_between_standard_and_nack_mean_nothing_by_themselves(
    serve: Serve,
) -> None:
    async with serve() as server:
        for peer in (await server.bare(), await server.hello()):
            await peer.send(*(bytes((kind,)) + bytes(8) for kind in range(0x83, 0xFF)))
            await peer.quiet()
            assert (await peer.ask(p.get(1)))[0] == 0xFF


async def test_p2p_03_the_ack_of_a_request_is_the_next_odd_type(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        message_id = await peer.put(1, b"x")
        for request in (p.PING, p.get(message_id), p.put(2, b"y"), p.list_()):
            assert request[0] % 2 == 0
            assert (await peer.ask(request))[0] == request[0] + 1


async def test_p2p_04_a_simple_ping_gets_a_simple_pong(serve: Serve) -> None:
    async with serve() as server:
        for peer in (await server.bare(), await server.hello()):
            await peer.send(b"\x00")
            await peer.expect(b"\x01")


async def test_p2p_05_a_pong_mirrors_the_timestamp_of_a_ping(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        for stamp in (0, 1, START_MS, p.U64_MAX):
            answer = await peer.ask(b"\x00" + p.u64(stamp))
            assert answer == b"\x01" or (len(answer) == 25 and answer[:9] == b"\x01" + p.u64(stamp))


@virtual_time
async def test_p2p_05_the_node_pings_too(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.expect(p.PING, within_s=21)


async def test_p2p_06_put_is_acked_with_key_honoured_ttl_and_id(serve: Serve) -> None:
    async with serve() as server:
        for peer in (await server.bare(), await server.hello()):
            answer = await peer.ask(bytes.fromhex("06 00000001 0000003c 6869"))
            assert answer[:9] == bytes.fromhex("07 00000001 0000003c") and len(answer) == 17
            assert await peer.ids() == [int.from_bytes(answer[9:], "big")]


async def test_p2p_07_a_retried_put_is_stored_once_and_answered_alike(serve: Serve) -> None:
    async with serve() as server:
        peer, reader = await server.bare(), await server.bare()
        first = await peer.ask(p.put(7, b"once"))
        for _ in range(3):
            assert await peer.ask(p.put(7, b"once")) == first
        message_id = int.from_bytes(first[9:], "big")
        assert await peer.ids() == [message_id]
        await reader.expect(p.msg(message_id, b"once"))
        await reader.quiet()


async def test_p2p_08_ids_are_ascending_snowflakes(serve: Serve) -> None:
    async with serve() as server:
        one, two = await server.hello(b"a"), await server.hello(b"b")
        ids = [await peer.put(key, b"x") for key in range(20) for peer in (one, two)]
        assert ids == sorted(set(ids)) and 0 < ids[0] and ids[-1] < 2**63


async def test_p2p_09_a_message_is_pushed_to_the_other_connections(serve: Serve) -> None:
    async with serve() as server:
        producer, consumer = await server.bare(), await server.bare()
        message_id = await producer.put(1, b"\x00any\xffbytes")
        await consumer.expect(p.msg(message_id, b"\x00any\xffbytes"))
        await producer.quiet()


async def test_p2p_10_an_ack_deletes_the_message(serve: Serve) -> None:
    async with serve() as server:
        producer, consumer = await server.bare(), await server.bare()
        kept, acked = await producer.put(1, b"kept"), await producer.put(2, b"acked")
        await consumer.expect(p.msg(kept, b"kept"), p.msg(acked, b"acked"))
        await consumer.send(p.ack(acked))
        await consumer.quiet()
        assert await producer.ids() == [kept]
        assert await producer.ask(p.get(acked)) == p.not_found(acked)


async def test_p2p_11_get_gives_the_data_and_deletes_nothing(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        message_id = await peer.put(1, b"data")
        for _ in range(3):
            assert await peer.ask(p.get(message_id)) == p.get_ack(message_id, b"data")
        await peer.send(p.ack(message_id))
        assert await peer.ask(p.get(message_id)) == p.not_found(message_id)


async def test_p2p_12_get_of_nothing_is_refused_and_the_connection_stays(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        assert (await peer.ask(p.get(42))).hex() == "ff0402000000000000002a"
        for message_id in (0, 1, 2**63, p.U64_MAX):
            assert await peer.ask(p.get(message_id)) == p.not_found(message_id)
        await peer.quiet()


async def test_p2p_13_list_gives_ids_or_a_bare_type(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        everything = bytes.fromhex("08 0000 0000000000000000 ffffffffffffffff")
        assert await peer.ask(everything) == b"\x09"
        ids = [await peer.put(key, b"x") for key in range(3)]
        assert await peer.ask(everything) == p.list_ack(*ids)


@virtual_time
async def test_p2p_14_a_message_lives_until_its_ttl_and_no_longer(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello(tags={p.KEEP_ALIVE: p.u32(300_000)})
        message_id = await peer.put(1, b"x", ttl=60)
        await anyio.sleep(59.9)
        assert await peer.ids() == [message_id]
        await anyio.sleep(0.2)
        assert await peer.ids() == []
        assert await peer.ask(p.get(message_id)) == p.not_found(message_id)
        late = await server.hello()
        await late.quiet()


@virtual_time
async def test_p2p_15_an_unacked_message_is_pushed_again(serve: Serve) -> None:
    async with serve() as server:
        server.network.latency_s = 0.001
        producer, consumer = await server.bare(), await server.bare()
        message_id = await producer.put(1, b"again", ttl=3600)
        for _ in range(4):
            await _hear(consumer, p.msg(message_id, b"again"), within_s=200)
        await consumer.send(p.ack(message_id))
        await consumer.quiet()
        assert await consumer.ids() == []


async def _hear(peer: Peer, wanted: bytes, within_s: float) -> None:
    """Answer PINGs until `wanted` comes."""
    with anyio.fail_after(within_s):
        while (packet := await peer.packet(within_s)) != wanted:
            assert packet == p.PING, packet.hex()
            await peer.send(p.PONG)


async def test_p2p_16_failures_are_nacks_with_a_correlation(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.put(5, b"one")
        assert await peer.ask(p.put(5, b"two")) == p.nack(6, 0x22, p.u32(5))
        assert await peer.ask(p.get(9)) == p.nack(4, 0x02, p.u64(9))
        await peer.quiet()


@pytest.mark.parametrize("last_words", [p.GOODBYE, p.ABORT, p.GOODBYE + b"why", p.ABORT + b"?"])
async def test_p2p_17_goodbye_and_abort_close_the_connection(
    serve: Serve, last_words: bytes
) -> None:
    async with serve() as server:
        for peer in (await server.dial(), await server.bare(), await server.hello()):
            await peer.send(last_words)
            await peer.ends_with()


async def test_p2p_17_packets_before_a_goodbye_count(serve: Serve) -> None:
    async with serve() as server:
        reader = await server.hello(tags={p.ROLE: p.CONSUMER})
        leaving = await server.hello()
        first = await leaving.put(1, b"first")
        await reader.expect(p.msg(first, b"first"))
        await leaving.send(p.ack(first), p.put(2, b"second"), p.GOODBYE)
        assert [each[:5] for each in await leaving.rest()] in ([], [b"\x07" + p.u32(2)])
        second = int.from_bytes((await reader.packet())[1:9], "big")
        assert await reader.ids() == [second]


async def test_p2p_18_no_other_nack_or_packet_closes(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.hello()
        codes = (0x01, 0x02, 0x30, 0xF0, 0xFE)
        await peer.send(*(p.nack(0xFF, code) for code in codes))
        await peer.send(*(p.nack(kind, code) for kind in range(255) for code in (0, *codes, 0xFF)))
        await peer.quiet()


async def test_p2p_19_unknown_types_are_dropped_in_silence(serve: Serve) -> None:
    async with serve() as server:
        for peer in (await server.bare(), await server.hello()):
            for size in (0, 1, 7, 300):
                await peer.send(*(bytes((kind,)) + bytes(size) for kind in range(10, 0x80)))
                await peer.send(*(bytes((kind,)) + bytes(size) for kind in range(0x84, 0xFF)))
            await peer.quiet()


async def test_p2p_20_a_put_without_data_is_ignored(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.send(p.put(1, b""))
        await peer.quiet()
        assert await peer.ids() == []
        await peer.put(1, b"the key is still free")


_OF_ANOTHER_LENGTH = [
    (p.PING + bytes(1), b""),
    (p.PING + bytes(7), b""),
    (p.PING + bytes(9), b""),
    (p.get(1) + b"\x00", p.u64(1)),
    (p.get(1)[:-1], bytes(7)),
    (p.put(9, b"")[:-1], p.u32(9)),
    (p.put(9, b"")[:3], bytes(2)),
    (p.list_() + b"\x00", b""),
    (p.list_()[:-1], b""),
]


@pytest.mark.parametrize(("packet", "correlation"), _OF_ANOTHER_LENGTH)
async def test_p2p_21_layouts_are_strict(serve: Serve, packet: bytes, correlation: bytes) -> None:
    async with serve() as server:
        peer = await server.bare()
        await peer.put(9, b"stored before")
        assert await peer.ask(packet) == p.nack(packet[0], 0xF0, correlation)
        await peer.quiet()


async def test_p2p_22_channels_never_see_each_other(serve: Serve) -> None:
    async with serve() as server:
        one, two = await server.hello(b"one"), await server.hello(b"two")
        message_id = await one.put(1, b"for one")
        assert await two.ids() == []
        assert await two.ask(p.get(message_id)) == p.not_found(message_id)
        await two.send(p.ack(message_id))
        await two.quiet()
        assert await one.ids() == [message_id]


async def test_p2p_23_a_connection_has_one_channel(serve: Serve) -> None:
    async with serve() as server:
        peer, elsewhere = await server.hello(b"one"), await server.hello(b"two")
        await peer.send(p.hello(b"two"))
        await peer.expect(p.MALFORMED_HELLO)
        message_id = await peer.put(1, b"x")
        assert await peer.ids() == [message_id] and await elsewhere.ids() == []


async def test_p2p_26_a_handshake_settles_the_version(serve: Serve) -> None:
    async with serve() as server:
        for versions in ((1, 1), (0, 1), (1, 255)):
            await server.hello(versions=versions)
        for versions in ((2, 2), (2, 255), (0, 0)):
            peer = await server.greet(b"chat/1", versions=versions)
            await peer.ends_with(b"\xff\x80\x01", p.ABORT)


async def test_p2p_26_other_types_work_once_they_were_negotiated(serve: Serve) -> None:
    async with serve() as server:
        silent = await server.hello()
        received = await server.hello(tags={p.EXTENSIONS: b"\x86\x87"})
        await silent.send(p.touch(1, 1000))
        await silent.quiet()
        assert await received.ask(p.touch(1, 1000)) == p.nack(0x86, 0x28, p.u64(1))


async def test_p2p_27_channels_come_into_being_on_demand(serve: Serve) -> None:
    async with serve() as server:
        for name in (b"a", bytes(range(0x22, 0x100)), "K\u00e4se/\u2603".encode(), b"\x01", b"%2F"):
            first = await server.hello(name)
            message_id = await first.put(1, name)
            assert await (await server.hello(name)).packet() == p.msg(message_id, name)


async def test_p2p_29_a_diagnosis_precedes_the_abort_of_a_handshake(serve: Serve) -> None:
    async with serve() as server:
        peer = await server.greet(b"chat/1", versions=(9, 9))
        diagnosis, end = await peer.rest()
        assert diagnosis[:2] == b"\xff\x80" and end == p.ABORT
