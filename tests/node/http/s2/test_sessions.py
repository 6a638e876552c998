"""Append sessions by the published client: order, takeovers, drain, kill -9 (A.6, A.7)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from s2_sdk import (
    AppendInput,
    CommandRecord,
    FencingTokenMismatchError,
    ReadLimit,
    Record,
    Retry,
    S2Error,
    SeqNum,
    SeqNumMismatchError,
)

from tests.node.http.clients import eventually
from tests.node.http.s2.conftest import BASIN, client, client_at, running
from tests.node.processes import serving

COUNT = 10_000


async def _all(stream: Any, count: int) -> list[bytes]:
    """The bodies of a stream that has so many records."""
    found: list[bytes] = []
    if count:
        limit = ReadLimit(count=count)
        async for batch in stream.read_session(start=SeqNum(0), limit=limit):
            found += [each.body for each in batch.records]
    return found


async def test_a_7_ten_thousand_records_in_order(store: dict[str, Any]) -> None:
    """Each batch names the sequence it wants; every ack has it."""
    async with running(**store) as node, client(node) as s2:
        await s2.create_basin(BASIN)
        await s2.basin(BASIN).create_stream("orders")
        stream = s2.basin(BASIN).stream("orders")
        bodies = [b"%d " % n * 20 for n in range(COUNT)]
        async with stream.append_session() as session:
            tickets = [
                await session.submit(
                    AppendInput(
                        [Record(body) for body in bodies[at : at + 100]],
                        match_seq_num=at,
                        fencing_token="",
                    )
                )
                for at in range(0, COUNT, 100)
            ]
            acks = [await each for each in tickets]
        assert [(ack.start.seq_num, ack.end.seq_num) for ack in acks] == [
            (at, at + 100) for at in range(0, COUNT, 100)
        ]
        assert await _all(stream, COUNT) == bodies


async def test_a_7_after_a_refused_batch_nothing_of_a_session_is_done(stream: Any) -> None:
    session = stream.append_session()
    tickets = []
    for number in range(50):
        wanted = 99 if number == 20 else None
        given = AppendInput([Record(b"%d" % number)], match_seq_num=wanted)
        tickets.append(await session.submit(given))
    for number, ticket in enumerate(tickets):
        if number < 20:
            assert (await ticket).start.seq_num == number
        else:
            with pytest.raises(SeqNumMismatchError) as refused:
                await ticket
            assert refused.value.expected_seq_num == 20
    with pytest.raises(SeqNumMismatchError):
        await session.close()
    assert (await stream.check_tail()).seq_num == 20


async def test_a_6_a_session_takes_a_stream_over_from_another(s2: Any, stream: Any) -> None:
    """The last session to set the fencing token writes; the other one fails at its next append."""
    await stream.append(AppendInput([CommandRecord.fence("first")]))
    first = stream.append_session()
    for _ in range(5):
        await (await first.submit(AppendInput([Record(b"1")], fencing_token="first")))
    second = stream.append_session()
    await (await second.submit(AppendInput([CommandRecord.fence("second")])))
    lost = await first.submit(AppendInput([Record(b"lost")], fencing_token="first"))
    with pytest.raises(FencingTokenMismatchError) as refused:
        await lost
    assert refused.value.expected_fencing_token == "second"
    await (await second.submit(AppendInput([Record(b"2")], fencing_token="second")))
    await second.close()
    with pytest.raises(FencingTokenMismatchError):
        await first.close()
    assert await _all(stream, 8) == [b"first", *[b"1"] * 5, b"second", b"2"]


async def test_a_7_many_sessions_share_a_stream(stream: Any) -> None:
    """Each one's own records stay in its order; nothing is lost or there twice."""

    async def write(number: int) -> None:
        async with stream.append_session() as session:
            for turn in range(20):
                await session.submit(AppendInput([Record(b"%d.%d" % (number, turn))] * 2))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, number)
    found = await _all(stream, 800)
    for number in range(20):
        mine = [body for body in found if body.startswith(b"%d." % number)]
        assert mine == [b"%d.%d" % (number, turn) for turn in range(20) for _ in range(2)]


async def test_the_clients_producer(stream: Any) -> None:
    """Records one by one, gathered into batches by the client."""
    async with stream.producer(match_seq_num=0) as producer:
        tickets = [await producer.submit(Record(b"%d" % n)) for n in range(3000)]
        acks = [await each for each in tickets]
    assert [ack.seq_num for ack in acks] == list(range(3000))
    assert await _all(stream, 3000) == [b"%d" % n for n in range(3000)]


async def test_a_9_a_drain_in_mid_session_loses_nothing(tmp_path: Path) -> None:
    """The node stops and comes again on the same folder and port: every acked record is there and
    none twice, although the client sends again what was not acked."""
    folder, sent, acked = str(tmp_path / "node"), 0, 0
    is_over = False
    async with running(data=folder) as node:
        where = node.listeners["http"]
        async with client(node) as s2:
            await s2.create_basin(BASIN)
            await s2.basin(BASIN).create_stream("orders")
    s2 = client(node, retry=Retry(max_attempts=50))
    stream = s2.basin(BASIN).stream("orders")

    async def write() -> None:
        nonlocal sent
        async with stream.append_session(max_unacked_batches=20) as session:
            async with anyio.create_task_group() as hearing:
                while not is_over:
                    given = AppendInput([Record(b"%d" % sent)], match_seq_num=sent)
                    hearing.start_soon(receive, await session.submit(given), sent)
                    sent += 1
                    await anyio.sleep(0.002)

    async def receive(ticket: Any, number: int) -> None:
        nonlocal acked
        assert (await ticket).start.seq_num == number
        acked += 1

    async def more(count: int) -> None:
        wanted = acked + count
        await eventually(lambda: acked >= wanted, 10)

    async with s2, anyio.create_task_group() as tasks:
        async with running(data=folder, http=where):
            tasks.start_soon(write)
            await more(50)
        async with running(data=folder, http=where):
            await more(50)
            is_over = True
            await eventually(lambda: acked == sent, 10)
            assert await _all(stream, sent) == [b"%d" % n for n in range(sent)]
            assert (await stream.check_tail()).seq_num == sent


async def test_a_6_acked_records_survive_kill_9(tmp_path: Path) -> None:
    """Acknowledged records are there after a restart of the node."""
    options = ("--p2p", "off", "--ws", "off", "--data", str(tmp_path / "node"))
    acked: list[bytes] = []

    async def write(stream: Any) -> None:
        session = stream.append_session()
        for number in range(100_000):
            body = b"%d" % number
            try:
                ticket = await session.submit(AppendInput([Record(body)]))
                if number % 5 == 0:
                    await ticket
                    acked.append(body)
            except S2Error:
                return

    with serving(*options, "--http", "127.0.0.1:0") as ready:
        url = f"http://{ready.ready['listeners']['http']}"
        async with client_at(url) as s2, anyio.create_task_group() as tasks:
            await s2.create_basin(BASIN)
            await s2.basin(BASIN).create_stream("orders")
            tasks.start_soon(write, s2.basin(BASIN).stream("orders"))
            await eventually(lambda: len(acked) >= 20, 20)
            os.kill(ready.process.pid, signal.SIGKILL)
    with serving(*options, "--http", "127.0.0.1:0") as ready:
        async with client_at(f"http://{ready.ready['listeners']['http']}") as s2:
            stream = s2.basin(BASIN).stream("orders")
            found = await _all(stream, (await stream.check_tail()).seq_num)
    assert found == [b"%d" % n for n in range(len(found))]
    assert set(acked) <= set(found)
