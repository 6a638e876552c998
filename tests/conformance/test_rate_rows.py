"""P2P-24, P2P-25: rate limits; a client that never slows down is disconnected."""

from __future__ import annotations

import anyio

from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, Served, virtual_time


@virtual_time
async def test_p2p_24_above_the_rate_a_request_is_refused_with_the_time_to_wait(
    serve: Serve,
) -> None:
    async with serve(requests_per_s_max=2) as server:
        peer = await server.hello(b"chat/1")
        await peer.put(1, b"x")
        await peer.put(2, b"x")
        assert await peer.ask(p.put(3, b"x")) == p.nack(6, 0xA0, p.u32(3) + p.u32(500))
        await anyio.sleep(0.5)
        await peer.put(3, b"x")


@virtual_time
async def test_p2p_25_persistent_abuse_of_the_rate_ends_the_connection(serve: Serve) -> None:
    async with serve(requests_per_s_max=1, rate_refusals_max=3) as server:
        peer, other = await server.hello(b"chat/1"), await server.hello(b"chat/2")
        await peer.put(1, b"x")
        await peer.send(*(p.put(key, b"x") for key in (2, 3, 4, 5)))
        refusals = [p.nack(6, 0xA0, p.u32(key) + p.u32(1000)) for key in (2, 3, 4)]
        await peer.expect(*refusals, b"\xff\xff\xff")
        await other.put(9, b"x")


@virtual_time
async def test_p2p_24_connections_from_one_address_share_a_rate(serve: Serve) -> None:
    """Those of this machine do not: they are all of its programs."""
    async with serve(requests_per_s_per_peer_max=2, insecure_public=True) as server:
        first, second = await _from(server, "192.0.2.7"), await _from(server, "192.0.2.7")
        other, here = await _from(server, "192.0.2.8"), await _from(server, "127.0.0.1")
        await first.put(1, b"x")
        await second.put(2, b"x")
        assert await first.ask(p.put(3, b"x")) == p.nack(6, 0xA0, p.u32(3) + p.u32(500))
        assert await second.ask(p.put(4, b"x")) == p.nack(6, 0xA0, p.u32(4) + p.u32(500))
        await other.put(5, b"x")
        for key in (6, 7, 8):
            await here.put(key, b"x")
        await anyio.sleep(0.5)
        await second.put(4, b"x")
        assert server.node.services.counters.reasons == {"too fast": 2}


async def _from(server: Served, address: str) -> Peer:
    peer = await server.dial(source=address)
    await peer.send(p.hello(b"chat/1", {p.ROLE: p.PRODUCER}))
    p.read_ready(await peer.packet())
    return peer
