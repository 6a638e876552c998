"""kill -9 of a node whose channels feed one stream: each message that it acknowledged is in the
stream once, in the order of its channel, also those that a consumer has taken meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from millpond import Channel, ConnectionLost, connect
from millpond.node.client.errors import ChannelClosed
from millpond.node.client.streams.connect import connect_streams
from tests.node.processes import serving

pytestmark = pytest.mark.anyio

KILLS = 8
LIFE_S = 0.2, 0.8
SETTLED_S = 30.0
QUIET = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")
CHANNELS = ("pair", "queue", "fanout")
RULES = tuple(word for name in CHANNELS for word in ("--channel", f"{name}={name},tee=all"))
GONE = (ConnectionLost, ChannelClosed)


@pytest.fixture
def anyio_backend() -> str:
    """A kill hits another process: the event library of this one does not matter."""
    return "asyncio"


class Writer:
    """Puts numbered messages into one channel; `acked` are those that the node acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acked: list[bytes] = []
        self._number = 0

    async def run(self, url: str) -> None:
        """Until the node is gone."""
        try:
            async with connect(url, self.name, role="producer", reconnect=False) as channel:
                while True:
                    self._number += 1
                    body = f"{self.name} {self._number}".encode()
                    await channel.put(body)
                    self.acked.append(body)
        except GONE:
            return


async def take(url: str, name: str) -> None:
    """Acknowledge whatever comes, until the node is gone."""
    try:
        async with connect(url, name, role="consumer", reconnect=False) as channel:
            await take_from(channel)
    except GONE:
        return


async def take_from(channel: Channel) -> None:
    while True:
        async with await channel.receive():
            pass


async def test_a_teed_stream_has_each_message_once_after_kills(tmp_path: Path) -> None:
    rng = Random(5)
    writers = [Writer(name) for name in CHANNELS]
    words = ("--data", str(tmp_path / "node"), "--durability", "disk", *QUIET, *RULES)
    for _ in range(KILLS):
        with serving(*words) as node, anyio.fail_after(SETTLED_S):
            async with anyio.create_task_group() as tasks:
                for writer in writers:
                    tasks.start_soon(writer.run, node.urls["tcp"])
                    tasks.start_soon(take, node.urls["tcp"], writer.name)
                await anyio.sleep(rng.uniform(*LIFE_S))
                node.process.kill()
                node.process.wait()
    with serving(*words) as node, anyio.fail_after(SETTLED_S):
        found = await settled(node.urls["tcp"], writers)
    for writer in writers:
        own = [body for body in found if body.split()[0] == writer.name.encode()]
        numbers = [int(body.split()[1]) for body in own]
        assert numbers == sorted(set(numbers)), "doubled, or out of order"
        assert len(writer.acked) > KILLS and set(writer.acked) <= set(own), "acknowledged, and lost"


async def settled(url: str, writers: list[Writer]) -> list[bytes]:
    """All records, once the last word of each channel is there."""
    found: list[bytes] = []
    async with connect_streams(url) as streams:
        while not all(writer.acked[-1] in found for writer in writers):
            await anyio.sleep(0.1)
            found = [record.data async for record in streams.stream("all").records()]
    return found
