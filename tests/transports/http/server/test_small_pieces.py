"""Bodies count for the memory of all connections, in whatever pieces they come."""

from __future__ import annotations

import pytest

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.request import HttpLimits, Request, request_head
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.transports.http.server.rig import serving

MIB = 2**20


async def _collect(scope: Scope, receive: Receive, send: Send) -> None:
    await Request(scope, receive, HttpLimits(), request_head(scope, (b"x",))).body()


@pytest.mark.parametrize("piece_bytes", [1000, 16_000, 40_000])
async def test_a_body_is_counted_in_whatever_pieces_it_comes(piece_bytes: int) -> None:
    memory = MemoryBudget(MemorySettings(MIB, MIB, MIB, MIB), lambda budget, when: None)
    head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % (8 * MIB)
    async with serving(_collect, memory=memory) as rig:
        line, sent = rig.connect(), 0
        await line.ask(head)
        while sent < 2 * MIB and not line.wire.is_paused:
            await line.ask(bytes(piece_bytes))
            sent += piece_bytes
        assert line.wire.is_paused and sent <= MIB
        assert sent - 2**16 <= memory.used_bytes <= sent + 2**16
        line.end()
        await line.read()
        assert memory.used_bytes == 0
