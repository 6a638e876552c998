"""The RustLog client against a server that sends fixed frames over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    Malformed,
    OutcomeUnknown,
    StorageFailed,
    StreamExists,
    Trimmed,
    UnknownStream,
)
from millpond.node.client.events import Disconnected, Event
from millpond.node.client.requests.batching import BatchSettings
from millpond.node.client.requests.errors import (
    NotDone,
    OffsetOutOfRange,
    RustlogRefused,
    ServerFailed,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.rustlog.client import ConsumerSettings, Rustlog, connect_rustlog
from millpond.node.client.rustlog.producer import PartitionOffset
from tests.node.client.scripted_server import SOON_S, ByteLine, ByteServer, byte_server

PONG = b'\x00\x00\x00\x0f{"type":"Pong"}'
NEVER_MS = 3_600_000.0

Message = dict[str, Any]


def frame(message: Message) -> bytes:
    payload = json.dumps(message).encode()
    return len(payload).to_bytes(4, "big") + payload


def frames(data: bytes) -> list[Message]:
    """The complete frames in `data`."""
    found = []
    while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
        found.append(json.loads(data[4:end]))
        data = data[end:]
    return found


def answering(reply: Callable[[Message], Message]) -> Callable[[ByteLine], None]:
    """Answers every frame of a line as it comes."""
    done: dict[ByteLine, int] = {}

    def answer(line: ByteLine) -> None:
        asked = frames(line.input)[done.get(line, 0) :]
        done[line] = done.get(line, 0) + len(asked)
        for message in asked:
            line.say(frame(reply(message)))

    return answer


def error(code: int, details: Message | None = None) -> Message:
    return {"type": "Error", "code": code, "message": f"code {code}", "details": details}


@pytest.fixture
async def server() -> AsyncIterator[ByteServer]:
    async with byte_server() as server:
        yield server


@pytest.fixture
async def rustlog(server: ByteServer) -> AsyncIterator[Rustlog]:
    async with connect_rustlog(server.address) as rustlog:
        yield rustlog


async def test_a_ping_byte_for_byte(server: ByteServer, rustlog: Rustlog) -> None:
    """RL-01."""
    server.answer = lambda line: line.say(PONG)
    await rustlog.ping()
    await server.expects(b'\x00\x00\x00\x0f{"type":"Ping"}')


async def test_requests_and_responses_of_the_specification(
    server: ByteServer, rustlog: Rustlog
) -> None:
    """RL-13, RL-19, RL-26, RL-27, RL-29 to RL-34, as the client sees them."""
    row = {"partition": 0, "high_watermark": 7, "log_start_offset": 2, "segment_count": 1}
    replies: list[Message] = [
        {"type": "ProduceResponse", "base_offset": 42, "record_count": 2},
        {
            "type": "FetchResponse",
            "records": [
                {
                    "offset": 100,
                    "timestamp": 1641024000000000,
                    "payload": "eyJ1c2VyIjoiYWxpY2UifQ==",
                }
            ],
            "next_offset": 101,
        },
        {"type": "OffsetCommitResponse", "success": True},
        {"type": "OffsetFetchResponse", "offset": 0},
        {"type": "OffsetFetchResponse", "offset": None},
        {"type": "CreateTopicResponse", "success": True, "partitions_created": 3},
        {"type": "ListTopicsResponse", "topics": [{"name": "logs", "partition_count": 3}]},
        {"type": "DescribeTopicResponse", "topic": "logs", "partitions": [row]},
        {"type": "DescribePartitionResponse", "topic": "logs", **row},
        {"type": "MetricsFetchResponse", "metrics": {"messages_produced_total": 2}},
    ]
    server.answer = lambda line: line.say(frame(replies.pop(0)))
    assert await rustlog.produce("user-events", [b"Hello", b""], partition=1) == 42
    fetched = await rustlog.fetch("user-events", 100, group="g")
    (record,) = fetched.records
    assert (record.offset, record.timestamp, record.data, fetched.next_offset) == (
        100,
        1641024000000000,
        b'{"user":"alice"}',
        101,
    )
    await rustlog.commit("g", "logs", 0, 150)
    assert await rustlog.committed("g", "logs") == 0
    assert await rustlog.committed("g", "logs", 1) is None
    await rustlog.create_topic("logs", 3)
    assert await rustlog.topics() == {"logs": 3}
    (described,) = await rustlog.describe("logs")
    assert (described.log_start_offset, described.high_watermark) == (2, 7)
    assert (await rustlog.describe_partition("logs")).segment_count == 1
    assert (await rustlog.metrics()).metrics == {"messages_produced_total": 2}
    group = {"group": "g", "topic": "logs"}
    assert frames(server.line.input) == [
        {"type": "Produce", "topic": "user-events", "partition": 1, "records": ["SGVsbG8=", ""]},
        {
            "type": "Fetch",
            "topic": "user-events",
            "partition": 0,
            "offset": 100,
            "max_bytes": 1048576,
            "group_id": "g",
        },
        {"type": "OffsetCommit", **group, "partition": 0, "offset": 150},
        {"type": "OffsetFetch", **group, "partition": 0},
        {"type": "OffsetFetch", **group, "partition": 1},
        {"type": "CreateTopic", "topic": "logs", "partition_count": 3},
        {"type": "ListTopics"},
        {"type": "DescribeTopic", "topic": "logs"},
        {"type": "DescribePartition", "topic": "logs", "partition": 0},
        {"type": "MetricsFetch"},
    ]


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        (400, (Malformed,)),
        (404, (UnknownTopic, UnknownStream)),
        (405, (UnknownPartition, UnknownStream)),
        (413, (DataTooLarge,)),
        (416, (OffsetOutOfRange, Trimmed)),
        (429, (Malformed,)),
        (500, (ServerFailed, OutcomeUnknown)),
        (503, (StorageFailed,)),
        (507, (BufferFull,)),
        (599, (OutcomeUnknown,)),
    ],
)
async def test_refusals_are_typed_and_leave_the_connection_usable(
    server: ByteServer, rustlog: Rustlog, code: int, kinds: tuple[type[Exception], ...]
) -> None:
    """RL-09, RL-36."""
    details = {"valid_range": {"start": 3, "end": 9}, "high_watermark": 9}
    server.answer = lambda line: line.say(frame(error(code, details)))
    with pytest.raises(RustlogRefused) as caught:
        await rustlog.fetch("t", 1)
    assert all(isinstance(caught.value, kind) for kind in kinds)
    assert (caught.value.status, caught.value.details, str(caught.value)) == (
        code,
        details,
        f"code {code}",
    )
    if isinstance(caught.value, OffsetOutOfRange):
        assert (caught.value.start, caught.value.end) == (3, 9)
    server.answer = lambda line: line.say(PONG)
    await rustlog.ping()
    assert len(server.lines) == 1


async def test_what_the_protocol_says_without_an_error(
    server: ByteServer, rustlog: Rustlog
) -> None:
    """RLA-02, RL-26: success false is an error here."""
    server.answer = lambda line: line.say(frame(replies.pop(0)))
    replies: list[Message] = [
        {"type": "CreateTopicResponse", "success": False, "partitions_created": 0},
        {"type": "OffsetCommitResponse", "success": False},
        error(416),
    ]
    with pytest.raises(StreamExists):
        await rustlog.create_topic("logs")
    with pytest.raises(UnknownPartition):
        await rustlog.commit("g", "logs", 7, 1)
    with pytest.raises(OffsetOutOfRange) as caught:
        await rustlog.fetch("logs", 0)
    assert (caught.value.start, caught.value.end) == (None, None)


async def test_no_call_hangs_when_the_connection_ends(server: ByteServer, rustlog: Rustlog) -> None:
    failures: list[type[BaseException]] = []

    async def fail(call: str) -> None:
        try:
            await (rustlog.fetch("t", 0) if call == "fetch" else rustlog.produce("t", b"x"))
        except Exception as failure:
            failures.append(type(failure))

    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            for call in ("fetch", "produce"):
                tasks.start_soon(fail, call)
            await server.until(lambda: len(frames(server.line.input)) == 2)
            server.line.cut()
    assert sorted(failures, key=str) == sorted([NotDone, OutcomeUnknown], key=str)


async def test_a_cancelled_call_does_not_shift_the_replies_of_others(
    server: ByteServer, rustlog: Rustlog
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rustlog.committed, "g", "t")
        await server.until(lambda: frames(server.line.input))
        tasks.cancel_scope.cancel()
    offsets = iter((1, 2))
    reply = answering(lambda _: {"type": "OffsetFetchResponse", "offset": next(offsets)})
    server.answer = reply
    with anyio.fail_after(SOON_S):
        assert await rustlog.committed("g", "t", 1) == 2


@pytest.mark.parametrize(
    "said",
    [frame({"type": "Pong"}), frame({"type": "Who"}), b"\0\0\0\0", b"\0\0\0\3{x}", b"\xff" * 4],
)
async def test_what_is_no_reply_ends_the_connection(
    server: ByteServer, rustlog: Rustlog, said: bytes
) -> None:
    server.answer = lambda line: line.say(said)
    with anyio.fail_after(SOON_S), pytest.raises(OutcomeUnknown):
        await rustlog.produce("t", b"x")
    assert not rustlog.connected


async def test_a_server_that_has_no_room_says_so_before_it_is_asked(server: ByteServer) -> None:
    server.greeting = frame(error(400))
    events: list[Event] = []
    async with connect_rustlog(server.address, on_event=events.append):
        await server.until(lambda: len(events) > 1)
    assert isinstance(events[1], Disconnected)
    assert events[1].reason == "code 400"


async def test_what_no_frame_can_hold_is_refused_here(rustlog: Rustlog) -> None:
    """RL-01: it would end the connection for all."""
    with pytest.raises(DataTooLarge):
        await rustlog.produce("t", bytes(7_864_320))
    with pytest.raises(ValueError, match="no records"):
        await rustlog.produce("t", [])
    assert rustlog.connected


class Topic:
    """A scripted topic: answers Produce, Fetch, Offset* and DescribeTopic from lists."""

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[str]] = [[] for _ in range(partitions)]
        self.start = 0
        self.commits: dict[int, int] = {}
        self.batches: list[tuple[int, int]] = []

    def reply(self, asked: Message) -> Message:
        number = asked.get("partition", 0)
        log = self.logs[number]
        match asked["type"]:
            case "DescribeTopic":
                rows = [
                    {"partition": n, "high_watermark": len(log)} | self._rest
                    for n, log in enumerate(self.logs)
                ]
                return {"type": "DescribeTopicResponse", "topic": "t", "partitions": rows}
            case "Produce":
                self.batches.append((number, len(asked["records"])))
                base = len(log)
                log += asked["records"]
                count = len(asked["records"])
                return {"type": "ProduceResponse", "base_offset": base, "record_count": count}
            case "Fetch" if asked["offset"] < self.start:
                return error(416, {"valid_range": {"start": self.start, "end": len(log)}})
            case "Fetch":
                offset = asked["offset"]
                rows = [
                    {"offset": at, "timestamp": 1, "payload": log[at]}
                    for at in range(offset, len(log))
                ]
                following = max(offset, len(log))
                return {"type": "FetchResponse", "records": rows, "next_offset": following}
            case "OffsetCommit":
                self.commits[number] = asked["offset"]
                return {"type": "OffsetCommitResponse", "success": True}
            case "OffsetFetch":
                return {"type": "OffsetFetchResponse", "offset": self.commits.get(number)}
            case unknown:
                raise AssertionError(unknown)

    @property
    def _rest(self) -> Message:
        return {"log_start_offset": self.start, "segment_count": 1}


@pytest.fixture
def topic(server: ByteServer) -> Topic:
    topic = Topic(3)
    server.answer = answering(topic.reply)
    return topic


async def test_a_producer_spreads_records_in_batches(rustlog: Rustlog, topic: Topic) -> None:
    """By turns, by key, or as it is told; every record expects where it is."""
    settings = BatchSettings(linger_ms=NEVER_MS)
    async with rustlog.producer("t", settings) as producer:
        assert producer.partitions == 3
        turns = [await producer.send(b"%d" % n) for n in range(6)]
        keyed = [await producer.send(b"k", key=b"alice") for _ in range(3)]
        fixed = producer.send_nowait(b"f", partition=2)
        assert producer.buffered == 10
        await producer.flush()
        assert [await each for each in turns] == [PartitionOffset(n % 3, n // 3) for n in range(6)]
        places = [await each for each in keyed]
        assert len({place.partition for place in places}) == 1
        assert [place.offset for place in places] == [2, 3, 4]
        assert (await fixed).partition == 2
        assert len(topic.batches) == 3
        assert (await producer.send(b"k", key=b"alice")) is not None
        with pytest.raises(ValueError, match="partitions 0 to 2"):
            await producer.send(b"x", partition=3)


async def test_a_batch_that_is_kept_in_part_is_an_unknown_outcome(
    server: ByteServer, rustlog: Rustlog, topic: Topic
) -> None:
    async with rustlog.producer("t", BatchSettings(linger_ms=0)) as producer:
        less = {"type": "ProduceResponse", "base_offset": 0, "record_count": 1}
        server.answer = lambda line: line.say(frame(less))
        posted = [producer.send_nowait(b"x", partition=0) for _ in range(2)]
        for each in posted:
            with pytest.raises(OutcomeUnknown):
                await each


async def test_a_consumer_follows_all_partitions_and_commits(
    rustlog: Rustlog, topic: Topic
) -> None:
    """The record in progress when the block failed is delivered again."""
    topic.logs = [["YQ==", "Yg=="], ["Yw=="], []]
    topic.commits = {0: 1}
    got = []
    with pytest.raises(ZeroDivisionError):
        async with rustlog.consumer("g", "t") as consumer:
            async for record in consumer:
                got.append((record.partition, record.offset, record.data))
                if len(got) == 2:
                    topic.logs[2].append("ZA==")
                if len(got) == 3:
                    raise ZeroDivisionError
    assert sorted(got) == [(0, 1, b"b"), (1, 0, b"c"), (2, 0, b"d")]
    assert topic.commits == {0: 2, 1: 1}
    async with rustlog.consumer("g", "t") as consumer:
        assert consumer.positions == {0: 2, 1: 1, 2: 0}
        assert (await anext(consumer)).data == b"d"
    assert topic.commits == {0: 2, 1: 1, 2: 1}


async def test_a_consumer_starts_where_it_is_told(rustlog: Rustlog, topic: Topic) -> None:
    topic.logs = [["YQ=="] * 5, [], []]
    latest = ConsumerSettings(start="latest", commit_ms=None)
    async with rustlog.consumer("g", "t", [0], latest) as consumer:
        assert consumer.positions == {0: 5}
        consumer.seek(0, 3)
        record = await anext(consumer)
        assert record.offset == 3
        await consumer.commit()
        assert topic.commits == {0: 3}
        await anext(consumer)
    assert topic.commits == {0: 3}


async def test_a_consumer_tells_of_what_was_removed_before_it_came(
    rustlog: Rustlog, topic: Topic
) -> None:
    topic.logs[0] = ["YQ=="] * 5
    topic.commits = {0: 1}
    topic.start = 3
    async with rustlog.consumer("g", "t", [0]) as consumer:
        with pytest.raises(OffsetOutOfRange):
            await anext(consumer)
        consumer.seek(0, 4)
        assert (await anext(consumer)).offset == 4
    topic.commits = {0: 1}
    skip = ConsumerSettings(on_trimmed="skip")
    async with rustlog.consumer("g", "t", [0], skip) as consumer:
        assert (await anext(consumer)).offset == 3
        assert consumer.skipped == 2


async def test_a_consumer_goes_on_after_a_lost_connection(
    server: ByteServer, rustlog: Rustlog, topic: Topic
) -> None:
    topic.logs[0] = ["YQ==", "Yg=="]
    async with rustlog.consumer("g", "t", [0]) as consumer:
        assert (await anext(consumer)).offset == 0
        server.line.cut()
        assert (await anext(consumer)).offset == 1
        topic.logs[0].append("Yw==")
        with anyio.fail_after(SOON_S):
            assert (await anext(consumer)).data == b"c"
    assert topic.commits == {0: 3}


async def test_a_consumer_of_a_closed_client_ends_with_an_error(
    server: ByteServer, topic: Topic
) -> None:
    async with connect_rustlog(server.address, reconnect=False) as rustlog:
        async with rustlog.consumer("g", "t", [0]) as consumer:
            server.line.cut()
            with anyio.fail_after(SOON_S), pytest.raises(NotDone):
                await anext(consumer)


async def test_a_cancelled_consumer_loses_nothing(rustlog: Rustlog, topic: Topic) -> None:
    async with rustlog.consumer("g", "t", [0]) as consumer:
        with anyio.move_on_after(0.03):
            await anext(consumer)
        topic.logs[0].append("YQ==")
        with anyio.fail_after(SOON_S):
            assert (await anext(consumer)).data == b"a"
