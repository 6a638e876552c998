"""The life of a client: as a context manager, and as an object that is opened and closed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from millpond import connect, connect_rustlog, connect_s3p, connect_streams, sync
from millpond.errors import ChannelClosed, ClientClosed, ConnectionLost
from millpond.jobs import Queue
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.testing import run_node

SOON_S = 10
NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    local = "127.0.0.1:0"
    config = Config(p2p=local, ws="off", s3p=local, rustlog=local, http="off", drain_timeout_s=0.5)
    async with Node(config) as node:
        yield node


def url_of(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def test_a_channel_is_opened_and_closed_without_a_block(node: Node) -> None:
    channel = connect(url_of(node), "notes")
    assert channel.closed
    assert not channel.connected
    with pytest.raises(ClientClosed, match="not open"):
        await channel.put(b"too early")
    assert await channel.open() is channel
    assert await channel.open() is channel
    receipt = await channel.put(b"hello")
    await channel.close()
    await channel.close()
    for call in (channel.put(b"late"), channel.receive(), channel.admin(1, {}), channel.list()):
        with pytest.raises(ClientClosed, match="closed"):
            await call
    await channel.open()
    assert await channel.get(receipt.id) == b"hello"
    await channel.close()
    assert ChannelClosed is ClientClosed


async def test_an_open_client_is_used_by_tasks_that_end_before_it(node: Node) -> None:
    """A request of a web application: the task that opened the client is gone."""
    channel = connect(url_of(node), "notes")
    for call in (channel.open, lambda: channel.put(b"x"), lambda: channel.put(b"y")):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
    assert len(await channel.list()) == 2
    other = await connect(url_of(node), "notes").open()
    received = []
    async for message in other:
        received.append(message.data)
        if len(received) == 2:
            await other.close()
    assert received == [b"x", b"y"]
    await channel.close()


async def test_every_client_has_the_same_life(node: Node) -> None:
    streams = connect_streams(url_of(node))
    s3p = connect_s3p(node.listeners["s3p"])
    rustlog = connect_rustlog(node.listeners["rustlog"])
    queue = Queue(url_of(node), "mail")
    calls: list[tuple[Any, Callable[[], Any]]] = [
        (streams, lambda: streams.topics().__anext__()),
        (s3p, lambda: s3p.create("s3p")),
        (rustlog, rustlog.ping),
        (queue, queue.counts),
    ]
    for client, call in calls:
        with pytest.raises(ClientClosed):
            await call()
        await client.open()
    await streams.stream("s").create()
    await s3p.create("orders")
    await rustlog.ping()
    handle = await queue.put({"to": "alice"}, wait=True)
    for client, call in calls:
        await client.close()
        with pytest.raises(ClientClosed):
            await call()
    with pytest.raises(ClientClosed):
        await handle.result(SOON_S)
    await queue.open()
    assert (await queue.put({"to": "bob"}, wait=True)).id != handle.id
    await queue.close()


async def test_close_works_at_any_time(node: Node) -> None:
    channel, streams = connect(url_of(node), "notes"), connect_streams(url_of(node))
    s3p, rustlog = connect_s3p(node.listeners["s3p"]), connect_rustlog(node.listeners["rustlog"])
    queue = Queue(url_of(node), "mail")
    calls: list[tuple[Any, Callable[[], Any]]] = [
        (channel, lambda: channel.put(b"late")),
        (streams, lambda: streams.stream("s").info()),
        (s3p, lambda: s3p.create("late")),
        (rustlog, rustlog.ping),
        (queue, queue.counts),
    ]
    for client, call in calls:
        await client.close()  # it was never open
        await client.open()
        await client.close()
        async with client:
            await client.close()
            with pytest.raises(ClientClosed):
                await call()
    failed = connect(NOBODY, "notes")
    with pytest.raises(ConnectionLost):
        await failed.open()
    await failed.close()


async def test_what_prevents_a_connection_is_raised_by_open() -> None:
    channel = connect(NOBODY, "notes")
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            await channel.open()
        assert channel.closed
    with pytest.raises(ValueError, match="scheme"):
        connect("http://127.0.0.1:1", "notes")


async def test_a_cancelled_open_leaves_nothing_behind() -> None:
    channel = connect(NOBODY, "notes", wait_s=60)
    with anyio.move_on_after(0.05) as scope:
        await channel.open()
    assert scope.cancelled_caught
    assert channel.closed
    with pytest.raises(ClientClosed):
        await channel.put(b"x")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_client_that_is_left_open_ends_with_its_loop(backend: str) -> None:
    channel = None

    async def leave_open() -> None:
        nonlocal channel
        local = "127.0.0.1:0"
        config = Config(p2p=local, ws="off", s3p="off", rustlog="off", http="off")
        async with Node(config) as node:
            channel = connect(url_of(node), "notes")
            await channel.open()
            await channel.put(b"x")

    anyio.run(leave_open, backend=backend)
    assert channel is not None
    assert channel.closed


async def test_a_blocking_client_is_opened_and_closed_without_a_block(node: Node) -> None:
    await anyio.to_thread.run_sync(_in_a_thread, url_of(node), node.listeners["s3p"])


def _in_a_thread(url: str, s3p_address: str) -> None:
    channel = sync.connect(url, "notes")
    with pytest.raises(ClientClosed, match="not open"):
        channel.put(b"too early")
    assert channel.open() is channel
    receipt = channel.put(b"hello")
    other = sync.connect(url, "notes").open()
    message = other.receive(SOON_S)
    assert message.channel == other
    other.close()
    with pytest.raises(ClientClosed):
        message.ack()
    channel.close()
    channel.close()
    for call in (lambda: channel.put(b"late"), channel.list):
        with pytest.raises(ClientClosed):
            call()
    assert list(channel) == []
    assert channel.closed
    with channel as again:
        assert again.get(receipt.id) == b"hello"
    s3p, streams = sync.connect_s3p(s3p_address).open(), sync.connect_streams(url).open()
    queue = sync.Queue(url, "mail").open()
    queue.put({})
    s3p.create("orders")
    orders = streams.stream("orders")
    assert orders.info().tail == 0
    for client in (s3p, streams, queue):
        client.close()
    for late in (lambda: s3p.create("b"), orders.info, queue.counts):
        with pytest.raises(ClientClosed):
            late()


async def test_a_client_that_is_left_open_is_closed_at_the_end_of_the_program(node: Node) -> None:
    """The program ends, and what it sent without waiting is stored."""
    program = f"""
from millpond import sync
channel = sync.connect({url_of(node)!r}, "notes").open()
channel.put_nowait(b"on its way")
print("end")
"""
    with anyio.fail_after(60):
        done = await anyio.run_process([sys.executable, "-c", program], check=False)
    assert (done.returncode, done.stdout) == (0, b"end\n"), done.stderr
    async with connect(url_of(node), "notes") as channel:
        assert len(await channel.list()) == 1


async def test_an_open_client_is_not_opened_by_a_block(node: Node) -> None:
    """The end of the block would close it under its owner."""
    for client in (connect(url_of(node), "notes"), connect_streams(url_of(node))):
        await client.open()
        with pytest.raises(RuntimeError, match="open already"):
            async with client:
                pass
        assert client.connected
        await client.close()


def test_an_open_blocking_client_is_not_opened_by_a_block() -> None:
    with run_node(s3p="off", rustlog="off", http="off") as real:
        for client in (sync.connect(real.url, "notes"), sync.connect_streams(real.url)):
            client.open()
            with pytest.raises(RuntimeError, match="open already"), client:
                pass
            assert client.connected
            client.close()
        with sync.connect(real.url, "notes") as channel:
            with pytest.raises(RuntimeError, match="open already"), channel:
                pass
            channel.put(b"still open")
