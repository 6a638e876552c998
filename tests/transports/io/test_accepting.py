"""Connections that are accepted while their listener ends, or whose session cannot be made."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import warnings

import anyio
import pytest
from anyio.abc import ByteReceiveStream

from millpond import Config, Node
from millpond.transports.io.interface import Session, Wire
from millpond.transports.io.tcp import listen, parse_address


async def _end_while_accepting(turns: int) -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        host, port = node.listeners["p2p"].rsplit(":", 1)
        newcomer = socket.create_connection((host, int(port)))
        for _ in range(turns):
            await asyncio.sleep(0)
    newcomer.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_node_that_ends_while_it_accepts_leaves_no_socket(turns: int) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        anyio.run(_end_while_accepting, turns, backend="asyncio")
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        pytest.param("asyncio", {"use_uvloop": False}, id="asyncio"),
        pytest.param("asyncio", {"use_uvloop": True}, id="uvloop"),
        pytest.param("trio", {}, id="trio"),
    ],
)
def test_connections_whose_session_cannot_be_made_are_closed_and_the_listener_goes_on(
    backend: str, options: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    made = 0

    def factory() -> Session:
        nonlocal made
        made += 1
        if made < 3:
            raise OSError(errno.EMFILE, "too many open files")
        return _Greeting()

    async def connect() -> list[bytes]:
        answers = []
        async with anyio.create_task_group() as tasks:
            listener = await listen(tasks, "127.0.0.1", 0, factory)
            for _ in range(3):
                with anyio.fail_after(10):
                    async with await anyio.connect_tcp(*parse_address(listener.address)) as client:
                        answers.append(await _all_of(client))
            await listener.aclose()
            tasks.cancel_scope.cancel()
        return answers

    with caplog.at_level(logging.INFO, "millpond.transports.io"):
        assert anyio.run(connect, backend=backend, backend_options=options) == [b"", b"", b"hello"]
    first, again = [each for each in caplog.records if each.name.endswith("session_factory")]
    assert first.exc_info is not None
    assert again.getMessage() == "sessions are made again: failed=2"


async def _all_of(client: ByteReceiveStream) -> bytes:
    received = b""
    try:
        while True:
            received += await client.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


class _Greeting(Session):
    def opened(self, wire: Wire) -> None:
        wire.write(b"hello")
        wire.close()

    def received(self, data: bytes) -> None: ...

    def uncongested(self) -> None: ...

    def eof(self) -> None: ...

    def ended(self) -> None: ...
