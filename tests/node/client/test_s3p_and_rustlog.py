"""The S3P and RustLog clients against a node, over real sockets, and over a bad network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import anyio
import pytest

from millpond.actors.errors import (
    Malformed,
    NonMonotonicId,
    OutcomeUnknown,
    StreamExists,
    UnknownStream,
)
from millpond.node.client.requests.batching import BatchSettings
from millpond.node.client.requests.errors import (
    InvalidRequest,
    LimitExceeded,
    NotDone,
    OffsetOutOfRange,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.rustlog.client import ConsumerSettings, Rustlog, connect_rustlog
from millpond.node.client.s3p.client import S3p, S3pProducer, connect_s3p
from millpond.node.client.s3p.records import RecordId
from millpond.node.config import Config
from millpond.node.node import Node
from tests.node.client.cutting_proxy import CUTS_MAX, cutting_proxy

SOON_S = 10


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The clients run on all three."""
    if request.param == "trio":
        return "trio", {}
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def node(anyio_backend: object) -> AsyncIterator[Node]:
    free = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "127.0.0.1:0") | {"http": "off"}
    async with Node(Config(drain_timeout_s=0.5, **free)) as node:
        yield node


@pytest.fixture
async def s3p(node: Node) -> AsyncIterator[S3p]:
    async with connect_s3p(node.listeners["s3p"]) as s3p:
        yield s3p


@pytest.fixture
async def rustlog(node: Node) -> AsyncIterator[Rustlog]:
    async with connect_rustlog(node.listeners["rustlog"]) as rustlog:
        yield rustlog


async def test_s3p_from_the_first_record_to_the_last(s3p: S3p) -> None:
    """S3P-19 to S3P-42."""
    await s3p.create("orders")
    with pytest.raises(StreamExists):
        await s3p.create("orders")
    with pytest.raises(UnknownStream):
        await s3p.append("other", b"x")
    assert await s3p.append("orders", [b"a", b"\r\n\0"], ms=5) == RecordId(5, 1)
    with pytest.raises(NonMonotonicId):
        await s3p.append("orders", b"x", ms=4)
    last = await s3p.append("orders", b"c")
    assert [record.data for record in await s3p.read("orders", "5-1")] == [b"\r\n\0", b"c"]
    assert await s3p.read("orders", last.next) == []
    assert await s3p.read("orders", last.next, block_ms=20) == []
    await s3p.trim("orders", last)
    assert [record.id for record in await s3p.read("orders")] == [last]
    await s3p.delete("orders")
    with pytest.raises(UnknownStream):
        await s3p.delete("orders")


async def test_a_limit_of_the_server_ends_one_connection_not_the_client(s3p: S3p) -> None:
    """S3P-34, S3P-44."""
    await s3p.create("orders")
    with pytest.raises(LimitExceeded):
        await s3p.read("orders", count=1_000_000)
    with pytest.raises(LimitExceeded):
        await s3p.create(b"n" * 300)
    assert await s3p.read("orders") == []


async def test_many_tasks_append_over_one_connection(s3p: S3p) -> None:
    """S3P-30: each gets an id of its own, that of its record."""
    await s3p.create("orders")
    ids: dict[RecordId, bytes] = {}

    async def append(n: int) -> None:
        for turn in range(10):
            body = b"%d %d" % (n, turn)
            ids[await s3p.append("orders", body)] = body

    async with anyio.create_task_group() as tasks:
        for n in range(30):
            tasks.start_soon(append, n)
    records = await s3p.read("orders", count=1000)
    assert {record.id: record.data for record in records} == ids
    assert len(ids) == 300


async def test_readers_that_wait_are_woken_and_hold_nobody_up(s3p: S3p) -> None:
    """S3P-39, S3P-46."""
    await s3p.create("orders")
    got: list[bytes] = []

    async def wait() -> None:
        got.extend(record.data for record in await s3p.read("orders", block_ms=10_000))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            await anyio.sleep(0.05)
            await s3p.append("orders", b"x")
    assert got == [b"x"] * 5


async def test_a_producer_keeps_the_order(s3p: S3p) -> None:
    await s3p.create("orders")
    bodies = [b"%d" % n for n in range(3000)]
    async with s3p.producer("orders", BatchSettings(linger_ms=1, records_max=70)) as producer:
        sent = [await producer.send(body) for body in bodies]
    ids = [await each for each in sent]
    assert ids == sorted(set(ids))
    found = [record async for record in _all(s3p, "orders")]
    assert found == list(zip(ids, bodies, strict=True))


async def _all(s3p: S3p, stream: str) -> AsyncIterator[tuple[RecordId, bytes]]:
    start = RecordId(0, 0)
    while records := await s3p.read(stream, start, count=1000):
        for record in records:
            yield record.id, record.data
        start = records[-1].id.next


@pytest.mark.parametrize("seed", range(3))
async def test_a_bad_network_loses_nothing_unsaid_and_reorders_nothing(
    node: Node, s3p: S3p, seed: int
) -> None:
    """Records with an id are stored once; those reported as lost are absent; the rest may be
    there once. A follower behind the same network sees each record once."""
    await s3p.create("orders")
    rng = Random(seed)
    settings = BatchSettings(linger_ms=0, records_max=7)
    known: dict[bytes, RecordId] = {}
    fates: dict[bytes, type[BaseException]] = {}
    async with cutting_proxy(node.listeners["s3p"], rng, 3000) as proxy:
        async with connect_s3p(proxy.address, wait_s=SOON_S) as client:
            async with client.producer("orders", settings) as producer:
                for n in range(400):
                    body = b"%d" % n
                    sent = await producer.send(body)
                    if n % 9:
                        continue
                    try:
                        known[body] = await sent
                    except (NotDone, OutcomeUnknown) as error:
                        fates[body] = type(error)
                await _flush(producer)
            found = [pair async for pair in _all(s3p, "orders")]
            followed = client.follow("orders", block_ms=100)
            assert [(await anext(followed)).data for _ in found] == [body for _, body in found]
    assert proxy.cuts >= 2
    bodies = [int(body) for _, body in found]
    assert bodies == sorted(set(bodies))
    kept = {body: id for id, body in found}
    assert known.items() <= kept.items()
    assert not {body for body, fate in fates.items() if fate is NotDone} & kept.keys()


async def _flush(producer: S3pProducer) -> None:
    """All is settled; that some of it was lost is no news here."""
    while True:
        try:
            return await producer.flush()
        except (NotDone, OutcomeUnknown):
            continue


async def test_rustlog_from_the_first_topic_to_the_last_commit(rustlog: Rustlog) -> None:
    """RL-13 to RL-36."""
    await rustlog.create_topic("logs", 2)
    with pytest.raises(TopicExists):
        await rustlog.create_topic("logs", 2)
    with pytest.raises(InvalidRequest):
        await rustlog.create_topic("not a name")
    with pytest.raises(Malformed):
        await rustlog.produce("logs", [b"x"] * 1001)
    assert await rustlog.topics() == {"logs": 2}
    assert await rustlog.produce("logs", [b"a", b"", bytes(range(256))], partition=1) == 0
    assert await rustlog.produce("logs", b"d", partition=1) == 3
    fetched = await rustlog.fetch("logs", 1, partition=1)
    assert [one.data for one in fetched.records] == [b"", bytes(range(256)), b"d"]
    assert fetched.next_offset == 4
    assert (await rustlog.fetch("logs", 4, partition=1)).records == []
    with pytest.raises(UnknownTopic):
        await rustlog.fetch("other", 0)
    with pytest.raises(UnknownPartition):
        await rustlog.fetch("logs", 0, partition=2)
    with pytest.raises(UnknownPartition):
        await rustlog.commit("g", "logs", 2, 1)
    assert await rustlog.committed("g", "logs", 1) is None
    await rustlog.commit("g", "logs", 1, 3)
    assert await rustlog.committed("g", "logs", 1) == 3
    rows = [(row.partition, row.high_watermark) for row in await rustlog.describe("logs")]
    assert rows == [(0, 0), (1, 4)]
    assert (await rustlog.describe_partition("logs", 1)).log_start_offset == 0
    assert (await rustlog.metrics()).metrics["messages_produced_total"] == 4
    await rustlog.ping()


async def test_what_was_trimmed_is_told(s3p: S3p, rustlog: Rustlog) -> None:
    """RL-22, across the two protocols: a topic of one partition is a stream."""
    await s3p.create("orders")
    first = await s3p.append("orders", b"a")
    await s3p.append("orders", [b"b", b"c"])
    await s3p.trim("orders", first.next)
    with pytest.raises(OffsetOutOfRange) as caught:
        await rustlog.fetch("orders", 0)
    assert (caught.value.start, caught.value.end) == (1, 3)
    skip = ConsumerSettings(on_trimmed="skip")
    await rustlog.commit("g", "orders", 0, 0)
    async with rustlog.consumer("g", "orders", settings=skip) as consumer:
        assert [(await anext(consumer)).data for _ in range(2)] == [b"b", b"c"]
        assert consumer.skipped == 1
    assert await rustlog.committed("g", "orders") == 3


async def test_consumers_follow_what_producers_add(rustlog: Rustlog) -> None:
    await rustlog.create_topic("logs", 3)
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def consume() -> None:
        async with rustlog.consumer("g", "logs") as consumer:
            async for record in consumer:
                got[record.partition].append(int(record.data))
                if sum(map(len, got.values())) == 500:
                    return

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            async with rustlog.producer("logs", BatchSettings(linger_ms=1)) as producer:
                sent = [await producer.send(b"%d" % n) for n in range(500)]
            places = [await each for each in sent]
    assert places == [(n % 3, n // 3) for n in range(500)]
    assert got == {p: list(range(p, 500, 3)) for p in range(3)}
    committed = [await rustlog.committed("g", "logs", p) for p in range(3)]
    assert committed == [167, 167, 166]


@pytest.mark.parametrize("seed", range(2))
async def test_a_consumer_over_a_bad_network_sees_all(
    node: Node, rustlog: Rustlog, seed: int
) -> None:
    await rustlog.create_topic("logs", 2)
    for n in range(50):
        await rustlog.produce("logs", b"%d" % n, partition=n % 2)
    small = ConsumerSettings(fetch_bytes=30, commit_ms=0)
    got = []
    async with cutting_proxy(node.listeners["rustlog"], Random(seed), 3000) as proxy:
        async with connect_rustlog(proxy.address, wait_s=SOON_S) as client:
            with anyio.fail_after(SOON_S):
                async with client.consumer("g", "logs", [0, 1], small) as consumer:
                    async for record in consumer:
                        got.append(int(record.data))
                        if len(got) == 50:
                            break
        assert proxy.cuts >= CUTS_MAX
    assert sorted(set(got)) == sorted(got) == list(range(50))
    assert [await rustlog.committed("g", "logs", p) for p in (0, 1)] == [25, 25]
