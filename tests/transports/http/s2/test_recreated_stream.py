"""A stream that is deleted, and another made of its name: nobody goes on in that one (A.6)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import basin_cell
from millpond.transports.http.cell_client import CellClient
from tests.transports.http.s2.session_client import (
    BASIN,
    RECORDS,
    Speaker,
    append_frame,
    code_of,
    speaker,
)

CELL = basin_cell(BASIN.encode(), b"orders")
GONE = (404, "stream_not_found")


async def make_anew(s2: Speaker, *bodies: bytes) -> None:
    """In one batch, so that nobody sees it missing."""
    with CellClient(s2.node.services) as cells:
        anew = [m.Delete(0), m.Create(1), m.Append(2, list(bodies))]
        await cells.submit(CELL, anew[: 3 if bodies else 2])
        await cells.reply(2 if bodies else 1)


async def bodies_of(s2: Speaker) -> list[str]:
    got = await s2.ask("GET", f"{RECORDS}?seq_num=0&clamp=true&wait=0")
    return [each["body"] for each in got.json().get("records", ())]


@pytest.mark.parametrize("size", [0, 1, 3])
async def test_an_append_session_does_not_go_on_in_the_new_one(size: int) -> None:
    new = [b"new"] * size
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        await talk.head()
        await talk.say(append_frame(b"old"))
        assert await talk.ack() == (0, 1)
        await make_anew(s2, *new)
        await talk.say(append_frame(b"late", match_seq_num=size), append_frame(b"later"))
        with anyio.fail_after(60):
            status, said = await talk.terminal()
        assert (status, said["code"]) == GONE
        assert await bodies_of(s2) == ["new"] * size


async def test_nor_one_that_has_appended_nothing_yet() -> None:
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        await talk.head()
        await make_anew(s2)
        await talk.say(append_frame(b"late"))
        with anyio.fail_after(60):
            status, said = await talk.terminal()
        assert (status, said["code"]) == GONE
        assert await bodies_of(s2) == []


async def test_a_session_makes_its_stream_and_goes_on_in_it() -> None:
    async with speaker() as s2:
        await s2.ask("PATCH", f"/v1/basins/{BASIN}", b'{"create_stream_on_append":true}')
        async with s2.session("POST", RECORDS) as talk:
            await talk.head()
            for number in range(3):
                await talk.say(append_frame(b"x"))
                assert await talk.ack() == (number, number + 1)


@pytest.mark.parametrize("bodies", [(), (b"a",), (b"a", b"b", b"c")], ids=len)
async def test_waiting_readers_hear_at_once(bodies: tuple[bytes, ...]) -> None:
    async with speaker("orders") as s2:
        await s2.append("x")
        found: list[tuple[int, str]] = []
        has_found = anyio.Event()

        async def wait() -> None:
            found.append(code_of(await s2.ask("GET", f"{RECORDS}?seq_num=1&wait=60")))
            has_found.set()

        async with (
            s2.session("GET", f"{RECORDS}?seq_num=1") as frames,
            s2.session("GET", f"{RECORDS}?seq_num=1", accept="text/event-stream") as events,
            anyio.create_task_group() as tasks,
        ):
            for each in (frames, events):
                await each.head()
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()  # the node has the request
            with anyio.fail_after(60):
                await make_anew(s2, *bodies)
                status, said = await frames.terminal()
                last: Any = None
                while (event := await events.event()) is not None:
                    last = event
                await has_found.wait()
        assert (status, said["code"]) == found[0] == GONE
        assert last[0] == b"event: error" and b"stream_not_found" in last[1]


async def test_a_reader_that_is_behind_gets_nothing_of_the_new_one() -> None:
    """It waits for its client while the stream is made anew, with more records than before."""
    async with speaker("orders") as s2:
        for _ in range(8):
            await s2.append(*["x" * 200_000] * 5)
        slow = Speaker.__new__(Speaker)
        slow.__dict__ = {**s2.__dict__}
        slow.client = type(s2.client)(s2.application, window=2)
        async with slow.session("GET", f"{RECORDS}?seq_num=0") as talk:
            await talk.head()
            await anyio.sleep(0.05)
            await make_anew(s2, *[b"new"] * 99)
            with anyio.fail_after(60):
                frame = await talk.frame()
                while frame is not None and not frame.is_terminal:
                    assert b"new" not in frame.message()
                    frame = await talk.frame()
        assert frame is not None and frame.body[:2] == (404).to_bytes(2, "big")
