"""The node's own stream API against a real node, in memory and on the disk, on both loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from millpond import connect
from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    Fenced,
    Malformed,
    NonMonotonicId,
    NotAllowed,
    OutcomeUnknown,
    PartOfTopic,
    RequestError,
    SequenceMismatch,
    StreamExists,
    Trimmed,
    UnknownStream,
)
from millpond.actors.store.changes import Position
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.in_flight import REQUESTS_MAX, WAITING_MAX
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import NewRecord, Record
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from tests.ports import free_port

SOON_S = 10
Served = Callable[..., AbstractAsyncContextManager[str]]


async def until_waiting(stream: Stream, count: int = 1) -> None:
    """Until so many reads wait at the node."""
    while (await stream.info()).waiting != count:  # noqa: ASYNC110 (it is in another program)
        await anyio.sleep(0.01)


def bodies(records: list[Record]) -> list[bytes]:
    return [record.data for record in records]


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[str]:
    async with Node(config) as node:
        yield f"tcp://{node.listeners['p2p']}"


@pytest.fixture(params=["memory", "disk"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    """Run a node; on the disk it is the same one each time."""
    data = str(tmp_path / "data") if request.param == "disk" else ""

    def serve(**options: object) -> AbstractAsyncContextManager[str]:
        plain = {
            "p2p": "127.0.0.1:0",
            "ws": OFF,
            "s3p": OFF,
            "rustlog": OFF,
            "http": OFF,
            "data": data,
        }
        return running(Config(**{**plain, "drain_timeout_s": 0.5, **options}))  # type: ignore[arg-type]

    return serve


@pytest.fixture
async def streams(serve: Served) -> AsyncIterator[Streams]:
    async with serve() as url, connect_streams(url) as streams:
        yield streams


@pytest.fixture
async def orders(streams: Streams) -> Stream:
    stream = streams.stream("orders")
    await stream.create()
    return stream


async def test_what_is_appended_is_read(orders: Stream) -> None:
    began_at = datetime.now(UTC)
    kept = await orders.append([b"one", bytearray(b"two"), b""])
    assert (kept.first, kept.count, kept.tail) == (0, 3, 3)
    one, two, empty = await orders.read()
    assert [one.data, two.data, empty.data] == [b"one", b"two", b""]
    assert [one.sequence, two.sequence, empty.sequence] == [0, 1, 2]
    assert one.timestamp == kept.first_timestamp and empty.timestamp == kept.timestamp
    assert abs(one.timestamp / 1000 - began_at.timestamp()) < SOON_S
    assert empty.id == kept.id == Position(one.id.ms, one.id.seq + 2)
    assert one.headers == []
    assert (await orders.append(b"four")).first == 3


async def test_a_read_begins_at_a_sequence_an_id_or_a_time(orders: Stream) -> None:
    await orders.append([b"a", b"b"], ms=10)
    kept = await orders.append([NewRecord(b"c"), NewRecord(b"d")])
    later = kept.timestamp + 1000
    await orders.append(NewRecord(b"e", timestamp=later))
    assert bodies(await orders.read(3)) == [b"d", b"e"]
    assert bodies(await orders.read(1, count=2)) == [b"b", b"c"]
    assert bodies(await orders.read(Position(10, 1))) == [b"b", b"c", b"d", b"e"]
    assert bodies(await orders.read(Position(11, 0))) == [b"c", b"d", b"e"]
    at = datetime.fromtimestamp(later / 1000, UTC)
    assert bodies(await orders.read(at)) == [b"e"]
    assert await orders.read(at + timedelta(seconds=1)) == []
    assert await orders.read(5) == [] and await orders.read(99) == []
    assert bodies(await orders.tail(2)) == [b"d", b"e"]
    assert bodies([each async for each in orders.records(1, 4)]) == [b"b", b"c", b"d"]


async def test_headers_and_timestamps_come_back(orders: Stream) -> None:
    first = [(b"k", b"v"), (b"\xff", b"")]
    now = (await orders.append(b"x")).timestamp + 5
    await orders.append([NewRecord(b"a", first, now), NewRecord(b"b", timestamp=now + 9)])
    _, a, b = await orders.read()
    assert (a.headers, a.timestamp) == (first, now)
    assert (b.headers, b.timestamp) == ([], now + 9)


async def test_an_append_is_bound_to_conditions(orders: Stream) -> None:
    await orders.append([b"a", b"b"], match=0)
    with pytest.raises(SequenceMismatch):
        await orders.append(b"c", match=1)
    await orders.append(NewRecord(b"mine", [(b"", b"fence")]))
    with pytest.raises(Fenced):
        await orders.append(b"c", fence=b"yours")
    await orders.append(b"c", fence=b"mine", match=3)
    assert (await orders.info()).fence == b"mine"
    await orders.append(b"d", ms=2**60)
    with pytest.raises(NonMonotonicId):
        await orders.append(b"e", ms=2**60 - 1)
    assert bodies(await orders.read()) == [b"a", b"b", b"mine", b"c", b"d"]


async def test_what_is_not_there_or_there_already_is_told(streams: Streams) -> None:
    missing = streams.stream("missing")
    for call in (missing.read(), missing.info(), missing.delete(), missing.append(b"x")):
        with pytest.raises(UnknownStream):
            await call
    await missing.create()
    with pytest.raises(StreamExists):
        await missing.create()
    await missing.create(exist_ok=True)


async def test_trim_and_delete(orders: Stream) -> None:
    await orders.append([b"%d" % number for number in range(10)])
    await orders.trim(4)
    assert bodies(await orders.read(count=2)) == [b"4", b"5"]
    await orders.trim((await orders.read(6))[0].id)
    info = await orders.info()
    assert (info.trim_point, info.tail) == (6, 10)
    await orders.delete()
    with pytest.raises(UnknownStream):
        await orders.read()
    await orders.create()
    assert (await orders.append(b"anew")).first == 0


async def test_settings_are_told_and_changed(streams: Streams) -> None:
    stream = streams.stream("short")
    await stream.create(age_s=3600, bytes_max=10_000, content_type=b"text/plain")
    info = await stream.info()
    assert (info.age_s, info.bytes_max, info.content_type) == (3600, 10_000, b"text/plain")
    await stream.configure(age_s=60)
    info = await stream.info()
    assert (info.age_s, info.bytes_max, info.content_type) == (60, None, b"text/plain")


async def test_names_come_in_order_by_prefix_and_over_pages(streams: Streams) -> None:
    wanted = sorted(b"logs/%d" % number for number in range(30))
    for name in (b"orders", b"\xff\x00", *wanted):
        await streams.stream(name).create()
    assert [name async for name in streams.names("logs/")] == wanted
    assert [name async for name in streams.names()] == [*wanted, b"orders", b"\xff\x00"]
    assert [name async for name in streams.names("none")] == []


async def test_groups_commit(orders: Stream) -> None:
    assert await orders.committed("mail") is None
    await orders.commit("mail", 0)
    assert await orders.committed("mail") == 0
    await orders.commit("mail", 7)
    await orders.commit(b"\xff", 2**64 - 1)
    assert await orders.committed("mail") == 7
    assert (await orders.info()).groups == {b"mail": 7, b"\xff": 2**64 - 1}


async def test_topics(streams: Streams) -> None:
    await streams.create_topic("one")
    await streams.create_topic("many", 3)
    for name, count in (("many", 3), ("many", 1), ("one", 2)):
        with pytest.raises(StreamExists):
            await streams.create_topic(name, count)
    assert [topic async for topic in streams.topics()] == [(b"many", 3), (b"one", 1)]
    assert (await streams.partition("one")).name == b"one"
    part = await streams.partition("many", 2)
    assert part.name == b"many/2"
    await part.append(b"x")
    assert bodies(await part.read()) == [b"x"]
    assert await (await streams.partition("many", 1)).read() == []
    for topic, number in (("many", 3), ("none", 0)):
        with pytest.raises(UnknownStream):
            await streams.partition(topic, number)
    with pytest.raises(PartOfTopic):
        await part.delete()
    with pytest.raises(Malformed):
        await streams.create_topic("no/name")
    await streams.delete_topic("many")
    await streams.delete_topic("one")
    with pytest.raises(UnknownStream):
        await streams.delete_topic("one")
    assert [topic async for topic in streams.topics()] == []


async def test_a_read_waits_for_a_record(orders: Stream) -> None:
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_append_soon, orders)
            assert bodies(await orders.read(wait_s=SOON_S)) == [b"late"]
    assert await orders.read(1, wait_s=0.05) == []


async def _append_soon(stream: Stream) -> None:
    await until_waiting(stream)
    await stream.append(b"late")


async def test_a_cancelled_read_waits_no_more_at_the_node(orders: Stream) -> None:
    with anyio.move_on_after(0.05):
        await orders.read(wait_s=SOON_S)
    assert (await orders.info()).waiting == 0
    await orders.append(b"x")
    assert bodies(await orders.read()) == [b"x"]


async def test_reads_of_a_connection_that_is_gone_wait_no_more(serve: Served) -> None:
    async with serve() as url, connect_streams(url) as streams:
        stream = streams.stream("s")
        await stream.create()
        with anyio.fail_after(SOON_S):
            async with connect_streams(url) as others, anyio.create_task_group() as tasks:
                errors: list[Exception] = []
                tasks.start_soon(_expect, others.stream("s").read(wait_s=SOON_S), errors)
                await until_waiting(stream)
                await others._requests.link.stop()
            await until_waiting(stream, 0)
    assert [type(error) for error in errors] == [ChannelClosed]


async def test_more_reads_than_may_wait_at_once_take_turns_and_hold_up_no_append(
    orders: Stream,
) -> None:
    found: list[bytes] = []

    async def read(start: int) -> None:
        found.extend(bodies(await orders.read(start, wait_s=SOON_S)))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(REQUESTS_MAX + 10):
                tasks.start_soon(read, 0)
            await until_waiting(orders, WAITING_MAX)
            await orders.append(b"x")
    assert found == [b"x"] * (REQUESTS_MAX + 10)


async def test_appends_of_many_tasks_are_all_kept_in_their_own_order(orders: Stream) -> None:
    async def append(writer: int) -> None:
        for number in range(20):
            await orders.append(b"%d %d" % (writer, number))

    async with anyio.create_task_group() as tasks:
        for writer in range(20):
            tasks.start_soon(append, writer)
    records = [record async for record in orders.records()]
    assert [record.sequence for record in records] == list(range(400))
    ids = [record.id for record in records]
    assert ids == sorted(set(ids))
    for writer in range(20):
        mine = [body for body in bodies(records) if body.startswith(b"%d " % writer)]
        assert mine == [b"%d %d" % (writer, number) for number in range(20)]


async def test_pages_are_as_large_as_the_node_likes(orders: Stream) -> None:
    large = bytes(range(256)) * 1000
    for number in range(8):
        await orders.append([large, b"%d" % number])
    pages = [page async for page in orders.pages()]
    assert len(pages) > 1
    assert bodies([record for page in pages for record in page])[::2] == [large] * 8


async def test_an_append_larger_than_a_packet_is_refused_here(
    orders: Stream, streams: Streams
) -> None:
    with pytest.raises(DataTooLarge):
        await orders.append(bytes(2**20))
    with pytest.raises(DataTooLarge):
        await orders.append([b"x"] * 1001)
    with pytest.raises(ValueError, match="nothing"):
        await orders.append([])
    assert (await orders.append(bytes(streams.append_bytes_max - 16))).first == 0


async def test_a_record_larger_than_the_readers_packets_comes_in_parts(serve: Served) -> None:
    """The other end takes packets of 4 KiB; another client has put in what does not fit."""
    async with serve() as url, connect_streams(url) as streams:
        stream = streams.stream("s")
        await stream.create()
        await stream.append([b"a", bytes(range(256)) * 400, b"b"])
        link = streams._requests.link
        link._settings = _with_packet_max(link._settings, 4096)
        assert link.session is not None
        link.session.abort()
        records = await stream.read()
        assert bodies(records) == [b"a", bytes(range(256)) * 400, b"b"]
        assert link.counts.connections == 2


def _with_packet_max(settings: object, size: int) -> object:
    from msgspec.structs import replace

    return replace(settings, hello=replace(settings.hello, packet_max=size))  # type: ignore


async def test_streams_are_beside_a_channel_on_its_connection(serve: Served) -> None:
    async with serve() as url, connect(url, "chat/1") as channel:
        stream = channel.streams.stream("s")
        await stream.create()
        receipt = await channel.put(b"hi")
        await stream.append(b"x")
        assert bodies(await stream.read()) == [b"x"]
        assert await channel.get(receipt.id) == b"hi"
    with pytest.raises(ChannelClosed):
        await stream.read()


async def test_follow_goes_from_what_is_there_to_what_comes(orders: Stream) -> None:
    await orders.append([b"0", b"1", b"2"])

    async def append() -> None:
        for number in range(3, 6):
            await orders.append(b"%d" % number)

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            found = await _take(orders, 5, 1)
    assert bodies(found) == [b"1", b"2", b"3", b"4", b"5"]


async def _take(stream: Stream, count: int, *start: int) -> list[Record]:
    found: list[Record] = []
    async with aclosing(stream.follow(*start)) as records:
        async for record in records:
            found.append(record)
            if len(found) == count:
                break
    return found


async def test_follow_from_the_tail_shows_only_what_comes(orders: Stream) -> None:
    await orders.append([b"0", b"1"])
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_append_soon, orders)
            assert bodies(await _take(orders, 1)) == [b"late"]


async def test_follow_mends_lost_connections_without_gap_or_duplicate(
    orders: Stream, streams: Streams
) -> None:
    found: list[Record] = []

    async def follow() -> None:
        found.extend(await _take(orders, 60, 0))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(60):
                if number % 15 == 7:
                    session = streams._requests.link.session
                    assert session is not None
                    session.abort()
                    await session.closed.wait()
                await orders.append(b"%d" % number)
    assert [record.sequence for record in found] == list(range(60))
    assert bodies(found) == [b"%d" % number for number in range(60)]
    assert streams._requests.link.counts.connections == 5


async def test_follow_goes_on_after_a_restart_of_the_node(tmp_path: Path) -> None:
    options = {"ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF, "data": str(tmp_path / "data")}
    config = Config(p2p=f"127.0.0.1:{free_port()}", drain_timeout_s=0.5, **options)  # type: ignore
    found: list[Record] = []

    async def run(node: Node, ready: anyio.Event, stop: anyio.Event, over: anyio.Event) -> None:
        async with node:
            ready.set()
            await stop.wait()
        over.set()

    async def follow(stream: Stream) -> None:
        found.extend(await _take(stream, 4, 0))

    with anyio.fail_after(3 * SOON_S):
        async with anyio.create_task_group() as nodes:
            first, second = ([anyio.Event() for _ in range(3)] for _ in range(2))
            nodes.start_soon(run, Node(config), *first)
            await first[0].wait()
            async with connect_streams(f"tcp://{config.p2p}") as streams:
                stream = streams.stream("orders")
                await stream.create()
                await stream.append([b"0", b"1"])
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(follow, stream)
                    await until_waiting(stream)
                    first[1].set()
                    await first[2].wait()
                    nodes.start_soon(run, Node(config), *second)
                    await second[0].wait()
                    assert (await stream.append([b"2", b"3"])).first == 2
            second[1].set()
    assert bodies(found) == [b"0", b"1", b"2", b"3"]


async def test_follow_tells_of_what_was_trimmed_before_it_came(orders: Stream) -> None:
    await orders.append([b"0", b"1"])
    gaps: list[tuple[int, int]] = []
    async with aclosing(orders.follow(0, on_gap=lambda *gap: gaps.append(gap))) as records:
        assert (await anext(records)).data == b"0"
        await orders.append([b"2", b"3", b"4"])
        await orders.trim(4)
        assert [(await anext(records)).data for _ in range(2)] == [b"1", b"4"]
    assert gaps == [(2, 4)]
    async with aclosing(orders.follow(2)) as records:
        assert (await anext(records)).data == b"4", "what was trimmed before it began is no gap"
        await orders.append([b"5", b"6"])
        await orders.trim(6)
        with pytest.raises(Trimmed, match="5 to 5"):
            await anext(records)


async def test_follow_ends_with_its_stream(orders: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.node.client.streams.stream.FOLLOW_S", 0.1)
    await orders.append([b"0", b"1"])
    async with aclosing(orders.follow(0)) as records:
        assert [(await anext(records)).data for _ in range(2)] == [b"0", b"1"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(orders.delete)
            with pytest.raises(UnknownStream):
                await anext(records)
    await orders.create()
    await orders.append([b"0", b"1"])
    async with aclosing(orders.follow(0)) as records:
        assert [(await anext(records)).data for _ in range(2)] == [b"0", b"1"]
        await orders.delete()
        await orders.create()
        await orders.append(b"other")
        with pytest.raises(SequenceMismatch, match="created again"):
            await anext(records)


async def test_what_a_lost_connection_left_unanswered_is_told_or_asked_again(
    serve: Served,
) -> None:
    async with serve() as url, connect_streams(url) as streams:
        stream = streams.stream("s")
        await stream.create()
        await stream.append(b"x")
        errors: list[Exception] = []
        reads: list[list[Record]] = []

        async def read() -> None:
            reads.append(await stream.read())

        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                link = streams._requests.link
                assert link.session is not None
                tasks.start_soon(_expect, stream.append(b"y"), errors)
                tasks.start_soon(read)
                while len(link.inflight.streams._pending) < 2:
                    await anyio.lowlevel.checkpoint()
                link.session.abort()
        assert [type(error) for error in errors] == [OutcomeUnknown]
        assert bodies(reads[0])[:1] == [b"x"]


async def _expect(call: Awaitable[object], errors: list[Exception]) -> None:
    try:
        await call
    except (RequestError, ConnectionLost, ChannelClosed) as error:
        errors.append(error)


async def test_without_reconnecting_everything_fails_with_the_connection(serve: Served) -> None:
    async with serve() as url, connect_streams(url, reconnect=False) as streams:
        stream = streams.stream("s")
        await stream.create()
        session = streams._requests.link.session
        assert session is not None
        errors: list[Exception] = []
        with anyio.fail_after(SOON_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_expect, stream.read(wait_s=SOON_S), errors)
                await until_waiting(stream)
                session.abort()
            assert [type(error) for error in errors] == [ConnectionLost]
            with pytest.raises(ConnectionLost):
                await stream.info()


async def test_the_right_to_administer_is_needed(serve: Served, tmp_path: Path) -> None:
    """P2P-24, 3g."""
    tokens = tmp_path / "tokens"
    tokens.write_text("owner all\nclerk put,get,push,ack,list\n")
    tokens.chmod(0o600)
    async with serve(token_file=str(tokens)) as url:
        async with connect_streams(url, token="owner") as streams:
            await streams.stream("s").create()
        async with connect_streams(url, token="clerk") as streams:
            for call in (streams.stream("s").read(), streams.partitions("s")):
                with pytest.raises(NotAllowed):
                    await call


async def test_pa_35_a_full_stream_refuses_in_the_words_of_a_stream(serve: Served) -> None:
    async with serve(stream_bytes_max=1000) as url, connect_streams(url) as streams:
        stream = streams.stream("small")
        await stream.create()
        first = await stream.append(bytes(600))
        with pytest.raises(BufferFull) as refused:
            await stream.append(bytes(600))
        assert str(refused.value) == "the stream or the node is full"
        await stream.trim(first.first + 1)
        assert (await stream.append(bytes(600))).first == first.first + 1
