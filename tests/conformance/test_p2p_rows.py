"""One test for each requirement P2P-01 to P2P-30 (wire.md 1.3) that shows on the wire."""

from __future__ import annotations

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.served import LOBBY, START_S, Serve, virtual_time

START_MS = int(START_S * 1000)
WORKED_ID = 0x1BA3CA3A0FC05007


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
async def test_p2p_01_a_packet_is_a_type_and_a_body_behind_a_length(serve: Serve) -> None:
    async with serve() as mill:
        peer = await mill.bare()
        await peer.pipe.send(bytes.fromhex("00000001 00"))
        assert await peer.pipe.receive() == bytes.fromhex("00000001 01")
        await peer.pipe.send(bytes.fromhex("0000000b 06 00000001 0000003c 6869"))
        answer = await peer.pipe.receive()
        assert answer[:13] == bytes.fromhex("00000011 07 00000001 0000003c") and len(answer) == 21


@virtual_time
async def test_p2p_01_the_worked_bytes_of_3i(serve: Serve) -> None:
    async with serve() as mill:
        peer = await mill.dial()
        other = await mill.hello(b"chat/1")

        async def dialogue(said: str, *answers: str) -> None:
            await peer.pipe.send(bytes.fromhex(said))
            await peer.expect(*(bytes.fromhex(answer)[4:] for answer in answers))

        await peer.pipe.send(
            bytes.fromhex(
                "0000001a 80 50325042 01 01 03  01 0006 636861742f31  04 0001 03  07 0002 0020"
            )
        )
        flags, tags = p.read_ready(await peer.packet())
        assert flags == 1 and tags[p.PACKET_MAX].hex() == "00100000"
        assert tags[p.KEEP_ALIVE].hex() == "00004e20" and tags[p.WINDOW].hex() == "0020"
        for key in range(7):
            await peer.put(key, b"earlier")
        await dialogue(
            "0000000b 06 0a0b0c0d 0000003c 6869",
            "00000011 07 0a0b0c0d 0000003c 1ba3ca3a0fc05007",
        )
        pushed = await other.packets(8)
        assert pushed[-1] == bytes.fromhex("02 1ba3ca3a0fc05007 6869")
        await dialogue("00000009 04 1ba3ca3a0fc05007", "0000000b 05 1ba3ca3a0fc05007 6869")
        await dialogue("00000007 06 0a0b0c0d 0000003c 6869"[:8] + "".join(()), *())
        await dialogue("00000009 03 1ba3ca3a0fc05007")
        await dialogue("00000009 04 1ba3ca3a0fc05007", "0000000b ff 04 02 1ba3ca3a0fc05007")
