"""One test for each row RB-01 to RB-43, RustLog's binary form, over real sockets
(docs/reference/compatibility.md)."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import anyio
import pytest

from millpond.actors.messages import Durability
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import NewRecord
from millpond.node.config import OFF
from millpond.node.config_rules import StreamRule
from tests.conformance import rustlog_binary as b
from tests.conformance import rustlog_peer as json_form
from tests.conformance import s3p_peer as s3p
from tests.conformance.gated_disk import GatedDisk
from tests.conformance.rustlog_binary import (
    LIST,
    METRICS,
    NONE,
    PING,
    BinaryPeer,
    binary,
    commit,
    committed,
    create,
    describe,
    describe_partition,
    fetch,
    fetched,
    produce,
    produced,
    watermark,
    watermarks,
)
from tests.conformance.rustlog_peer import (
    FRAME_MAX,
    RECORD_MAX,
    bodies_of,
    framed,
    offsets_of,
    over_sockets,
    rustlog_server,
)

pytestmark = over_sockets

COUNTERS = """messages_produced_total messages_fetched_total bytes_in_total bytes_out_total
active_connections throttled_consumers_total slow_consumers_total segments_deleted_total
bytes_reclaimed_total compaction_runs_total compaction_skipped_segments_total
compaction_segments_rewritten_total compaction_records_dropped_total
compaction_bytes_rewritten_total""".split()
"""The names of RLA-25 that have one value."""

PONG = {"type": "Pong"}
JSON_PING = framed('{"type":"Ping"}')


async def opened(peer: BinaryPeer, topic: str = "t", partitions: int = 1) -> None:
    await peer.says(create(topic, partitions), b"\x05\x01")


async def metrics_of(peer: BinaryPeer) -> list[str]:
    await peer.send(METRICS)
    payload = await peer.payload()
    assert payload[:1] == b"\x09" and int.from_bytes(payload[1:5], "big") == len(payload) - 5
    return payload[5:].decode().split("\n")


async def test_rb_01_a_frame_has_up_to_10485760_bytes_both_ways() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "tt")
        bodies = [bytes(5_000_000), bytes(FRAME_MAX - 21 - 5_000_000)]
        request, answer = produce("tt", *bodies), fetched(2, *bodies)
        assert len(request) == 4 + FRAME_MAX and len(answer) == FRAME_MAX
        await peer.says(request, produced(0, 2))
        await peer.says(fetch("tt", max_bytes=2**32 - 1), answer)


async def test_rb_02_rb_04_the_form_is_decided_by_each_payload_and_kept_by_its_answer() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await peer.send(PING, JSON_PING, LIST, framed('\t{"type":"Ping"}'), framed("\t"), PING)
        assert await peer.payload() == b"\xff"
        assert await peer.read() == PONG
        assert await peer.payload() == b.topics()
        assert await peer.read() == PONG
        assert (await peer.payload())[:1] == b"\x09"
        assert await peer.payload() == b"\xff"


async def test_rb_03_errors_have_the_form_of_the_last_well_formed_request() -> None:
    async with rustlog_server() as server:
        fresh = await binary(server)
        await fresh.send(framed("?"))
        await fresh.ends(400)
        peer = await binary(server)
        await peer.says(PING, b"\xff")
        await peer.fails(framed("?"), 2, "unknown request type: 63")
        assert await peer.ask(JSON_PING) == PONG
        await peer.send(framed("?"))
        await peer.ends(400)


async def test_rb_03_a_request_whose_values_are_refused_tells_the_form_too() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await peer.fails(create("t", 0), 12)
        await peer.fails(framed("?"), 2)
        fresh = await binary(server)
        await fresh.send(create("t", 0), framed("?"))
        assert [await fresh.error(code) for code in (12, 2)][1].endswith("type: 63")
        no_records = {"type": "Produce", "topic": "t", "partition": 0, "records": []}
        await fresh.refused(no_records, 400)
        await fresh.send(framed("?"))
        await fresh.ends(400)


async def test_rb_05_refused_access_is_error_500(tmp_path: Path) -> None:
    path = tmp_path / "access.conf"

    def allow(text: str) -> str:
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    async with rustlog_server(access_file=allow("listener:rustlog all\n")) as server:
        peer = await binary(server)
        await opened(peer, "open")
        await opened(peer, "secret")
        allow("listener:rustlog put,list stream:open\n")
        server.node.reload()
        await peer.says(produce("open", b"x"), produced(0, 1))
        same = [await peer.fails(fetch(each), 500) for each in ("open", "secret", "absent")]
        assert same == ["access refused"] * 3
        await peer.fails(create("new"), 500)
        await peer.says(LIST, b.topics(("open", 1)))
        allow("anyone all chat/*\n")
        server.node.reload()
        await peer.ends()
        newcomer = await binary(server)
        await newcomer.send(fetch("open"))
        assert await newcomer.error(500) == "access refused"
        await newcomer.ends()


async def test_rb_06_an_offset_is_a_flag_and_eight_bytes() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(committed("g", "t"), bytes.fromhex("0400"))
        for offset in (0, 2**64 - 1):
            await peer.says(commit("g", "t", offset), bytes.fromhex("0301"))
            await peer.says(committed("g", "t"), bytes.fromhex(f"0401{offset:016x}"))
        await peer.says(produce("t", b""), produced(0, 1))
        await peer.says(fetch("t"), bytes.fromhex("02 00000001 00000000 0000000000000001"))


async def test_rb_07_bytes_behind_the_last_field_are_ignored() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        for frame, answer in (
            (create("t"), b"\x05\x01"),
            (produce("t", b"a"), produced(0, 1)),
            (fetch("t"), fetched(1, b"a")),
            (commit("g", "t", 1), b"\x03\x01"),
            (committed("g", "t"), b.offset(1)),
            (describe("t"), watermarks("t", 1)),
            (describe_partition("t"), watermark("t", 0, 1)),
            (LIST, b.topics(("t", 1))),
            (PING, b"\xff"),
        ):
            await peer.says(framed(frame[4:] + b"\0\0\0\1more"), answer)


async def test_rb_08_a_count_that_lies_is_a_decode_error_and_costs_nothing() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "a")
        for payload in (
            "01 0001 61 00000000 7fffffff",
            "01 0001 61 00000000 00000001",
            "01 0001 61 00000000 00000001 00000002 61",
            "02 ffff",
            "05 0001 ff 00000001",
            "08",
        ):
            await peer.fails(framed(bytes.fromhex(payload)), 2, "Decode error: ")
        await peer.says(describe("a"), watermarks("a", 0))


async def test_rb_09_an_answer_begins_with_the_byte_of_its_request() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        requests = [
            *(create("t"), produce("t", b"a"), fetch("t"), commit("g", "t", 1)),
            *(committed("g", "t"), LIST, describe("t"), describe_partition("t"), METRICS, PING),
        ]
        for request in requests:
            await peer.send(request)
            assert (await peer.payload())[0] == request[4]
        await peer.send(fetch("nowhere"))
        assert (await peer.payload())[0] == 0xFE


async def test_rb_10_rb_15_records_count_from_the_start_of_the_fetch() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", *[b"%d" % each for each in range(6)]), produced(0, 6))
        for start in range(6):
            rest = [b"%d" % each for each in range(start, 6)]
            await peer.says(fetch("t", start), fetched(6, *rest))


async def test_rb_11_the_answer_to_a_produce_follows_the_disk(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk) as server:
        peer = await binary(server)
        await opened(peer)
        disk.gate.clear()
        try:
            await peer.send(produce("t", b"a", b"b"), produce("t", b"c"))
            with anyio.move_on_after(0.05) as waiting:
                await peer.payload()
            assert waiting.cancelled_caught
        finally:
            disk.gate.set()
        assert [await peer.payload() for _ in range(2)] == [produced(0, 2), produced(2, 1)]


async def test_rb_11_the_answer_follows_the_durability_that_is_configured(tmp_path: Path) -> None:
    disk = GatedDisk()
    rules = (StreamRule("kept", durability=Durability.DISK),)
    async with rustlog_server(
        tmp_path, disk=disk, durability=Durability.OS, streams=rules
    ) as server:
        peer, other = await binary(server), await binary(server)
        await opened(peer, "t")
        await opened(peer, "kept")
        disk.gate.clear()
        try:
            await peer.says(produce("t", b"a", b"b"), produced(0, 2))
            await other.send(produce("kept", b"c"))
            with anyio.move_on_after(0.05) as waiting:
                await other.payload()
            assert waiting.cancelled_caught
        finally:
            disk.gate.set()
        assert await other.payload() == produced(0, 1)


async def test_rb_11_the_records_of_a_produce_have_consecutive_offsets() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        bases: dict[bytes, int] = {}

        async def write(name: bytes) -> None:
            mine = await binary(server)
            for at in range(10):
                first = b"%b%d" % (name, at)
                await mine.send(produce("t", first, b"+1", b"+2"))
                payload = await mine.payload()
                bases[first] = int.from_bytes(payload[1:9], "big")
                assert payload == produced(bases[first], 3)

        async with anyio.create_task_group() as tasks:
            for name in (b"a", b"b", b"c"):
                tasks.start_soon(write, name)
        firsts = sorted(bases, key=bases.__getitem__)
        assert [bases[each] for each in firsts] == list(range(0, 90, 3))
        bodies = [body for each in firsts for body in (each, b"+1", b"+2")]
        await peer.says(fetch("t"), fetched(90, *bodies))


async def test_rb_11_a_produce_is_kept_as_a_whole_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk, stream_bytes_max=1000) as server:
        peer, other = await binary(server), await binary(server)
        await opened(peer)
        await peer.says(produce("t", b"a"), produced(0, 1))
        await peer.fails(produce("t", bytes(400), bytes(400), bytes(400)), 500, "full")
        await other.says(fetch("t"), fetched(1, b"a"))
        disk.gate.clear()
        await peer.send(produce("t", b"lost 1", b"lost 2"), produce("t", b"lost 3"))
        with anyio.move_on_after(0.05):
            await peer.payload()
        disk.is_broken = True
        disk.gate.set()
        for _ in range(2):
            await peer.error(500)
        await other.fails(produce("t", b"lost 4", b"lost 5"), 500, "storage failed")
        disk.is_broken = False
        with anyio.fail_after(60):
            while True:
                await peer.send(produce("t", b"b", b"c"))
                if (answer := await peer.payload())[0] == 1:
                    break
                await anyio.sleep(0.02)
        assert answer == produced(1, 2)
        await other.says(fetch("t"), fetched(3, b"a", b"b", b"c"))
    async with rustlog_server(tmp_path) as server:
        await (await binary(server)).says(fetch("t"), fetched(3, b"a", b"b", b"c"))


async def test_rb_12_no_topic_and_no_partition_are_error_10() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "t", 3)
        await peer.fails(produce("u", b"x"), 10, "does not exist")
        for partition in (3, 2**32 - 1):
            await peer.fails(produce("t", b"x", partition=partition), 10, "does not exist")
        await peer.fails(produce("u" * 300, b"x"), 10, "does not exist")
        await peer.fails(produce("\u00e9\n", b"x"), 10, r"\xe9\n")
        await peer.fails(fetch("u"), 10, "does not exist")


async def test_rb_13_a_produce_without_records_tells_the_watermark() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t"), produced(0, 0))
        await peer.says(produce("t", *[b""] * 65_536), produced(0, 65_536))
        await peer.send(produce("t"), produce("t", b"x"), produce("t"))
        answers = [await peer.payload() for _ in range(3)]
        assert answers == [produced(65_536, 0), produced(65_536, 1), produced(65_537, 0)]
        await peer.fails(produce("t", *[b""] * 65_537), 500)
        await peer.says(describe("t"), watermarks("t", 65_537))


async def test_rb_14_a_record_that_json_could_not_fetch_is_refused() -> None:
    async with rustlog_server() as server:
        peer, other = await binary(server), await server.rustlog()
        await opened(peer)
        text = f"Failed to write record: record too large: {RECORD_MAX + 1} bytes"
        assert await peer.fails(produce("t", b"x", bytes(RECORD_MAX + 1)), 500) == text
        await peer.says(describe("t"), watermarks("t", 0))
        await peer.says(produce("t", bytes(RECORD_MAX)), produced(0, 1))
        assert bodies_of(await other.ask(json_form.fetch("t"))) == [bytes(RECORD_MAX)]


async def test_rb_16_a_group_fetches_from_its_commit_and_the_offset_means_nothing() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await peer.says(fetch("absent", 7, group="g"), fetched(0))
        await opened(peer)
        await peer.says(produce("t", b"a", b"b", b"c"), produced(0, 3))
        await peer.says(fetch("t", 2, group="g"), fetched(0))
        await peer.says(commit("g", "t", 1), b"\x03\x01")
        for _ in range(2):
            await peer.says(fetch("t", 7, group="g"), fetched(3, b"b", b"c"))
        await peer.says(committed("g", "t"), b.offset(1))
        await peer.says(fetch("t", 0, group="h"), fetched(0))
        for topic, partition in (("absent", 0), ("t", 1)):
            await peer.says(commit("g", topic, 5, partition), b"\x03\x01")
            await peer.fails(fetch(topic, group="g", partition=partition), 10)


async def test_rb_16_requests_behind_a_fetch_of_a_group_wait_for_it() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.send(
            *(produce("t", b"a"), commit("g", "t", 0), fetch("t", group="g")),
            *(produce("t", b"b"), commit("g", "t", 2), fetch("t", group="g"), PING),
        )
        assert [await peer.payload() for _ in range(7)] == [
            *(produced(0, 1), b"\x03\x01", fetched(1, b"a")),
            *(produced(1, 1), b"\x03\x01", fetched(2), b"\xff"),
        ]


async def test_rb_17_a_fetch_beyond_the_end_finds_nothing_and_does_not_wait() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", b"a"), produced(0, 1))
        for start in (1, 2, 2**64 - 1):
            await peer.says(fetch("t", start), fetched(start))
        await peer.says(commit("g", "t", 50), b"\x03\x01")
        await peer.says(fetch("t", group="g"), fetched(50))


async def test_rb_18_a_fetch_has_so_many_records_and_the_next_one_the_others() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", *[b"x"] * 16_390), produced(0, 16_390))
        whole = {"max_bytes": 2**22}
        await peer.says(fetch("t", **whole), fetched(16_384, *[b"x"] * 16_384))
        await peer.says(fetch("t", 16_384, **whole), fetched(16_390, *[b"x"] * 6))


async def test_rb_18_a_record_costs_twelve_bytes_and_its_length() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", *[b"12345"] * 3), produced(0, 3))
        for max_bytes, count in ((34, 2), (33, 1), (1, 1), (51, 3), (2**32 - 1, 3)):
            answer = fetched(count, *[b"12345"] * count)
            await peer.says(fetch("t", max_bytes=max_bytes), answer)
        await peer.says(fetch("t", max_bytes=0), fetched(0))
        await peer.says(fetch("t", 1, max_bytes=0), fetched(1))


async def test_rb_19_an_answer_never_exceeds_a_frame() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        bodies = [bytes((each,)) * 3_600_000 for each in range(5)]
        for at, body in enumerate(bodies):
            await peer.says(produce("t", body), produced(at, 1))
        start = 0
        while start < 5:
            await peer.send(fetch("t", start, max_bytes=2**32 - 1))
            answer = await peer.payload()
            assert len(answer) <= FRAME_MAX
            count = int.from_bytes(answer[1:5], "big")
            assert 1 <= count <= 2
            assert answer == fetched(start + count, *bodies[start : start + count])
            start += count


async def test_rb_20_what_the_form_cannot_show_is_a_gap_and_no_record_is_counted_wrongly() -> None:
    async with rustlog_server(p2p="127.0.0.1:0") as server:
        peer = await binary(server)
        await opened(peer)
        async with connect_streams(f"tcp://{server.node.listeners['p2p']}") as streams:
            fence = NewRecord(b"", headers=[(b"", b"fence")])
            records = [NewRecord(b"a"), fence, NewRecord(b"b"), NewRecord(b"c"), fence]
            await streams.stream(b"t").append(records)
        await peer.says(fetch("t", 0), fetched(1, b"a"))
        await peer.says(fetch("t", 1), fetched(2))
        await peer.says(fetch("t", 2), fetched(4, b"b", b"c"))
        await peer.says(fetch("t", 4), fetched(4))
        await peer.says(produce("t", b"d"), produced(5, 1))
        await peer.says(fetch("t", 4), fetched(5))
        await peer.says(fetch("t", 5), fetched(6, b"d"))


async def test_rb_21_below_the_start_is_error_4_that_names_the_first_one_kept() -> None:
    async with rustlog_server(streams=(StreamRule("*", bytes=4096),)) as server:
        peer, other = await binary(server), await server.rustlog()
        await opened(peer)
        for at in range(10):
            await peer.says(produce("t", bytes(1000)), produced(at, 1))
        start, _ = await other.settled("t")
        text = f"Fetch failed: offset 0 is below the first one kept, {start}"
        assert start > 0 and await peer.fails(fetch("t"), 4) == text
        await peer.says(commit("g", "t", 0), b"\x03\x01")
        assert await peer.fails(fetch("t", start, group="g"), 4) == text


async def test_rb_22_a_commit_counts_once_its_topic_exists(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        peer, other = await binary(server), await server.rustlog()
        for topic, partition in (("one", 0), ("many", 2), ("many", 5), ("one", 1)):
            await peer.says(commit("g", topic, 7 + partition, partition), b"\x03\x01")
            await peer.says(committed("g", topic, partition), b.offset(7 + partition))
        assert not await other.commit("g", "one", 3), "JSON says no where binary says yes"
        assert await other.committed("g", "one") == 7
    async with rustlog_server(tmp_path) as server:
        peer, other = await binary(server), await server.rustlog()
        await opened(peer, "one")
        await opened(peer, "many", 3)
        await peer.says(committed("g", "one"), b.offset(7))
        await peer.says(fetch("one", group="g"), fetched(7))
        assert await other.committed("g", "many", 2) == 9
        await peer.says(fetch("many", group="g", partition=2), fetched(9))
        await peer.says(committed("g", "many", 5), b.offset(12))
        assert await other.commit("g", "one", 1)
        await peer.says(committed("g", "one"), b.offset(1))
        long = await peer.fails(commit("g" * 257, "one", 1), 5, "Commit failed: ")
        assert long == await peer.fails(commit("g", "no topic", 1), 5)


async def test_rb_22_a_commit_before_its_topic_is_shown_once_it_is_durable(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk) as server:
        peer, other, json = await binary(server), await binary(server), await server.rustlog()
        await peer.says(PING, b"\xff")
        disk.gate.clear()
        try:
            await peer.send(commit("g", "t", 7), committed("g", "t"), fetch("t", group="g"))
            with anyio.move_on_after(0.05) as waiting:
                await peer.payload()
            assert waiting.cancelled_caught
            await other.says(committed("g", "t"), NONE)
            await other.says(fetch("t", group="g"), fetched(0))
            assert await json.committed("g", "t") is None
        finally:
            disk.gate.set()
        assert await peer.payload() == b"\x03\x01"
        assert await peer.payload() == b.offset(7), "the client's own requests are in order"
        assert "does not exist" in await peer.error(10)
        await other.says(committed("g", "t"), b.offset(7))
        assert await json.committed("g", "t") == 7


async def test_rb_22_commits_are_bounded_with_those_of_json() -> None:
    async with rustlog_server(node_groups_max=3) as server:
        peer, other = await binary(server), await server.rustlog()
        await opened(peer)
        assert await other.commit("a", "t", 1)
        await peer.says(commit("b", "u", 1), b"\x03\x01")
        await peer.says(commit("c", "u", 1), b"\x03\x01")
        await peer.fails(commit("d", "u", 1), 5, "too many consumer groups")
        await peer.fails(commit("d", "t", 1), 5)
        await other.refused({"type": "OffsetCommit", **D_IN_T, "offset": 1}, 507)
        await peer.says(commit("c", "u", 2), b"\x03\x01")
        one = await server.s3p()
        await one.ask(s3p.delete(b"t"))
        await peer.says(commit("d", "u", 1), b"\x03\x01")


D_IN_T = {"group": "d", "topic": "t", "partition": 0}


async def test_rb_23_commits_are_one_set_and_the_empty_group_is_a_name() -> None:
    async with rustlog_server() as server:
        peer, other = await binary(server), await server.rustlog()
        await opened(peer)
        await peer.says(committed("g", "t"), NONE)
        await peer.says(committed("g", "absent", 9), NONE)
        assert await other.commit("g", "t", 4)
        await peer.says(committed("g", "t"), b.offset(4))
        await peer.says(commit("g", "t", 2), b"\x03\x01")
        assert await other.committed("g", "t") == 2
        await peer.says(commit("", "t", 1), b"\x03\x01")
        await peer.says(committed("", "t"), b.offset(1))
        await peer.says(produce("t", b"a", b"b"), produced(0, 2))
        await peer.says(fetch("t", 0, group=""), fetched(2, b"a", b"b"))


async def test_rb_24_what_create_topic_refuses() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "t", 3)
        for count in (1, 3):
            await peer.fails(create("t", count), 11, "already exists")
        for count in (0, 1001):
            await peer.fails(create("u", count), 12)
        for name in ("", "a/b", "\u00e9", "x" * 256):
            await peer.fails(create(name), 2)
        await opened(peer, "x" * 255, 1000)


async def test_rb_24_rb_30_a_topic_is_shown_once_it_is_durable(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with rustlog_server(tmp_path, disk=disk) as server:
        peer, other, json = await binary(server), await binary(server), await server.rustlog()
        await peer.says(PING, b"\xff")
        disk.gate.clear()
        try:
            await peer.send(create("t", 3), produce("t", b"a", partition=1))
            with anyio.move_on_after(0.05) as waiting:
                await peer.payload()
            assert waiting.cancelled_caught
            await other.says(LIST, b.topics())
            await other.fails(describe("t"), 13)
            await other.fails(describe_partition("t"), 14)
            await other.fails(fetch("t"), 10)
            await json.refused(json_form.fetch("t"), 404)
            # Its name is taken all the same.
            one = await server.s3p()
            assert b"ERR" in await one.ask(s3p.append(b"x", name=b"t"))
        finally:
            disk.gate.set()
        assert [await peer.payload() for _ in range(2)] == [b"\x05\x01", produced(0, 1)]
        await other.says(LIST, b.topics(("t", 3)))
        await other.says(describe("t"), watermarks("t", 0, 1, 0))


async def test_rb_25_topics_are_sorted_by_their_bytes() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        for name, count in (("b", 2), ("a", 1), ("_", 1), ("Z", 3), ("-", 1)):
            await opened(peer, name, count)
        await peer.says(LIST, b.topics(("-", 1), ("Z", 3), ("_", 1), ("a", 1), ("b", 2)))


async def test_rb_26_rb_27_descriptions() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "t", 3)
        await peer.says(describe("t"), watermarks("t", 0, 0, 0))
        await peer.says(produce("t", b"a", b"b", partition=1), produced(0, 2))
        await peer.says(describe("t"), watermarks("t", 0, 2, 0))
        await peer.says(describe_partition("t", 1), watermark("t", 1, 2))
        await peer.says(describe_partition("t", 2), watermark("t", 2, 0))
        await peer.fails(describe("u"), 13, "failed")
        for topic, partition in (("u", 0), ("t", 3)):
            await peer.fails(describe_partition(topic, partition), 14, "failed")


async def test_rb_28_metrics_are_prometheus_text() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", *[b"12345"] * 20), produced(0, 20))
        await peer.says(commit('g"\\\n', "t", 8), b"\x03\x01")
        await peer.says(commit("h", "t", 8), b"\x03\x01")
        await peer.says(fetch("t", group="h"), fetched(20, *[b"12345"] * 12))
        lines = await metrics_of(peer)
        assert lines.pop() == "", "each ends with LF"
        assert 'consumer_lag{topic="t",partition="0",group="h"} 12' in lines
        assert r'consumer_lag{topic="t",partition="0",group="g\"\\\n"} 12' in lines
        for line in (
            "messages_produced_total 20",
            "messages_fetched_total 12",
            "bytes_in_total 100",
            "bytes_out_total 60",
            "active_connections 1",
        ):
            assert line in lines
        names = {re.split(r"[ {]", line)[0] for line in lines if line[0] != "#"}
        for percent in ("p50", "p95", "p99"):
            assert {f"fetch_latency_ns_{percent}", f"produce_latency_ns_{percent}"} <= names
        for name in names:
            assert any(line.startswith(f"# HELP {name} ") for line in lines)
            assert any(line.startswith(f"# TYPE {name} ") for line in lines)


async def test_rb_28_every_metric_is_a_help_a_type_and_its_values() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "t", 2)
        for partition in range(2):
            await peer.says(commit("g", "t", 0, partition), b"\x03\x01")
        lines = await metrics_of(peer)
        assert lines.pop() == "" and all(lines)
        found: dict[str, tuple[str, list[str]]] = {}
        while lines:
            _, _, name, text = lines.pop(0).split(" ", 3)
            type_line = lines.pop(0).split(" ")
            assert type_line[:3] == ["#", "TYPE", name] and text and name not in found
            found[name] = type_line[3], []
            while lines and lines[0][0] != "#":
                shown, value = lines.pop(0).rsplit(" ", 1)
                assert shown.partition("{")[0] == name and int(value) >= 0
                found[name][1].append(shown)
        percentiles = [f"{which}_latency_ns_{p}" for which in LATENCIES for p in PERCENTILES]
        assert set(found) == {*COUNTERS, *percentiles, "consumer_lag"}
        for name, (kind, shown_as) in found.items():
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            if name == "consumer_lag":
                lag = 'consumer_lag{topic="t",partition="%d",group="g"}'
                assert shown_as == [lag % each for each in range(2)]
            else:
                assert shown_as == [name]


LATENCIES, PERCENTILES = ("fetch", "produce"), ("p50", "p95", "p99")


async def test_rb_28_lags_are_cut_before_anything_else() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer, "t" * 255, 3)
        groups = ['"' * 252 + f"{each:04}" for each in range(700)]
        await peer.send(*[commit(each, "t" * 255, 0, p) for p in range(3) for each in groups])
        for _ in range(2100):
            assert await peer.payload() == b"\x03\x01"
        lines = await metrics_of(peer)
        assert lines.pop() == ""
        lags = [each for each in lines if each.startswith("consumer_lag{")]
        names = {re.split(r"[ {]", line)[0] for line in lines if line[0] != "#"}
        assert len(lags) == 2000 and set(COUNTERS) <= names
        assert all(each.endswith(f'{at % 700:04}"}} 0') for at, each in enumerate(lags))


async def test_rb_28_the_lag_of_a_commit_before_its_topic_is_known() -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await peer.says(commit("g", "t", 1), b"\x03\x01")
        await opened(peer)
        await peer.says(produce("t", b"a", b"b", b"c"), produced(0, 3))
        lines = await metrics_of(peer)
        assert 'consumer_lag{topic="t",partition="0",group="g"} 2' in lines


async def test_rb_29_rb_43_what_one_form_wrote_the_other_shows() -> None:
    async with rustlog_server() as server:
        peer, other, one = await binary(server), await server.rustlog(), await server.s3p()
        await opened(peer)
        await peer.says(produce("t", b"\x00\xff", b""), produced(0, 2))
        assert (await other.ask(json_form.produce("t", b"json")))["base_offset"] == 2
        await one.append(b"s3p", name=b"t")
        await peer.says(fetch("t"), fetched(4, b"\x00\xff", b"", b"json", b"s3p"))
        shown = await other.ask(json_form.fetch("t"))
        assert bodies_of(shown) == [b"\x00\xff", b"", b"json", b"s3p"]
        assert offsets_of(shown) == [0, 1, 2, 3]
        assert all(each["timestamp"] > 10**15 for each in shown["records"])
        assert [body for _, body in await one.all(b"t")] == [b"\x00\xff", b"json", b"s3p"]
        await peer.says(commit("g", "t", 3), b"\x03\x01")
        assert await other.committed("g", "t") == 3


async def test_rb_30_a_restart_loses_nothing(tmp_path: Path) -> None:
    async with rustlog_server(tmp_path) as server:
        peer = await binary(server)
        await opened(peer, "t", 2)
        await peer.says(produce("t", b"a", b"b", partition=1), produced(0, 2))
        await peer.says(commit("g", "t", 1, 1), b"\x03\x01")
    async with rustlog_server(tmp_path) as server:
        peer = await binary(server)
        await peer.says(LIST, b.topics(("t", 2)))
        await peer.says(fetch("t", group="g", partition=1), fetched(2, b"b"))
        await peer.says(produce("t", b"c", partition=1), produced(2, 1))


async def test_rb_31_messages_are_short_lines_of_ascii() -> None:
    """`BinaryPeer.error` looks at each of them."""
    name = "\u00e9\n\t" * 5000
    async with rustlog_server() as server:
        peer = await binary(server)
        for request, code in (
            (produce(name, b"x"), 10),
            (describe(name), 13),
            (describe_partition(name), 14),
            (create(name), 2),
            (fetch(name), 10),
            (commit(name, name, 1), 5),
        ):
            await peer.fails(request, code)
        await peer.says(fetch(name, group=name), fetched(0))
        await peer.says(committed(name, name), NONE)


async def test_rb_31_only_code_1_closes() -> None:
    async with rustlog_server(
        streams=(StreamRule("short", bytes=4096),), stream_bytes_max=20_000
    ) as server:
        peer = await binary(server)
        await opened(peer)
        await opened(peer, "short")
        for _ in range(10):
            await peer.send(produce("short", bytes(1000)))
            assert (await peer.payload())[:1] == b"\x01"
        for request, code, words in (
            (framed(b"\x80"), 2, "Decode error: "),
            (framed(produce("t", b"x")[4:-1]), 2, "Decode error: "),
            (create("a b"), 2, "Decode error: "),
            (fetch("short"), 4, "Fetch failed: "),
            (commit("g" * 257, "t", 1), 5, "Commit failed: "),
            (produce("absent", b"x"), 10, "does not exist"),
            (fetch("t", partition=1), 10, "does not exist"),
            (create("t"), 11, "already exists"),
            (create("u", 1001), 12, "1000"),
            (describe("absent"), 13, "failed"),
            (describe_partition("t", 1), 14, "failed"),
            (produce("t", bytes(RECORD_MAX + 1)), 500, "too large"),
            (produce("t", *[b""] * 65_537), 500, "65536"),
            (produce("t", bytes(30_000)), 500, "full"),
        ):
            await peer.fails(request, code, words)
        await peer.send(bytes(4))
        assert "zero-length" in await peer.error(1)
        await peer.ends()


async def test_rb_31_a_full_partition_is_error_500() -> None:
    async with rustlog_server(stream_bytes_max=1000) as server:
        peer = await binary(server)
        await opened(peer)
        await peer.says(produce("t", bytes(600)), produced(0, 1))
        await peer.fails(produce("t", bytes(600)), 500, "full")
        await peer.says(describe("t"), watermarks("t", 1))


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "Frame error: invalid protocol: zero-length frame"),
        (FRAME_MAX + 1, f"Frame error: frame too large: {FRAME_MAX + 1} bytes (max: {FRAME_MAX})"),
        (2**32 - 1, f"Frame error: frame too large: {2**32 - 1} bytes (max: {FRAME_MAX})"),
    ],
)
async def test_rb_32_a_bad_length_is_error_1_and_the_end(length: int, text: str) -> None:
    async with rustlog_server() as server:
        peer = await binary(server)
        await peer.says(PING, b"\xff")
        await peer.send(PING + length.to_bytes(4, "big") + bytes(100))
        assert await peer.payload() == b"\xff"
        assert await peer.error(1) == text
        await peer.ends()


async def test_rb_33_an_unknown_type_stays_open_and_half_a_frame_does_nothing() -> None:
    async with rustlog_server() as server:
        peer, other = await binary(server), await binary(server)
        await opened(peer)
        for first in (0, 10, 0x7F, 0x81, 0xFE):
            text = f"Decode error: unknown request type: {first}"
            assert await peer.fails(framed(bytes((first, 1))), 2) == text
        await peer.send(produce("t", b"whole") + produce("t", b"half")[:-1])
        assert await peer.payload() == produced(0, 1)
        await peer.pipe.aclose()
        await other.says(fetch("t"), fetched(1, b"whole"))


async def test_rb_34_every_request_is_answered_or_the_connection_ends() -> None:
    """One after the other, pipelined, and where the client has ended its side. A disk that does not
    answer: tests/transports/rustlog/test_unanswered.py."""
    async with rustlog_server() as server:
        peer = await binary(server)
        await opened(peer)
        count = 300
        await peer.send(*[produce("t", b"x"), fetch("t", 10**6), PING, describe("t")] * count)
        for at in range(count):
            assert await peer.payload() == produced(at, 1)
            assert await peer.payload() == fetched(10**6)
            assert await peer.payload() == b"\xff"
            assert await peer.payload() == watermarks("t", at + 1)


async def test_rb_35_a_client_that_does_not_read_is_read_no_further() -> None:
    async with rustlog_server() as server:
        greedy, other = await binary(server), await binary(server)
        await opened(greedy)
        body = bytes(2 * 2**20)
        await greedy.says(produce("t", body), produced(0, 1))
        await greedy.says(commit("g", "t", 0), b"\x03\x01")
        await greedy.send(*[fetch("t"), fetch("t", group="g")] * 10)
        for _ in range(5):
            await other.says(PING, b"\xff")
            await anyio.sleep(0.01)
        unsent = [each._wire.unsent_bytes for each in server.node.registry.connections]
        assert max(unsent) < 10 * 2**20
        for _ in range(20):
            assert await greedy.payload() == fetched(1, body)


async def test_rb_36_a_fetch_is_never_throttled_by_an_empty_answer() -> None:
    async with rustlog_server() as server:
        peers = [await binary(server) for _ in range(4)]
        await opened(peers[0])
        body = bytes(2**20)
        await peers[0].says(produce("t", body, body), produced(0, 2))
        for _ in range(8):
            for peer in peers:
                await peer.send(fetch("t", max_bytes=2**32 - 1))
            for peer in peers:
                assert await peer.payload() == fetched(2, body, body)


# The exchanges of the Rust programs, frame by frame (RB-37 to RB-42): each connects, sends one
# request, reads one answer, and says the next.


async def exchange(server: json_form.RustlogServer, *steps: tuple[bytes, bytes | int]) -> None:
    """A run of a program: requests, and the payload or the error that each is answered by."""
    peer = await binary(server)
    for request, answer in steps:
        if isinstance(answer, bytes):
            await peer.says(request, answer)
        else:
            await peer.send(request)
            await peer.error(answer)
    await peer.pipe.aclose()


async def test_rb_37_rustlog_admin_creates_a_topic_once() -> None:
    async with rustlog_server() as server:
        await exchange(server, (create("orders", 3), b"\x05\x01"))
        await exchange(server, (create("orders", 3), 11))
        await exchange(server, (create("others", 0), 12))


async def test_rb_38_rustlog_admin_lists_and_describes() -> None:
    async with rustlog_server() as server:
        await exchange(server, (create("orders", 3), b"\x05\x01"), (produce("orders", b"x"), ONE))
        await exchange(server, (LIST, b.topics(("orders", 3))))
        await exchange(server, (describe("orders"), watermarks("orders", 1, 0, 0)))
        await exchange(server, (describe_partition("orders"), watermark("orders", 0, 1)))
        await exchange(server, (describe("missing"), 13))
        await exchange(server, (describe_partition("missing"), 14))


ONE = produced(0, 1)
THREE = (b"one", b"two", b"three")


async def test_rb_39_ping_metrics_and_producer() -> None:
    async with rustlog_server() as server:
        await exchange(server, (PING, b"\xff"))
        await exchange(server, (produce("demo", *THREE), 10))
        await exchange(server, (create("demo"), b"\x05\x01"))
        await exchange(server, (produce("demo", *THREE), produced(0, 3)))
        assert "messages_produced_total 3" in await metrics_of(await binary(server))


async def test_rb_40_consumer_with_and_without_a_group() -> None:
    async with rustlog_server() as server:
        await exchange(server, (create("demo"), b"\x05\x01"))
        await exchange(server, (produce("demo", *THREE), produced(0, 3)))
        await exchange(server, (fetch("demo"), fetched(3, *THREE)))
        runs = ((NONE, (), 0), (b.offset(0), THREE, 3), (b.offset(3), (), 3))
        for before, records, after in runs:
            start = 0 if before == NONE else int.from_bytes(before[2:], "big")
            await exchange(
                server,
                (committed("g", "demo"), before),
                (fetch("demo", start, group="g"), fetched(after, *records)),
                (commit("g", "demo", after), b"\x03\x01"),
            )
        await exchange(server, (committed("g", "demo"), b.offset(3)))


async def test_rb_41_simple_client_with_and_without_its_topic() -> None:
    async with rustlog_server() as server:
        steps = (produce("events", b"event"), 10), (fetch("events"), 10)
        await exchange(server, (PING, b"\xff"), *steps)
        await exchange(server, (create("events"), b"\x05\x01"))
        found = fetched(1, b"event")
        await exchange(
            server, (PING, b"\xff"), (produce("events", b"event"), ONE), (fetch("events"), found)
        )


async def test_rb_42_what_the_integration_tests_assert() -> None:
    """Each of them begins with an empty broker."""
    async with rustlog_server() as server:
        absent, group = "nonexistent-topic", "test-group"
        await exchange(server, (produce(absent, b"x"), 10))
        await exchange(server, (fetch(absent, group=group), fetched(0)))
        await exchange(server, (commit(group, absent, 5), b"\x03\x01"))
        await exchange(server, (committed("other", "test-topic"), NONE))
        await exchange(server, (create("test-topic", 3), b"\x05\x01"))
        await exchange(server, (create("test-topic", 3), 11), (create("test-topic", 1), 11))
        await exchange(server, (describe("test-topic"), watermarks("test-topic", 0, 0, 0)))
        await exchange(
            server,
            (produce("test-topic", b"a", b"b"), produced(0, 2)),
            (produce("test-topic", b"c"), produced(2, 1)),
            (commit(group, "test-topic", 1), b"\x03\x01"),
            (fetch("test-topic", 0, group=group), fetched(3, b"b", b"c")),
            (committed(group, "test-topic"), b.offset(1)),
        )


async def test_rb_43_both_forms_write_at_once_and_share_one_order() -> None:
    async with rustlog_server(p2p=OFF) as server:
        peer = await binary(server)
        await opened(peer)

        async def through_binary(number: int) -> None:
            one = await binary(server)
            for each in range(20):
                await one.send(produce("t", b"b%d %d" % (number, each)))
                assert (await one.payload())[:1] == b"\x01"

        async def through_json(number: int) -> None:
            one = await server.rustlog()
            for each in range(20):
                await one.ask(json_form.produce("t", b"j%d %d" % (number, each)))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(through_binary, number)
                tasks.start_soon(through_json, number)
        bodies = bodies_of(await (await server.rustlog()).ask(json_form.fetch("t")))
        await peer.says(fetch("t"), fetched(160, *bodies))
        assert len(set(bodies)) == 160
        for writer in {body.split()[0] for body in bodies}:
            mine = [int(body.split()[1]) for body in bodies if body.split()[0] == writer]
            assert mine == list(range(20))
