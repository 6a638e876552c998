"""Administration of a running node: `info` (wire.md 3g)."""

from __future__ import annotations

from random import Random

import anyio

from node import Config, Node, connect

OFF = {"p2p": "127.0.0.1:0", "ws": "off"}


async def test_info_shows_passivated_channels_and_pages_by_name() -> None:
    config = Config(**OFF, passivate_after_s=0)
    async with Node(config, rng=Random(1)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        for number in range(3):
            async with connect(url, channel=f"box/{number}", role="producer") as box:
                await box.put(b"kept")
        with anyio.fail_after(5):
            while any(node.scheduler.view(b"box/%d" % n) for n in range(3)):
                await anyio.sleep(0.01)
        async with connect(url, channel="asking", window=0) as asking:
            page = await asking.admin(1, {"after": b"asking", "limit": 2})
            rest = await asking.admin(1, {"after": b"box/1", "limit": 2})
            one = await asking.admin(1, {"channel": b"box/1"})
    assert list(page["page"]) == ["box/0", "box/1"] and page["more"]
    assert list(rest["page"]) == ["box/2"] and not rest["more"]
    assert one["page"]["box/1"]["messages"] == 1 and one["usage"]["messages"] == 3
