"""The S3P client against a server that sends fixed bytes over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from millpond.actors.errors import (
    EmptyData,
    Malformed,
    NonMonotonicId,
    OutcomeUnknown,
    StreamExists,
    UnknownStream,
)
from millpond.node.client.errors import ClientClosed, ConnectionLost
from millpond.node.client.events import Connected, Disconnected, Event
from millpond.node.client.requests.errors import LimitExceeded, NotDone
from millpond.node.client.s3p.client import S3p, connect_s3p
from millpond.node.client.s3p.records import RecordId, S3pRecord
from tests.node.client.scripted_server import SOON_S, ByteServer, byte_server

CREATE = b"*3\r\n$6\r\nCREATE\r\n$6\r\norders\r\n*0\r\n"
DELETE = b"*3\r\n$6\r\nDELETE\r\n$6\r\norders\r\n*0\r\n"
TRIM = b"*3\r\n$4\r\nTRIM\r\n$6\r\norders\r\n*2\r\n$6\r\nMIN_ID\r\n$15\r\n1700000001235-0\r\n"
APPEND_TWO = b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n*0\r\n*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n"
READ = b"*3\r\n$4\r\nREAD\r\n$6\r\norders\r\n*0\r\n"
BLOCKED = b"*3\r\n$4\r\nREAD\r\n$6\r\norders\r\n*2\r\n$5\r\nBLOCK\r\n$4\r\n5000\r\n"
TWO = b"*4\r\n$15\r\n1700000001234-0\r\n$5\r\nhello\r\n$15\r\n1700000001235-0\r\n$5\r\nworld\r\n"


def append(record: bytes) -> bytes:
    head = b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n*0\r\n*1\r\n"
    return head + b"$%d\r\n%b\r\n" % (len(record), record)


@pytest.fixture
async def server() -> AsyncIterator[ByteServer]:
    async with byte_server() as server:
        yield server


@pytest.fixture
async def s3p(server: ByteServer) -> AsyncIterator[S3p]:
    async with connect_s3p(server.address) as s3p:
        yield s3p


async def test_the_examples_of_the_specification(server: ByteServer, s3p: S3p) -> None:
    """S3P-19, S3P-21, S3P-32, S3P-41, S3P-42, as the client sees them."""
    server.answer = lambda line: line.say(replies.pop(0))
    replies = [b"+OK\r\n", b"$15\r\n1700000001234-1\r\n", TWO, b"*0\r\n", b"+OK\r\n", b"+OK\r\n"]
    await s3p.create("orders")
    assert str(await s3p.append("orders", [b"hello", b"world"])) == "1700000001234-1"
    records = await s3p.read("orders")
    assert records == [
        S3pRecord(RecordId(1700000001234, 0), b"hello"),
        S3pRecord(RecordId(1700000001235, 0), b"world"),
    ]
    assert await s3p.read(b"orders") == []
    await s3p.trim("orders", "1700000001235-0")
    await s3p.delete("orders")
    await server.expects(CREATE + APPEND_TWO + READ + READ + TRIM + DELETE)


async def test_options_are_said_where_they_are_given(server: ByteServer, s3p: S3p) -> None:
    server.answer = lambda line: line.say(replies.pop(0))
    replies = [b"$3\r\n7-0\r\n", b"*0\r\n"]
    await s3p.append("s", b"x", ms=7)
    await s3p.read("s", RecordId(7, 1), count=10)
    await server.expects(
        b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*2\r\n$2\r\nID\r\n$1\r\n7\r\n*1\r\n$1\r\nx\r\n"
        b"*3\r\n$4\r\nREAD\r\n$1\r\ns\r\n*4\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n$6\r\nMIN_ID\r\n$3\r\n7-1\r\n"
    )


async def test_soft_errors_leave_the_connection_usable(server: ByteServer, s3p: S3p) -> None:
    """S3P-45."""
    server.answer = lambda line: line.say(replies.pop(0))
    replies = [
        b"-ERR_STREAM_EXISTS stream orders already exists\r\n",
        b"-ERR_UNKNOWN_STREAM no stream orders\r\n",
        b"-ERR_NON_MONOTONIC_ID provided timestamp ID 5 is not greater\r\n",
        b"-ERR_SOMETHING else\r\n",
        b"+OK\r\n",
    ]
    with pytest.raises(StreamExists, match="stream orders already exists"):
        await s3p.create("orders")
    with pytest.raises(UnknownStream):
        await s3p.read("orders")
    with pytest.raises(NonMonotonicId):
        await s3p.append("orders", b"x", ms=5)
    with pytest.raises(OutcomeUnknown, match="ERR_SOMETHING else"):
        await s3p.delete("orders")
    await s3p.create("orders")
    assert len(server.lines) == 1


async def test_calls_of_many_tasks_are_pipelined_and_answered_in_order(
    server: ByteServer, s3p: S3p
) -> None:
    """S3P-46: one connection, and no call waits for the reply to another."""
    ids: dict[int, RecordId] = {}

    async def put(n: int) -> None:
        ids[n] = await s3p.append("orders", b"%d" % n)

    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(put, n)
        await server.until(lambda: server.line.input.count(b"APPEND") == 10)
        order = [int(part.split(b"\r\n")[-2]) for part in server.line.input.split(b"*4\r\n")[1:]]
        for n in order:
            server.line.say(b"$3\r\n%d-0\r\n" % n if n < 10 else b"")
    assert ids == {n: RecordId(n, 0) for n in range(10)}
    assert len(server.lines) == 1


async def test_a_cancelled_call_does_not_shift_the_replies_of_others(
    server: ByteServer, s3p: S3p
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(s3p.append, "orders", b"gone")
        await server.expects(append(b"gone"))
        tasks.cancel_scope.cancel()
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.expects, append(b"kept"))
            server.answer = lambda line: line.say(b"$3\r\n1-0\r\n$3\r\n2-0\r\n")
            assert await s3p.append("orders", b"kept") == RecordId(2, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (b"-ERR_BAD_FORMAT unknown option MAX_SIZE\r\n", Malformed),
        (b"-ERR_LIMITS record too large\r\n", LimitExceeded),
    ],
)
async def test_a_fatal_error_ends_what_is_behind_it(
    server: ByteServer, s3p: S3p, error: bytes, kind: type[Exception]
) -> None:
    """S3P-44: those behind it certainly had no effect; the next call has a new connection."""
    failures: dict[str, type[BaseException]] = {}

    async def fail(name: str) -> None:
        try:
            await s3p.append("orders", name.encode())
        except Exception as failure:
            failures[name] = type(failure)

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(fail, name)
        await server.until(lambda: server.line.input.count(b"APPEND") == 3)
        first, *behind = (
            part.split(b"\r\n")[-2].decode() for part in server.line.input.split(b"*4\r\n")[1:]
        )
        server.line.say(error)
        server.line.close()
    assert failures == {first: kind, **dict.fromkeys(behind, NotDone)}
    assert not s3p.connected
    server.answer = lambda line: line.say(b"+OK\r\n")
    await s3p.create("orders")
    assert len(server.lines) == 2


@pytest.mark.parametrize("is_reset", [False, True])
async def test_no_call_hangs_when_the_connection_ends(
    server: ByteServer, s3p: S3p, is_reset: bool
) -> None:
    """Requests that may have been done have another error than those without effect."""
    failures: list[type[BaseException]] = []

    async def fail(call: str) -> None:
        try:
            await (s3p.read("orders") if call == "read" else s3p.append("orders", b"x"))
        except Exception as failure:
            failures.append(type(failure))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            for call in ("read", "append"):
                tasks.start_soon(fail, call)
            await server.until(lambda: server.line.input.count(b"orders") == 2)
            (server.line.cut if is_reset else server.line.close)()
    assert sorted(failures, key=str) == sorted([NotDone, OutcomeUnknown], key=str)
    assert not s3p.connected
    assert not s3p.closed


async def test_calls_wait_for_a_server_that_comes_back(s3p: S3p, server: ByteServer) -> None:
    server.line.cut()
    await server.until(lambda: not s3p.connected)
    server.answer = lambda line: line.say(b"+OK\r\n")
    with anyio.fail_after(SOON_S):
        await s3p.create("orders")
    assert len(server.lines) == 2


async def test_without_reconnect_a_lost_connection_is_the_end(server: ByteServer) -> None:
    async with connect_s3p(server.address, reconnect=False) as s3p:
        server.line.cut()
        await server.until(lambda: s3p.closed)
        with pytest.raises(NotDone):
            await s3p.create("orders")
    assert len(server.lines) == 1


async def test_a_server_that_is_not_there(server: ByteServer) -> None:
    await server.go_away()
    with pytest.raises(ConnectionLost):
        async with connect_s3p(server.address):
            raise AssertionError("must not get here")
    with pytest.raises(ValueError, match="HOST:PORT"):
        async with connect_s3p("nowhere"):
            raise AssertionError("must not get here")


async def test_events_tell_of_connections(server: ByteServer) -> None:
    events: list[Event] = []
    server.answer = lambda line: line.say(b"+OK\r\n")
    async with connect_s3p(server.address, on_event=events.append) as s3p:
        server.line.close()
        await server.until(lambda: any(isinstance(event, Disconnected) for event in events))
        await s3p.create("orders")
    assert events[0] == Connected(1)
    assert isinstance(events[1], Disconnected)
    assert events[3] == Connected(2)


async def test_a_silent_server_counts_as_lost(server: ByteServer) -> None:
    async with connect_s3p(server.address, answer_s=0.05) as s3p:
        with anyio.fail_after(SOON_S), pytest.raises(OutcomeUnknown, match="does not answer"):
            await s3p.create("orders")
        with anyio.fail_after(SOON_S), pytest.raises(NotDone):
            await s3p.read("orders", block_ms=1)


@pytest.mark.parametrize("said", [b":1\r\n", b"*0\r\n", b"$3\r\nabc\r\n", b"+NO\r\n", b"\r\n"])
async def test_what_is_no_reply_ends_the_connection(
    server: ByteServer, s3p: S3p, said: bytes
) -> None:
    server.answer = lambda line: line.say(said)
    with anyio.fail_after(SOON_S), pytest.raises(OutcomeUnknown):
        await s3p.create("orders")
    assert not s3p.connected


async def test_a_server_that_has_no_room_says_so_before_it_is_asked(server: ByteServer) -> None:
    server.greeting = b"-ERR_LIMITS too many connections\r\n"
    events: list[Event] = []
    async with connect_s3p(server.address, on_event=events.append):
        await server.until(lambda: len(events) > 1)
    assert isinstance(events[1], Disconnected)
    assert events[1].reason == "ERR_LIMITS too many connections"


async def test_a_read_that_waits_holds_nobody_up(server: ByteServer, s3p: S3p) -> None:
    """It has a connection of its own, which the next one uses again."""
    got: list[list[S3pRecord]] = []

    async def wait() -> None:
        got.append(await s3p.read("orders", block_ms=5000))

    for round in (1, 2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            waiting = await server.expects(BLOCKED, 1)
            server.answer = lambda line: line.say(b"+OK\r\n")
            await s3p.create("orders")
            server.answer = lambda line: None
            waiting.say(TWO)
        assert len(got[-1]) == 2
        assert (len(got), len(server.lines)) == (round, 2)


async def test_a_read_that_is_cancelled_while_it_waits_leaves(server: ByteServer, s3p: S3p) -> None:
    """S3P-49: its connection ends, so that the server need not wait on."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: s3p.read("orders", block_ms=5000))
        waiting = await server.expects(BLOCKED, 1)
        tasks.cancel_scope.cancel()
    await server.until(lambda: waiting.is_over)
    assert s3p.connected


async def test_reads_that_wait_are_bounded_and_take_turns(server: ByteServer) -> None:
    async with connect_s3p(server.address, waiting_max=2) as s3p:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: s3p.read("orders", block_ms=5000))
            for line in (1, 2):
                await server.expects(BLOCKED, line)
            assert len(server.lines) == 3
            server.lines[2].say(TWO)
            for line in ((await server.expects(BLOCKED, 2)), server.lines[1]):
                line.say(b"*0\r\n")
        assert len(server.lines) == 3


async def test_no_reader_waits_on_when_the_client_is_closed(server: ByteServer) -> None:
    async with connect_s3p(server.address) as s3p:

        async def wait() -> None:
            with pytest.raises(NotDone):
                await s3p.read("orders", block_ms=60_000)

        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await server.expects(BLOCKED.replace(b"$4\r\n5000", b"$5\r\n60000"), 1)
                await s3p.aclose()


async def test_a_read_that_waits_and_finds_no_connection_says_so(
    server: ByteServer, s3p: S3p
) -> None:
    await server.stop_listening()
    with pytest.raises(NotDone):
        await s3p.read("orders", block_ms=5000)
    assert s3p.connected


async def test_following_goes_on_behind_the_last_record(server: ByteServer, s3p: S3p) -> None:
    """Also when the connection was lost in between: no record twice, none left out."""
    got: list[bytes] = []

    async def follow() -> None:
        nonlocal got
        async for record in s3p.follow("orders", block_ms=5000):
            got += [record.data]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        (await server.expects(BLOCKED)).say(TWO)
        behind = b"*3\r\n$4\r\nREAD\r\n$6\r\norders\r\n*4\r\n$5\r\nBLOCK\r\n$4\r\n5000\r\n"
        behind += b"$6\r\nMIN_ID\r\n$15\r\n1700000001235-1\r\n"
        (await server.expects(behind)).cut()
        await server.until(lambda: len(server.lines) == 3)
        (await server.expects(behind)).say(b"*2\r\n$15\r\n1700000001235-1\r\n$1\r\n!\r\n")
        await server.until(lambda: len(got) == 3)
        tasks.cancel_scope.cancel()
    assert got == [b"hello", b"world", b"!"]


async def test_arguments_that_would_end_the_connection_are_refused_here(s3p: S3p) -> None:
    with pytest.raises(ValueError, match="name"):
        await s3p.create("")
    with pytest.raises(EmptyData):
        await s3p.append("orders", b"")
    with pytest.raises(EmptyData):
        await s3p.append("orders", [b"x", b""])
    with pytest.raises(ValueError, match="no records"):
        await s3p.append("orders", [])
    with pytest.raises(ValueError, match="ms"):
        await s3p.append("orders", b"x", ms=2**64)
    with pytest.raises(ValueError, match="count"):
        await s3p.read("orders", count=0)
    for bad in ("5", "5-", "-1-1", "1-2-3", f"{2**64}-0", (0, -1)):
        with pytest.raises(ValueError, match="id"):
            await s3p.trim("orders", bad)
    assert s3p.connected


async def test_a_closed_client_takes_no_calls(server: ByteServer) -> None:
    async with connect_s3p(server.address) as s3p:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_unknown, s3p)
            await server.expects(append(b"x"))
            await s3p.aclose()
        with pytest.raises(ClientClosed, match="closed"):
            await s3p.create("orders")
        assert s3p.closed


async def _unknown(s3p: S3p) -> None:
    with pytest.raises(OutcomeUnknown):
        await s3p.append("orders", b"x")


async def test_what_the_block_raises_comes_out_as_it_is(server: ByteServer) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect_s3p(server.address):
            raise ZeroDivisionError


def test_ids_are_numbers() -> None:
    assert RecordId.parse("7-10") > RecordId.parse("7-9") == RecordId(7, 9)
    assert RecordId(7, 2**64 - 1).next == RecordId(8, 0)
