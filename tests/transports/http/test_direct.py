"""Requests that are answered without a task: each once, in order, whatever happens meanwhile."""

from __future__ import annotations

import errno
import gc
import re
import tracemalloc
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from millpond.actors.store.filesystem import OsFile
from millpond.node.clock import Clock
from millpond.transports.http.server.exchange import Exchange
from millpond.transports.server.memory_budget import CONNECTION_BYTES
from tests.conformance.gated_disk import GatedDisk
from tests.node.http.clients import eventually
from tests.transports.http.direct_server import (
    JSON,
    LIMIT_S,
    OCTETS,
    STREAM,
    DirectServer,
    append,
    direct_server,
    s2_append,
    said,
)
from tests.transports.http.server.rig import ParsedResponse

BASIN = b"test-basin"
MAKING = b'{"basin":"test-basin","config":{"create_stream_on_append":true}}'
RECORD = b'{"records":[{"body":"a"}]}'


async def _basin(server: DirectServer) -> None:
    (made,) = await server.ask(said(b"POST", b"/v1/basins", MAKING, JSON))
    assert made.status == 201, made


async def _is_quiet(server: DirectServer) -> None:
    """Nobody is counted as there any more."""
    await eventually(lambda: not server.services.registry.connections)


@pytest.mark.parametrize("is_kept", [False, True])
async def test_many_connections_that_ask_ahead_are_all_answered(
    tmp_path: Path, is_kept: bool
) -> None:
    """The replies that one commit releases let each client send again, within its response."""
    told = {"data": str(tmp_path)} if is_kept else {}
    async with direct_server(**told) as server:
        lines = [server.connect() for _ in range(120)]
        for each in lines:
            each.say(append(b"x") * 3)
        for each in lines:
            assert [got.status for got in await server.received(each, 3)] == [204] * 3
        assert await server.contents() == b"x" * 360
        assert server.services.http.crashed == 0
        assert not server.services.registry.connections


async def test_answers_keep_their_order_among_those_that_need_a_task(tmp_path: Path) -> None:
    async with direct_server(data=str(tmp_path)) as server:
        asked = []
        for number in range(6):
            asked += [append(b"%d" % number), said(b"GET", STREAM + b"?offset=-1&live=long-poll")]
        found = await server.ask(*asked)
        assert [each.status for each in found] == [204, 200] * 6
        assert [each.body for each in found[1::2]] == [b"012345"[:n] for n in range(1, 7)]


async def test_every_way_to_say_an_append() -> None:
    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    lines = (b"host: localhost", OCTETS, b"transfer-encoding: chunked")
    chunked = b"\r\n".join([b"POST /v1/stream/a HTTP/1.1", *lines, b"", chunks])
    old = append(b"old").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with direct_server() as server:
        for request, is_last in (
            (append(b"a", b"expect: 100-continue"), False),
            (chunked, False),
            (b"\r\n\r\n" + append(b"b"), False),
            (append(b"c", b"connection: close"), True),
            (old, True),
            (append(b"d", b"connection: upgrade", b"upgrade: h2c"), False),
        ):
            for _ in range(3):  # a head may be kept by the second
                line = server.connect()
                (answer,) = await server.ask(request, line=line)
                assert answer.status == 204, (request, answer)
                assert line.wire.is_closed is is_last
                assert (answer.headers.get("connection") == "close") is is_last
        assert await server.contents() == b"aaa" + b"hello" * 3 + b"bbbccc" + b"old" * 3 + b"ddd"


async def test_a_body_that_comes_later_is_waited_for() -> None:
    async with direct_server() as server:
        line = server.connect()
        for _ in range(4):
            line.say(append(b"hello")[:-3])
            await anyio.lowlevel.checkpoint()
            assert not line.wire.written
            line.say(b"llo")
            (answer,) = await server.received(line)
            assert answer.status == 204
            await server.ask(append(b"!"), line=line)
        assert await server.contents() == b"hello!" * 4


async def test_who_half_closes_hears_its_answer(tmp_path: Path) -> None:
    async with direct_server(data=str(tmp_path)) as server:
        line = server.connect()
        line.say(append(b"a") + append(b"b"))
        line.session.eof()
        first, last = await server.received(line, 2)
        assert (first.status, last.status) == (204, 204)
        assert line.wire.is_closed and "connection" not in first.headers
        assert last.headers["connection"] == "close"
        await _is_quiet(server)


async def test_who_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    """The append counts: it was whole. Requests that waited behind it never began."""
    disk = GatedDisk()
    async with direct_server(data=str(tmp_path), disk=disk) as server:
        line = server.connect()
        disk.gate.clear()
        line.say(append(b"a") + append(b"b"))
        line.end()
        assert len(server.services.registry.connections) == 1
        disk.gate.set()
        await _is_quiet(server)
        assert not line.wire.written
        assert await server.contents() == b"a"


async def test_a_drain_waits_for_what_is_under_way(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with direct_server(data=str(tmp_path), disk=disk) as server:
        line, other = server.connect(), server.connect()
        disk.gate.clear()
        line.say(append(b"a") + append(b"b"))
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.services.registry.drain)
                while not server.services.is_draining:
                    await anyio.lowlevel.checkpoint()
                (late,) = await server.ask(append(b"late"), line=other)
                assert late.status == 503
                assert server.services.registry.connections
                disk.gate.set()
        first, second = await server.received(line, 2)
        assert (first.status, second.status) == (204, 503)
        assert not server.services.registry.connections


async def test_what_is_cut_off_is_told_so_once(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with direct_server(data=str(tmp_path), disk=disk) as server:
        lines = [server.connect() for _ in range(3)]
        disk.gate.clear()
        for each in lines:
            each.say(append(b"a"))
        before = server.services.http.requests
        server.services.registry.close_all()
        for each in lines:
            (answer,) = await server.received(each)
            assert (answer.status, b"may or may not have been" in answer.body) == (500, True)
        assert not server.services.registry.connections
        disk.gate.set()
        assert await server.contents() == b"aaa"
        assert not any(each.wire.written for each in lines)
        assert server.services.http.requests == before + 4
        assert server.services.http.answers["durable", 500] == 3


class _Failing(GatedDisk):
    """Loses what it is to sync, from some point on."""

    is_lost = False

    def create(self, path: Path, size: int) -> OsFile:
        file = super().create(path, size)
        sync = file.sync

        def fail() -> None:
            if self.is_lost:
                raise OSError(errno.EIO, "lost")
            sync()

        file.sync = fail  # type: ignore[method-assign]
        return file


async def test_what_the_disk_did_not_take_is_no_success(tmp_path: Path) -> None:
    disk = _Failing()
    async with direct_server(data=str(tmp_path), disk=disk) as server:
        (before,) = await server.ask(append(b"a"))
        assert before.status == 204
        disk.is_lost = True
        found = await server.ask(append(b"b"), append(b"c"))
        assert all(each.status >= 500 for each in found), found
        assert all(b"storage" in each.body for each in found), found
        assert not server.services.registry.connections


async def test_a_full_mailbox_answers_all_in_time(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with direct_server(data=str(tmp_path), disk=disk, mailbox_bytes_max=2**16) as server:
        lines = [server.connect() for _ in range(40)]
        disk.gate.clear()
        for each in lines:
            each.say(append(bytes(2**13)))
        await anyio.sleep(0.02)
        assert not any(each.wire.written for each in lines)
        disk.gate.set()
        for each in lines:
            assert [got.status for got in await server.received(each)] == [204]
        assert await server.contents() == bytes(40 * 2**13)


async def test_who_does_not_read_its_answers_is_not_asked_on() -> None:
    async with direct_server() as server:
        line = server.connect()
        await server.ask(append(b"a"), line=line)
        line.congest()
        line.say(append(b"b"))
        line.say(append(b"c"))
        assert not line.wire.written and line.wire.is_paused
        line.relieve()
        assert [each.status for each in await server.received(line, 2)] == [204, 204]
        assert await server.contents() == b"abc"


# A missing one is made by a task.


async def _ask_for_new(server: DirectServer, stream: bytes = b"new") -> tuple[int, bytes]:
    (answer,) = await server.ask(s2_append(BASIN, stream, RECORD))
    return answer.status, answer.body


async def _is_made(server: DirectServer, stream: bytes) -> bool:
    (answer,) = await server.ask(said(b"GET", b"/v1/streams/" + stream, b"", b"s2-basin: " + BASIN))
    assert answer.status in (200, 404)
    return answer.status == 200


async def test_streams_that_are_made_with_their_first_append() -> None:
    async with direct_server() as server:
        await _basin(server)
        line = server.connect()
        streams = [b"s%d" % (number % 4) for number in range(12)]
        found = await server.ask(*[s2_append(BASIN, each, RECORD) for each in streams], line=line)
        assert [each.status for each in found] == [200] * 12
        assert [b'"start":{"seq_num":%d,' % (n // 4) in found[n].body for n in range(12)] == [
            True
        ] * 12
        (missing,) = await server.ask(append(b"x", path=b"/v1/stream/none"))
        assert missing.status == 404
        assert not server.services.registry.connections


async def test_who_is_gone_makes_nothing() -> None:
    async with direct_server() as server:
        await _basin(server)
        line = server.connect()
        line.say(s2_append(BASIN, b"new", RECORD) * 2)
        line.end()
        await _is_quiet(server)
        assert not await _is_made(server, b"new")


async def test_who_half_closed_has_it_made() -> None:
    async with direct_server() as server:
        await _basin(server)
        line = server.connect()
        line.say(s2_append(BASIN, b"new", RECORD))
        line.session.eof()
        (answer,) = await server.received(line)
        assert (answer.status, line.wire.is_closed) == (200, True)


async def test_nothing_is_made_while_the_node_stops() -> None:
    async with direct_server() as server:
        await _basin(server)
        line = server.connect()
        line.say(s2_append(BASIN, b"new", RECORD))
        with anyio.fail_after(LIMIT_S):
            await server.services.registry.drain()
        (answer,) = await server.received(line)
        assert (answer.status, b"server_draining" in answer.body) == (503, True)
        assert not server.services.registry.connections


async def test_what_is_made_costs_one_request_of_a_rate() -> None:
    at_s = 0.0
    clock = Clock(lambda: at_s, lambda: 1e9)
    told = {"requests_per_s_per_peer_max": 1, "insecure_public": True}
    async with direct_server(clock=clock, **told) as server:
        await _basin(server)
        line = server.connect("10.0.0.1")
        asked = [s2_append(BASIN, b"new", RECORD)] * 2
        made, refused = await server.ask(*asked, line=line)
        assert (made.status, refused.status) == (200, 429)
        assert refused.headers["retry-after-ms"] == "1000"
        (durable,) = await server.ask(append(b"x"), line=line)
        assert (durable.status, durable.headers["retry-after"]) == (429, "1")
        at_s = 1.0
        assert (await server.ask(asked[0], line=line))[0].status == 200


# Counts.


async def test_a_request_is_counted_once() -> None:
    async with direct_server() as server:
        await _basin(server)
        http = server.services.http
        fence = b'{"records":[{"headers":[["","fence"]],"body":"a"}]}'
        wrong = b'{"records":[]}'
        asked = [s2_append(BASIN, b"new", each) for each in (fence, RECORD, RECORD, wrong)]
        before, came, went = http.requests, http.bytes_in, http.bytes_out
        found = await server.ask(*asked)  # the first one by a task
        assert [each.status for each in found] == [200, 200, 200, 422], found
        assert http.requests == before + 4
        assert http.bytes_in == came + len(fence) + 2 * len(RECORD) + len(wrong)
        assert http.bytes_out == went + sum(len(each.body) for each in found)
        assert (http.answers["s2", 200], http.answers["s2", 422]) == (3, 1)
        for figure, value in ((b"append-ops", b",3]"), (b"append-throughput", b",34]")):
            end = int(server.services.now())
            path = b"/v1/metrics/%b?set=%b&interval=day&start=%d&end=%d" % (
                BASIN,
                figure,
                end - 60,
                end,
            )
            (told,) = await server.ask(said(b"GET", path))
            assert told.status == 200 and value in told.body, told
        assert sum(server.services.protocol_stats["http"].latency.counts) > 0


# The same answer as by a task.

TEXT = b"content-type: text/plain"
ZSTD = b"content-encoding: zstd"
TWO = b'{"records":[{"body":"YQ=="},{"body":"","timestamp":7}]}'
COMMAND = b'{"records":[{"headers":[["","fence"]],"body":"a"}]}'
DURABLE_APPENDS = [
    append(b"x"),
    append(b""),
    append(b"", b"stream-closed: true", path=b"/v1/stream/none"),
    append(b"x", path=b"/v1/stream/none"),
    append(b"x", path=b"/v1/stream/__ds"),
    append(b"x", path=b"/v1/stream/" + b"n" * 513),
    append(b"x", b"producer-id: p", b"producer-epoch: 0", b"producer-seq: 7"),
    append(b"x", b"producer-id: p"),
    append(b"x", b"stream-seq: " + b"s" * 300),
    said(b"POST", STREAM, b"x", TEXT),
    said(b"POST", STREAM, b"x"),
    said(b"POST", STREAM, b"[1,2", JSON),
]
S2_APPENDS = [
    s2_append(BASIN, b"new", RECORD),
    s2_append(BASIN, b"new", TWO, b"s2-format: base64"),
    s2_append(BASIN, b"new", COMMAND),
    s2_append(BASIN, b"new", RECORD, b"accept: application/protobuf"),
    s2_append(BASIN, b"new", RECORD, b"accept-encoding: gzip"),
    s2_append(BASIN, b"new", RECORD, b"s2-format: other"),
    s2_append(BASIN, b"new", RECORD, b"s2-format: \xff"),
    s2_append(BASIN, b"new", RECORD, b"s2-encryption-key: k"),
    s2_append(BASIN, b"new", RECORD, b"content-encoding: identity"),
    s2_append(BASIN, b"new", RECORD, ZSTD),
    s2_append(BASIN, b"new", b'{"records":[]}'),
    s2_append(BASIN, b"new", b'{"records":[{"timestamp":-1}]}'),
    s2_append(BASIN, b"new", b'{"records":[{}],"match_seq_num":99}'),
    s2_append(BASIN, b"new", b'{"records":[{}],"fencing_token":"' + b"t" * 40 + b'"}'),
    s2_append(BASIN, b"new", b"{"),
    s2_append(BASIN, b"..", RECORD),
    s2_append(b"another-basin", b"new", RECORD),
    s2_append(b"Bad", b"new", RECORD),
    said(b"POST", b"/v1/streams/new/records", RECORD, JSON),
    said(b"POST", b"/v1/streams/new/records", RECORD, b"s2-basin: test-basin"),
    said(b"POST", b"/v1/streams/new/records", RECORD, b"s2-basin: test-basin", TEXT),
]
DURABLE_READS = [
    said(b"GET", STREAM + query, b"x", *headers)
    for query, headers in (
        (b"", ()),
        (b"?offset=-1", ()),
        (b"?offset=now", ()),
        (b"?offset=00000000000000000001_0000000000000000", ()),
        (b"?offset=zero", ()),
        (b"?offset=-1&offset=-1", ()),
        (b"?live=other", ()),
        (b"?live=long-poll", ()),
        (b"", (b"if-none-match: *",)),
        (b"/none", ()),
        (b"/" + b"n" * 513, ()),
    )
]
NEW = b"/v1/streams/new/records"
OF_BASIN = b"s2-basin: test-basin"
S2_READS = [
    said(b"GET", path, b"x", OF_BASIN, *headers)
    for path, headers in (
        (NEW + b"?seq_num=0", ()),
        (NEW + b"?seq_num=0&count=1", (b"s2-format: base64",)),
        (NEW + b"?seq_num=0", (b"accept: application/protobuf",)),
        (NEW + b"?seq_num=0&count=0", ()),
        (NEW + b"?seq_num=0&bytes=1", ()),
        (NEW + b"?seq_num=0&until=1", ()),
        (NEW + b"?timestamp=0", ()),
        (NEW + b"?seq_num=99", ()),
        (NEW + b"?seq_num=99&clamp=true&wait=0", ()),
        (NEW, ()),
        (NEW + b"?seq_num=x", ()),
        (NEW + b"?seq_num=0&timestamp=0", ()),
        (NEW + b"?seq_num=0", (b"s2-format: other",)),
        (NEW + b"?seq_num=0", (b"s2-format: \xff",)),
        (NEW + b"?seq_num=0", (b"s2-encryption-key: k",)),
        (b"/v1/streams/none/records?seq_num=0", ()),
    )
]
S2_READS += [
    said(b"GET", NEW + b"?seq_num=0", b"x"),
    said(b"GET", NEW + b"?seq_num=0", b"x", b"s2-basin: another-basin"),
]
_CHANGING = (
    (re.compile(rb'("seq_num":|"timestamp":|tail is )\d+'), rb"\1N"),
    (re.compile(rb"[^ -~]+"), rb"."),
)


def _constant(answer: ParsedResponse) -> tuple[int, dict[str, str], bytes]:
    """An answer without positions and times."""
    body = answer.body
    for pattern, shown in _CHANGING:
        body = pattern.sub(shown, body)
    headers = {**answer.headers, "stream-next-offset": "", "content-length": ""}
    return answer.status, headers, body


@pytest.mark.parametrize("request_", [*DURABLE_APPENDS, *S2_APPENDS, *DURABLE_READS, *S2_READS])
async def test_a_request_is_answered_alike_with_a_task_and_without(request_: bytes) -> None:
    """A body that comes behind its head is read by a task."""
    async with direct_server() as server:
        await _basin(server)
        assert (await _ask_for_new(server))[0] == 200
        head, end, body = request_.partition(b"\r\n\r\n")
        line = server.connect()
        line.say(head + end + body[:-1])
        await anyio.lowlevel.checkpoint()
        line.say(body[-1:])
        (by_task,) = await server.received(line)
        for _ in range(3):  # a head may be kept by the second
            (direct,) = await server.ask(request_, line=line)
            assert _constant(direct) == _constant(by_task)


async def test_an_accept_header_that_is_no_text_is_answered_in_json() -> None:
    async with direct_server() as server:
        await _basin(server)
        await _ask_for_new(server)
        (answer,) = await server.ask(s2_append(BASIN, b"new", RECORD, b"accept: \xff"))
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


# Reads.


class TaskCount:
    """The number of requests that a server has given to tasks."""

    def __init__(self, server: DirectServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._serve = server.server.serve_in_task
        monkeypatch.setattr(server.server, "serve_in_task", self._counted)

    def _counted(self, exchange: Exchange) -> None:
        self.count += 1
        self._serve(exchange)


@pytest.mark.parametrize("is_kept", [False, True])
async def test_small_reads_need_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    told = {"data": str(tmp_path)} if is_kept else {}
    async with direct_server(**told) as server:
        await _basin(server)
        await _ask_for_new(server)
        await server.ask(append(b"1"), append(b"2"))
        tasks = TaskCount(server, monkeypatch)
        first, rest, nothing, batch = await server.ask(
            said(b"GET", STREAM),
            said(b"GET", STREAM + b"?offset=now"),
            said(b"GET", b"/v1/stream/none"),
            said(b"GET", NEW + b"?seq_num=0", b"", OF_BASIN),
        )
        assert (first.body, rest.body, nothing.status) == (b"12", b"", 404)
        assert [each["body"] for each in msgspec.json.decode(batch.body)["records"]] == ["a"]
        assert tasks.count == 0
        waiting = said(b"GET", STREAM + b"?offset=-1&live=long-poll")
        assert (await server.ask(waiting))[0].body == b"12"
        assert tasks.count == 1


async def test_large_reads_are_left_to_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the sizes of all records tell that, or only the answer does."""
    async with direct_server() as server:
        *_, last = await server.ask(*[append(b"s")] * 99)
        await server.ask(append(b"l" * 2**20))
        tasks = TaskCount(server, monkeypatch)
        assert await server.contents() == b"s" * 99 + b"l" * 2**20
        assert tasks.count == 1
        at = last.headers["stream-next-offset"].encode()
        (large,) = await server.ask(said(b"GET", STREAM + b"?offset=" + at))
        assert large.body == b"l" * 2**20
        assert large.headers["stream-up-to-date"] == "true"
        assert tasks.count == 2


async def test_a_read_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct_server() as server:
        await _basin(server)
        await _ask_for_new(server)
        large = b'{"records":[{"body":"%b"}]}' % (b"l" * 2**17)
        await server.ask(s2_append(BASIN, b"new", large))
        tasks, http = TaskCount(server, monkeypatch), server.services.http
        before, went = http.requests, http.bytes_out
        found = await server.ask(
            said(b"GET", NEW + b"?seq_num=0&count=1", b"", OF_BASIN),
            said(b"GET", NEW + b"?seq_num=0", b"", OF_BASIN),
            said(b"GET", NEW + b"?seq_num=9", b"", OF_BASIN),
        )
        assert [each.status for each in found] == [200, 200, 416], found
        assert tasks.count == 2
        assert http.requests == before + 3
        assert http.bytes_out == went + sum(len(each.body) for each in found)
        end = int(server.services.now())
        for figure, value in ((b"read-ops", b",3]"), (b"read-throughput", b",131098]")):
            path = b"/v1/metrics/%b?set=%b&interval=day&start=%d&end=%d" % (
                BASIN,
                figure,
                end - 60,
                end,
            )
            (told,) = await server.ask(said(b"GET", path))
            assert told.status == 200 and value in told.body, told


async def test_a_read_may_make_its_stream() -> None:
    making = MAKING.replace(b"create_stream_on_append", b"create_stream_on_read")
    async with direct_server() as server:
        await server.ask(said(b"POST", b"/v1/basins", making, JSON))
        (empty,) = await server.ask(said(b"GET", NEW + b"?seq_num=0", b"", OF_BASIN))
        assert empty.status == 416, empty
        (found,) = await server.ask(said(b"GET", b"/v1/streams/new", b"", OF_BASIN))
        assert found.status == 200, found


# Rights.


async def test_a_head_that_is_said_again_has_no_rights_that_are_gone() -> None:
    async with direct_server(insecure_public=False) as server:
        await _basin(server)
        tokens = []
        for name in (b"writer", b"reader"):
            ops = b"append" if name == b"writer" else b"read"
            scope = b'{"basins":{"prefix":""},"streams":{"prefix":""},"ops":["%b"]}' % ops
            body = b'{"id":"%b","scope":%b}' % (name, scope)
            (issued,) = await server.ask(said(b"POST", b"/v1/access-tokens", body, JSON))
            assert issued.status == 201, issued
            tokens.append(msgspec.json.decode(issued.body)["access_token"].encode())
        assert (await _ask_for_new(server))[0] == 200
        writer, reader, nobody = (
            s2_append(BASIN, b"new", RECORD, b"authorization: Bearer " + each)
            for each in (*tokens, b"nobody")
        )
        lines = [server.connect(host) for host in ("127.0.0.1", "10.0.0.1")]
        for number, line in enumerate(lines * 3):
            unknown = 401 if number % 2 else 200  # this machine is let in without one
            for request, status in ((writer, 200), (reader, 403), (nobody, unknown)):
                (answer,) = await server.ask(request, line=line)
                assert answer.status == status, answer
        (gone,) = await server.ask(said(b"DELETE", b"/v1/access-tokens/writer"))
        assert gone.status == 204, gone
        for line in lines * 2:
            (answer,) = await server.ask(writer, line=line)
            assert answer.status == 401, answer


@pytest.mark.parametrize("method", [b"POST", b"GET"])
async def test_an_idle_connection_keeps_nothing_of_a_long_head(method: bytes) -> None:
    """The memory of all connections counts so much for each, and no head whose request is over."""

    def long(number: int) -> bytes:
        return said(method, STREAM, b"x", OCTETS, b"x: %d" % number + b"y" * 30_000)

    count = 5
    async with direct_server() as server:
        await server.ask(long(0))
        gc.collect()
        tracemalloc.start()
        try:
            lines = [server.connect() for _ in range(count)]
            for number, each in enumerate(lines, 1):
                await server.ask(long(number), line=each)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < count * CONNECTION_BYTES
        for each in lines * 3:  # and they go on
            (answer,) = await server.ask(append(b"x"), line=each)
            assert answer.status == 204
