"""Channels by name over real sockets: created, described, listed, purged, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from millpond import Identity, connect, connect_channels, sync
from millpond.errors import (
    ChannelExists,
    HandshakeRefused,
    Malformed,
    ModeMismatch,
    NotAllowed,
    UnknownChannel,
)
from millpond.node.config import ChannelRule, Config
from millpond.node.node import Node

SOON_S = 10
RULES = (ChannelRule.parse("jobs/*=queue"),)


def config_of(folder: Path, **settings: object) -> Config:
    local = "127.0.0.1:0"
    return Config(
        p2p=local,
        ws=local,
        s3p="off",
        rustlog="off",
        http="off",
        data=str(folder),
        channels=RULES,
        drain_timeout_s=0.5,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(config_of(tmp_path / "data")) as node:
        yield node


def url_of(node: Node, listener: str = "p2p") -> str:
    return f"{'tcp' if listener == 'p2p' else 'ws'}://{node.listeners[listener]}"


@pytest.mark.parametrize("listener", ["p2p", "ws"])
async def test_a_created_channel_keeps_its_mode_while_it_is_empty(
    node: Node, listener: str
) -> None:
    async with connect_channels(url_of(node, listener)) as channels:
        await channels.create("news", "fanout")
        info = await channels.describe("news")
        assert (info.name, info.mode, info.created) == (b"news", "fanout", True)
        assert (info.messages, info.size, info.connections, info.receivers) == (0, 0, 0, 0)
        for _ in range(2):
            async with connect(url_of(node), "news", mode="fanout") as member:
                assert (await channels.describe("news")).receivers == 1
                await member.put(b"x")
            with pytest.raises(ModeMismatch):
                await connect(url_of(node), "news", mode="queue").open()
            await channels.purge("news")


async def test_a_created_mode_outlives_restarts(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    async with Node(config) as node, connect_channels(url_of(node)) as channels:
        await channels.create("news", "fanout")
        await channels.create("work", "queue")
        await channels.create("gone", "queue")
        await channels.delete("gone")
    async with Node(config) as node, connect_channels(url_of(node)) as channels:
        found = [(each.name, each.mode, each.created) async for each in channels.list()]
        assert (b"news", "fanout", True) in found
        assert (b"work", "queue", True) in found
        assert b"gone" not in [name for name, *_ in found]
        async with connect(url_of(node), "work") as worker:
            assert worker.mode is not None and worker.mode.name == "QUEUE"
        with pytest.raises(ChannelExists):
            await channels.create("news", "fanout")


async def test_a_channel_is_created_once(node: Node) -> None:
    async with connect_channels(url_of(node)) as channels:
        await channels.create("c", "queue")
        with pytest.raises(ChannelExists):
            await channels.create("c", "queue")
        await channels.create("c", "queue", exist_ok=True)
        with pytest.raises(ChannelExists):
            await channels.create("c", "pair", exist_ok=True)
        for name, mode in (("jobs/mail", "pair"), ("used", "fanout")):
            async with connect(url_of(node), "used"):
                with pytest.raises(ChannelExists):
                    await channels.create(name, mode)  # type: ignore[arg-type]
        await channels.create("jobs/mail", "queue")


async def test_a_channel_in_use_may_be_created_in_the_mode_it_has(node: Node) -> None:
    async with connect(url_of(node), "used", mode="queue") as user:
        await user.put(b"one")
        await user.channels.create("used", "queue")
        info = await user.channels.describe("used")
        assert (info.created, info.messages, info.size) == (True, 1, 3)


async def test_a_purge_removes_the_messages_that_are_there(node: Node) -> None:
    """Those with a consumer as well; more than one request removes."""
    async with (
        connect_channels(url_of(node)) as channels,
        connect(url_of(node), "c", role="producer") as sender,
        connect(url_of(node), "c", window=2) as reader,
    ):
        futures = [sender.put_nowait(b"%d" % each) for each in range(1000)]
        receipts = [await future for future in futures]
        receipts += [await sender.put(b"%d" % each) for each in range(1000, 1500)]
        held = await reader.receive(SOON_S)
        assert (await channels.describe("c")).leased == 2
        assert await channels.purge("c") == 1500
        await held.ack()
        assert await sender.channels.purge("c") == 0
        info = await channels.describe("c")
        assert (info.messages, info.leased, info.connections) == (0, 0, 2)
        again = await sender.put(b"0", key=receipts[0].key)
        assert again.id == receipts[0].id, "a retry gets its receipt, and stores nothing"
        assert (await channels.describe("c")).messages == 0
        await sender.put(b"new")
        assert (await reader.receive(SOON_S)).data == b"1", "it was pushed before the purge"
        assert (await reader.receive(SOON_S)).data == b"new"


async def test_a_deletion_forgets_the_keys_and_the_mode(node: Node) -> None:
    async with connect_channels(url_of(node)) as channels:
        await channels.create("c", "queue")
        async with connect(url_of(node), "c", role="producer") as sender:
            first = await sender.put(b"x", key=7)
            assert await channels.delete("c") == 1
            assert (await channels.describe("c")).created is False
            second = await sender.put(b"x", key=7)
            assert second.id != first.id
            assert await channels.delete("c") == 1
        with pytest.raises(UnknownChannel):
            await channels.describe("c")
        for call in (channels.delete, channels.purge):
            with pytest.raises(UnknownChannel):
                await call("c")
        async with connect(url_of(node), "c", mode="pair") as free:
            assert free.mode is not None and free.mode.name == "PAIR"


async def test_names_are_listed_by_pattern_page_by_page(node: Node) -> None:
    async with connect_channels(url_of(node)) as channels:
        for number in range(230):
            await channels.create(f"orders/{number:03}", "queue")
        await channels.create("invoices/1")
        found = [each.name async for each in channels.list("orders/*")]
        assert found == [b"orders/%03d" % each for each in range(230)]
        found = [each.name async for each in channels.list("orders/00[12]", "invoices/?")]
        assert found == [b"invoices/1", b"orders/001", b"orders/002"]
        assert [each async for each in channels.list("orders")] == []


async def test_names_of_the_node_and_of_peers_are_not_for_clients(node: Node) -> None:
    peer = "a" * 52
    async with connect_channels(url_of(node)) as channels:
        for name in ("c!dead", "millpond!probe", f"chat/{peer}", f"mail/{peer}"):
            with pytest.raises(NotAllowed):
                await channels.create(name)
            with pytest.raises(NotAllowed):
                await channels.delete(name)
        with pytest.raises(Malformed):
            await channels.create(b"\0topics")
        with pytest.raises(ValueError, match="1 to 255"):
            await channels.create("")


async def test_any_number_of_requests_may_be_made_at_once(node: Node) -> None:
    """64 are under way, each of which waits for the disk; the others wait for them."""
    async with connect_channels(url_of(node)) as channels:
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(channels.create, f"c/{number}", "queue")
        assert len([each async for each in channels.list("c/*")]) == 200


async def test_a_list_has_16_patterns_of_250_bytes(node: Node) -> None:
    async with connect_channels(url_of(node)) as channels:
        assert [each async for each in channels.list(*["x" * 250] * 16)] == []
        with pytest.raises(Malformed):
            _ = [each async for each in channels.list(*["x"] * 17)]
        with pytest.raises(ValueError, match="1 to 250"):
            _ = [each async for each in channels.list("x" * 251)]


async def test_the_rights_in_the_named_channel_count(tmp_path: Path) -> None:
    """And none in the channel of the connection."""
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "boss-0123456789abcdef all orders/*\n"
        "user-0123456789abcdef put,push,ack,list orders/1\n"
        "mute-0123456789abcdef put orders/1\n"
    )
    tokens.chmod(0o600)
    config = config_of(tmp_path / "data", token_file=str(tokens))
    async with Node(config) as node:
        url = url_of(node)
        async with connect_channels(url, token="boss-0123456789abcdef") as boss:
            await boss.create("orders/1", "queue")
            await boss.create("orders/2", "queue")
            with pytest.raises(NotAllowed):
                await boss.create("other", "queue")
            async with connect_channels(url, token="user-0123456789abcdef") as user:
                assert [each.name async for each in user.list()] == [b"orders/1"]
                for call in (user.create, user.delete):
                    with pytest.raises(NotAllowed):
                        await call("orders/1")
                assert await user.purge("orders/1") == 0
                with pytest.raises(NotAllowed):
                    await user.purge("orders/2")
                with pytest.raises(UnknownChannel):
                    await user.describe("orders/2")
            async with connect_channels(url, token="mute-0123456789abcdef") as mute:
                assert [each async for each in mute.list()] == []
                with pytest.raises(NotAllowed):
                    await mute.purge("orders/1")
        with pytest.raises(HandshakeRefused):
            await connect_channels(url, token="nobody-0123456789abcde").open()


async def test_subscribers_that_are_away_go_with_the_channel(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    identity = Identity(bytes(range(32)))
    async with Node(config) as node, connect_channels(url_of(node)) as channels:
        await channels.create("news", "fanout")
        async with connect(
            url_of(node), "news", identity=identity, on_peer=lambda key: None
        ) as member:
            assert member.connected
        assert (await channels.describe("news")).subscribers == 1
        await channels.delete("news")
        with pytest.raises(UnknownChannel):
            await channels.describe("news")
        await channels.create("news", "queue")
    async with Node(config) as node, connect_channels(url_of(node)) as channels:
        info = await channels.describe("news")
        assert (info.mode, info.subscribers) == ("queue", 0)


def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    async def made() -> Node:
        return Node(config_of(tmp_path / "data"))

    with start_blocking_portal() as portal:
        node = portal.call(made)
        with (
            portal.wrap_async_context_manager(node),
            sync.connect_channels(url_of(node)) as channels,
        ):
            channels.create("jobs/a", "queue")
            with pytest.raises(ChannelExists):
                channels.create("jobs/a", "queue")
            with sync.connect(url_of(node), "jobs/a", role="producer") as sender:
                sender.put(b"x")
                assert sender.channels.describe("jobs/a").messages == 1
            assert [each.name for each in channels.list("jobs/*")] == [b"jobs/a"]
            assert channels.purge("jobs/a") == 1
            assert channels.delete("jobs/a") == 0
