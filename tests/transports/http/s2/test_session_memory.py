"""The input of append sessions counts in the memory budget: frames of which a part has come, and
appends that are not acked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from millpond.actors.streams.names import basin_cell
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from tests.transports.http.s2.session_client import (
    BASIN,
    CLOCKED,
    RECORDS,
    Speaker,
    append_frame,
    speaker,
)
from tests.transports.http.server.rig import Line, Rig, serving

MIB = 2**20
SIZE = 1_000_000
CELL = basin_cell(BASIN.encode(), b"orders")
HEAD = (
    f"POST {RECORDS} HTTP/1.1\r\nhost: localhost\r\ns2-basin: {BASIN}\r\n"
    "content-type: s2s/proto\r\ntransfer-encoding: chunked\r\n\r\n"
).encode()
HALF = (2 * MIB - 1).to_bytes(3, "big") + bytes(MIB)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def _session(memory: MemoryBudget) -> AsyncIterator[tuple[Speaker, Rig, Line]]:
    """A session over HTTP/1.1 that has begun."""
    async with speaker("orders") as s2, serving(s2.application, memory=memory) as rig:
        line = Line(rig.server, "127.0.0.1")  # others need a token
        rig.lines.append(line)
        assert (await line.ask(HEAD)).startswith(b"HTTP/1.1 200 ")
        yield s2, rig, line


def _budget() -> MemoryBudget:
    return MemoryBudget(MemorySettings(), lambda budget, when: None)


async def test_half_a_frame_counts_until_it_is_whole_and_acked() -> None:
    async with _session(_budget()) as (_, rig, line):
        whole = append_frame(bytes(SIZE))
        await line.ask(_chunk(whole[:-1000]))
        await rig.pass_s(0.5)
        assert SIZE - 1000 <= line.session.held_bytes < 1.2 * SIZE
        await line.ask(_chunk(whole[-1000:] + whole[:500_000]))
        await rig.pass_s(0.5)
        assert 500_000 <= line.session.held_bytes < 600_000, "the acked one counts no more"
        await line.ask(_chunk(whole[500_000:]))
        await rig.pass_s(0.5)
        assert line.session.held_bytes < 1000


@CLOCKED
async def test_an_append_counts_until_it_is_acked() -> None:
    async with _session(_budget()) as (s2, rig, line):
        cell = s2.node.scheduler.cells[CELL]
        cell.resumes_at = s2.node.clock.now() + 5.0  # as one that waits after a crash
        await line.ask(_chunk(append_frame(bytes(SIZE)) * 3))
        await rig.pass_s(0.5)
        assert 3 * SIZE <= line.session.held_bytes < 4.1 * SIZE
        await anyio.sleep(10.0)
        assert len(await line.read()) > 0
        assert line.session.held_bytes < 1000


@CLOCKED
async def test_half_a_frame_is_freed_as_its_connection_is_closed_for_memory() -> None:
    memory = _budget()
    async with _session(memory) as (_, _, line):
        await line.ask(_chunk(HALF))
        line.session.account().measure(0.0)  # type: ignore[union-attr]
        assert memory.used_bytes > MIB
        line.session.close_for_memory()
        assert line.session.held_bytes == 0
