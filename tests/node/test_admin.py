"""Administration of a running node: `info` (docs/reference/wire-protocol.md)."""

from __future__ import annotations

from random import Random

import anyio

from millpond import Config, Node, connect

OFF = {"p2p": "127.0.0.1:0", "ws": "off", "s3p": "off", "rustlog": "off", "http": "off"}


async def test_info_shows_passivated_channels_and_pages_by_name() -> None:
    config = Config(**OFF, passivate_after_s=0)
    async with Node(config, rng=Random(1)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        for number in range(3):
            async with connect(url, channel=f"box/{number}", role="producer") as box:
                await box.put(b"kept")
        for number in range(500):
            if not any(node.scheduler.view(b"box/%d" % each) for each in range(3)):
                break
            await anyio.sleep(0.001 * min(number, 10))
        async with connect(url, channel="asking", window=0) as asking:
            page = await asking.admin(1, {"after": b"asking", "limit": 2})
            rest = await asking.admin(1, {"after": b"box/1", "limit": 2})
            one = await asking.admin(1, {"channel": b"box/1"})
    assert [each["name"] for each in page["page"]] == [b"box/0", b"box/1"] and page["more"]
    assert [each["name"] for each in rest["page"]] == [b"box/2"] and not rest["more"]
    assert one["page"][0]["messages"] == 1 and one["usage"]["messages"] == 3


async def test_long_names_never_make_an_answer_too_large() -> None:
    async with Node(Config(**OFF), rng=Random(1)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        names = [b"\xff" * 240 + b"%04d" % number for number in range(300)]
        for name in names:
            async with connect(url, channel=name, role="producer") as box:
                await box.put(b"kept")
        async with connect(url, channel="asking", window=0) as asking:
            seen, after, more = [], b"asking", True
            while more:
                answer = await asking.admin(1, {"after": after, "limit": 1000})
                seen += [each["name"] for each in answer["page"]]
                after, more = seen[-1], answer["more"]
    assert seen == names
