"""Sessions byte by byte: S2S both ways, and server-sent events (A.5, A.7, A.8)."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from millpond.actors.messages import Batch
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import basin_cell
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.compression import Compression
from tests.transports.http.s2.session_client import (
    BASIN,
    CLOCKED,
    RECORDS,
    Speaker,
    append_frame,
    append_message,
    code_of,
    speaker,
)

EVENTS = "text/event-stream"
CELL = basin_cell(BASIN.encode(), b"orders")


def _sequences(frame: frames.Frame) -> list[int]:
    assert not frame.is_terminal
    return [each.seq_num for each in s2_pb2.ReadBatch.FromString(frame.message()).records]


async def _tail(s2: Speaker) -> int:
    found = (await s2.ask("GET", f"{RECORDS}/tail")).json()["tail"]["seq_num"]
    assert isinstance(found, int)
    return found


async def test_a_7_acks_come_one_for_one_in_order_and_the_end_is_clean() -> None:
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        assert await talk.head() == {
            b"content-type": b"s2s/proto",
            b"cache-control": b"no-cache, no-transform",
            b"server": b"millpond",
        }
        await talk.say(append_frame(b"a"), append_frame(b"b", b"c"), append_frame(b"d"))
        assert [await talk.ack() for _ in range(3)] == [(0, 1), (1, 3), (3, 4)]
        whole = append_frame(b"e", match_seq_num=4)
        for at in range(len(whole)):
            await talk.say(whole[at : at + 1])
        assert await talk.ack() == (4, 5)
        await talk.say(append_frame(b"f"), is_last=True)
        assert await talk.ack() == (5, 6)
        assert await talk.frame() is None


async def test_a_1_a_session_is_answered_before_anything_is_said() -> None:
    """Also the stream that is made by it has no records yet."""
    async with speaker() as s2:
        await s2.ask("PATCH", "/v1/basins/test-basin", b'{"create_stream_on_append":true}')
        async with s2.session("POST", RECORDS) as talk:
            await talk.head()
            assert await _tail(s2) == 0
            await talk.say(b"", is_last=True)
            assert await talk.frame() is None


async def test_a_7_frames_may_be_compressed() -> None:
    async with speaker("orders") as s2:
        async with s2.session("POST", RECORDS) as talk:
            await talk.head()
            body = b"x" * 5000
            await talk.say(
                append_frame(body, how=Compression.ZSTD),
                append_frame(body, how=Compression.GZIP),
                append_frame(body),
                is_last=True,
            )
            assert [await talk.ack() for _ in range(3)] == [(0, 1), (1, 2), (2, 3)]
        for accepts, how in (
            ("zstd, gzip", Compression.ZSTD),
            ("gzip", Compression.GZIP),
            (None, Compression.NONE),
        ):
            path = f"{RECORDS}?seq_num=0&count=3"
            async with s2.session("GET", path, accept_encoding=accepts) as talk:
                assert b"content-encoding" not in await talk.head()
                frame = await talk.frame()
                assert frame is not None and frame.compression is how
                assert frame.message().count(body) == 3
                assert await talk.frame() is None


BAD: list[tuple[str, bytes]] = [
    ("zero", b"\0\0\0"),
    ("large", b"\x20\x00\x01"),
    ("terminal", b"\0\0\x03\x80\x01\x90"),
    ("compression", b"\0\0\x02\x60x"),
    ("protobuf", b"\0\0\x03\x00\xff\xff"),
    ("not-zstd", b"\0\0\x03\x20ab"),
    ("not-gzip", b"\0\0\x03\x40ab"),
    ("bomb", frames.encode((append_message(bytes(3 * 2**20)),), Compression.ZSTD)),
    ("half", b"\0\0\x05\x00a"),
]


@pytest.mark.parametrize("bad", [each for _, each in BAD], ids=[name for name, _ in BAD])
async def test_a_7_what_is_no_frame_ends_it_behind_the_acks(bad: bytes) -> None:
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        await talk.head()
        await talk.say(append_frame(b"a"), append_frame(b"b"), bad, is_last=True)
        assert [await talk.ack(), await talk.ack()] == [(0, 1), (1, 2)]
        status, said = await talk.terminal()
        assert (status, said["code"]) == (400, "bad_frame")
        assert await _tail(s2) == 2


async def test_a_7_a_refused_append_ends_it_and_nothing_behind_it_is_done() -> None:
    cases: list[tuple[bytes, int, Any]] = [
        (append_frame(b"x", match_seq_num=9), 412, {"seq_num_mismatch": 1}),
        (append_frame(b"x", fencing_token="no"), 412, {"fencing_token_mismatch": ""}),
        (append_frame(), 422, "invalid"),
        (append_frame(*[b""] * 1001), 422, "invalid"),
        (append_frame(bytes(2**20 - 7)), 422, "invalid"),
    ]
    async with speaker() as s2:
        for refused, status, expected in cases:
            await s2.ask("DELETE", "/v1/streams/orders")
            while (await s2.ask("PUT", "/v1/streams/orders")).status == 409:
                pass
            async with s2.session("POST", RECORDS) as talk:
                await talk.head()
                await talk.say(append_frame(b"a"), refused, append_frame(b"later"))
                assert await talk.ack() == (0, 1)
                found, said = await talk.terminal()
                assert (found, said if found == 412 else said["code"]) == (status, expected)
            assert await _tail(s2) == 1


async def test_a_9_what_is_known_before_is_a_plain_answer() -> None:
    """404, 416, 422, 400 with JSON, whatever was asked for (A.5)."""
    async with speaker("orders") as s2:
        for method, path, expected in (
            ("POST", "/v1/streams/nothing/records", (404, "stream_not_found")),
            ("GET", "/v1/streams/nothing/records", (404, "stream_not_found")),
            ("GET", f"{RECORDS}?seq_num=0&timestamp=0", (422, "invalid")),
            ("GET", f"{RECORDS}?seq_num=x", (400, "bad_query")),
        ):
            async with s2.session(method, path) as talk:
                assert code_of(await talk.exchange.got()) == expected
            if method == "GET":
                async with s2.session(method, path, accept=EVENTS) as talk:
                    assert code_of(await talk.exchange.got()) == expected
        for query in ("count=1", "seq_num=1", "bytes=9&wait=0", "seq_num=1&wait=9"):
            for accept in ({}, {"accept": EVENTS}):
                async with s2.session("GET", f"{RECORDS}?{query}", **accept) as talk:
                    got = await talk.exchange.got()
                    assert (got.status, got.body) == (416, b'{"tail":{"seq_num":0,"timestamp":0}}')
        got = await s2.ask("GET", RECORDS, accept=EVENTS, last_event_id="1,2")
        assert code_of(got) == (400, "bad_header")


@CLOCKED
async def test_a_5_heartbeats_come_at_once_and_every_5_to_15_seconds() -> None:
    """In virtual time: for ten minutes; an empty stream's tail is there, and zero."""
    async with speaker("orders") as s2, s2.session("GET", RECORDS) as talk:
        await talk.head()
        began = last = anyio.current_time()
        assert await talk.batch() == ([], 0)
        assert anyio.current_time() == began
        gaps = []
        while last < began + 600:
            assert await talk.batch() == ([], 0)
            now = anyio.current_time()
            gaps.append(now - last)
            last = now
        assert 5 <= min(gaps) and max(gaps) <= 15.1
        assert len({round(each, 1) for each in gaps}) > 5
        await s2.append("late")
        assert await talk.batch() == ([0], 1)


@CLOCKED
async def test_a_5_a_session_with_wait_ends_so_long_after_the_last_batch() -> None:
    async with speaker("orders") as s2:
        await s2.append("a")
        async with s2.session("GET", f"{RECORDS}?seq_num=0&count=99&wait=30") as talk:
            await talk.head()
            began = anyio.current_time()
            assert (await talk.batch())[0] == [0]
            await anyio.sleep(20)
            await s2.append("b")
            found: list[int] = []
            while (frame := await talk.frame()) is not None:
                assert not frame.is_terminal
                found.append(len(frame.body))
            assert anyio.current_time() - began == pytest.approx(50, abs=0.5)


async def test_a_5_records_never_come_behind_a_limit() -> None:
    async with speaker("orders") as s2:
        for _ in range(5):
            await s2.append(*"ab")
        for query, expected in (
            ("seq_num=0&count=5", list(range(5))),
            ("seq_num=1&bytes=27", [1, 2, 3]),
            ("seq_num=0&count=99", list(range(10))),
            ("seq_num=0&count=0", []),
            ("seq_num=7&count=99&wait=0", [7, 8, 9]),
        ):
            async with s2.session("GET", f"{RECORDS}?{query}") as talk:
                await talk.head()
                found: list[int] = []
                while (frame := await talk.frame()) is not None:
                    batch = _sequences(frame)
                    found += batch
                assert found == expected
        async with s2.session("GET", f"{RECORDS}?seq_num=8&count=4&wait=9") as talk:
            await talk.head()
            assert (await talk.batch())[0] == [8, 9]
            await s2.append("c", "d", "e")
            found = []
            while (frame := await talk.frame()) is not None:
                found += _sequences(frame)
            assert found == [10, 11]


async def test_a_8_events_line_by_line() -> None:
    async with speaker("orders") as s2:
        stamp = (await s2.append("a", "b"))["start"]["timestamp"]
        query = f"{RECORDS}?seq_num=0&count=3&wait=9"
        async with s2.session("GET", query, accept=EVENTS) as talk:
            head = await talk.head()
            assert head[b"content-type"] == b"text/event-stream"
            assert head[b"cache-control"] == b"no-cache, no-transform"
            rows = (
                b'{"seq_num":0,"timestamp":%d,"body":"a"},{"seq_num":1,"timestamp":%d,"body":"b"}'
            )
            tail = b'{"seq_num":2,"timestamp":%d}' % stamp
            assert await talk.event() == [
                b"event: batch",
                b"id: 1,2,18",
                b'data: {"records":[%b],"tail":%b}' % (rows % (stamp, stamp), tail),
            ]
            kind, said = await talk.event() or []
            assert (kind, said[:6]) == (b"event: ping", b"data: ")
            ping = msgspec.json.decode(said[6:])
            assert ping["tail"] == {"seq_num": 2, "timestamp": stamp}
            assert abs(ping["timestamp"] - s2.node.clock.now() * 1000) < 60_000
            await s2.append("c", "d")
            batch = await talk.event() or []
            assert batch[:2] == [b"event: batch", b"id: 2,3,27"]
            assert await talk.event() == [b"data: [DONE]"]
            assert await talk.event() is None


async def test_a_8_a_reader_that_comes_again_goes_on_behind_the_last_event() -> None:
    """`count` and `bytes` are those of the whole session."""
    async with speaker("orders") as s2:
        await s2.append(*"abcdef")
        for query, told, expected in (
            ("seq_num=0&count=4", "1,2,18", [2, 3]),
            ("seq_num=0&bytes=40", "1,2,18", [2, 3]),
            ("timestamp=0&count=9", "4,5,45", [5]),
            ("seq_num=0&count=2", "1,2,18", []),
            ("count=3", "0,1,9", [1, 2]),
        ):
            path = f"{RECORDS}?{query}"
            async with s2.session("GET", path, accept=EVENTS, last_event_id=told) as talk:
                await talk.head()
                found: list[int] = []
                while (event := await talk.event()) != [b"data: [DONE]"]:
                    assert event is not None
                    if event[0] == b"event: batch":
                        rows = msgspec.json.decode(event[2][6:])["records"]
                        found += [each["seq_num"] for each in rows]
                assert found == expected
        for told in ("x", "1,2", "1,2,3,4", "-1,2,3", "1,2,18446744073709551616", ""):
            got = await s2.ask("GET", RECORDS, accept=EVENTS, last_event_id=told)
            assert code_of(got) == (400, "bad_header")


async def test_a_6_a_deleted_stream_ends_its_sessions_with_an_error() -> None:
    async with speaker("orders") as s2:
        await s2.append("x")
        async with (
            s2.session("GET", f"{RECORDS}?seq_num=0") as reader,
            s2.session("GET", f"{RECORDS}?seq_num=0", accept=EVENTS) as events,
            s2.session("POST", RECORDS) as writer,
        ):
            for each in (reader, events, writer):
                await each.head()
            assert await reader.batch() == ([0], 1)
            assert await reader.batch() == ([], 1)
            assert (await events.event() or [])[0] == b"event: batch"
            assert (await events.event() or [])[0] == b"event: ping"
            await s2.ask("DELETE", "/v1/streams/orders")
            with anyio.fail_after(60):
                status, said = await reader.terminal()
                assert (status, said["code"]) in {
                    (404, "stream_not_found"),
                    (409, "stream_deletion_pending"),
                    (503, "unavailable"),
                }
                lines = []
                while (event := await events.event()) is not None:
                    lines.append(event)
                assert lines[-1][0] == b"event: error"
                assert msgspec.json.decode(lines[-1][1][6:])["code"] == said["code"]
                await writer.say(append_frame(b"y"))
                status, _ = await writer.terminal()
                assert status in (404, 409)


async def test_a_7_a_node_that_stops_advises_and_then_ends_sessions() -> None:
    """Acks of what comes meanwhile carry the advice; then a terminal frame, in SSE an error."""
    async with speaker("orders", drain_timeout_s=5) as s2:
        async with (
            s2.session("GET", RECORDS) as reader,
            s2.session("GET", RECORDS, accept=EVENTS) as events,
            s2.session("POST", RECORDS) as writer,
            anyio.create_task_group() as tasks,
        ):
            for each in (reader, events, writer):
                await each.head()
            await writer.say(append_frame(b"x"))
            assert await writer.ack() == (0, 1)
            tasks.start_soon(s2.node.drain)
            await anyio.sleep(0.05)
            await writer.say(append_frame(b"y"))
            frame = await writer.frame()
            assert frame is not None and frame.advises_reconnect and not frame.is_terminal
            with anyio.fail_after(60):
                status, said = await writer.terminal()
                assert (status, said["code"]) == (503, "server_draining")
                last = None
                while (frame := await reader.frame()) is not None:
                    last = frame
                assert last is not None and last.is_terminal
                lines = []
                while (event := await events.event()) is not None:
                    lines.append(event)
                assert lines[-1][0] == b"event: error" and b"server_draining" in lines[-1][1]
            await s2.node.registry.drain()


async def test_a_writer_that_does_not_hear_its_acks_is_read_no_further() -> None:
    """Bounded ahead of the acks, whatever it sends; what was taken is appended once."""
    async with speaker("orders") as s2:
        slow = Speaker.__new__(Speaker)
        slow.__dict__ = {**s2.__dict__}
        slow.client = type(s2.client)(s2.application, window=2)
        async with slow.session("POST", RECORDS) as talk:
            await talk.head()
            for number in range(20):
                await talk.say(*(append_frame(b"%d" % number) for _ in range(500)))
            await anyio.sleep(0.3)
            assert await _tail(s2) < 6000
            await talk.say(b"", is_last=True)
            for number in range(10_000):
                assert await talk.ack() == (number, number + 1)
            assert await talk.frame() is None
        assert await _tail(s2) == 10_000


async def test_a_6_a_stream_made_anew_is_none_that_a_reader_has_begun() -> None:
    async with speaker("orders") as s2:
        await s2.append("x")
        async with s2.session("GET", f"{RECORDS}?seq_num=0") as reader:
            await reader.head()
            assert await reader.batch() == ([0], 1)
            assert await reader.batch() == ([], 1)
            with CellClient(s2.node.services) as cells:
                anew = [m.Delete(0), m.Create(1), m.Append(2, [b"a", b"b", b"c"])]
                await cells.submit(CELL, anew)
                assert isinstance(await cells.reply(2), m.Appended)
            with anyio.fail_after(60):
                status, said = await reader.terminal()
            assert (status, said["code"]) == (404, "stream_not_found")


async def _crash(s2: Speaker) -> None:
    """Have the stream fail at what is not for streams."""
    node = s2.node
    node.scheduler.submit(CELL, Batch(None, [m.CreateTopic(0, b"t", 2)]), node.clock.now())


async def _are_queued(s2: Speaker, count: int) -> None:
    """Wait until so many messages wait in the stream's mailbox."""
    with anyio.fail_after(60):
        while (
            sum(len(each.messages) for each in s2.node.scheduler.cells[CELL].mailbox or ()) < count
        ):
            await anyio.lowlevel.checkpoint()


async def test_a_7_a_session_does_not_go_on_over_an_append_it_has_not_heard_of() -> None:
    """The stream crashes between two of its appends: the second one was asked behind the first."""
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        await talk.head()
        await _crash(s2)
        scheduler, cell = s2.node.scheduler, s2.node.scheduler.cells[CELL]
        cell.resumes_at = s2.node.clock.now() + 3600  # until all is in its mailbox
        await talk.say(append_frame(b"a"))
        await _are_queued(s2, 1)
        await _crash(s2)
        await talk.say(append_frame(b"b"), append_frame(b"c"))
        await _are_queued(s2, 4)
        cell.resumes_at = 0.0
        scheduler.timers.arm(cell, s2.node.clock.now())
        with anyio.fail_after(60):
            assert await talk.ack() == (0, 1)
            status, said = await talk.terminal()
        assert (status, said["code"]) == (500, "storage")
        assert await _tail(s2) == 1


async def test_a_7_a_session_that_heard_of_all_goes_on_over_a_crash() -> None:
    async with speaker("orders") as s2, s2.session("POST", RECORDS) as talk:
        await talk.head()
        for number in range(3):
            await talk.say(append_frame(b"x"))
            with anyio.fail_after(60):
                assert await talk.ack() == (number, number + 1)
            await _crash(s2)


async def test_sessions_whose_appends_were_refused_are_forgotten() -> None:
    before = _cell_clients()
    async with speaker("orders") as s2:
        for _ in range(5):
            async with s2.session("POST", RECORDS) as talk:
                await talk.head()
                await talk.say(append_frame(b"x", match_seq_num=9))
                assert (await talk.terminal())[0] == 412
        await anyio.sleep(0.01)
        assert not [each for each in _cell_clients() if each not in before]


def _cell_clients() -> list[CellClient]:
    """All that are in memory."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is CellClient]
