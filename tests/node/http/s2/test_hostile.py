"""Malformed and hostile requests over real sockets: typed errors or a closed connection, bounded
memory, and nobody else disturbed."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import zstandard
from anyio.abc import SocketStream

from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.compression import Compression
from tests.node.http.clients import Http2, dial, eventually, get, rest
from tests.node.http.s2.conftest import running
from tests.node.processes import Serving, serving

MIB = 2**20
RECORDS = "/v1/streams/orders/records"
SESSION = b"POST " + RECORDS.encode() + b" HTTP/1.1\r\nhost: [::1]\r\ns2-basin: test-basin\r\n"
JSON = b"content-type: application/json\r\n"
RECORD = b'{"records":[{"body":"x"}]}'
S2S = b"content-type: s2s/proto\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
async def where(anyio_backend: object) -> AsyncIterator[str]:
    """A node with BASIN and the stream `orders`; checked afterwards to serve as ever."""
    async with running(http_body_s=0.5, http_head_s=1.0) as node:
        await _prepare(node.listeners["http"])
        yield node.listeners["http"]
        assert await _append(node.listeners["http"]) == 200
        await eventually(lambda: not node.registry.connections)


async def _put(address: str, path: str) -> None:
    headers = ("s2-basin: test-basin", "content-length: 0")
    assert (await get(address, path, headers, method="PUT"))[0] == 201


async def _prepare(address: str) -> None:
    await _put(address, "/v1/basins/test-basin")
    await _put(address, "/v1/streams/orders")


async def _raw(address: str, data: bytes) -> bytes:
    """The response to these bytes, up to the end of the connection."""
    async with await dial(address) as stream:
        try:
            await stream.send(data)
        except anyio.BrokenResourceError:
            return b""
        return await rest(stream)


async def _append(address: str, body: bytes = RECORD) -> int:
    head = SESSION + JSON + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return _status(await _raw(address, head + body))


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def _tail(address: str) -> int:
    _, body = await get(address, f"{RECORDS}/tail", ["s2-basin: test-basin"])
    found = re.search(rb'"seq_num":(\d+)', body)
    assert found, body
    return int(found[1])


SMUGGLED = b"POST /v1/streams/stolen HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 0\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(RECORD)


@pytest.mark.parametrize(
    "data",
    [
        LENGTH + b"content-length: 3\r\n\r\n" + RECORD,
        b"content-length: 3, 4\r\n\r\n" + RECORD,
        b"content-length: +5\r\n\r\n" + RECORD,
        b"content-length: -1\r\n\r\n" + RECORD,
        b"content-length: 0x5\r\n\r\n" + RECORD,
        b"content-length: 99999999999999999999999\r\n\r\n" + RECORD,
        b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nzz\r\n" + RECORD,
        b"transfer-encoding: chunked\r\n\r\n-1\r\n" + RECORD,
        b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + RECORD,
        b"transfer-encoding: chunked\r\n\r\n1a" + b";x=y" * 20_000 + b"\r\n" + RECORD,
        b"transfer-encoding: chunked\r\n\r\n5\r\n" + RECORD + b"\r\n0\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b" folded: header\r\n" + LENGTH + b"\r\n" + RECORD,
        b"nul\0: x\r\n" + LENGTH + b"\r\n" + RECORD,
        b"x: a\rb\r\n" + LENGTH + b"\r\n" + RECORD,
    ],
    ids=[
        *("two", "list", "plus", "negative", "hex", "huge", "identity", "coding"),
        *("no-chunk", "minus-chunk", "huge-chunk", "extension", "long-chunk"),
        *("space", "folded", "nul", "return"),
    ],
)
async def test_a_request_whose_end_is_in_doubt_is_refused(where: str, data: bytes) -> None:
    """Nothing of it is done, nor of what lies behind it."""
    answer = await _raw(where, SESSION + JSON + data + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert _status(answer) in (0, 400, 408, 413, 431, 501), answer
    assert await _tail(where) == 0


async def test_chunks_win_over_a_length_and_nothing_is_done_twice(where: str) -> None:
    """RFC 9112 6.1: if it is served at all, the chunks say where it ends."""
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(RECORD), RECORD)
    for length in (b"content-length: 4\r\n", LENGTH, b"content-length: 9999\r\n"):
        before = await _tail(where)
        head = SESSION + JSON + b"connection: close\r\n" + length
        answer = await _raw(where, head + b"transfer-encoding: chunked\r\n\r\n" + chunked)
        assert _status(answer) in (0, 200, 400)
        assert await _tail(where) == before + (_status(answer) == 200)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"GET /v1/streams?" + b"x" * 20_000 + b" HTTP/1.1\r\nhost: [::1]\r\n\r\n", (414,)),
        (b"GET /" + b"x" * 2 * MIB + b" HTTP/1.1\r\nhost: [::1]\r\n\r\n", (0, 400, 414, 431)),
        (b"GET /ping HTTP/1.1\r\nhost: [::1]\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", (431,)),
        (
            b"GET /ping HTTP/1.1\r\nhost: [::1]\r\nx: " + b"y" * 2 * MIB + b"\r\n\r\n",
            (0, 400, 431),
        ),
        (b"GET /ping HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", (0, 400, 431)),
        (b"\0" * 100_000, (0, 400)),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), (0, 400)),
        (b"GET /ping HTTP/9.9\r\nhost: [::1]\r\n\r\n", (0, 400, 505)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000, (0, 400)),
    ],
    ids=["url", "long-url", "header", "long-header", "headers", "nul", "tls", "version", "h2"],
)
async def test_sizes_and_bytes_beyond_all_limits(
    where: str, data: bytes, statuses: tuple[int, ...]
) -> None:
    close = data.replace(b"\r\nhost: [::1]\r\n", b"\r\nhost: [::1]\r\nconnection: close\r\n", 1)
    answer = await _raw(where, close)
    if not answer.startswith(b"HTTP/1"):
        answer = b""
    assert _status(answer) in statuses, answer[:200]


async def test_http_0_8_half_an_upload_leaves_no_trace(where: str) -> None:
    halves = [
        JSON + LENGTH + b"\r\n" + RECORD[:-1],
        JSON + b"transfer-encoding: chunked\r\n\r\n1a\r\n" + RECORD[:-1],
        JSON + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(RECORD), RECORD),
        S2S + _chunk(_frame(b"x")[:-1]),
    ]
    for half in halves:
        stream = await dial(where)
        await stream.send(SESSION + half)
        await anyio.sleep(0.02)
        await anyio.aclose_forcefully(stream)
    assert await _tail(where) == 0


async def test_a_slow_body_is_given_up_with_408(where: str) -> None:
    """The time is that of the whole body, however steadily it comes."""
    async with await dial(where) as stream:
        await stream.send(SESSION + JSON + b"connection: close\r\n" + LENGTH + b"\r\n")
        for each in RECORD[:8]:
            await stream.send(bytes([each]))
            await anyio.sleep(0.03)
        answer = await rest(stream)
    assert _status(answer) == 408 and b"request_timeout" in answer
    assert await _tail(where) == 0


def _frame(*bodies: bytes, how: Compression = Compression.NONE) -> bytes:
    records = [s2_pb2.AppendRecord(body=body) for body in bodies]
    return frames.encode((s2_pb2.AppendInput(records=records).SerializeToString(),), how)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_7_a_session_over_http_1_hears_its_error_while_it_still_sends(where: str) -> None:
    """The terminal frame arrives, although nobody reads what comes behind the bad one."""
    async with await dial(where) as stream:
        await stream.send(SESSION + S2S + _chunk(_frame(b"a")) + _chunk(b"\0\0\0"))
        for _ in range(20):
            await stream.send(_chunk(bytes(10_000)))
        await stream.send(b"0\r\n\r\n")
        answer = await rest_of(stream)
    assert _status(answer) == 200
    assert b"\x01\x90" in answer and b"bad_frame" in answer
    assert await _tail(where) == 1


async def rest_of(stream: SocketStream) -> bytes:
    """Everything that is answered until nothing comes for a while."""
    data = b""
    while True:
        with anyio.move_on_after(1) as scope:
            try:
                data += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return data
        if scope.cancelled_caught or data.endswith(b"0\r\n\r\n"):
            return data


async def test_clients_that_vanish_in_mid_session_are_forgotten(where: str) -> None:
    """Writers within a frame, readers at the tail, by a reset; the fixture sees that they go."""
    streams = []
    for number in range(40):
        stream = await dial(where)
        streams.append(stream)
        if number % 2:
            await stream.send(SESSION + S2S + _chunk(_frame(b"x") + _frame(b"y" * 50)[:-9]))
        else:
            head = SESSION.replace(b"POST", b"GET") + b"content-type: s2s/proto\r\n\r\n"
            await stream.send(head)
        assert b" 200 " in await stream.receive()
    for stream in streams:
        await anyio.aclose_forcefully(stream)
    with anyio.fail_after(60):
        while await _tail(where) != 20:  # noqa: ASYNC110
            await anyio.sleep(0.01)  # what came whole is appended


class Measured:
    """A node in a process of its own, whose memory can be looked at."""

    def __init__(self, serving: Serving) -> None:
        self._pid = serving.process.pid
        self.address: str = serving.ready["listeners"]["http"]

    @property
    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def measured() -> Iterator[Measured]:
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here: memory cannot be measured")
    with serving("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0", limit_s=60) as ready:
        yield Measured(ready)


async def test_idle_streams_by_the_thousand_cost_little(measured: Measured) -> None:
    """2,000 followers on ten connections; a connection has only so many, and others are served."""
    await _prepare(measured.address)
    before = measured.rss_bytes
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Http2(await dial(measured.address))) for _ in range(10)
        ]
        async with anyio.create_task_group() as tasks:
            for each in connections:
                tasks.start_soon(_follow_often, each, 200)
        for each in connections:
            settings = each.state.remote_settings
            settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
            settings.acknowledge()
            await each.until(await each.ask("GET", "/ping"), h2.events.StreamReset)
        assert await _append(measured.address) == 200
        assert measured.rss_bytes - before < 80 * MIB
        for each in connections:
            await each.until(1, h2.events.DataReceived)
    assert await _append(measured.address) == 200


async def _follow_often(connection: Http2, count: int) -> None:
    numbers = []
    for _ in range(count):
        number = connection.state.get_next_available_stream_id()
        head = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "[::1]"),
            (":path", RECORDS),
            ("s2-basin", "test-basin"),
            ("content-type", "s2s/proto"),
        ]
        connection.state.send_headers(number, head, end_stream=True)
        numbers.append(number)
    await connection.flush()
    for number in numbers:
        assert await connection.status(number) == 200


async def test_readers_that_never_read_hold_little_and_nobody(measured: Measured) -> None:
    """Ten readers of 40 MiB, by HTTP/1.1 and HTTP/2: what is written ahead for each is bounded."""
    await _prepare(measured.address)
    body = b'{"records":[{"body":"%b"}]}' % (b"x" * (MIB - 8))
    for _ in range(40):
        assert await _append(measured.address, body) == 200
    before = measured.rss_bytes
    head = (
        b"GET "
        + RECORDS.encode()
        + b"?seq_num=0 HTTP/1.1\r\nhost: [::1]\r\ns2-basin: test-basin\r\n"
    )
    plain = [await dial(measured.address) for _ in range(5)]
    for stream in plain:
        await stream.send(head + b"content-type: s2s/proto\r\n\r\n")
    framed = [await dial(measured.address) for _ in range(5)]
    for stream in framed:
        await stream.send(_greedy())
    await anyio.sleep(1)
    began = anyio.current_time()
    assert await _append(measured.address) == 200
    assert anyio.current_time() - began < 1
    assert measured.rss_bytes - before < 150 * MIB
    for stream in (*plain, *framed):
        await anyio.aclose_forcefully(stream)


def _greedy() -> bytes:
    """Over HTTP/2: a window without an end, and a read session."""
    config = h2.config.H2Configuration(client_side=True)
    state = h2.connection.H2Connection(config=config)
    state.initiate_connection()
    state.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
    state.increment_flow_control_window(2**30)
    head = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "[::1]"),
        (":path", f"{RECORDS}?seq_num=0"),
        ("s2-basin", "test-basin"),
        ("content-type", "s2s/proto"),
    ]
    state.send_headers(1, head, end_stream=True)
    return state.data_to_send()


async def test_bombs_are_not_unpacked(measured: Measured) -> None:
    """Twenty at once, in bodies and in frames."""
    await _prepare(measured.address)
    bomb = zstandard.compress(bytes(512 * MIB))
    framed = _chunk(frames.encode((bytes(512 * MIB),), Compression.ZSTD))
    before = measured.rss_bytes
    statuses: list[int] = []

    async def send(data: bytes) -> None:
        statuses.append(_status(await _raw(measured.address, data)))

    whole = SESSION + JSON + b"connection: close\r\ncontent-encoding: zstd\r\n"
    whole += b"content-length: %d\r\n\r\n%b" % (len(bomb), bomb)
    session = SESSION + b"connection: close\r\n" + S2S + framed + b"0\r\n\r\n"
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(send, whole)
            tasks.start_soon(send, session)
    assert sorted(statuses) == [200] * 10 + [422] * 10
    assert measured.rss_bytes - before < 100 * MIB


async def test_a_flood_of_unfinished_uploads_is_bounded(measured: Measured) -> None:
    """Fifty writers, each within a frame of 2 MiB of which half came."""
    await _prepare(measured.address)
    before = measured.rss_bytes
    streams: list[Any] = []
    for _ in range(50):
        stream = await dial(measured.address)
        await stream.send(SESSION + S2S + _chunk(b"\x1f\xff\xff\x00" + bytes(MIB)))
        streams.append(stream)
    await anyio.sleep(0.5)
    assert measured.rss_bytes - before < 250 * MIB
    assert await _append(measured.address) == 200
    for stream in streams:
        await anyio.aclose_forcefully(stream)
