"""One test for each requirement RL-01 to RL-37 (docs/reference/compatibility.md), over real
sockets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.node.config_rules import StreamRule
from tests.conformance.gated_disk import GatedDisk
from tests.conformance.peer import Ended
from tests.conformance.rustlog_peer import (
    FRAME_MAX,
    RECORD_MAX,
    Fields,
    RustlogPeer,
    bodies_of,
    fetch,
    frame_of,
    framed,
    offsets_of,
    over_sockets,
    produce,
    rustlog_server,
)

pytestmark = over_sockets

SMALL = (StreamRule("*", bytes=4096),)
"""Of every stream only so much is kept."""

CLOCKS_APART_US = 1_000_000
"""A node keeps the time by another clock, which a wall clock that is corrected leaves behind."""
PING = {"type": "Ping"}
PONG = {"type": "Pong"}


async def test_rl_01_a_frame_is_a_length_and_a_payload() -> None:
    async with rustlog_server() as server:
        pipe = await server.dial()
        await pipe.send(bytes.fromhex("0000000f") + b'{"type":"Ping"}')
        assert await pipe.receive() == bytes.fromhex("0000000f") + b'{"type":"Pong"}'


async def test_rl_01_any_split_of_the_bytes_is_the_same() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        wire = frame_of(**produce("t", b"a", b"b")) + frame_of(**fetch("t")) + frame_of(**PING)
        for size in (1, 2, 3, 5, 64):
            for at in range(0, len(wire), size):
                await peer.pipe.send(wire[at : at + size])
            assert (await peer.read())["record_count"] == 2
            assert bodies_of(await peer.read())[-2:] == [b"a", b"b"]
            assert await peer.read() == PONG


@pytest.mark.parametrize("length", ["00000000", "00a00001", "7fffffff", "ffffffff"])
async def test_rl_02_a_bad_length_closes_from_its_four_bytes(length: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send(PING, bytes.fromhex(length))
        assert await peer.read() == PONG
        await peer.ends(400 if length == "00000000" else 413)


async def test_rl_03_a_frame_of_ten_mebibytes_is_served() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        payload = b'{"type":"Ping","x":"' + b"x" * (FRAME_MAX - 22) + b'"}'
        assert len(payload) == FRAME_MAX
        assert await peer.ask(framed(payload)) == PONG
        await peer.create("t")
        bare = json.dumps(produce("t", bytes(RECORD_MAX)))
        full = bare[:-1] + " " * (FRAME_MAX - len(bare)) + "}"
        assert (await peer.ask(framed(full)))["record_count"] == 1
        assert bodies_of(await peer.ask(fetch("t"))) == [bytes(RECORD_MAX)]


@pytest.mark.parametrize("payload", ["{}", '{"type":7}', "[]", '"Ping"', "null", '{"Type":"Ping"}'])
async def test_rl_04_a_request_is_an_object_with_a_type(payload: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.refused(framed(payload), 400)


@pytest.mark.parametrize(
    "payload", [b'{"type":"\xff"}', b'{"type":"Ping","x":"\xc3\x28"}', b"\x80"]
)
async def test_rl_05_bytes_that_are_not_utf_8_close(payload: bytes) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send(PING, framed(payload), PING)
        assert await peer.read() == PONG
        await peer.ends(400)


@pytest.mark.parametrize(
    "payload",
    ["{", '{"type":"Ping"', '{"type":"Ping"}}', "x", '{"type":"Ping","x":NaN}', "[" * 9999],
)
async def test_rl_06_bytes_that_are_not_json_close(payload: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send(PING, framed(payload), PING)
        assert await peer.read() == PONG
        await peer.ends(400)


async def test_rl_07_an_unknown_type_is_refused() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        for name in ("Delete", "ping", "Pong", "ProduceResponse", ""):
            await peer.refused({"type": name}, 400)


WRONG: dict[str, dict[str, list[Any]]] = {
    "Produce": {
        "topic": [None, 1, ["t"]],
        "partition": [None, -1, 2**32, 0.0, "0", True],
        "records": [None, "AA==", [1], [None], ["A"], []],
    },
    "Fetch": {
        "topic": [None, 1],
        "partition": [None, -1, 2**32, False],
        "offset": [None, -1, 2**64, 0.5, "0", True],
        "max_bytes": [None, -1, 1.0],
        "group_id": [None, 1],
    },
    "OffsetCommit": {
        "group": [None, 1],
        "topic": [None, 1],
        "partition": [None, "0"],
        "offset": [None, -1, 2**64],
    },
    "OffsetFetch": {"group": [None, 1], "topic": [None, 1], "partition": [None, 0.0]},
    "CreateTopic": {
        "topic": [None, 1, "", "a/b", "a b", "a" * 256],
        "partition_count": [None, 0, -1, 1001, "1", 1.0, True],
    },
    "DescribeTopic": {"topic": [None, 1]},
    "DescribePartition": {"topic": [None, 1], "partition": [None, -1]},
}
RIGHT: dict[str, Fields] = {
    "Produce": {"topic": "t", "partition": 0, "records": ["AA=="]},
    "Fetch": {"topic": "t", "partition": 0, "offset": 0},
    "OffsetCommit": {"group": "g", "topic": "t", "partition": 0, "offset": 0},
    "OffsetFetch": {"group": "g", "topic": "t", "partition": 0},
    "CreateTopic": {"topic": "new", "partition_count": 1},
    "DescribeTopic": {"topic": "t"},
    "DescribePartition": {"topic": "t", "partition": 0},
}


@pytest.mark.parametrize("kind", WRONG)
async def test_rl_08_missing_and_invalid_fields_are_refused(kind: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        right = {"type": kind} | RIGHT[kind]
        for field, values in WRONG[kind].items():
            for value in values:
                await peer.refused(right | {field: value}, 400)
        for field in RIGHT[kind]:
            await peer.refused({name: right[name] for name in right if name != field}, 400)
        assert (await peer.ask(right))["type"] == kind + "Response"
        assert await peer.partition("t") == (0, 1 if kind == "Produce" else 0)


async def test_rl_09_errors_of_business_leave_the_connection_open() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        for request, code in (
            (produce("nothing", b"x"), 404),
            (fetch("nothing"), 404),
            (produce("t", b"x", partition=2), 405),
            (fetch("t", partition=7), 405),
            ({"type": "DescribeTopic", "topic": "nothing"}, 404),
            ({"type": "DescribePartition", "topic": "t", "partition": 2}, 405),
        ):
            await peer.refused(request, code)


async def test_rl_10_unknown_fields_are_ignored() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        later = {"acks": "all", "headers": [{"key": "k"}], "\u00e9": None, "x": {"y": [1.5]}}
        assert await peer.ask(PING | later) == PONG
        await peer.create("t")
        assert (await peer.ask(produce("t", b"x") | later))["base_offset"] == 0
        assert bodies_of(await peer.ask(fetch("t") | later)) == [b"x"]


async def test_rl_11_requests_are_answered_in_their_order() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("a")
        await peer.create("b", 3)
        requests: list[Fields] = []
        for number in range(20):
            requests += [
                produce("a", b"%d" % number),
                fetch("a", number),
                produce("b", b"%d" % number, partition=number % 3),
                {"type": "DescribeTopic", "topic": "b"},
                produce("nothing", b"x"),
                PING,
            ]
        answers = await peer.all(requests)
        for number in range(20):
            produced, fetched, spread, described, refused, pong = answers[number * 6 :][:6]
            assert produced["base_offset"] == number
            assert bodies_of(fetched) == [b"%d" % number]
            assert spread["base_offset"] == number // 3
            assert sum(each["high_watermark"] for each in described["partitions"]) == number + 1
            assert refused["code"] == 404 and pong == PONG


async def test_rl_11_answers_keep_their_order_behind_a_slow_disk(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk) as server:
        peer = await server.rustlog()
        await peer.create("slow", 2)
        await peer.create("idle", 2)
        requests: list[Fields] = [
            produce("slow", b"x", partition=1),
            {"type": "DescribeTopic", "topic": "idle"},
            {"type": "DescribeTopic", "topic": "slow"},
            {"type": "ListTopics"},
            {"type": "MetricsFetch"},
            fetch("slow", partition=1),
            fetch("idle"),
            {"type": "DescribePartition", "topic": "slow", "partition": 1},
            produce("nothing", b"x"),
            {"type": "OffsetCommit", "group": "g", "topic": "idle", "partition": 0, "offset": 3},
            {"type": "MetricsFetch"},
            {"type": "CreateTopic", "topic": "new", "partition_count": 1},
            produce("new", b"y"),
            {"type": "DescribeTopic", "topic": "new"},
            PING,
        ]
        disk.gate.clear()
        try:
            await peer.send(*requests)
            with anyio.move_on_after(0.05) as waiting:
                await peer.payload()
            assert waiting.cancelled_caught
        finally:
            disk.gate.set()
        answers = [await peer.read() for _ in requests]
        assert [each["type"].removesuffix("Response") for each in answers] == [
            "Error" if each.get("topic") == "nothing" else str(each["type"]).replace("Ping", "Pong")
            for each in requests
        ]
        assert [each["high_watermark"] for each in answers[2]["partitions"]] == [0, 1]
        assert bodies_of(answers[5]) == [b"x"] and answers[7]["high_watermark"] == 1
        assert answers[10]["metrics"]["consumer_lag"][0]["group_id"] == "g"
        assert answers[13]["partitions"][0]["high_watermark"] == 1


async def test_rl_11_a_request_behind_the_making_of_its_topic_finds_it() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        for count in (1, 3):
            topic = f"t{count}"
            made, produced, listed = await peer.all(
                [
                    {"type": "CreateTopic", "topic": topic, "partition_count": count},
                    produce(topic, b"x", partition=count - 1),
                    {"type": "ListTopics"},
                ]
            )
            assert made["success"] and produced["base_offset"] == 0
            assert {"name": topic, "partition_count": count} in listed["topics"]


async def test_rl_12_a_response_is_named_after_its_request() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        for kind, fields in RIGHT.items():
            assert (await peer.ask({"type": kind} | fields))["type"] == kind + "Response"
        for kind in ("ListTopics", "MetricsFetch"):
            assert (await peer.ask({"type": kind}))["type"] == kind + "Response"
        assert await peer.ask(PING) == PONG
        assert (await peer.ask({"type": "?"}))["type"] == "Error"


async def test_rl_13_produce_gives_consecutive_offsets_for_each_partition() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        for partition in (0, 1):
            offset = 0
            for count in (1, 2, 7):
                bodies = [b"x"] * count
                assert await peer.ask(produce("t", *bodies, partition=partition)) == {
                    "type": "ProduceResponse",
                    "base_offset": offset,
                    "record_count": count,
                }
                offset += count


async def test_rl_14_an_error_for_a_missing_topic_names_the_others() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        for topic in ("logs", "metrics", "events"):
            await peer.create(topic, 2)
        error = await peer.refused(produce("nonexistent", b"x"), 404)
        assert error["message"] == "Topic 'nonexistent' not found"
        assert error["details"] == {"available_topics": ["events", "logs", "metrics"]}
        error = await peer.refused(produce("logs", b"x", partition=2), 405)
        assert error["details"] == {"partition_count": 2}


async def test_rl_14_names_that_no_topic_has_are_not_there() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        for name in ("", "t/0", "\u00e9", "a" * 300, "t\n", "\0topics"):
            await peer.refused(produce(name, b"x"), 404)
            await peer.refused(fetch(name), 404)


async def test_rl_15_more_than_a_thousand_records_are_refused_and_not_kept() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.refused(produce("t", *[b"x"] * 1001), 400)
        assert await peer.partition("t") == (0, 0)
        assert (await peer.ask(produce("t", *[b"x"] * 1000)))["record_count"] == 1000


async def test_rl_16_a_record_that_is_too_large_is_refused_and_not_kept() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        error = await peer.refused(produce("t", b"x", bytes(RECORD_MAX + 1)), 413)
        assert error["details"] == {"index": 1, "size": RECORD_MAX + 1, "size_max": RECORD_MAX}
        assert await peer.partition("t") == (0, 0)


@pytest.mark.parametrize("bad", ["A", "AA=", "AAA", "A A=", "AA==\n", "-_-_", "\u00e9AA="])
async def test_rl_17_bad_base64_is_refused_and_nothing_of_its_batch_kept(bad: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.refused(produce("t", b"good") | {"records": ["AAAA", bad, "AAAA"]}, 400)
        assert await peer.partition("t") == (0, 0)


async def test_rl_18_bytes_come_back_as_they_were() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        bodies = [b"", bytes(range(256)), b"\0", b"\xff" * 3, "\u20ac".encode(), b'{"a":"\\"}']
        bodies += [bytes([each]) * each for each in range(40)]
        await peer.ask(produce("t", *bodies))
        assert bodies_of(await peer.ask(fetch("t"))) == bodies


async def test_rl_19_rl_20_fetch_gives_records_from_an_offset_on() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("user-events")
        before_us = int(time.time() * 1e6) - CLOCKS_APART_US
        for number in range(5):
            await peer.ask(produce("user-events", b"%d" % number))
        answer = await peer.ask(
            fetch("user-events", 2, max_bytes=1048576, group_id="analytics-consumer")
        )
        assert set(answer) == {"type", "records", "next_offset"}
        assert offsets_of(answer) == [2, 3, 4] and answer["next_offset"] == 5
        assert bodies_of(answer) == [b"2", b"3", b"4"]
        stamps = [each["timestamp"] for each in answer["records"]]
        assert stamps == sorted(stamps) and all(len(str(each)) == 16 for each in stamps)
        assert before_us <= stamps[0] <= stamps[-1] <= time.time() * 1e6 + CLOCKS_APART_US
        assert all(set(each) == {"offset", "timestamp", "payload"} for each in answer["records"])


async def test_rl_21_at_the_end_there_is_nothing() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        nothing = {"type": "FetchResponse", "records": [], "next_offset": 0}
        assert await peer.ask(fetch("t", partition=1)) == nothing
        await peer.ask(produce("t", b"x", b"y"))
        assert await peer.ask(fetch("t", 2)) == nothing | {"next_offset": 2}


async def test_rl_22_below_the_start_of_the_log_is_out_of_range() -> None:
    async with rustlog_server(streams=SMALL) as server:
        peer = await server.rustlog()
        await peer.create("t")
        for _ in range(20):
            await peer.ask(produce("t", bytes(1000)))
        start, end = await peer.partition("t")
        assert 0 < start < end == 20
        error = await peer.refused(fetch("t", 0), 416)
        assert error["message"] == "Offset 0 out of range"
        assert error["details"] == {
            "valid_range": {"start": start, "end": end},
            "high_watermark": end,
        }
        assert offsets_of(await peer.ask(fetch("t", start)))[0] == start


async def test_rl_23_beyond_the_end_there_is_nothing() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", b"x"))
        for offset in (2, 5000, 2**53, 2**64 - 1):
            answer = await peer.ask(fetch("t", offset))
            assert answer == {"type": "FetchResponse", "records": [], "next_offset": offset}


async def test_rl_24_max_bytes_may_be_passed_by_one_record() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        for size in (10, 20, 30, 40, 50):
            await peer.ask(produce("t", bytes(size)))
        for max_bytes in (0, 1, 9, 10, 11, 29, 30, 31, 60, 100, 149, 150, 10**6, 2**64 - 1):
            answer = await peer.ask(fetch("t", max_bytes=max_bytes))
            sizes = [len(each) for each in bodies_of(answer)]
            assert sizes and sum(sizes[:-1]) <= max_bytes
            assert answer["next_offset"] == len(sizes)
            if max_bytes >= 10**6:
                assert len(sizes) == 5


async def test_rl_25_the_group_changes_nothing_and_nothing_is_committed() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", b"a", b"b", b"c"))
        assert await peer.commit("g", "t", 2)
        for group in ({}, {"group_id": ""}, {"group_id": "g"}, {"group_id": "other"}):
            assert offsets_of(await peer.ask(fetch("t", 0) | group)) == [0, 1, 2]
        assert await peer.committed("g", "t") == 2
        assert await peer.committed("other", "t") is None


async def test_rl_26_commits_succeed_where_there_is_a_partition() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        assert await peer.commit("analytics-pipeline", "t", 150, partition=1)
        assert not await peer.commit("analytics-pipeline", "t", 150, partition=2)
        assert not await peer.commit("analytics-pipeline", "nothing", 150)


async def test_rl_27_committed_offsets_are_returned() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        assert await peer.committed("g", "t") is None
        for offset in (0, 7, 2**53 + 1, 2**64 - 1):
            assert await peer.commit("g", "t", offset)
            assert await peer.committed("g", "t") == offset
        for topic, partition in (("t", 1), ("t", 2), ("nothing", 0)):
            assert await peer.committed("g", topic, partition) is None


async def test_rl_28_commits_stand_apart_and_overwrite_and_are_everybodys(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        await peer.create("a")
        await peer.create("b", 2)
        places = [("g", "a", 0), ("h", "a", 0), ("g", "b", 0), ("g", "b", 1)]
        for number, (group, topic, partition) in enumerate(places):
            assert await peer.commit(group, topic, 100 + number, partition)
        assert await peer.commit("g", "a", 5)
        other = await server.rustlog()
        assert [await other.committed(*place) for place in places] == [5, 101, 102, 103]
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        assert [await peer.committed(*place) for place in places] == [5, 101, 102, 103]


async def test_rl_29_topics_are_made_within_their_limits() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        for name in ("a", "Z-9_", "-", "_" * 255, "0"):
            await peer.create(name)
        await peer.create("few", 2)
        await peer.create("many", 1000)
        for name in ("", "a" * 256, "a.b", "a/b", "a b", "\u00e9", "a\n", "\u0661"):
            await peer.refused({"type": "CreateTopic", "topic": name, "partition_count": 1}, 400)
        for count in (0, 1001):
            await peer.refused({"type": "CreateTopic", "topic": "x", "partition_count": count}, 400)


async def test_rl_30_topics_are_listed() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        assert await peer.ask({"type": "ListTopics"}) == {
            "type": "ListTopicsResponse",
            "topics": [],
        }
        await peer.create("b", 3)
        await peer.create("a")
        assert (await peer.ask({"type": "ListTopics"}))["topics"] == [
            {"name": "a", "partition_count": 1},
            {"name": "b", "partition_count": 3},
        ]


async def test_rl_31_rl_32_topics_are_described() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 3)
        await peer.ask(produce("t", b"a", b"b", partition=1))
        answer = await peer.ask({"type": "DescribeTopic", "topic": "t"})
        empty = {"high_watermark": 0, "log_start_offset": 0, "segment_count": 1}
        assert answer == {
            "type": "DescribeTopicResponse",
            "topic": "t",
            "partitions": [
                {"partition": 0} | empty,
                {"partition": 1} | empty | {"high_watermark": 2},
                {"partition": 2} | empty,
            ],
        }
        await peer.refused({"type": "DescribeTopic", "topic": "nothing"}, 404)


async def test_rl_31_a_topic_of_a_thousand_partitions_is_described_at_once() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("many", 1000)
        for partition in (3, 999):
            await peer.ask(produce("many", b"x", partition=partition))
        cells = len(server.node.scheduler.cells)
        rows = (await peer.ask({"type": "DescribeTopic", "topic": "many"}))["partitions"]
        assert [each["partition"] for each in rows] == list(range(1000))
        assert [each["partition"] for each in rows if each["high_watermark"]] == [3, 999]
        assert len(server.node.scheduler.cells) == cells


async def test_rl_33_a_partition_is_described() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        await peer.ask(produce("t", b"a", b"b", partition=1))
        row = {"log_start_offset": 0, "segment_count": 1}
        for partition, high_watermark in ((0, 0), (1, 2)):
            assert (
                await peer.ask({"type": "DescribePartition", "topic": "t", "partition": partition})
                == {
                    "type": "DescribePartitionResponse",
                    "topic": "t",
                    "partition": partition,
                    "high_watermark": high_watermark,
                }
                | row
            )


async def test_rl_34_metrics_are_returned() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        answer = await peer.ask({"type": "MetricsFetch"})
        assert answer["type"] == "MetricsFetchResponse"
        assert answer["metrics"]["active_connections"] == 1


async def test_rl_35_ping_is_answered_by_pong() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        assert await peer.all([PING] * 100) == [PONG] * 100


async def test_rl_36_errors_have_their_codes_and_details() -> None:
    async with rustlog_server(streams=SMALL) as server:
        peer = await server.rustlog()
        await peer.create("t")
        for _ in range(10):
            await peer.ask(produce("t", bytes(1000)))
        for request, code in (
            ({"type": "?"}, 400),
            (produce("nothing", b"x"), 404),
            (produce("t", b"x", partition=1), 405),
            (produce("t", bytes(RECORD_MAX + 1)), 413),
            (fetch("t", 0), 416),
        ):
            await peer.refused(request, code)


@pytest.mark.parametrize("violation", [bytes(4), b"\xff" * 4, framed("{"), framed(b"\xfe")])
async def test_rl_37_a_violation_leaves_the_others_alone(violation: bytes) -> None:
    async with rustlog_server() as server:
        good, idle = await server.rustlog(), await server.rustlog()
        await good.create("t")
        for number in range(5):
            bad = await server.rustlog()
            await bad.send(produce("t", b"before"), violation, produce("t", b"after"))
            assert (await bad.read())["base_offset"] == number * 2
            with pytest.raises(Ended):
                while True:
                    assert (await bad.read())["type"] == "Error"
            assert (await good.ask(produce("t", b"good")))["base_offset"] == number * 2 + 1
        assert await idle.ask(PING) == PONG
        assert set(bodies_of(await good.ask(fetch("t")))) == {b"before", b"good"}


async def test_rl_13_fifty_writers_share_the_offsets_without_gap(tmp_path: Path) -> None:
    writers, batches = 50, 10
    async with rustlog_server(tmp_path) as server:
        first = await server.rustlog()
        await first.create("t")
        given: list[int] = []

        async def write(peer: RustlogPeer, name: int) -> None:
            for number in range(batches):
                answer = await peer.ask(produce("t", *[b"%d %d" % (name, number)] * 3))
                given.append(answer["base_offset"])

        async with anyio.create_task_group() as tasks:
            for name in range(writers):
                tasks.start_soon(write, await server.rustlog(), name)
        assert sorted(given) == list(range(0, writers * batches * 3, 3))
        fetched = await first.ask(fetch("t", max_bytes=10**7))
        assert offsets_of(fetched) == list(range(writers * batches * 3))
        bodies = bodies_of(fetched)
        assert all(len(set(bodies[at : at + 3])) == 1 for at in range(0, len(bodies), 3))
        for name in range(writers):
            mine = [each for each in bodies if each.startswith(b"%d " % name)]
            assert mine == [b"%d %d" % (name, each) for each in range(batches) for _ in range(3)]
