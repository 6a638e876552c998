"""P2P-24, P2P-25: above the rate, requests are refused; who never slows down is sent away."""

from __future__ import annotations

import anyio

from tests.conformance import packets as p
from tests.conformance.served import Serve, virtual_time


@virtual_time
async def test_p2p_24_above_the_rate_a_request_is_refused_with_the_time_to_wait(
    serve: Serve,
) -> None:
    async with serve(requests_per_s_max=2) as mill:
        peer = await mill.hello(b"chat/1")
        await peer.put(1, b"x")
        await peer.put(2, b"x")
        assert await peer.ask(p.put(3, b"x")) == p.nack(6, 0xA0, p.u32(3) + p.u32(500))
        await anyio.sleep(0.5)
        await peer.put(3, b"x")


@virtual_time
async def test_p2p_25_persistent_abuse_of_the_rate_ends_the_connection(serve: Serve) -> None:
    async with serve(requests_per_s_max=1, rate_refusals_max=3) as mill:
        peer, other = await mill.hello(b"chat/1"), await mill.hello(b"chat/2")
        await peer.put(1, b"x")
        await peer.send(*(p.put(key, b"x") for key in (2, 3, 4, 5)))
        refusals = [p.nack(6, 0xA0, p.u32(key) + p.u32(1000)) for key in (2, 3, 4)]
        await peer.expect(*refusals, b"\xff\xff\xff")
        await other.put(9, b"x")
