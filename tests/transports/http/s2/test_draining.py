"""Append sessions of a node that stops: what is not acked can be sent again (A.7, A.9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import anyio
import msgspec
import pytest

from millpond.actors.messages import Batch
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import basin_cell
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.s2.append_session import DRAIN_S, DRAIN_S_MAX, LAST_BYTES_S
from tests.transports.http.s2.session_client import (
    BASIN,
    CLOCKED,
    RECORDS,
    Speaker,
    Talk,
    append_frame,
    speaker,
)

CELL = basin_cell(BASIN.encode(), b"orders")
DRAINING = (503, "server_draining")
UNKNOWN = (500, "other")
EVERY_S = 0.002


@asynccontextmanager
async def writing(
    drain_timeout_s: float = 10.0, window: float = inf
) -> AsyncIterator[tuple[Speaker, Talk]]:
    async with speaker("orders", drain_timeout_s=drain_timeout_s) as s2:
        s2.client = type(s2.client)(s2.application, window=window)
        async with s2.session("POST", RECORDS) as talk:
            await talk.head()
            yield s2, talk


async def write(talk: Talk, until: float = inf, pieces: int = 1) -> None:
    """Every append wants the place that it gets if nothing is lost before it."""
    number = 0
    while anyio.current_time() < until:
        frame = append_frame(b"%d" % number, match_seq_num=number)
        cut = len(frame) // pieces
        for at in range(pieces):
            await talk.say(frame[at * cut : None if at == pieces - 1 else (at + 1) * cut])
        number += 1
        await anyio.sleep(EVERY_S)
    await talk.say(b"", is_last=True)


async def receive(talk: Talk) -> tuple[int, tuple[int, Any] | None]:
    """Acks one behind the other to the end: how many, and the terminal frame if there is one."""
    count = 0
    while (frame := await talk.frame()) is not None:
        if frame.is_terminal:
            assert await talk.frame() is None
            said = msgspec.json.decode(frame.body[2:])
            return count, (int.from_bytes(frame.body[:2]), said.get("code", said))
        talk._frames.insert(0, frame)
        assert await talk.ack() == (count, count + 1)
        count += 1
    return count, None


async def tail(s2: Speaker) -> int:
    with CellClient(s2.node.services) as cells:
        found = await cells.request(CELL, m.Describe)
    assert isinstance(found, m.StreamDescription)
    return found.info.tail


@CLOCKED
@pytest.mark.parametrize("pieces", [1, 3])
async def test_a_writer_that_does_not_heed_the_advice(pieces: int) -> None:
    """It is ended, between two appends: what is behind the last ack was not done."""
    async with writing() as (s2, talk), anyio.create_task_group() as tasks:
        tasks.start_soon(write, talk, inf, pieces)
        await anyio.sleep(50 * EVERY_S)
        tasks.start_soon(s2.node.drain)
        began = anyio.current_time()
        count, last = await receive(talk)
        assert last == DRAINING and count > 50
        assert DRAIN_S_MAX <= anyio.current_time() - began < DRAIN_S_MAX + 1
        assert await tail(s2) == count
        tasks.cancel_scope.cancel()


@CLOCKED
@pytest.mark.parametrize("late_s", [0.0, 0.4, 0.9, 1.9])
async def test_a_writer_that_ends_its_half_hears_all_acks(late_s: float) -> None:
    """Also one that was busy when the advice came: nothing is ended that it still writes to."""
    async with writing() as (s2, talk), anyio.create_task_group() as tasks:
        began = anyio.current_time()
        tasks.start_soon(write, talk, began + 0.1 + late_s)
        await anyio.sleep(0.1)
        tasks.start_soon(s2.node.drain)
        count, last = await receive(talk)
        assert last is None and count >= 50
        assert await tail(s2) == count


@CLOCKED
@pytest.mark.parametrize("heeds", [True, False])
async def test_the_node_waits_for_its_last_acks_to_be_read(heeds: bool) -> None:
    """Connections end after the last session; h2 forgets what it reads along with that."""
    async with writing() as (s2, talk), anyio.create_task_group() as tasks:
        gone: list[float] = []

        async def drain() -> None:
            await s2.node.drain()
            gone.append(anyio.current_time())

        tasks.start_soon(write, talk, anyio.current_time() + 0.2 if heeds else inf)
        await anyio.sleep(0.1)
        tasks.start_soon(drain)
        count, last = await receive(talk)
        received = anyio.current_time()
        assert (last is None) == heeds and not gone
        await anyio.sleep(1)
        assert gone and gone[0] - received > 0.9 * LAST_BYTES_S
        assert await tail(s2) == count
        tasks.cancel_scope.cancel()


@CLOCKED
async def test_a_writer_that_says_nothing_is_not_waited_for() -> None:
    async with writing() as (s2, talk), anyio.create_task_group() as tasks:
        tasks.start_soon(s2.node.drain)
        began = anyio.current_time()
        assert await receive(talk) == (0, DRAINING)
        assert DRAIN_S <= anyio.current_time() - began < DRAIN_S_MAX


@CLOCKED
async def test_a_session_that_is_cut_off_knows_what_it_did() -> None:
    """The node does not wait so long; nothing was under way, so nothing is unknown."""
    async with writing(drain_timeout_s=0.2) as (s2, talk), anyio.create_task_group() as tasks:
        tasks.start_soon(write, talk)
        await anyio.sleep(50 * EVERY_S)
        tasks.start_soon(s2.node.drain)
        count, last = await receive(talk)
        assert last == DRAINING and count > 50
        assert await tail(s2) == count
        tasks.cancel_scope.cancel()


async def test_an_append_that_is_cut_off_may_be_done_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits in the mailbox of a stream that crashed, and is not restarted before the node
    stops."""
    monkeypatch.setattr("millpond.actors.runtime.supervisor.Restarts.count", lambda *_: 60.0)
    async with writing(drain_timeout_s=0.01) as (s2, talk):
        await talk.say(append_frame(b"a"))
        assert await talk.ack() == (0, 1)
        node = s2.node
        node.scheduler.submit(CELL, Batch(None, [m.CreateTopic(0, b"t", 2)]), node.clock.now())
        await talk.say(append_frame(b"b"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.drain)
            assert await receive(talk) == (0, UNKNOWN)


async def test_acks_that_a_client_did_not_take_are_not_denied() -> None:
    """They are on their way when the session is cut off: whether they arrive is not known."""
    async with writing(drain_timeout_s=0.05, window=1) as (s2, talk):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                await talk.say(append_frame(b"x", match_seq_num=number))
                await anyio.sleep(EVERY_S)
            tasks.start_soon(s2.node.drain)
            await anyio.sleep(0.1)
            count, last = await receive(talk)
            assert last == UNKNOWN and count < 20 == await tail(s2)
