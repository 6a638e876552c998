"""Heads count for the memory of all connections: half ones, and those of requests that wait."""

from __future__ import annotations

import pytest

from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.server.connection import PREFACE
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.transports.http.server.rig import serving

MIB = 2**20
LINE = b"x: %b\r\n" % (b"y" * 8000)
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
LITERAL = b"\0\x01x\x7f\xe1\x3e" + b"y" * 8160
"""A field of HPACK, with its name and value."""


def _frame(kind: int, flags: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + bytes((kind, flags)) + b"\0\0\0\1" + data


HEADS = {
    "a half head": REQUEST + LINE * 7,
    "heads of requests that wait": (REQUEST + LINE * 3 + b"\r\n") * 3,
    "half a block of HTTP/2": PREFACE
    + bytes.fromhex("000000040000000000")
    + _frame(1, 0, LITERAL)
    + _frame(9, 0, LITERAL) * 6,
}


@pytest.mark.parametrize("sent", HEADS.values(), ids=HEADS)
async def test_heads_are_counted_until_their_connection_ends(sent: bytes) -> None:
    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(wait) as rig:
        memory = rig.server.memory = MemoryBudget(MemorySettings(MIB, MIB, MIB, MIB), rig.arm)
        line = rig.connect()
        for start in range(0, len(sent), 1000):
            line.say(sent[start : start + 1000])
        await line.read()
        await rig.pass_s(0.5)
        assert len(sent) * 3 // 4 <= memory.used_bytes <= len(sent) * 2
        line.end()
        await line.read()
        assert memory.used_bytes == 0
