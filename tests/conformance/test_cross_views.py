"""One stream, seen through S3P and through RustLog (docs/reference/compatibility.md,
docs/internals/architecture.md)."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from millpond.node.config_rules import StreamRule
from tests.conformance import s3p_peer as s3p
from tests.conformance.rustlog_peer import (
    RECORD_MAX,
    RustlogPeer,
    bodies_of,
    fetch,
    offsets_of,
    over_sockets,
    produce,
    rustlog_server,
)

pytestmark = over_sockets

MIB = 2**20
CLOCKS_APART_MS = 1000
"""A node keeps the time by another clock, which a wall clock that is corrected leaves behind."""


async def described(peer: RustlogPeer, topic: str) -> list[tuple[int, int]]:
    answer = await peer.ask({"type": "DescribeTopic", "topic": topic})
    return [(each["log_start_offset"], each["high_watermark"]) for each in answer["partitions"]]


async def test_rustlog_fetches_records_of_s3p_with_offset_and_time() -> None:
    async with rustlog_server() as server:
        writer, reader = await server.s3p(), await server.rustlog()
        assert await writer.ask(s3p.create(b"orders")) == s3p.OK
        before_ms = int(time.time() * 1000) - CLOCKS_APART_MS
        for body in (b"a", b"b"):
            await writer.append(body)
        at = await writer.append(b"c", b"d", ID=10**13)
        assert at == (10**13, 1)
        answer = await reader.ask(fetch("orders"))
        assert offsets_of(answer) == [0, 1, 2, 3] and bodies_of(answer) == [b"a", b"b", b"c", b"d"]
        for each in answer["records"]:
            # An ID moves no timestamp: that is the arrival.
            assert each["timestamp"] % 1000 == 0
            assert before_ms <= each["timestamp"] // 1000 <= time.time() * 1000 + CLOCKS_APART_MS
        topics = (await reader.ask({"type": "ListTopics"}))["topics"]
        assert topics == [{"name": "orders", "partition_count": 1}]


async def test_s3p_reads_records_of_rustlog_with_ids() -> None:
    async with rustlog_server() as server:
        writer, reader = await server.rustlog(), await server.s3p()
        await writer.create("orders")
        await reader.refused(s3p.create(b"orders"), s3p.EXISTS)
        assert await reader.records() == []
        await writer.ask(produce("orders", b"a", b"b"))
        await writer.ask(produce("orders", b"c"))
        found = await reader.records()
        assert [body for _, body in found] == [b"a", b"b", b"c"]
        stamps = [each["timestamp"] for each in (await writer.ask(fetch("orders")))["records"]]
        assert [ms * 1000 for (ms, _), _ in found] == stamps
        (ms, seq), _ = found[1]
        assert seq == 1 and ms == found[0][0][0]


async def test_offsets_and_ids_go_on_for_all_writers() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders")
        far = 2**62
        assert await one.append(b"0", ID=far) == (far, 0)
        assert (await other.ask(produce("orders", b"1", b"2")))["base_offset"] == 1
        assert await one.append(b"3") == (far, 3)
        assert (await other.ask(produce("orders", b"4")))["base_offset"] == 4
        await one.refused(s3p.append(b"x", ID=far - 1), s3p.TOO_LOW)
        assert [at for at, _ in await one.records()] == [(far, seq) for seq in range(5)]
        assert bodies_of(await other.ask(fetch("orders"))) == [b"%d" % each for each in range(5)]


async def test_a_waiting_s3p_read_gets_what_rustlog_produces() -> None:
    async with rustlog_server() as server:
        writer, reader = await server.rustlog(), await server.s3p()
        await writer.create("orders")
        await reader.send(s3p.read(BLOCK=5000))
        await anyio.sleep(0.02)
        await writer.ask(produce("orders", b"now"))
        assert [body for _, body in await reader.found()] == [b"now"]


async def test_records_that_s3p_cannot_express_are_skipped_there_and_shown_here() -> None:
    async with rustlog_server() as server:
        writer, reader = await server.rustlog(), await server.s3p()
        await writer.create("orders")
        await writer.ask(produce("orders", b"", b"a", b"", b"b", b""))
        found = await reader.records(COUNT=2)
        assert [(seq, body) for (_, seq), body in found] == [(1, b"a"), (3, b"b")]
        assert await reader.records(MIN_ID=s3p.after(found[-1][0])) == []
        assert bodies_of(await writer.ask(fetch("orders"))) == [b"", b"a", b"", b"b", b""]
        await writer.ask(produce("orders", b"", b""))
        await reader.send(s3p.read(BLOCK=5000, MIN_ID=s3p.after(found[-1][0])))
        await reader.silent_for(0.02)
        await writer.ask(produce("orders", b"c"))
        assert [body for _, body in await reader.found()] == [b"c"]


async def test_records_of_any_size_come_through() -> None:
    async with rustlog_server() as server:
        writer, reader = await server.rustlog(), await server.s3p()
        await writer.create("orders")
        bodies = [b"small", b"x" * MIB, b"y" * RECORD_MAX, b"last"]
        for body in bodies:
            await writer.ask(produce("orders", body))
        assert [body for _, body in await reader.all()] == bodies
        offset, got = 0, []
        while offset < len(bodies):
            answer = await writer.ask(fetch("orders", offset, max_bytes=10**8))
            got += bodies_of(answer)
            offset = answer["next_offset"]
        assert got == bodies


async def test_a_trim_through_s3p_moves_the_start_of_the_log() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await one.ask(s3p.create())
        await one.append(b"a", b"b", b"c", ID=7)
        assert await one.ask(s3p.trim(MIN_ID="7-1")) == s3p.OK
        assert await described(other, "orders") == [(1, 3)]
        error = await other.refused(fetch("orders", 0), 416)
        assert error["details"] == {"valid_range": {"start": 1, "end": 3}, "high_watermark": 3}
        assert bodies_of(await other.ask(fetch("orders", 1))) == [b"b", b"c"]


async def test_deleting_through_s3p_takes_topic_and_commits_with_it() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders")
        await other.ask(produce("orders", b"a", b"b"))
        assert await other.commit("g", "orders", 2)
        assert await one.ask(s3p.delete()) == s3p.OK
        await other.refused(fetch("orders"), 404)
        await other.refused(produce("orders", b"x"), 404)
        assert not await other.commit("g", "orders", 1)
        assert (await other.ask({"type": "ListTopics"}))["topics"] == []
        await other.create("orders")
        assert await other.committed("g", "orders") is None
        assert (await other.ask(produce("orders", b"new")))["base_offset"] == 0


async def test_partitions_of_a_larger_topic_are_streams_of_their_own() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders", 3)
        assert await one.records(b"orders/0") == []
        await one.refused(s3p.read(b"orders"), s3p.UNKNOWN)
        await one.refused(s3p.read(b"orders/3"), s3p.UNKNOWN)
        await one.refused(s3p.create(b"orders/1"), s3p.EXISTS)
        await one.refused(s3p.create(b"orders"), s3p.EXISTS)
        await other.ask(produce("orders", b"from rustlog", partition=2))
        await one.append(b"from s3p", name=b"orders/1")
        await one.append(b"again", name=b"orders/2")
        assert await described(other, "orders") == [(0, 0), (0, 1), (0, 2)]
        assert bodies_of(await other.ask(fetch("orders", partition=1))) == [b"from s3p"]
        assert [body for _, body in await one.records(b"orders/2")] == [b"from rustlog", b"again"]
        assert (await other.ask({"type": "ListTopics"}))["topics"] == [
            {"name": "orders", "partition_count": 3}
        ]


async def test_a_partition_of_a_larger_topic_cannot_be_deleted_alone() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders", 2)
        await one.append(b"kept", name=b"orders/1")
        await one.send(s3p.delete(b"orders/1"))
        assert b"partition of a topic" in await one.rest()
        assert bodies_of(await other.ask(fetch("orders", partition=1))) == [b"kept"]


async def test_a_topic_needs_the_names_of_all_its_partitions() -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await one.ask(s3p.create(b"orders/1"))
        await one.ask(s3p.create(b"plain"))
        for topic, count in (("orders", 2), ("plain", 1), ("plain", 2)):
            answer = await other.ask(
                {"type": "CreateTopic", "topic": topic, "partition_count": count}
            )
            assert answer["success"] is False and answer["partitions_created"] == 0
        await other.create("orders", 1)
        assert [body for _, body in await one.records(b"orders/1")] == []


@pytest.mark.parametrize("name", [b"a/b", b"a b", "\u00e9".encode(), b"\0x", b"\xff", b"a" * 256])
async def test_a_name_that_rustlog_cannot_spell_is_not_seen_there(name: bytes) -> None:
    async with rustlog_server() as server:
        one, other = await server.s3p(), await server.rustlog()
        await one.ask(s3p.create(name))
        await one.append(b"x", name=name)
        assert (await other.ask({"type": "ListTopics"}))["topics"] == []
        await other.refused(fetch(name.decode("latin-1")), 404)
        if name != b"\xff":
            await other.refused(fetch(name.decode()), 404)


async def test_retention_is_the_same_for_both() -> None:
    async with rustlog_server(streams=(StreamRule("orders", bytes=8192),)) as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders")
        for number in range(40):
            await other.ask(produce("orders", b"%02d" % number + bytes(500)))
        start, end = await other.settled("orders")
        assert 0 < start < 40 == end
        kept = [body[:2] for _, body in await one.all()]
        assert kept == [b"%02d" % number for number in range(start, end)]
        assert [body[:2] for body in bodies_of(await other.ask(fetch("orders", start)))] == kept


async def test_both_views_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        one, other = await server.s3p(), await server.rustlog()
        await other.create("orders")
        await other.create("many", 2)
        await one.append(b"a", b"b", ID=5)
        await other.ask(produce("orders", b"c", b""))
        await one.ask(s3p.trim(MIN_ID="5-1"))
        await one.append(b"m", name=b"many/1")
        assert await other.commit("g", "orders", 3)
        before = await one.all(), await other.ask(fetch("orders", 1))
    async with rustlog_server(tmp_path) as server:
        one, other = await server.s3p(), await server.rustlog()
        assert (await one.all(), await other.ask(fetch("orders", 1))) == before
        assert [body for _, body in before[0]] == [b"b", b"c"]
        assert offsets_of(before[1]) == [1, 2, 3]
        assert await described(other, "orders") == [(1, 4)]
        assert await described(other, "many") == [(0, 0), (0, 1)]
        assert await other.committed("g", "orders") == 3
        await other.refused(fetch("orders", 0), 416)
        await one.refused(s3p.append(b"x", ID=4), s3p.TOO_LOW)
        assert (await other.ask(produce("orders", b"d")))["base_offset"] == 4
        assert [body for _, body in await one.all()] == [b"b", b"c", b"d"]


async def test_writers_of_both_protocols_lose_nothing_and_share_one_order() -> None:
    async with rustlog_server() as server:
        reader = await server.rustlog()
        await reader.create("orders")

        async def through_s3p(number: int) -> None:
            client = await server.s3p()
            for each in range(20):
                await client.append(b"s%d %d" % (number, each))

        async def through_rustlog(number: int) -> None:
            peer = await server.rustlog()
            for each in range(20):
                await peer.ask(produce("orders", b"r%d %d" % (number, each)))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(through_s3p, number)
                tasks.start_soon(through_rustlog, number)
        answer = await reader.ask(fetch("orders"))
        bodies = bodies_of(answer)
        assert offsets_of(answer) == list(range(200)) and len(set(bodies)) == 200
        assert [body for _, body in await (await server.s3p()).all()] == bodies
        for writer in {body.split()[0] for body in bodies}:
            mine = [int(body.split()[1]) for body in bodies if body.split()[0] == writer]
            assert mine == list(range(20))
