"""CPU time of the node's own code per operation, without sockets, kernel and event loop.

    python -m tests.bench.inproc [--rows put-p1,s3p-c50,...] [--slices 120] [--loop asyncio]

Bytes are handed to the protocol objects of a listener (`AsyncioWire.data_received`), one pass of
the loop is run by hand (`LoopPass.run`), and a transport collects the answers. So the figure is
what our Python costs between `data_received` and `transport.write`. A run is many short slices of
thread CPU time; compare "best", because another load on the machine only adds. Compare two trees
in turns (A B A B) on one machine in one sitting.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import struct
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random
from time import thread_time_ns as cpu_ns
from typing import Any

import msgspec
import uvloop
from hpack import Encoder

from millpond.actors.messages import Role
from millpond.actors.runtime.supervisor import contain
from millpond.node.config import Config
from millpond.node.http.app import HttpServices
from millpond.node.http.listener import DateHeader, settings_of
from millpond.node.machine_memory import keep_freed_blocks
from millpond.node.node import Node
from millpond.transports.http.s2.s2_pb2 import AppendInput, AppendRecord
from millpond.transports.http.server.server import HttpServer
from millpond.transports.io.asyncio_wire import AsyncioWire, AsyncioWires
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import Hello, encode_hello
from millpond.transports.rustlog.binary_codec import FETCH_RECORD_BYTES, encode_request
from millpond.transports.rustlog.messages import Fetch, Produce
from millpond.transports.websocket.framing import ClientFraming

PACKET_MAX = 2**20
BODY = b"x" * 100
REPEATS = 4
"""Passes of the loop in one slice."""
PUT_HEAD = struct.Struct(">IBII")
"""Length, packet type 6, idempotency key, ttl in seconds."""
PUT_ACK_BYTES = 21
READ_100 = (
    b"*3\r\n$4\r\nREAD\r\n$3\r\n%s\r\n"
    b"*4\r\n$5\r\nCOUNT\r\n$3\r\n100\r\n$6\r\nMIN_ID\r\n$%d\r\n%s\r\n"
)
BINARY_PRODUCED_BYTES = 17
MSG, MSG_ACK_HEAD = 2, b"\0\0\0\x09\x03"
LIMITLESS = Config(
    p2p="off",
    ws="off",
    s3p="off",
    rustlog="off",
    http="off",
    channel_messages_max=10**9,
    channel_bytes_max=2**40,
    node_messages_max=10**9,
    node_bytes_max=2**40,
    keys_max=10**9,
    node_keys_max=10**9,
    stream_bytes_max=2**40,
    node_stream_bytes_max=2**40,
)

Receive = Callable[[bytes], None]


class CollectingTransport(asyncio.Transport):
    """A transport that keeps what is written; never full, never closing."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data))

    def take(self) -> bytes:
        """The bytes written since the last call."""
        data = b"".join(self.written)
        self.written.clear()
        return data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Bench:
    """A node in memory, and the connections to it."""

    def __init__(self) -> None:
        self.node = Node(LIMITLESS, rng=Random(1))
        self.wires = AsyncioWires()
        self._http: HttpServer | None = None

    def _connect(self, session: Any) -> tuple[Receive, CollectingTransport]:
        wire, transport = AsyncioWire(session, self.wires, PACKET_MAX), CollectingTransport()
        wire.connection_made(transport)
        return wire.data_received, transport

    def run_pass(self) -> None:
        """Handle what has arrived and write the answers, as the loop's next pass would."""
        self.wires.loop_pass.run()

    def p2p_connection(self, channel: bytes, role: Role) -> tuple[Receive, CollectingTransport]:
        """A connection that has said HELLO; a producer is not pushed to."""
        framing = LengthPrefixed(PACKET_MAX)
        receive, transport = self._connect(self.node.new_session("p2p"))
        hello = encode_hello(Hello(channel=channel, role=role, want_push=role is not Role.PRODUCER))
        receive(framing.frame([hello]))
        self.run_pass()
        transport.take()
        return receive, transport

    def ws_producer(self, channel: bytes) -> tuple[Receive, CollectingTransport, ClientFraming]:
        """A producer over WebSocket that has said HELLO, and its end's framing."""
        receive, transport = self._connect(self.node.new_session("ws"))
        framing = ClientFraming("127.0.0.1:5", channel, True, None, PACKET_MAX)
        receive(framing.take_output())
        self.run_pass()
        framing.feed(transport.take())
        assert framing.ready
        receive(framing.frame([encode_hello(Hello(channel=channel, role=Role.PRODUCER))]))
        self.run_pass()
        transport.take()
        return receive, transport, framing

    def s3p_connection(self) -> tuple[Receive, CollectingTransport]:
        return self._connect(self.node.new_session("s3p"))

    def rustlog_connection(self) -> tuple[Receive, CollectingTransport]:
        return self._connect(self.node.new_session("rustlog"))

    def http_connection(self) -> tuple[Receive, CollectingTransport]:
        if self._http is None:
            node = self.node
            services = HttpServices(
                node.config,
                node.services,
                node._sources,
                node._streams.counters,
                node.browser_policy,
            )
            application = services.application()
            self._http = HttpServer(
                application,
                settings_of(node.config),
                node.services,
                partial(contain, "request/http"),
                DateHeader(),
                application.direct_requests,
            )
        return self._connect(self._http.new_connection())


def report(row: str, slices: list[int], operations: int) -> None:
    """`slices`: nanoseconds of each; `operations` in a slice."""
    slices.sort()
    best, quarter, median = (
        slices[at] / operations / 1e3 for at in (0, len(slices) // 4, len(slices) // 2)
    )
    print(
        f"{row:12s} best {best:8.2f}   p25 {quarter:8.2f}   median {median:8.2f} us per operation",
        flush=True,
    )


def _puts(key: int, count: int) -> bytes:
    """So many PUT packets; idempotency keys begin behind `key`."""
    size = PUT_HEAD.size - 4 + len(BODY)
    return b"".join(PUT_HEAD.pack(size, 6, key + 1 + i, 60) + BODY for i in range(count))


async def put(row: str, slices: int, pipeline: int) -> None:
    """50 producers on 50 channels, `pipeline` PUTs of 100 bytes in a read."""
    bench = Bench()
    connections = [bench.p2p_connection(b"c%d" % i, Role.PRODUCER) for i in range(50)]
    key, taken = 0, []
    for _ in range(slices):
        passes = []
        for _ in range(REPEATS):
            reads = []
            for _ in connections:
                reads.append(
                    b"".join(
                        PUT_HEAD.pack(9 + len(BODY), 6, key + j + 1, 60) + BODY
                        for j in range(pipeline)
                    )
                )
                key += pipeline
            passes.append(reads)
        began = cpu_ns()
        for reads in passes:
            for (receive, _), data in zip(connections, reads, strict=True):
                receive(data)
            bench.run_pass()
        taken.append(cpu_ns() - began)
        for _, transport in connections:
            assert len(transport.take()) == PUT_ACK_BYTES * pipeline * REPEATS
    report(row, taken, len(connections) * pipeline * REPEATS)


async def ws_put(row: str, slices: int, pipeline: int) -> None:
    """The same over WebSocket, 10 producers."""
    bench = Bench()
    ends = [bench.ws_producer(b"c%d" % i) for i in range(10)]
    key, taken = 0, []
    for _ in range(slices):
        passes = []
        for _ in range(REPEATS):
            reads = []
            for _, _, framing in ends:
                puts = LengthPrefixed(PACKET_MAX).feed(_puts(key, pipeline))
                reads.append(framing.frame(puts))
                key += pipeline
            passes.append(reads)
        began = cpu_ns()
        for reads in passes:
            for (receive, _, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
        taken.append(cpu_ns() - began)
        for _, transport, _ in ends:
            assert len(transport.take()) == (PUT_ACK_BYTES - 2) * pipeline * REPEATS
    report(row, taken, len(ends) * pipeline * REPEATS)


async def push(row: str, slices: int) -> None:
    """20 producers, 20 consumers: PUT, PUT_ACK, MSG to the consumer, MSG_ACK."""
    bench = Bench()
    producers = [bench.p2p_connection(b"c%d" % i, Role.PRODUCER) for i in range(20)]
    consumers = [bench.p2p_connection(b"c%d" % i, Role.CONSUMER) for i in range(20)]
    key, taken = 0, []
    for _ in range(slices):
        total = 0
        for _ in range(REPEATS):
            reads = [_puts(key + i, 1) for i in range(20)]
            key += 20
            began = cpu_ns()
            for (receive, _), data in zip(producers, reads, strict=True):
                receive(data)
            bench.run_pass()
            total += cpu_ns() - began
            pushed = [transport.take() for _, transport in consumers]
            assert all(data[4] == MSG for data in pushed)
            for _, transport in producers:
                transport.take()
            acks = [MSG_ACK_HEAD + data[5:13] for data in pushed]
            began = cpu_ns()
            for (receive, _), data in zip(consumers, acks, strict=True):
                receive(data)
            bench.run_pass()
            total += cpu_ns() - began
        taken.append(total)
    report(row, taken, 20 * REPEATS)


async def s3p_append(
    row: str,
    slices: int,
    *,
    pipeline: int = 1,
    records: int = 1,
    connections: int = 50,
    one_stream: bool = False,
) -> Bench:
    """APPEND of `records` x 100 bytes, `pipeline` of them in a read."""
    bench = Bench()
    ends = [bench.s3p_connection() for _ in range(connections)]
    names = [b"s%02d" % (0 if one_stream else i) for i in range(connections)]
    for (receive, transport), name in zip(ends, names, strict=True):
        receive(b"*3\r\n$6\r\nCREATE\r\n$3\r\n%s\r\n*0\r\n" % name)
        bench.run_pass()
        transport.take()
    record = b"$100\r\n" + BODY + b"\r\n"
    reads = [
        (b"*4\r\n$6\r\nAPPEND\r\n$3\r\n%s\r\n*0\r\n*%d\r\n" % (name, records) + record * records)
        * pipeline
        for name in names
    ]
    taken = []
    for _ in range(slices):
        began = cpu_ns() if row else 0
        for _ in range(REPEATS):
            for (receive, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
        taken.append(cpu_ns() - began if row else 0)
        for _, transport in ends:
            assert transport.take().count(b"$") == REPEATS * pipeline
    if row:
        report(row, taken, REPEATS * connections * pipeline)
    return bench


async def s3p_read(row: str, slices: int) -> None:
    """READ of 100 records on 10 connections, each walking over its stream."""
    bench = await s3p_append("", 40, records=100, connections=10)
    ends = [(*bench.s3p_connection(), b"s%02d" % i) for i in range(10)]
    positions = [b"0-0"] * len(ends)
    taken = []
    for _ in range(slices):
        total = 0
        for _ in range(REPEATS):
            reads = [
                b"*3\r\n$4\r\nREAD\r\n$3\r\n%s\r\n*4\r\n$5\r\nCOUNT\r\n$3\r\n100\r\n$6\r\nMIN_ID\r\n$%d\r\n%s\r\n"
                % (name, len(at), at)
                for (_, _, name), at in zip(ends, positions, strict=True)
            ]
            began = cpu_ns()
            for (receive, _, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
            await asyncio.sleep(0)
            total += cpu_ns() - began
            for i, (_, transport, _) in enumerate(ends):
                found = re.findall(rb"\r\n(\d+-\d+)\r\n", transport.take())
                positions[i] = found[-1] if len(found) > 50 else b"0-0"
        taken.append(total)
    report(row, taken, REPEATS * len(ends))


def _rustlog_frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


async def rustlog_produce(
    row: str, slices: int, *, records: int = 100, is_binary: bool = False
) -> Bench:
    """Produce of `records` x 100 bytes on 10 connections, to a topic of its own each."""
    bench = Bench()
    ends = [bench.rustlog_connection() for _ in range(10)]
    reads = []
    for i, (receive, transport) in enumerate(ends):
        receive(_rustlog_frame(b'{"type":"CreateTopic","topic":"t%d","partition_count":1}' % i))
        for _ in range(4):
            bench.run_pass()
            await asyncio.sleep(0)
        assert b"true" in transport.take()
        texts = b",".join([b'"%b"' % b2a_base64(BODY, newline=False)] * records)
        head = b'{"type":"Produce","topic":"t%d","partition":0,"records":[' % i
        produce = Produce(f"t{i}", 0, [BODY] * records)
        reads.append(encode_request(produce) if is_binary else _rustlog_frame(head + texts + b"]}"))
    taken = []
    for _ in range(slices):
        began = cpu_ns() if row else 0
        for _ in range(REPEATS):
            for (receive, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
        taken.append(cpu_ns() - began if row else 0)
        for _, transport in ends:
            answers = transport.take()
            if is_binary:
                assert len(answers) == BINARY_PRODUCED_BYTES * REPEATS
            else:
                assert answers.count(b"ProduceResponse") == REPEATS
    if row:
        report(row, taken, REPEATS * len(ends))
    return bench


async def rustlog_fetch(row: str, slices: int, *, is_binary: bool = False) -> None:
    """Fetch of 100 records on 10 connections, each walking over its topic."""
    bench = await rustlog_produce("", 40)
    ends = [bench.rustlog_connection() for _ in range(10)]
    offset, taken = 0, []
    for _ in range(slices):
        total = 0
        for _ in range(REPEATS):
            if is_binary:
                size = 100 * (len(BODY) + FETCH_RECORD_BYTES)
                reads = [encode_request(Fetch(f"t{i}", 0, offset, size)) for i in range(len(ends))]
            else:
                reads = [
                    _rustlog_frame(
                        b'{"type":"Fetch","topic":"t%d","partition":0,"offset":%d,"max_bytes":%d}'
                        % (i, offset, 100 * len(BODY))
                    )
                    for i in range(len(ends))
                ]
            began = cpu_ns()
            for (receive, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
            await asyncio.sleep(0)
            total += cpu_ns() - began
            for _, transport in ends:
                answer = transport.take()
                assert (answer.count(BODY) if is_binary else answer.count(b'"payload"')) == 100
            offset = (offset + 100) % (40 * REPEATS * 100)
        taken.append(total)
    report(row, taken, REPEATS * len(ends))


async def http_append(row: str, slices: int, path: bytes, headers: bytes, body: bytes) -> None:
    """A POST on each of 50 connections, to a stream of its own."""
    bench = Bench()
    ends = [bench.http_connection() for _ in range(50)]
    reads = []
    for i, (receive, transport) in enumerate(ends):
        name = b"s%02d" % i
        receive(b"PUT /v1/stream/%b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % name)
        for _ in range(4):
            bench.run_pass()
            await asyncio.sleep(0)
        transport.take()
        head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n"
        reads.append(head % (path % name, headers, len(body)) + body)
    taken = []
    for _ in range(slices):
        began = cpu_ns()
        for _ in range(REPEATS):
            for (receive, _), data in zip(ends, reads, strict=True):
                receive(data)
            bench.run_pass()
            await asyncio.sleep(0)
            bench.run_pass()
        taken.append(cpu_ns() - began)
        for _, transport in ends:
            answers = transport.take()
            assert answers.count(b"HTTP/1.1 20") == REPEATS, answers[:300]
    report(row, taken, REPEATS * len(ends))


async def http_read(row: str, slices: int, path: bytes, headers: bytes) -> None:
    """A GET on each of 20 connections, of the only 20 records of a stream of its own."""
    bench = Bench()
    ends = [bench.http_connection() for _ in range(20)]

    async def give(requests: list[bytes], wanted: bytes) -> None:
        for (receive, _), data in zip(ends, requests, strict=True):
            receive(data)
        for _ in range(50):
            bench.run_pass()
            await asyncio.sleep(0)
            if all(transport.written for _, transport in ends):
                break
        for _, transport in ends:
            answers = transport.take()
            assert answers.startswith(b"HTTP/1.1 20") and wanted in answers, answers[:300]

    octets = b"content-type: application/octet-stream\r\n"
    line = b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n%b"
    names = [b"s%02d" % i for i in range(len(ends))]
    await give([line % (b"PUT", b"/v1/stream/" + name, octets, 0, b"") for name in names], b"201")
    for _ in range(20):
        made = [(b"POST", b"/v1/stream/" + name, octets, len(BODY), BODY) for name in names]
        await give([line % each for each in made], b"204")
    reads = [b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\n%b\r\n" % (path % n, headers) for n in names]
    taken = []
    for _ in range(slices):
        began = cpu_ns()
        for _ in range(REPEATS):
            await give(reads, BODY)
        taken.append(cpu_ns() - began)
    report(row, taken, REPEATS * len(ends))


def _frame(frame_type: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes((frame_type, flags)) + stream.to_bytes(4, "big") + payload


DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8


async def s2_session(row: str, slices: int, records: int, *, reads: bool = False) -> None:
    """Appends of so many records of 1 KiB in one session over HTTP/2, a batch at a time. `reads`:
    what is timed is sessions that read ten such batches."""
    bench = Bench()
    receive, transport = bench.http_connection()

    async def give(data: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        receive(data)
        got = b""
        for _ in range(200):
            bench.run_pass()
            await asyncio.sleep(0)
            got += transport.take()
            if wanted(got):
                return got
        raise AssertionError(got[-300:])

    await give(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1))
        + _frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big")),
        bool,
    )
    encoder = Encoder()

    def request(stream: int, method: str, path: str, *more: tuple[str, str]) -> bytes:
        lines = [(":method", method), (":scheme", "http"), (":path", path)]
        lines += [(":authority", "127.0.0.1"), ("s2-basin", "millpond"), *more]
        return _frame(HEADERS, 4, stream, encoder.encode(lines))

    await give(
        request(1, "PUT", "/v1/streams/s", ("content-type", "application/json"))
        + _frame(DATA, 1, 1, b"{}"),
        lambda got: b"created_at" in got,
    )
    opening = request(3, "POST", "/v1/streams/s/records", ("content-type", "s2s/proto"))
    receive(opening)
    bench.run_pass()
    await asyncio.sleep(0)
    bench.run_pass()
    transport.take()
    body = AppendInput(records=[AppendRecord(body=b"x" * 1024)] * records).SerializeToString()
    message = (1 + len(body)).to_bytes(3, "big") + b"\0" + body
    frames = [message[at : at + 2**14] for at in range(0, len(message), 2**14)]
    wire = b"".join([_frame(DATA, 0, 3, each) for each in frames])
    pieces = [wire[at : at + 2**18] for at in range(0, len(wire), 2**18)]
    taken, batches = [], 10
    for _ in range(batches if reads else slices):
        began = 0 if reads else cpu_ns()
        for each in pieces[:-1]:
            receive(each)
            bench.run_pass()
            await asyncio.sleep(0)
        await give(pieces[-1], lambda got: b"\0\0\0" in got and _answers(got) > 0)
        taken.append(0 if reads else cpu_ns() - began)
    if not reads:
        report(row, taken, records)
        return
    taken, wanted = [], batches * len(body)
    for at in range(slices):
        path, number = f"/v1/streams/s/records?seq_num=0&count={batches * records}", 5 + 2 * at
        opening = request(number, "GET", path, ("content-type", "s2s/proto"))
        opening = opening[:4] + b"\5" + opening[5:]  # the request ends with its head
        window = _frame(WINDOW_UPDATE, 0, 0, (wanted + 2**17).to_bytes(4, "big"))
        got, began = 0, cpu_ns()
        receive(opening + window)
        while got < wanted:
            bench.run_pass()
            await asyncio.sleep(0)
            got += sum(map(len, transport.written))
            transport.written.clear()
        taken.append(cpu_ns() - began)
        bench.run_pass()
        await asyncio.sleep(0)
        transport.take()
    report(row, taken, batches * records)


def _answers(got: bytes) -> int:
    """The number of DATA frames among whole frames."""
    found = at = 0
    while at + 9 <= len(got):
        found += got[at + 3] == DATA
        at += 9 + int.from_bytes(got[at : at + 3], "big")
    return found


def rows(slices: int) -> Iterator[tuple[str, Callable[[str], Awaitable[object]]]]:
    fewer = max(20, slices // 3)
    yield "put-p1", lambda row: put(row, slices, 1)
    yield "put-p16", lambda row: put(row, slices // 2, 16)
    yield "ws-put-p16", lambda row: ws_put(row, slices, 16)
    yield "push-ack", lambda row: push(row, slices)
    yield "s3p-c50", lambda row: s3p_append(row, slices)
    yield "s3p-one", lambda row: s3p_append(row, slices, one_stream=True)
    yield "s3p-p16", lambda row: s3p_append(row, fewer, pipeline=16)
    yield "s3p-x100", lambda row: s3p_append(row, fewer, records=100, connections=10)
    yield "s3p-read100", lambda row: s3p_read(row, slices)
    yield "rustlog-x100", lambda row: rustlog_produce(row, fewer)
    yield "rustlog-fetch", lambda row: rustlog_fetch(row, slices)
    yield "rustlog-bin", lambda row: rustlog_produce(row, fewer, is_binary=True)
    yield "rustlog-bfetch", lambda row: rustlog_fetch(row, slices, is_binary=True)
    plain = b"content-type: application/octet-stream\r\n"
    yield (
        "http-durable",
        lambda row: http_append(row, fewer, b"/v1/stream/%b", plain, BODY),
    )
    records = b"s2-basin: millpond\r\ncontent-type: application/json\r\n"
    for row, count in (("s2-json", 1), ("s2-json-x100", 100)):
        body = msgspec.json.encode({"records": [{"body": BODY.decode()}] * count})
        yield (
            row,
            lambda row, body=body: http_append(
                row, fewer, b"/v1/streams/%b/records", records, body
            ),
        )
    yield "http-get", lambda row: http_read(row, fewer, b"/v1/stream/%b?offset=-1", b"")
    yield (
        "s2-get",
        lambda row: http_read(
            row, fewer, b"/v1/streams/%b/records?seq_num=0", b"s2-basin: millpond\r\n"
        ),
    )
    yield "s2-session", lambda row: s2_session(row, fewer, 1000)
    yield "s2-read", lambda row: s2_session(row, fewer, 1000, reads=True)


async def run(picked: set[str], slices: int) -> None:
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)  # as a server sets it
    keep_freed_blocks()
    for row, measure in rows(slices):
        if not picked or row in picked:
            await measure(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="", help="names, comma between them; all by default")
    parser.add_argument("--slices", type=int, default=120)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    chosen = parser.parse_args()
    work = run(set(filter(None, chosen.rows.split(","))), chosen.slices)
    if chosen.loop == "uvloop":
        uvloop.run(work)
    else:
        asyncio.run(work)


if __name__ == "__main__":
    main()
