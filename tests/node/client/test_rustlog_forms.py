"""The RustLog client in both forms of the protocol, against a node: the same calls, the same
results, but for what the binary form has no field for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from millpond import connect_rustlog
from millpond.actors.errors import DataTooLarge, Malformed, OutcomeUnknown, StreamExists
from millpond.node.client.requests.errors import (
    NoSpace,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.rustlog.client import ConsumerSettings, Rustlog
from millpond.node.config import Config
from millpond.node.config_rules import StreamRule
from millpond.node.node import Node
from millpond.sync import connect_rustlog as connect_blocking
from tests.node.client.scripted_server import byte_server

BODIES = [b"one", b"\x00\xff", b""]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    off = dict.fromkeys(("p2p", "ws", "s3p", "http"), "off") | {"rustlog": "127.0.0.1:0"}
    rule = StreamRule("short*", bytes=4096)
    async with Node(Config(drain_timeout_s=0.5, streams=(rule,), node_groups_max=3, **off)) as node:
        yield node


@pytest.fixture(params=["json", "binary"])
async def rustlog(node: Node, request: pytest.FixtureRequest) -> AsyncIterator[Rustlog]:
    async with connect_rustlog(node.listeners["rustlog"], form=request.param) as rustlog:
        yield rustlog


@pytest.fixture
def is_binary(request: pytest.FixtureRequest) -> bool:
    return bool(request.node.callspec.params["rustlog"] == "binary")


async def test_records_offsets_topics_and_commits(rustlog: Rustlog, is_binary: bool) -> None:
    await rustlog.ping()
    await rustlog.create_topic("logs", 2)
    assert await rustlog.produce("logs", BODIES, partition=1) == 0
    fetched = await rustlog.fetch("logs", 1, partition=1, group="g")
    found = [(each.offset, each.data, each.timestamp > 0) for each in fetched.records]
    assert found == [(1, b"\x00\xff", not is_binary), (2, b"", not is_binary)]
    assert fetched.next_offset == 3
    assert (await rustlog.fetch("logs", 9, partition=1)).next_offset == 9
    assert await rustlog.committed("g", "logs") is None
    await rustlog.commit("g", "logs", 0, 5)
    assert await rustlog.committed("g", "logs") == 5
    assert await rustlog.topics() == {"logs": 2}
    assert [row.high_watermark for row in await rustlog.describe("logs")] == [0, 3]
    row = await rustlog.describe_partition("logs", 1)
    assert (row.topic, row.partition, row.high_watermark) == ("logs", 1, 3)
    metrics = await rustlog.metrics()
    assert metrics.metrics["messages_produced_total"] == 3
    assert metrics.prometheus is not None and "messages_fetched_total 2" in metrics.prometheus


async def test_refusals_are_the_same_errors(rustlog: Rustlog, is_binary: bool) -> None:
    await rustlog.create_topic("logs", 2)
    with pytest.raises(StreamExists):
        await rustlog.create_topic("logs", 2)
    with pytest.raises(UnknownPartition if is_binary else UnknownTopic):
        await rustlog.produce("nothing", b"x")
    with pytest.raises(UnknownPartition):
        await rustlog.fetch("logs", 0, partition=2)
    with pytest.raises(UnknownTopic):
        await rustlog.describe("nothing")
    with pytest.raises(UnknownPartition):
        await rustlog.describe_partition("logs", 2)
    for name, count in (("a/b", 1), ("a", 0)):
        with pytest.raises(Malformed):
            await rustlog.create_topic(name, count)
    with pytest.raises(RecordTooLarge):
        await rustlog.produce("logs", bytes(7_863_297))
    with pytest.raises(DataTooLarge):
        await rustlog.produce("logs", [bytes(6 * 2**20)] * 2)
    for number in range(3):
        await rustlog.commit(f"g{number}", "logs", 0, 1)
    with pytest.raises(NoSpace):
        await rustlog.commit("g3", "logs", 0, 1)


async def test_a_producer_and_a_consumer(rustlog: Rustlog) -> None:
    await rustlog.create_topic("logs", 3)
    async with rustlog.producer("logs") as producer:
        places = [await producer.send(b"%d" % each) for each in range(30)]
        await producer.flush()
        assert {(await each).partition for each in places} == {0, 1, 2}
    found = []
    with anyio.fail_after(60):
        async with rustlog.consumer("g", "logs", settings=ConsumerSettings(idle_ms=1)) as records:
            async for record in records:
                found.append((record.partition, record.offset, record.data))
                if len(found) == 30:
                    break
            await records.commit()
    assert {data for *_, data in found} == {b"%d" % each for each in range(30)}
    for partition in range(3):
        assert [at for each, at, _ in found if each == partition] == list(range(10))


async def test_a_consumer_skips_what_was_trimmed(rustlog: Rustlog) -> None:
    await rustlog.create_topic("short")
    for _ in range(10):
        await rustlog.produce("short", bytes(1000))
    with pytest.raises(OffsetOutOfRange) as raised:
        await rustlog.fetch("short", 0)
    start = raised.value.start
    assert start is not None and start > 0
    await rustlog.commit("g", "short", 0, 0)
    settings = ConsumerSettings(on_trimmed="skip", idle_ms=1)
    with anyio.fail_after(60):
        async with rustlog.consumer("g", "short", settings=settings) as records:
            assert (await anext(records)).offset == start and records.skipped == start


async def test_a_commit_to_a_topic_that_comes_later(node: Node) -> None:
    """RB-22, which the JSON form does not have."""
    async with connect_rustlog(node.listeners["rustlog"], form="binary") as rustlog:
        await rustlog.commit("g", "later", 0, 7)
        await rustlog.create_topic("later")
        assert await rustlog.committed("g", "later") == 7


async def test_blocking_calls_of_the_binary_form(node: Node) -> None:
    def work() -> list[bytes]:
        with connect_blocking(node.listeners["rustlog"], form="binary") as rustlog:
            rustlog.create_topic("logs")
            rustlog.produce("logs", BODIES)
            return [each.data for each in rustlog.fetch("logs", 0).records]

    assert await anyio.to_thread.run_sync(work) == BODIES


async def test_bytes_of_the_binary_form() -> None:
    """The frames of RB-10, RB-16: a Fetch has no group, and offsets count from its start."""
    async with byte_server() as server:
        server.answer = lambda line: line.say(
            bytes.fromhex("0000001e 02 00000002 00000005 68656c6c6f 00000004 66726f6d")
            + (9).to_bytes(8, "big")
        )
        async with connect_rustlog(server.address, form="binary") as rustlog:
            fetched = await rustlog.fetch("demo", 7, group="g1")
            assert [(each.offset, each.data) for each in fetched.records] == [
                (7, b"hello"),
                (8, b"from"),
            ]
            await server.expects(
                bytes.fromhex("00000019 02 0000 0004 64656d6f 00000000 0000000000000007 00100000")
            )


async def test_an_error_500_leaves_the_outcome_unknown() -> None:
    async with byte_server() as server:
        server.answer = lambda line: line.say(bytes.fromhex("00000007 fe 01f4 0002 6e6f"))
        async with connect_rustlog(server.address, form="binary") as rustlog:
            with pytest.raises(OutcomeUnknown):
                await rustlog.produce("demo", b"x")


async def test_an_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="form: json or binary"):
        async with connect_rustlog("127.0.0.1:1", form="xml"):  # type: ignore[arg-type]
            pass
