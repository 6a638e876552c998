"""One test for each resolution RLA-01 to RLA-33 (docs/reference/compatibility.md), over real
sockets."""

from __future__ import annotations

import json
import time
from pathlib import Path

import anyio
import pytest

from millpond.node.config_rules import StreamRule
from tests.conformance import s3p_peer as s3p
from tests.conformance.gated_disk import GatedDisk
from tests.conformance.peer import Ended
from tests.conformance.rustlog_peer import (
    FRAME_MAX,
    RECORD_MAX,
    b64,
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

PING = {"type": "Ping"}
PONG = {"type": "Pong"}
CREATE = {"type": "CreateTopic", "topic": "t", "partition_count": 1}


async def test_rla_01_the_example_frame_with_its_wrong_length_closes() -> None:
    payload = b'{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("logs")
        await peer.send(bytes.fromhex("0000004a") + payload)
        await peer.ends(400)
        right = await server.rustlog()
        assert (await right.ask(bytes.fromhex("0000004e") + payload))["base_offset"] == 0
        assert bodies_of(await right.ask(fetch("logs"))) == [b"Hello World"]


async def test_rla_02_making_a_topic_again_does_not_succeed() -> None:
    no = {"type": "CreateTopicResponse", "success": False, "partitions_created": 0}
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.create("u", 2)
        for count in (1, 2, 3):
            assert await peer.ask(CREATE | {"partition_count": count}) == no
            assert await peer.ask(CREATE | {"topic": "u", "partition_count": count}) == no
        await peer.refused(CREATE | {"topic": "u", "partition_count": 0}, 400)


async def test_rla_03_beyond_the_watermark_is_empty_below_the_start_is_not() -> None:
    async with rustlog_server(streams=(StreamRule("*", bytes=4096),)) as server:
        peer = await server.rustlog()
        await peer.create("t")
        for _ in range(10):
            await peer.ask(produce("t", bytes(1000)))
        start, end = await peer.partition("t")
        for offset in (end, 5000):
            answer = await peer.ask(fetch("t", offset))
            assert (answer["records"], answer["next_offset"]) == ([], offset)
        error = await peer.refused(fetch("t", start - 1), 416)
        assert error["details"]["valid_range"] == {"start": start, "end": end}


async def test_rla_04_a_partition_that_is_not_there_is_405() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 3)
        for partition in (3, 999, 2**32 - 1):
            await peer.refused(produce("t", b"x", partition=partition), 405)
            await peer.refused(fetch("t", partition=partition), 405)


async def test_rla_05_the_largest_record_can_be_fetched_and_a_larger_one_is_refused() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        body = bytes(range(256)) * (RECORD_MAX // 256)
        assert len(body) == RECORD_MAX
        assert (await peer.ask(produce("t", body)))["record_count"] == 1
        await peer.send(fetch("t"))
        payload = await peer.payload()
        assert len(payload) <= FRAME_MAX and bodies_of(json.loads(payload)) == [body]
        await peer.refused(produce("t", body + b"x"), 413)


async def test_rla_06_a_response_stops_at_the_limit_of_a_frame() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        bodies = [bytes([each]) * 1_000_000 for each in range(20)]
        for at in range(0, 20, 5):
            await peer.ask(produce("t", *bodies[at : at + 5]))
        got: list[bytes] = []
        rounds = 0
        while len(got) < 20:
            await peer.send(fetch("t", len(got), max_bytes=2**40))
            payload = await peer.payload()
            assert len(payload) <= FRAME_MAX
            answer = json.loads(payload)
            assert answer["next_offset"] == len(got) + len(answer["records"]) > len(got)
            got += bodies_of(answer)
            rounds += 1
        assert got == bodies and rounds <= 6


async def test_rla_07_max_bytes_counts_payload_and_the_first_record_always_comes() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        assert (await peer.ask(fetch("t", max_bytes=0)))["records"] == []
        await peer.ask(produce("t", *[bytes(100)] * 10))
        for max_bytes, least, most in ((0, 1, 1), (1, 1, 1), (100, 1, 2), (550, 5, 6)):
            count = len((await peer.ask(fetch("t", max_bytes=max_bytes)))["records"])
            assert least <= count <= most, max_bytes


async def test_rla_08_group_and_max_bytes_may_be_missing_and_nothing_else() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", *[bytes(100_000)] * 15))
        bare = fetch("t")
        count = len((await peer.ask(bare))["records"])
        assert 10 <= count <= 11
        for field in ("topic", "partition", "offset"):
            await peer.refused({name: bare[name] for name in bare if name != field}, 400)


async def test_rla_09_the_group_of_a_fetch_moves_nothing() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", b"a", b"b"))
        for _ in range(2):
            assert offsets_of(await peer.ask(fetch("t", group_id="never-committed"))) == [0, 1]
        assert await peer.committed("never-committed", "t") is None


async def test_rla_10_malformed_json_is_answered_and_closes() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send(b"".join([frame_of(**PING), framed('{"type":'), frame_of(**PING) * 100]))
        assert await peer.read() == PONG
        await peer.ends(400)


async def test_rla_11_a_frame_too_large_is_answered_before_its_bytes_come() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send((FRAME_MAX + 1).to_bytes(4, "big"))
        error = await peer.read()
        assert (error["code"], error["message"]) == (413, "frame too large")
        assert error["details"] == {"size": FRAME_MAX + 1, "size_max": FRAME_MAX}
        with pytest.raises(Ended):
            await peer.read()


@pytest.mark.parametrize("payload", ["[]", "[[1]]", "7", "-1.5e3", "true", "null", '"Ping"', '""'])
async def test_rla_12_json_that_is_not_an_object_is_refused(payload: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.refused(framed(payload), 400)


@pytest.mark.parametrize("payload", ["{}", '{"type":1}', '{"type":null}', '{"type":["Ping"]}'])
async def test_rla_13_a_type_that_is_missing_or_no_string_is_refused(payload: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.refused(framed(payload), 400)


@pytest.mark.parametrize("name", ["ping", "PING", " Ping", "Ping ", "Pong", "Error", "x" * 10_000])
async def test_rla_14_types_are_exactly_as_written(name: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        error = await peer.refused({"type": name}, 400)
        assert len(error["message"]) < 200


async def test_rla_15_a_duplicate_key_is_refused() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.create("u")
        for payload in (
            '{"type":"Ping","type":"Ping"}',
            '{"type":"Ping","type":"MetricsFetch"}',
            '{"type":"Produce","topic":"t","topic":"u","partition":0,"records":["AA=="]}',
            '{"type":"Produce","topic":"t","t\\u006fpic":"u","partition":0,"records":["AA=="]}',
            '{"type":"Ping","x":{"a":1,"a":1}}',
        ):
            await peer.refused(framed(payload), 400)
        assert await peer.partition("t") == await peer.partition("u") == (0, 0)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "[" * 50_000 + "]" * 50_000, '{"a":' * 50_000]
)
async def test_rla_16_constants_that_json_does_not_have_close(value: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.send(framed('{"type":"Ping","x":' + value + "}"))
        await peer.ends(400)


async def test_rla_16_huge_numbers_are_refused_or_ignored() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        digits = "9" * 100_000
        assert await peer.ask(framed('{"type":"Ping","x":' + digits + "}")) == PONG
        for value in (digits, "-" + digits, "1e999", "1E400"):
            text = json.dumps(fetch("t")).replace('"offset": 0', f'"offset":{value}')
            await peer.refused(framed(text), 400)


@pytest.mark.parametrize("value", ["true", "false", "1.0", "0.0", "1e0", '"3"', "null", "[0]"])
async def test_rla_17_an_integer_is_nothing_else(value: str) -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        for field in ("partition", "offset", "max_bytes"):
            fields = {"partition": "0", "offset": "0", "max_bytes": "1"} | {field: value}
            inner = ",".join(f'"{name}":{each}' for name, each in fields.items())
            await peer.refused(framed('{"type":"Fetch","topic":"t",' + inner + "}"), 400)


async def test_rla_18_numbers_of_64_bits_are_exact() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        for offset in (2**53 + 1, 2**63, 2**64 - 1):
            assert (await peer.ask(fetch("t", offset)))["next_offset"] == offset
            assert await peer.commit("g", "t", offset)
            assert await peer.committed("g", "t") == offset
        await peer.refused(fetch("t", 2**64), 400)


async def test_rla_19_base64_is_of_the_standard_alphabet_and_padded() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        for bad in (
            "_-==",
            "AA",
            "AA=",
            "AA==AA==",
            " AA==",
            "AA==\n",
            "AA\n==",
            "A===",
            "====",
            "=",
        ):
            await peer.refused(produce("t") | {"records": [bad]}, 400)
        await peer.ask(produce("t") | {"records": ["+/+/", "SGl=", ""]})
        assert bodies_of(await peer.ask(fetch("t"))) == [b"\xfb\xff\xbf", b"Hi", b""]


async def test_rla_20_a_batch_is_kept_as_a_whole_or_not_at_all() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        good = b64(b"x") * 500
        for bad in (["!"], [7], good * 2):
            await peer.refused(produce("t") | {"records": [*good, *bad]}, 400)
        await peer.refused(produce("t", b"x", bytes(RECORD_MAX + 1)), 413)
        assert await peer.partition("t") == (0, 0)


async def test_rla_21_an_empty_batch_is_refused_an_empty_record_is_not() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.refused(produce("t"), 400)
        assert (await peer.ask(produce("t", b"")))["record_count"] == 1
        assert bodies_of(await peer.ask(fetch("t"))) == [b""]


async def test_rla_22_too_many_records_are_400() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.refused(produce("t", *[b""] * 1001), 400)
        await peer.refused(produce("t", *[b""] * 100_000), 400)


async def test_rla_23_names_of_topics_are_of_ascii() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        for name in (
            "\u00e9",
            "\u0661",
            "\uff21",
            "t\n",
            "\nt",
            "a\u0000",
            "a b",
            "a.b",
            "a:b",
            "",
        ):
            await peer.refused(CREATE | {"topic": name}, 400)
        await peer.refused(CREATE | {"topic": "a" * 256}, 400)
        await peer.create("a" * 255)


async def test_rla_24_a_partition_is_described_like_the_row_of_its_topic() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        await peer.ask(produce("t", b"x", b"y", partition=1))
        rows = (await peer.ask({"type": "DescribeTopic", "topic": "t"}))["partitions"]
        for row in rows:
            place = {"topic": "t", "partition": row["partition"]}
            alone = await peer.ask({"type": "DescribePartition", **place})
            assert alone == row | {"type": "DescribePartitionResponse", "topic": "t"}
        assert rows[1]["high_watermark"] == 2


COUNTERS = """messages_produced_total messages_fetched_total bytes_in_total bytes_out_total
active_connections throttled_consumers_total slow_consumers_total segments_deleted_total
bytes_reclaimed_total compaction_runs_total compaction_skipped_segments_total
compaction_segments_rewritten_total compaction_records_dropped_total
compaction_bytes_rewritten_total""".split()


async def test_rla_25_the_metrics_are_real() -> None:
    async with rustlog_server(streams=(StreamRule("old", bytes=4096),)) as server:
        peer, other = await server.rustlog(), await server.rustlog()
        await peer.create("t", 3)
        await peer.create("old")
        for number in range(10):
            await peer.ask(produce("t", b"%05d" % number, b"x" * 15, partition=number % 2))
        await other.ask(fetch("t", max_bytes=10**6))
        await other.commit("g", "t", 3)
        await other.commit("h", "t", 10, partition=1)
        await other.commit("h", "t", 2**60, partition=2)
        await other.ask(produce("t", b"late"))
        before = (await peer.ask({"type": "MetricsFetch"}))["metrics"]
        for _ in range(10):
            await peer.ask(produce("old", bytes(1000)))
        answer = await peer.ask({"type": "MetricsFetch"})
        assert set(answer) == {"type", "metrics", "prometheus"}
        metrics = answer["metrics"]
        assert set(COUNTERS) <= set(metrics)
        assert all(type(metrics[name]) is int and metrics[name] >= 0 for name in COUNTERS)
        assert before["messages_produced_total"] == 21 and before["messages_fetched_total"] == 10
        assert before["bytes_in_total"] == 204 and before["bytes_out_total"] == 100
        assert before["active_connections"] == 2
        assert before["segments_deleted_total"] == 0 < metrics["segments_deleted_total"]
        assert 4000 < metrics["bytes_reclaimed_total"] < 10_500
        for name in ("produce_latency_ns", "fetch_latency_ns"):
            assert set(metrics[name]) == {"p50", "p95", "p99"}
            assert 0 < metrics[name]["p50"] <= metrics[name]["p95"] <= metrics[name]["p99"] < 10**10
        assert metrics["consumer_lag"] == [
            {"topic": "t", "partition": 0, "group_id": "g", "lag": 8},
            {"topic": "t", "partition": 1, "group_id": "h", "lag": 0},
            {"topic": "t", "partition": 2, "group_id": "h", "lag": 0},
        ]
        lines = answer["prometheus"].splitlines()
        assert f"messages_produced_total {metrics['messages_produced_total']}" in lines
        assert 'consumer_lag{topic="t",partition="0",group="g"} 8' in lines


async def test_rla_25_the_lag_of_a_group_survives_a_restart(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", *[b"x"] * 10))
        assert await peer.commit("g", "t", 4)
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        await peer.ask(fetch("t", 4, group_id="g"))
        metrics = (await peer.ask({"type": "MetricsFetch"}))["metrics"]
        assert metrics["consumer_lag"] == [
            {"topic": "t", "partition": 0, "group_id": "g", "lag": 6}
        ]


async def test_rla_26_names_of_fields_have_no_aliases() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t")
        place = {"topic": "t", "partition": 0}
        await peer.refused({"type": "OffsetCommit", "group_id": "g", **place, "offset": 1}, 400)
        await peer.refused({"type": "OffsetFetch", "group_id": "g", **place}, 400)
        await peer.refused({"type": "CreateTopic", "name": "u", "partition_count": 1}, 400)
        await peer.refused({"type": "CreateTopic", "topic": "u", "partitions": 1}, 400)


async def test_rla_27_commits_need_a_partition_and_no_records() -> None:
    async with rustlog_server() as server:
        peer = await server.rustlog()
        await peer.create("t", 2)
        assert await peer.commit("g", "t", 10**15)
        assert await peer.committed("g", "t") == 10**15
        assert not await peer.commit("g", "t", 0, partition=2)
        for topic in ("nothing", "", "t/0", "\u00e9"):
            assert not await peer.commit("g", topic, 0)


async def test_rla_28_a_restart_loses_no_commit_and_no_record(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        await peer.create("one")
        await peer.create("many", 1000)
        await peer.ask(produce("one", b"a", b"b"))
        await peer.ask(produce("many", b"c", partition=999))
        assert await peer.commit("g", "one", 1) and await peer.commit("g", "many", 0, 998)
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        assert (await peer.ask({"type": "ListTopics"}))["topics"] == [
            {"name": "many", "partition_count": 1000},
            {"name": "one", "partition_count": 1},
        ]
        assert await peer.committed("g", "one") == 1
        assert await peer.committed("g", "many", 998) == 0
        assert await peer.committed("g", "many", 997) is None
        assert bodies_of(await peer.ask(fetch("many", partition=999))) == [b"c"]
        assert (await peer.ask(produce("one", b"d")))["base_offset"] == 2
        assert bodies_of(await peer.ask(fetch("one"))) == [b"a", b"b", b"d"]


async def test_rla_29_the_start_of_a_log_moves_and_an_emptied_log_starts_at_its_end() -> None:
    async with rustlog_server() as server:
        peer, other = await server.rustlog(), await server.s3p()
        await peer.create("t")
        await peer.ask(produce("t", b"a", b"b", b"c"))
        ids = [at for at, _ in await other.records(b"t")]
        await other.ask(s3p.trim(b"t", MIN_ID=s3p.after(ids[0])))
        assert await peer.partition("t") == (1, 3)
        await peer.refused(fetch("t", 0), 416)
        await other.ask(s3p.trim(b"t", MIN_ID=s3p.after(ids[2])))
        assert await peer.partition("t") == (3, 3)
        await peer.refused(fetch("t", 2), 416)
        assert (await peer.ask(fetch("t", 3)))["next_offset"] == 3
        assert (await peer.ask(produce("t", b"d")))["base_offset"] == 3


async def test_rla_29_records_that_are_too_old_are_trimmed() -> None:
    ahead_s = 0.0

    def now() -> float:
        return time.time() + ahead_s

    async with rustlog_server(now=now, stream_age_s=60) as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", b"old", b"old"))
        ahead_s = 61.5
        await peer.ask(produce("t", b"new"))
        assert await peer.partition("t") == (2, 3)
        await peer.refused(fetch("t", 0), 416)
        assert bodies_of(await peer.ask(fetch("t", 2))) == [b"new"]


async def test_rla_30_a_batch_has_one_time_and_time_never_falls() -> None:
    ahead_s = 0.0

    def now() -> float:
        return 1_763_683_200.0 + ahead_s

    async with rustlog_server(now=now) as server:
        peer, other = await server.rustlog(), await server.s3p()
        await peer.create("t")
        for seconds in (0.0, 0.0015, 2.0):
            ahead_s = seconds
            await peer.ask(produce("t", b"a", b"b"))
        stamps = [each["timestamp"] for each in (await peer.ask(fetch("t")))["records"]]
        assert stamps == [1763683200000000] * 2 + [1763683200001000] * 2 + [1763683202000000] * 2
        await other.append(b"x", name=b"t", ID=1_800_000_000_000)
        await peer.ask(produce("t", b"c"))
        stamps = [each["timestamp"] for each in (await peer.ask(fetch("t", 5)))["records"]]
        assert stamps == sorted(stamps)


async def test_rla_32_a_slow_disk_holds_up_no_other_client(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk) as server:
        slow, other = await server.rustlog(), await server.rustlog()
        await slow.create("t")
        await slow.create("u")
        disk.gate.clear()
        try:
            await slow.send(produce("t", b"x"), PING, fetch("t"))
            with anyio.move_on_after(0.05) as waiting:
                await slow.payload()
            assert waiting.cancelled_caught
            assert await other.all([PING, fetch("u"), PING]) == [
                PONG,
                {"type": "FetchResponse", "records": [], "next_offset": 0},
                PONG,
            ]
        finally:
            disk.gate.set()
        assert (await slow.read())["base_offset"] == 0
        assert await slow.read() == PONG
        assert bodies_of(await slow.read()) == [b"x"]


async def test_rla_32_a_client_that_does_not_read_is_read_no_further() -> None:
    async with rustlog_server() as server:
        greedy, other = await server.rustlog(), await server.rustlog()
        await greedy.create("t")
        body = bytes(2 * 2**20)
        await greedy.ask(produce("t", body))
        await greedy.send(*[fetch("t")] * 20)
        for _ in range(5):
            assert await other.ask(PING) == PONG
            await anyio.sleep(0.01)
        unsent = [each._wire.unsent_bytes for each in server.node.registry.connections]
        assert max(unsent) < 8 * 2**20
        metrics = (await other.ask({"type": "MetricsFetch"}))["metrics"]
        assert metrics["throttled_consumers_total"] == 1
        assert metrics["messages_fetched_total"] < 10
        for _ in range(20):
            assert bodies_of(await greedy.read()) == [body]
        assert await greedy.ask(PING) == PONG


async def test_rla_33_a_full_partition_is_507_and_the_connection_goes_on() -> None:
    async with rustlog_server(stream_bytes_max=10_000) as server:
        peer = await server.rustlog()
        await peer.create("t")
        for _ in range(9):
            assert (await peer.ask(produce("t", bytes(1000))))["record_count"] == 1
        await peer.refused(produce("t", bytes(5000)), 507)
        assert await peer.partition("t") == (0, 9)


async def test_rla_33_a_store_that_cannot_write_is_503_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    async with rustlog_server(tmp_path) as server:
        peer = await server.rustlog()
        await peer.create("t")
        await peer.ask(produce("t", b"x"))
        server.node._store.health.is_writable = False
        await peer.refused(produce("t", b"y"), 503)
        assert bodies_of(await peer.ask(fetch("t"))) == [b"x"]
        server.node._store.health.is_writable = True
        assert (await peer.ask(produce("t", b"z")))["base_offset"] == 1
