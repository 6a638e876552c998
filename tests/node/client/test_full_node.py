"""A node that has too many connections for now is tried again (docs/reference/wire-protocol.md,
f7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import anyio.abc
import pytest

from millpond import ConnectionLost, connect
from millpond.node.client.events import Connected, Event, Retrying
from millpond.node.client.session import Session
from millpond.node.client.settings import SimulatedSettings
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.io import tcp


@pytest.fixture
async def node(anyio_backend: object) -> AsyncIterator[Node]:
    config = Config(
        p2p="127.0.0.1:0",
        ws="127.0.0.1:0",
        s3p="off",
        rustlog="off",
        http="off",
        connections_max=1,
        drain_timeout_s=0.5,
    )
    async with Node(config) as node:
        yield node


@pytest.fixture(params=["tcp", "ws"])
def url(node: Node, request: pytest.FixtureRequest) -> str:
    return f"{request.param}://{node.listeners['p2p' if request.param == 'tcp' else 'ws']}"


async def only_place(url: str) -> anyio.abc.SocketStream:
    """The one connection that the node takes, as soon as it is free."""
    host, _, port = url.partition("://")[2].rpartition(":")
    while True:
        stream = await anyio.connect_tcp(host, int(port))
        try:
            with anyio.move_on_after(0.05):
                await stream.receive()
                continue
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.aclose()
        else:
            return stream


async def test_a_first_connection_waits_for_a_place_as_long_as_it_was_told(url: str) -> None:
    events: list[Event] = []
    async with AsyncExitStack() as stack:
        stream = await stack.enter_async_context(await only_place(url))
        with pytest.raises(ConnectionLost):
            async with connect(url, "c"):
                raise AssertionError("must not get here")

        def free_after_two(event: Event) -> None:
            events.append(event)
            if sum(isinstance(event, Retrying) for event in events) == 2:
                tasks.start_soon(stream.aclose)

        async with anyio.create_task_group() as tasks:
            async with connect(url, "c", wait_s=5, on_event=free_after_two) as channel:
                await channel.put(b"in")
    assert Connected(1) in events


async def test_a_channel_that_had_a_place_tries_until_it_has_one_again(url: str) -> None:
    sessions: list[Session] = []
    taken: list[anyio.abc.SocketStream] = []

    async def dial(tasks: anyio.abc.TaskGroup, host: str, port: int, session: Session) -> None:
        sessions.append(session)
        if len(sessions) == 2:
            taken.append(await only_place(url))
        if len(sessions) == 4:
            await taken[0].aclose()
        await tcp.dial(tasks, host, port, session)

    async with connect(url, "c", settings=SimulatedSettings(dialer=dial)) as channel:
        sessions[0].abort()
        with anyio.fail_after(60):
            await channel.put(b"in")
        assert len(sessions) >= 4
        assert not channel.closed
