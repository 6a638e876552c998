"""Receivers over real sockets: channels by pattern, those that come later, and the limit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal

from millpond import connect, connect_channels, sync
from millpond.errors import ClientClosed, ConnectionLost, Malformed
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.testing import run_node
from tests.node.http.clients import eventually

SOON_S = 10.0
QUICK_S = 0.02


def config_of(**settings: object) -> Config:
    local = "127.0.0.1:0"
    return Config(
        p2p=local,
        ws=local,
        s3p="off",
        rustlog="off",
        http="off",
        drain_timeout_s=0.5,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node(config_of()) as node:
        yield node


def url_of(node: Node, listener: str = "p2p") -> str:
    return f"{'tcp' if listener == 'p2p' else 'ws'}://{node.listeners[listener]}"


async def put(node: Node, name: str, *bodies: bytes) -> None:
    async with connect(url_of(node), name, role="producer") as sender:
        for body in bodies:
            await sender.put(body)


@pytest.mark.parametrize("listener", ["p2p", "ws"])
async def test_messages_of_all_channels_that_match_arrive(node: Node, listener: str) -> None:
    for name in ("orders/eu", "orders/us", "invoices/eu", "other"):
        await put(node, name, name.encode())
    async with (
        connect_channels(url_of(node, listener)) as channels,
        channels.receiver("orders/*", "invoices/*") as receiver,
    ):
        assert receiver.channels == [b"invoices/eu", b"orders/eu", b"orders/us"]
        found = {}
        for _ in range(3):
            async with await receiver.receive(SOON_S) as message:
                found[message.channel.name] = message.data
        assert found == {name: name for name in receiver.channels}
        with pytest.raises(TimeoutError):
            await receiver.receive(0.05)
        for name in ("orders/eu", "other"):
            info = await channels.describe(name)
            assert (info.messages, info.receivers) == ((0, 1) if name != "other" else (1, 0))


async def test_channels_that_are_made_later_join(node: Node) -> None:
    """A message that was put before its fanout channel was joined is not missed."""
    async with (
        connect_channels(url_of(node)) as channels,
        channels.receiver("news/*", refresh_s=QUICK_S) as receiver,
    ):
        assert receiver.channels == []
        for number in range(3):
            await channels.create(f"news/{number}", "fanout")
            await put(node, f"news/{number}", b"first")
            message = await receiver.receive(SOON_S)
            assert (message.channel.name, message.data) == (b"news/%d" % number, b"first")
            await message.ack()
            await put(node, f"news/{number}", b"second")
            assert (await receiver.receive(SOON_S)).data == b"second"
        assert receiver.channels == [b"news/0", b"news/1", b"news/2"]


async def test_so_many_channels_are_joined_and_unused_ones_make_room(node: Node) -> None:
    async with connect_channels(url_of(node)) as channels:
        await channels.create("c/1", "pair")
        await put(node, "c/2", b"two")
        async with channels.receiver("c/*", channels_max=2, refresh_s=QUICK_S) as receiver:
            assert receiver.channels == [b"c/1", b"c/2"] and receiver.left_out == 0
            message = await receiver.receive(SOON_S)
            await channels.create("c/3", "pair")
            await eventually(lambda: receiver.left_out == 1)
            assert receiver.channels == [b"c/1", b"c/2"], "its message is still here"
            await message.ack()
            await eventually(lambda: receiver.channels == [b"c/1", b"c/3"])
            await put(node, "c/3", b"three")
            assert (await receiver.receive(SOON_S)).data == b"three"
        with pytest.raises(KeyError, match="of the block"):
            async with channels.receiver("c/*"):
                raise KeyError("of the block")
        with pytest.raises(Malformed):
            async with channels.receiver(*["c/*"] * 17):
                pass
        with pytest.raises(ValueError, match="one pattern"):
            async with channels.receiver():
                pass


async def test_unacknowledged_messages_are_for_others_after_the_end(node: Node) -> None:
    await put(node, "c", b"one", b"two")
    async with connect_channels(url_of(node)) as channels:
        async with channels.receiver("c") as receiver:
            assert (await receiver.receive(SOON_S)).data == b"one"
        with pytest.raises(ClientClosed):
            await receiver.receive(SOON_S)
        assert [message async for message in receiver] == []
        async with connect(url_of(node), "c", role="consumer") as other:
            assert {(await other.receive(SOON_S)).data for _ in range(2)} == {b"one", b"two"}


async def test_a_node_that_is_lost_for_good_ends_a_receiver() -> None:
    with run_node(s3p="off", rustlog="off", http="off") as node:
        channels = connect_channels(node.url, reconnect=False)
        async with channels, channels.receiver("c", refresh_s=QUICK_S) as receiver:
            async with connect(node.url, "c", role="producer") as sender:
                await sender.put(b"one")
            await (await receiver.receive(SOON_S)).ack()
            await anyio.to_thread.run_sync(node.stop)
            with pytest.raises(ConnectionLost):
                await receiver.receive(SOON_S)


async def test_only_channels_with_the_rights_are_joined(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "boss-0123456789abcdef all\nuser-0123456789abcdef list,push,ack orders/1 orders/2\n"
    )
    tokens.chmod(0o600)
    async with Node(config_of(token_file=str(tokens))) as node:
        boss = connect_channels(url_of(node), token="boss-0123456789abcdef")
        user = connect_channels(url_of(node), token="user-0123456789abcdef")
        async with boss, user:
            for number in range(4):
                await boss.create(f"orders/{number}")
            async with user.receiver("*") as receiver:
                assert receiver.channels == [b"orders/1", b"orders/2"]


def test_the_blocking_receiver() -> None:
    async def made() -> Node:
        return Node(config_of())

    with start_blocking_portal() as portal:
        node = portal.call(made)
        with portal.wrap_async_context_manager(node):
            for name in ("a/1", "a/2"):
                with sync.connect(url_of(node), name, role="producer") as sender:
                    sender.put(name.encode())
            with (
                sync.connect_channels(url_of(node)) as channels,
                channels.receiver("a/*") as receiver,
            ):
                assert receiver.channels == [b"a/1", b"a/2"]
                for _, message in zip(range(2), receiver, strict=False):
                    assert message.channel.name == message.data
                    message.ack()
