"""The batching producer of S3P against a server that sends fixed bytes over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from millpond.actors.errors import EmptyData, OutcomeUnknown, UnknownStream
from millpond.node.client.requests.batching import BatchSettings
from millpond.node.client.requests.errors import NotSent
from millpond.node.client.s3p.client import S3p, S3pProducer, connect_s3p
from millpond.node.client.s3p.records import RecordId
from tests.node.client.scripted_server import SOON_S, ByteServer, byte_server

NEVER_MS = 3_600_000.0
HEAD = b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n*0\r\n"


def append(*records: bytes) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(record), record) for record in records]
    return HEAD + b"*%d\r\n" % len(records) + b"".join(parts)


@pytest.fixture
async def server() -> AsyncIterator[ByteServer]:
    async with byte_server() as server:
        yield server


@pytest.fixture
async def s3p(server: ByteServer) -> AsyncIterator[S3p]:
    async with connect_s3p(server.address) as s3p:
        yield s3p


async def test_batches_leave_when_they_are_full_or_flushed(server: ByteServer, s3p: S3p) -> None:
    """Each record expects its own id: those of one APPEND follow each other (S3A-15)."""
    settings = BatchSettings(linger_ms=NEVER_MS, records_max=3)
    async with s3p.producer("orders", settings) as producer:
        sent = [await producer.send(b"%d" % n) for n in range(7)]
        await server.expects(append(b"0", b"1", b"2") + append(b"3", b"4", b"5"))
        assert producer.buffered == 7
        server.line.say(b"$3\r\n5-2\r\n$3\r\n6-2\r\n")
        ids = [await each for each in sent[:6]]
        assert ids == [RecordId(5, n) for n in range(3)] + [RecordId(6, n) for n in range(3)]
        assert not sent[6].done
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.flush)
            (await server.expects(append(b"6"))).say(b"$3\r\n7-0\r\n")
        assert await sent[6] == RecordId(7, 0)
        assert producer.buffered == 0


async def test_a_record_leaves_once_it_has_lingered(server: ByteServer, s3p: S3p) -> None:
    async with s3p.producer("orders", BatchSettings(linger_ms=30)) as producer:
        began = anyio.current_time()
        first, second = await producer.send(b"a"), await producer.send(b"b")
        (await server.expects(append(b"a", b"b"))).say(b"$3\r\n1-1\r\n")
        assert anyio.current_time() - began > 0.02
        assert [await first, await second] == [RecordId(1, 0), RecordId(1, 1)]


async def test_a_batch_has_a_limit_of_bytes_and_a_larger_record_goes_alone(
    server: ByteServer, s3p: S3p
) -> None:
    settings = BatchSettings(linger_ms=NEVER_MS, bytes_max=10)
    async with s3p.producer("orders", settings) as producer:
        server.answer = lambda line: None
        for body in (b"a" * 4, b"b" * 4, b"c" * 4, b"d" * 20, b"e"):
            producer.send_nowait(body)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.flush)
            received = append(b"aaaa", b"bbbb") + append(b"cccc") + append(b"d" * 20) + append(b"e")
            (await server.expects(received)).say(
                b"$3\r\n1-1\r\n$3\r\n1-2\r\n$3\r\n1-3\r\n$3\r\n1-4\r\n"
            )


async def test_the_buffer_is_bounded_and_holds_the_caller_up(server: ByteServer, s3p: S3p) -> None:
    settings = BatchSettings(linger_ms=0, buffer_records=2)
    async with s3p.producer("orders", settings) as producer:
        await producer.send(b"a")
        producer.send_nowait(b"b")
        with pytest.raises(anyio.WouldBlock):
            producer.send_nowait(b"c")
        with anyio.move_on_after(0.02) as waited:
            await producer.send(b"c")
        assert waited.cancelled_caught
        (await server.expects(append(b"a", b"b"))).say(b"$3\r\n1-1\r\n")
        with anyio.fail_after(SOON_S):
            sent = await producer.send(b"d")
        (await server.expects(append(b"d"))).say(b"$3\r\n1-2\r\n")
        assert await sent == RecordId(1, 2)


async def test_an_unknown_outcome_is_told_and_only_what_was_not_sent_is_sent_again(
    server: ByteServer, s3p: S3p
) -> None:
    """Nothing twice, nothing out of order."""
    settings = BatchSettings(linger_ms=0, records_max=2, in_flight_max=2)
    async with s3p.producer("orders", settings) as producer:
        sent = [producer.send_nowait(b"%d" % n) for n in range(6)]
        (await server.expects(append(b"0", b"1") + append(b"2", b"3"))).cut()
        for lost in sent[:4]:
            with pytest.raises(OutcomeUnknown):
                await lost
        (await server.expects(append(b"4", b"5"), 1)).say(b"$3\r\n2-1\r\n")
        assert [await each for each in sent[4:]] == [RecordId(2, 0), RecordId(2, 1)]


async def test_what_waits_is_sent_in_order_once_the_server_is_back(
    server: ByteServer, s3p: S3p
) -> None:
    settings = BatchSettings(linger_ms=NEVER_MS, records_max=2, in_flight_max=1)
    async with s3p.producer("orders", settings) as producer:
        sent = [producer.send_nowait(b"%d" % n) for n in range(5)]
        (await server.expects(append(b"0", b"1"))).cut()
        for lost in sent[:2]:
            with pytest.raises(OutcomeUnknown):
                await lost
        (await server.expects(append(b"2", b"3"), 1)).say(b"$3\r\n2-1\r\n")
        assert [await each for each in sent[2:4]] == [RecordId(2, 0), RecordId(2, 1)]
        server.answer = lambda line: line.say(b"$3\r\n3-0\r\n")
        await producer.flush()
        assert await sent[4] == RecordId(3, 0)
        assert server.lines[1].input == append(b"4")


async def test_a_refusal_is_that_of_its_own_records(server: ByteServer, s3p: S3p) -> None:
    settings = BatchSettings(linger_ms=0, records_max=2)
    async with s3p.producer("orders", settings) as producer:
        sent = [producer.send_nowait(b"%d" % n) for n in range(4)]
        line = await server.expects(append(b"0", b"1") + append(b"2", b"3"))
        line.say(b"-ERR_UNKNOWN_STREAM no stream orders\r\n$3\r\n1-1\r\n")
        for refused in sent[:2]:
            with pytest.raises(UnknownStream):
                await refused
        assert [await each for each in sent[2:]] == [RecordId(1, 0), RecordId(1, 1)]


async def test_an_error_that_nobody_hears_comes_out_of_flush(server: ByteServer, s3p: S3p) -> None:
    """Once; one that was heard does not."""
    server.answer = lambda line: line.say(b"-ERR_UNKNOWN_STREAM no stream orders\r\n")
    async with s3p.producer("orders") as producer:
        await producer.send(b"a")
        with pytest.raises(UnknownStream):
            await producer.flush()
        await producer.flush()
        with pytest.raises(UnknownStream):
            await producer.append(b"b")
        await producer.flush()
    with pytest.raises(UnknownStream):
        async with s3p.producer("orders") as producer:
            await producer.send(b"c")


async def test_a_cancelled_append_is_kept_and_shifts_no_other(server: ByteServer, s3p: S3p) -> None:
    settings = BatchSettings(linger_ms=NEVER_MS, records_max=2)
    async with s3p.producer("orders", settings) as producer:
        with anyio.move_on_after(0.01):
            await producer.append(b"a")
        sent = await producer.send(b"b")
        (await server.expects(append(b"a", b"b"))).say(b"$3\r\n1-1\r\n")
        assert await sent == RecordId(1, 1)


async def test_an_error_in_the_block_drops_what_was_not_sent(server: ByteServer, s3p: S3p) -> None:
    with pytest.raises(ZeroDivisionError):
        async with s3p.producer("orders", BatchSettings(linger_ms=NEVER_MS)) as producer:
            sent = await producer.send(b"a")
            raise ZeroDivisionError
    with pytest.raises(NotSent, match="closed"):
        await sent
    assert server.line.input == b""


async def test_a_closed_producer_takes_nothing(server: ByteServer, s3p: S3p) -> None:
    server.answer = lambda line: line.say(b"$3\r\n1-0\r\n")
    async with s3p.producer("orders", BatchSettings(linger_ms=NEVER_MS)) as producer:
        sent = await producer.send(b"a")
        await producer.aclose()
        assert await sent == RecordId(1, 0)
        with pytest.raises(NotSent):
            await producer.send(b"b")


async def test_a_producer_of_a_lost_server_does_not_hang(server: ByteServer) -> None:
    async with connect_s3p(server.address, reconnect=False) as s3p:
        settings = BatchSettings(linger_ms=NEVER_MS, records_max=1, in_flight_max=1)
        with anyio.fail_after(SOON_S), pytest.raises(NotSent):
            async with s3p.producer("orders", settings) as producer:
                sent, waiting = await producer.send(b"a"), await producer.send(b"b")
                (await server.expects(append(b"a"))).cut()
                with pytest.raises(OutcomeUnknown):
                    await sent
                with pytest.raises(NotSent):
                    await waiting
                await producer.send(b"c")


async def test_ids_that_cannot_be_told_are_an_unknown_outcome(server: ByteServer, s3p: S3p) -> None:
    server.answer = lambda line: line.say(b"$3\r\n1-0\r\n")
    async with s3p.producer("orders", BatchSettings(linger_ms=0)) as producer:
        sent = [producer.send_nowait(b"a"), producer.send_nowait(b"b")]
        for each in sent:
            with pytest.raises(OutcomeUnknown, match="ids"):
                await each


@pytest.mark.parametrize(
    "wrong", [{"linger_ms": -1.0}, {"records_max": 0}, {"bytes_max": 0}, {"buffer_records": 0}]
)
async def test_settings_that_cannot_work(s3p: S3p, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        async with s3p.producer("orders", BatchSettings(**wrong)):
            raise AssertionError("must not get here")


async def test_an_empty_record_is_refused_here(s3p: S3p) -> None:
    async with s3p.producer("orders") as producer:
        assert isinstance(producer, S3pProducer)
        with pytest.raises(EmptyData):
            await producer.append(b"")
