"""Channels that feed streams, on a real node: who has the receipt can read the record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond import connect
from millpond.node.client.streams.connect import connect_streams
from millpond.node.config import OFF, ChannelRule, Config, ConfigError
from millpond.node.node import Node

SOON_S = 10
RULES = (
    "jobs/*=queue,attempts=1,tee=work",
    "news*=fanout,tee=all",
    "chat*=pair,tee=all",
    "quiet=pair",
)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Node]:
    plain = {"p2p": "127.0.0.1:0", "ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF}
    rules = tuple(map(ChannelRule.parse, options.pop("rules", RULES)))
    config = Config(**{**plain, "channels": rules, "drain_timeout_s": 0.2, **options})
    with anyio.fail_after(4 * SOON_S):
        async with Node(config) as node:
            yield node


def url_of(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def put_all(node: Node, channel: str, *bodies: bytes) -> None:
    async with connect(url_of(node), channel, role="producer") as producer:
        for body in bodies:
            await producer.put(body)


async def take_all(node: Node, channel: str, count: int) -> list[bytes]:
    taken = []
    async with connect(url_of(node), channel, role="consumer") as consumer:
        for _ in range(count):
            async with await consumer.receive(SOON_S) as message:
                taken.append(message.data)
    return taken


async def read_all(node: Node, stream: str) -> list[bytes]:
    async with connect_streams(url_of(node)) as streams:
        return [record.data async for record in streams.stream(stream).records()]


async def names(node: Node) -> list[bytes]:
    async with connect_streams(url_of(node)) as streams:
        return [name async for name in streams.names()]


def kinds_of_data(tmp_path: Path, kind: str) -> dict[str, str]:
    return {"data": str(tmp_path)} if kind == "disk" else {}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_who_has_the_receipt_finds_the_record(tmp_path: Path, kind: str) -> None:
    async with running(**kinds_of_data(tmp_path, kind)) as node:
        async with connect_streams(url_of(node)) as streams:
            async with connect(url_of(node), "chat", role="producer") as producer:
                for number in range(200):
                    await producer.put(b"%d" % number)
                    (last,) = await streams.stream("all").tail(1)
                    assert last.data == b"%d" % number and last.headers == []


async def test_several_channels_feed_one_stream_each_in_its_order() -> None:
    async with running() as node:
        channels = ("news", "news/b", "chat", "quiet")
        async with anyio.create_task_group() as tasks:
            for name in channels:
                bodies = [f"{name} {number}".encode() for number in range(300)]
                tasks.start_soon(put_all, node, name, *bodies)
        found = await read_all(node, "all")
        for name in channels[:3]:
            own = [body for body in found if body.split()[0] == name.encode()]
            assert own == [f"{name} {number}".encode() for number in range(300)]
        assert len(found) == 900


async def test_consumers_get_and_acknowledge_as_ever() -> None:
    async with running() as node:
        await put_all(node, "chat", *(b"%d" % number for number in range(50)))
        assert await take_all(node, "chat", 50) == [b"%d" % number for number in range(50)]
        async with connect(url_of(node), "chat") as channel:
            assert await channel.list() == []
        assert len(await read_all(node, "all")) == 50


async def test_a_restart_doubles_nothing_and_loses_nothing(tmp_path: Path) -> None:
    expected = []
    for run in range(4):
        async with running(data=str(tmp_path)) as node:
            for name in ("chat", "news"):
                bodies = [f"{name} {run} {number}".encode() for number in range(20)]
                await put_all(node, name, *bodies)
                expected += bodies
            await take_all(node, "chat", 5)
            assert await read_all(node, "all") == expected
    async with running(data=str(tmp_path)) as node:
        assert await read_all(node, "all") == expected


async def test_a_tee_that_is_new_gets_what_its_channel_holds(tmp_path: Path) -> None:
    async with running(data=str(tmp_path), rules=["chat=pair"]) as node:
        await put_all(node, "chat", *(b"%d" % number for number in range(2000)))
        await take_all(node, "chat", 3)
        assert await names(node) == []
    async with running(data=str(tmp_path), rules=["chat=pair,tee=all"]) as node:
        found: list[bytes] = []
        while len(found) < 1997:
            await anyio.sleep(0.02)
            found = await read_all(node, "all") if b"all" in await names(node) else []
        assert found == [b"%d" % number for number in range(3, 2000)]


async def test_dead_letters_are_not_appended_again() -> None:
    async with running() as node:
        await put_all(node, "jobs/a", b"bad")
        async with connect(url_of(node), "jobs/a", role="worker") as worker:
            message = await worker.receive(SOON_S)
            await message.nack(reject=True)
        assert await take_all(node, "jobs/a!dead", 1) == [b"bad"]
        assert await read_all(node, "work") == [b"bad"]


@pytest.mark.parametrize("name", ["", "a b", "x\ny", "n" * 251, "\udc80"])
def test_a_name_that_no_stream_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="tee must have"):
        Config(channels=(ChannelRule.parse(f"chat=pair,tee={name}"),))


def test_streams_have_no_tees() -> None:
    from millpond.node.config_rules import StreamRule

    with pytest.raises(ConfigError, match="unknown option 'tee'"):
        StreamRule.parse("all=age=3,tee=more")
