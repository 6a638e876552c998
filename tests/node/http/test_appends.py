"""Appends by HTTP that are asked ahead of their answers, on real sockets and a disk."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from millpond.node.config import Config, Durability
from millpond.node.node import Node
from tests.node.http.clients import dial, eventually, get, rest
from tests.transports.http.direct_server import append, said
from tests.transports.http.running_app import CLOSED

CONNECTIONS = 60
EACH = 12
OCTETS = b"content-type: application/octet-stream"
STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def _config(folder: Path) -> Config:
    told = {**CLOSED, "http": "127.0.0.1:0", "drain_timeout_s": 2.0}
    return Config(**told, data=str(folder), durability=Durability.DISK)  # type: ignore[arg-type]


def _word(connection: int, number: int) -> bytes:
    return b"%03d.%02d;" % (connection, number)


async def _append_all(address: str, connection: int, received: dict[int, bytes]) -> None:
    """Everything in one piece, and no more behind it."""
    asked = [append(_word(connection, number)) for number in range(EACH)]
    async with await dial(address) as stream:
        try:
            await stream.send(b"".join(asked))
        except anyio.BrokenResourceError:
            return
        await anyio.lowlevel.checkpoint()
        received[connection] = await rest(stream)


async def _make(address: str) -> None:
    async with await dial(address) as stream:
        await stream.send(said(b"PUT", b"/v1/stream/a", b"", OCTETS, b"connection: close"))
        assert b" 201 " in await rest(stream)


async def _kept(folder: Path) -> list[bytes]:
    async with Node(_config(folder)) as node:
        status, body = await get(node.listeners["http"], "/v1/stream/a?offset=-1")
    assert status == 200
    return [each + b";" for each in body.split(b";")[:-1]]


@pytest.mark.parametrize("stops", [False, True])
async def test_each_append_that_was_acknowledged_is_there_once(tmp_path: Path, stops: bool) -> None:
    """In the order of its connection; also where the node stops in the midst of them."""
    received: dict[int, bytes] = {}
    async with anyio.create_task_group() as tasks:
        async with Node(_config(tmp_path)) as node:
            address = node.listeners["http"]
            await _make(address)
            for connection in range(CONNECTIONS):
                tasks.start_soon(_append_all, address, connection, received)
            while node.services.http.answers.get(("durable", 204), 0) < 2 * CONNECTIONS:
                await anyio.lowlevel.checkpoint()
            if not stops:
                everything = CONNECTIONS * EACH
                await eventually(lambda: node.services.http.requests > everything)
    kept = await _kept(tmp_path)
    assert len(set(kept)) == len(kept)
    done = 0
    for connection in range(CONNECTIONS):
        own = [each for each in kept if each.startswith(b"%03d." % connection)]
        assert own == [_word(connection, number) for number in range(len(own))]
        statuses = STATUS.findall(received.get(connection, b""))
        assert set(statuses) <= {b"204", b"503"}
        assert statuses.count(b"204") == len(own)
        done += len(own)
    assert done == CONNECTIONS * EACH or stops
