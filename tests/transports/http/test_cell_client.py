"""Asking streams from coroutines: one request, many under way, waits that end early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellClient
from tests.transports.http.running_app import RunningApp, running_app

CELL = stream_cell(b"orders")


@asynccontextmanager
async def _running(**settings: object) -> AsyncIterator[RunningApp]:
    async with running_app({}, **settings) as running:
        with CellClient(running.services) as cells:
            assert isinstance(await cells.request(CELL, m.Create), m.Done)
        yield running


def _append(number: int, body: bytes = b"x", match: int | None = None) -> m.Append:
    return m.Append(number, [body], match_sequence=match)


def _read(number: int, start: int = 0, wait_until: float = 0.0) -> m.Read:
    return m.Read(number, Seek(SeekBy.SEQUENCE, start), 10, 2**20, wait_until)


def _waiting(running: RunningApp) -> int:
    described: list[int] = []

    class StatsPort:
        number, received_at, writable = 99, 0.0, True

        def send(self, replies: list[m.StreamDescription]) -> None:
            described.extend(each.info.waiting for each in replies)

        def flush(self) -> None:
            pass

    from millpond.actors.messages import Batch

    port: object = StatsPort()
    running.services.submit(CELL, Batch(port, [m.Describe(0)]), running.services.now())  # type: ignore[arg-type]
    return described[0]


async def test_one_request_one_answer() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            appended = await cells.request(CELL, _append)
            assert isinstance(appended, m.Appended) and appended.first == 0
            found = await cells.request(CELL, _read)
            assert isinstance(found, m.Records) and found.spans[0].bodies == [b"x"]
            assert cells.in_flight == 0


async def test_refusals_are_returned() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            refused = await cells.request(CELL, lambda number: _append(number, match=5))
            assert isinstance(refused, m.StreamFailed)
            assert (refused.code, refused.tail) == (Code.SEQUENCE_MISMATCH, 0)
            missing = await cells.request(stream_cell(b"none"), _read)
            assert isinstance(missing, m.StreamFailed) and missing.code is Code.UNKNOWN_STREAM


async def test_many_are_under_way_and_awaited_in_any_order() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            numbers = [cells.next_number() for _ in range(5)]
            await cells.submit(CELL, [_append(number) for number in numbers[:3]], 3)
            for number in numbers[3:]:
                await cells.submit(CELL, [_append(number)], 1, gather=True)
            firsts = {}
            for number in reversed(numbers):
                reply = await cells.reply(number)
                assert isinstance(reply, m.Appended)
                firsts[number] = reply.first
            assert firsts == {number: number for number in numbers}


async def test_requests_that_join_others_keep_the_order_of_their_own() -> None:
    async with _running() as running:
        with CellClient(running.services) as one, CellClient(running.services) as two:
            for cells in (one, two):
                first, second = cells.next_number(), cells.next_number()
                await cells.submit(CELL, [_append(first)], gather=True)
                await cells.submit(CELL, [_append(second)])
            for cells in (one, two):
                firsts = [await cells.reply(0), await cells.reply(1)]
                assert isinstance(firsts[0], m.Appended) and isinstance(firsts[1], m.Appended)
                assert firsts[0].first < firsts[1].first


async def test_a_wait_that_is_cancelled_loses_no_answer() -> None:
    async with _running() as running, anyio.create_task_group() as tasks:
        with CellClient(running.services) as cells:
            number = cells.next_number()
            read = _read(number, wait_until=running.services.now() + 60)
            await cells.submit(CELL, [read])
            for _ in range(2):
                with anyio.move_on_after(0.01) as scope:
                    await cells.reply(number)
                assert scope.cancelled_caught and cells.in_flight == 1

            async def append() -> None:
                with CellClient(running.services) as other:
                    await other.request(CELL, _append)

            tasks.start_soon(append)
            found = await cells.reply(number)
            assert isinstance(found, m.Records) and found.next == 1


async def test_an_answer_and_a_cancellation_at_once_lose_nothing() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells, CellClient(running.services) as other:
            number = cells.next_number()
            read = _read(number, wait_until=running.services.now() + 60)
            await cells.submit(CELL, [read])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cells.reply, number)
                await anyio.wait_all_tasks_blocked()
                await other.request(CELL, _append)
                tasks.cancel_scope.cancel()
            if cells._ready:
                assert isinstance(await cells.reply(number), m.Records)


async def test_who_leaves_is_forgotten_by_the_streams_it_asked() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            number = cells.next_number()
            read = _read(number, wait_until=running.services.now() + 60)
            await cells.submit(CELL, [read])
            assert _waiting(running) == 1
        assert _waiting(running) == 0


async def test_a_read_can_be_concluded_and_cancelled() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            until = running.services.now() + 60
            one, two = cells.next_number(), cells.next_number()
            reads = [_read(number, wait_until=until) for number in (one, two)]
            await cells.submit(CELL, reads)
            cells.notify(CELL, m.FinishRead(one))
            found = await cells.reply(one)
            assert isinstance(found, m.Records) and not found.spans
            cells.notify(CELL, m.CancelRead(two))
            assert _waiting(running) == 0


async def test_a_full_mailbox_makes_the_next_wait_and_nothing_is_lost() -> None:
    async with _running(mailbox_bytes_max=1000) as running:
        count = 2000
        with CellClient(running.services) as cells:
            numbers = [cells.next_number() for _ in range(count)]
            # More than a cell's share of a turn: it is queued, and the mailbox is full.
            await cells.submit(CELL, [_append(number) for number in numbers], 5000)
            assert cells._is_full
            last = await cells.request(CELL, _append, 1)
            assert isinstance(last, m.Appended) and last.first == count
            replies = [await cells.reply(number) for number in numbers]
            assert [each.first for each in replies if isinstance(each, m.Appended)] == numbers


async def test_a_stream_that_crashes_leaves_nobody_waiting() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            broken = m.Append(cells.next_number(), [None])  # type: ignore[list-item]
            await cells.submit(CELL, [broken])
            with anyio.fail_after(60):
                reply = await cells.reply(0)
            assert isinstance(reply, Failed) and reply.code is Code.OUTCOME_UNKNOWN


async def test_an_answer_is_there_once() -> None:
    async with _running() as running:
        with CellClient(running.services) as cells:
            await cells.request(CELL, _append)
            with pytest.raises(AssertionError):
                await cells.reply(0)
