"""Attacks on the memory of a node: clients that send halves, or never read, on every listener.

    python -m tests.attacks.memory [--budget 64] [--only NAME]

Each attack runs against a node in a process of its own, and holds its connections open while the
peak of that process is read. S3P has TLS there, the other listeners have none. The table is that of
docs/internals/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import ssl
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from millpond.node.tls.certificates import make_certificate
from millpond.transports.p2p.streams.operations import Operation
from tests.conformance import packets as p
from tests.node.processes import Serving, environment, serving

MIB = 2**20
BUDGET_BYTES = 64 * MIB
SLACK_BYTES = 100 * MIB
CONNECTION_BYTES = 2**15
"""For each connection of an attack, whether or not the node counts it."""
PACKET_BYTES = 8 * MIB
BIG_BYTES = 8 * MIB
ANSWER_S = 30.0
"""Refusals come after about 5 s; the rest is for a machine that other tests keep busy."""
PUMP_S = 8.0
QUIET_S = 1.0
FREED_S = 10.0
KEPT_BYTES = 16 * MIB
REST_S = 60.0
DESCRIPTORS = 8192
STORED_MAX = 20_000
ZEROS = bytes(16 * MIB)


class Line:
    """One connection of an attacker: it sends its bytes as the node takes them, and never reads."""

    def __init__(self, port: int, *parts: bytes, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self._parts = [memoryview(part) for part in parts]

    def send(self) -> bool:
        """Send on, as far as it goes. True: there is more."""
        while self._parts:
            try:
                sent = self.socket.send(self._parts[0][:MIB])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return True
            except OSError:
                self._parts = []
                break
            self._parts[0] = self._parts[0][sent:]
            if not self._parts[0]:
                del self._parts[0]
        return False


class SecureLine(Line):
    """The same over TLS."""

    def __init__(self, port: int, *parts: bytes, receive_bytes: int = 0) -> None:
        super().__init__(port, *parts, receive_bytes=receive_bytes)
        self.socket.settimeout(ANSWER_S)
        self.socket = _client_context().wrap_socket(self.socket)
        self.socket.setblocking(False)


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def pump(lines: Sequence[Line]) -> None:
    """Send until everything is sent, or the node takes no more."""
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.socket, selectors.EVENT_WRITE, line)
        ends_at = time.monotonic() + PUMP_S
        while selector.get_map() and time.monotonic() < ends_at:
            ready = selector.select(QUIET_S)
            if not ready:
                return
            for key, _ in ready:
                if not key.data.send():
                    selector.unregister(key.fileobj)


def read_all(lines: Sequence[Line]) -> None:
    """Read whatever comes to these connections, in a thread that ends with the last of them."""

    def work() -> None:
        with selectors.DefaultSelector() as selector:
            for line in lines:
                selector.register(line.socket, selectors.EVENT_READ, line)
            while any(line.socket.fileno() >= 0 for line in lines):
                for key, _ in selector.select(QUIET_S / 4):
                    try:
                        has_ended = not key.data.socket.recv(MIB)
                    except (BlockingIOError, ssl.SSLWantReadError):
                        continue
                    except OSError:
                        has_ended = True
                    if has_ended:
                        selector.unregister(key.fileobj)

    threading.Thread(target=work, daemon=True).start()


class Ports(msgspec.Struct, frozen=True):
    """The ports of a node."""

    p2p: int
    ws: int
    s3p: int
    rustlog: int
    http: int


Attack = Callable[[Ports], list[Line]]
"""Gives its connections, to be held open."""


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def _hello(channel: bytes, tags: p.Tags | None = None, *, flags: int = 0) -> bytes:
    return _framed(p.hello(channel, tags, flags=flags))


def _get(path: str, accept: str = "*/*") -> bytes:
    head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\ns2-basin: millpond\r\naccept: {accept}"
    return head.encode() + b"\r\n\r\n"


# Attacks: each gives its connections, to be held open.


def half_packets(ports: Ports) -> list[Line]:
    head = _hello(b"half") + PACKET_BYTES.to_bytes(4, "big") + b"\x06"
    return [Line(ports.p2p, head, ZEROS[: PACKET_BYTES - 100]) for _ in range(60)]


def half_messages(ports: Ports) -> list[Line]:
    head = (
        b"GET /v1/channels/half HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
    )
    hello = p.hello(b"half", flags=0)
    frames = bytes((0x82, 0x80 | len(hello))) + bytes(4) + hello
    frames += b"\x82\xff" + PACKET_BYTES.to_bytes(8, "big") + bytes(4)
    lines = [Line(ports.ws, head) for _ in range(60)]
    pump(lines)
    for line in lines:
        line.socket.setblocking(True)
        assert b" 101 " in line.socket.recv(4096)
    for line in lines:
        line.socket.setblocking(False)
        line._parts = [memoryview(frames), memoryview(ZEROS)[: PACKET_BYTES - 100]]
    return lines


def half_appends(ports: Ports) -> list[Line]:
    record = b"$%d\r\n" % MIB + ZEROS[:MIB] + b"\r\n"
    head = b"*4\r\n$6\r\nAPPEND\r\n$4\r\nhalf\r\n*0\r\n*8\r\n"
    parts = (head, *([record] * 7), record[:-100])
    return [SecureLine(ports.s3p, *parts) for _ in range(60)]


def half_frames(ports: Ports) -> list[Line]:
    size = 10 * MIB
    return [Line(ports.rustlog, size.to_bytes(4, "big"), ZEROS[: size - 100]) for _ in range(60)]


def half_bodies(ports: Ports) -> list[Line]:
    head = b"POST /v1/stream/small HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    head += b"content-length: %d\r\n\r\n" % (16 * MIB)
    return [Line(ports.http, head, ZEROS[: 16 * MIB - 100]) for _ in range(60)]


def half_chunked_bodies(ports: Ports) -> list[Line]:
    """Bodies in pieces, each too small to be counted alone."""
    head = b"POST /v1/stream/small HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
    head += b"transfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (16_000, ZEROS[:16_000])
    return [Line(ports.http, head, chunk * 1000) for _ in range(60)]


def half_sessions(ports: Ports) -> list[Line]:
    """Append sessions of S2 with a part of one frame each."""
    head = b"POST /v1/streams/small/records HTTP/1.1\r\nhost: localhost\r\ns2-basin: millpond\r\n"
    head += b"content-type: s2s/proto\r\ntransfer-encoding: chunked\r\n\r\n"
    frame = (2 * MIB - 1).to_bytes(3, "big") + ZEROS[: 2 * MIB - 100]
    body = b"%x\r\n%b\r\n" % (len(frame), frame)
    return [Line(ports.http, head, body) for _ in range(150)]


def half_heads(ports: Ports) -> list[Line]:
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\n" + (b"x: %b\r\n" % (b"y" * 8000)) * 9
    return [Line(ports.http, head) for _ in range(3000)]


def small_halves(ports: Ports) -> list[Line]:
    head = _hello(b"half") + (2**17).to_bytes(4, "big") + b"\x06"
    return [Line(ports.p2p, head, ZEROS[:120_000]) for _ in range(3000)]


def pipelined_gets(ports: Ports) -> list[Line]:
    gets = _get("/v1/stream/big") * 5
    return [Line(ports.http, gets, receive_bytes=4096) for _ in range(100)]


def long_polls(ports: Ports) -> list[Line]:
    """Requests that wait; one append answers all of them, each with JSON of its own."""
    http(ports.http, "PUT", "/v1/stream/json", b"", "application/json")
    get = _get("/v1/stream/json?offset=now&live=long-poll")
    lines = [Line(ports.http, get, receive_bytes=4096) for _ in range(150)]
    pump(lines)
    time.sleep(0.5)
    message = b'"%b"' % (b"x" * (2**18 - 10))
    body = b"[%b]" % b",".join([message] * 16)
    http(ports.http, "POST", "/v1/stream/json", body, "application/json")
    return lines


def event_readers(ports: Ports) -> list[Line]:
    get = _get("/v1/stream/big?offset=-1&live=sse", "text/event-stream")
    return [Line(ports.http, get, receive_bytes=4096) for _ in range(100)]


def s2_event_readers(ports: Ports) -> list[Line]:
    get = _get("/v1/streams/big/records?seq_num=0", "text/event-stream")
    return [Line(ports.http, get, receive_bytes=4096) for _ in range(100)]


def s2_reads(ports: Ports) -> list[Line]:
    gets = _get("/v1/streams/big/records?seq_num=0") * 5
    return [Line(ports.http, gets, receive_bytes=4096) for _ in range(100)]


def window_of_0(ports: Ports) -> list[Line]:
    return [_http2_gets(ports, 200, 0, "/v1/stream/big", {}) for _ in range(3)]


def window_of_all(ports: Ports) -> list[Line]:
    return [_http2_gets(ports, 200, 2**31 - 1, "/v1/stream/big", {}) for _ in range(3)]


def s2s_sessions(ports: Ports) -> list[Line]:
    path = "/v1/streams/big/records?seq_num=0"
    headers = {"content-type": "s2s/proto", "s2-basin": "millpond"}
    return [_http2_gets(ports, 4, 2**31 - 1, path, headers) for _ in range(100)]


def half_header_blocks(ports: Ports) -> list[Line]:
    """HEADERS and CONTINUATION up to what a head may have, without an end."""
    client = _http2_client(0)
    block = b"\x82\x86\x84\x41\x09localhost" + (b"\0\x01x\x7f\xe1\x3e" + b"y" * 8160) * 8
    block = block[: 2**16 - 100]
    pieces = [block[start : start + 2**14] for start in range(0, len(block), 2**14)]
    frames = [
        len(each).to_bytes(3, "big") + (b"\x09" if at else b"\x01") + b"\0" + p.u32(1) + each
        for at, each in enumerate(pieces)
    ]
    sent = client.data_to_send() + b"".join(frames)
    return [Line(ports.http, sent) for _ in range(3000)]


def open_heads(ports: Ports) -> list[Line]:
    """Requests whose heads are as long as they may be, and whose bodies do not come."""
    client = _http2_client(0)
    for at in range(100):
        fields = {f"x{at}-{field}": "y" * 3000 for field in range(9)}
        number = client.get_next_available_stream_id()
        client.send_headers(number, _http2_head("POST", "/v1/stream/small", fields))
    sent = client.data_to_send()
    return [Line(ports.http, sent) for _ in range(60)]


def references(ports: Ports) -> list[Line]:
    """Heads of a few bytes that stand for long ones in the table of HPACK."""
    client = _http2_client(0)
    for _ in range(100):
        head = _http2_head("POST", "/v1/stream/small", {})
        number = client.get_next_available_stream_id()
        client.send_headers(number, head + [("x", "y" * 3000)] * 9)
    sent = client.data_to_send()
    return [Line(ports.http, sent) for _ in range(60)]


def state_event_readers(ports: Ports) -> list[Line]:
    http(ports.http, "PUT", "/millpond/state/values", b"")
    for number in range(64):
        event = {"type": "t", "key": f"{number}", "value": "x" * 2**17}
        body = msgspec.json.encode({**event, "headers": {"operation": "insert"}})
        http(ports.http, "POST", "/millpond/state/values", body, "application/json")
    get = _get("/millpond/state/values", "text/event-stream")
    return [Line(ports.http, get, receive_bytes=4096) for _ in range(100)]


def stream_reads(ports: Ports) -> list[Line]:
    return _stream_reads(ports, 0)


def waiting_stream_reads(ports: Ports) -> list[Line]:
    """Reads that would wait for records if there were none."""
    return _stream_reads(ports, 5000)


def _stream_reads(ports: Ports, wait_ms: int) -> list[Line]:
    fields = {"stream": b"big", "bytes_max": MIB, "count": 1000, "wait_ms": wait_ms}
    body = msgspec.msgpack.encode(fields)
    reads = [_framed(p.stream(number, Operation.READ, body)) for number in range(1, 65)]
    hello = _hello(b"x", {p.EXTENSIONS: b"\x92\x93"})
    sent = hello + b"".join(reads)
    return [Line(ports.p2p, sent, receive_bytes=4096) for _ in range(100)]


def stalled_uploads(ports: Ports) -> list[Line]:
    """Bodies over HTTP/2 up to its windows, on many connections."""
    lines = []
    for _ in range(60):
        client = _http2_client(0)
        for _ in range(64):
            number = client.get_next_available_stream_id()
            client.send_headers(number, _http2_head("POST", "/v1/stream/small", {}))
        # The node's windows are known before its settings come: 1 MiB a stream, 4 MiB in all.
        data = [client.data_to_send()]
        for number in range(1, 9, 2):
            data += [_data_frame(number, ZEROS[: 2**14])] * 63
        lines.append(Line(ports.http, *data))
    return lines


def _data_frame(number: int, data: bytes) -> bytes:
    return len(data).to_bytes(3, "big") + b"\0\0" + number.to_bytes(4, "big") + data


def s3p_reads(ports: Ports) -> list[Line]:
    read = b"*3\r\n$4\r\nREAD\r\n$3\r\nbig\r\n*2\r\n$6\r\nMIN_ID\r\n$3\r\n0-0\r\n"
    return [SecureLine(ports.s3p, read * 20, receive_bytes=4096) for _ in range(100)]


def half_handshakes(ports: Ports) -> list[Line]:
    """The first record of a ClientHello, in which it says that it is as long as may be."""
    size = 131_000
    message = b"\x01" + size.to_bytes(3, "big") + b"\3\3" + ZEROS[:size]
    records = [message[start : start + 2**14] for start in range(0, size, 2**14)]
    framed = [b"\x16\x03\x01" + p.u16(len(each)) + each for each in records]
    sent = b"".join(framed)[:-100]
    return [Line(ports.s3p, sent) for _ in range(2500)]


def half_records(ports: Ports) -> list[Line]:
    lines: list[Line] = []
    for _ in range(500):
        line = SecureLine(ports.s3p)
        raw = socket.socket(fileno=line.socket.detach())
        raw.setblocking(False)
        line.socket, line._parts = raw, [memoryview(b"\x17\3\3\x40\0" + ZEROS[:16_000])]
        lines.append(line)
    return lines


def fetches(ports: Ports) -> list[Line]:
    fetch = json.dumps(
        {"type": "Fetch", "topic": "big", "partition": 0, "offset": 0, "max_bytes": 8 * MIB}
    ).encode()
    return [Line(ports.rustlog, _framed(fetch) * 20, receive_bytes=4096) for _ in range(60)]


def unread_pushes(ports: Ports) -> list[Line]:
    """Consumers that let messages come and do not read them."""
    tags = {p.ROLE: p.CONSUMER, p.MODE: p.FANOUT, p.WINDOW: p.u16(1000)}
    hello = _hello(b"pushed", tags, flags=1)
    lines = [Line(ports.p2p, hello, receive_bytes=4096) for _ in range(150)]
    pump(lines)
    time.sleep(0.5)
    put = b"\x06" + bytes(8) + ZEROS[: 2**18]
    with socket.create_connection(("127.0.0.1", ports.p2p), ANSWER_S) as producer:
        producer.sendall(_hello(b"pushed", {p.ROLE: p.PRODUCER, p.MODE: p.FANOUT}))
        for number in range(1, 17):
            producer.sendall(_framed(b"\x06" + p.u32(number) + bytes(4) + put[9:]))
            producer.recv(4096)
    return lines


def unread_gets(ports: Ports) -> list[Line]:
    """GETs of one message, of as many as a connection may have in progress and more."""
    with socket.create_connection(("127.0.0.1", ports.p2p), ANSWER_S) as producer:
        hello = _hello(b"kept", {p.ROLE: p.PRODUCER, p.MODE: p.FANOUT}, flags=1)
        producer.sendall(hello + _framed(b"\x06" + p.u32(1) + bytes(4) + ZEROS[: 4 * MIB]))
        answers = b""
        while (at := answers.find(b"\x07" + p.u32(1))) < 0:
            answers += producer.recv(4096)
    message_id = answers[at + 5 : at + 13]
    get = _framed(b"\x0a" + message_id)
    return [
        Line(ports.p2p, _hello(b"kept", {p.MODE: p.FANOUT}) + get * 50, receive_bytes=4096)
        for _ in range(60)
    ]


def _http2_client(window: int) -> H2Connection:
    client = H2Connection(H2Configuration(client_side=True))
    client.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
    client.local_settings.acknowledge()
    client.initiate_connection()
    if window:
        client.increment_flow_control_window(2**31 - 1 - 2**16)
    return client


def _http2_head(method: str, path: str, headers: dict[str, str]) -> list[tuple[str, str]]:
    head = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
    return head + list(headers.items())


def _http2_gets(ports: Ports, count: int, window: int, path: str, headers: dict[str, str]) -> Line:
    client = _http2_client(window)
    for _ in range(min(count, 100)):
        number = client.get_next_available_stream_id()
        client.send_headers(number, _http2_head("GET", path, headers), end_stream=True)
    return Line(ports.http, client.data_to_send(), receive_bytes=4096)


ATTACKS: dict[str, Attack] = {
    "P2P: 60 half packets of 8 MiB": half_packets,
    "WebSocket: 60 half messages of 8 MiB": half_messages,
    "S3P over TLS: 2,500 half handshakes of 131 KB": half_handshakes,
    "S3P over TLS: 500 half records of 16 KiB": half_records,
    "S3P over TLS: 60 half APPENDs of 8 MiB": half_appends,
    "RustLog: 60 half frames of 10 MiB": half_frames,
    "HTTP/1.1: 60 half bodies of 16 MiB": half_bodies,
    "HTTP/1.1: 60 half bodies of 16 MB in chunks of 16,000 bytes": half_chunked_bodies,
    "HTTP/1.1: 150 half frames of 2 MiB to S2 sessions": half_sessions,
    "HTTP/1.1: 3,000 half heads of 72 KiB": half_heads,
    "P2P: 3,000 half packets of 120 KB": small_halves,
    "HTTP/1.1: 100 times five unread GETs of 4 MiB": pipelined_gets,
    "HTTP/1.1: 150 long polls answered with 4 MiB of JSON": long_polls,
    "HTTP/1.1: 100 unread SSE readers": event_readers,
    "HTTP/1.1: 100 unread SSE readers of S2": s2_event_readers,
    "HTTP/1.1: 100 times five unread S2 reads": s2_reads,
    "HTTP/2: 3 times 100 GETs of 4 MiB, window 0": window_of_0,
    "HTTP/2: 3 times 100 unread GETs of 4 MiB": window_of_all,
    "HTTP/2: 100 times 4 unread S2S sessions": s2s_sessions,
    "HTTP/2: 3,000 half header blocks of 64 KiB": half_header_blocks,
    "HTTP/2: 60 times 100 open requests with heads of 27 KB": open_heads,
    "HTTP/2: 60 times 100 heads of 27 KB by references": references,
    "HTTP/1.1: 100 unread SSE readers of a state": state_event_readers,
    "HTTP/2: 60 times 64 stalled uploads": stalled_uploads,
    "S3P over TLS: 100 times 20 unread READs of 4 MiB": s3p_reads,
    "RustLog: 60 times 20 unread Fetches of 8 MiB": fetches,
    "P2P: 150 consumers that do not read 4 MiB": unread_pushes,
    "P2P: 60 times 50 unread GETs of 4 MiB": unread_gets,
    "P2P: 100 times 64 unread reads of a stream": stream_reads,
    "P2P: 100 times 64 unread reads that may wait": waiting_stream_reads,
}


# The node, and its other clients.


class Outcome(msgspec.Struct):
    """Memory of the node in bytes: before the attack, its peak, and after the attackers left."""

    before: int = 0
    peak: int = 0
    after: int = 0
    closed: int = 0
    connections: int = 0
    served_s: float = 0.0
    """The seconds that the other clients waited, all together."""


def run(
    attack: Attack,
    budget_bytes: int = BUDGET_BYTES,
    *,
    freed_s: float = FREED_S,
    kept_bytes: int = KEPT_BYTES,
) -> Outcome:
    """Attack a node of its own, serve others meanwhile, and measure; in the end for at most
    `freed_s`, until no more than `kept_bytes` are left."""
    outcome = Outcome()
    with _node(budget_bytes) as node, ExitStack() as stack:
        ports = Ports(*(node.port(name) for name in Ports.__struct_fields__))
        _fill(ports)
        pid = node.process.pid
        outcome.before = _memory(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
        lines = attack(ports)
        outcome.connections = len(lines)
        for line in lines:
            stack.callback(line.socket.close)
        pump(lines)
        began = time.monotonic()
        _use(ports)
        outcome.served_s = time.monotonic() - began
        _rest(pid)
        outcome.peak = _memory(pid, "VmHWM")
        outcome.closed = _metric(ports, "millpond_memory_closed_total")
        stack.close()
        ends_at = time.monotonic() + freed_s
        while time.monotonic() < ends_at:
            outcome.after = _memory(pid, "VmRSS")
            if outcome.after < outcome.before + kept_bytes:
                break
            time.sleep(0.1)
        _use(ports)
    return outcome


@contextmanager
def _node(budget_bytes: int) -> Iterator[Serving]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, DESCRIPTORS)), hard))
    settings = {
        "MILLPOND_HTTP": "127.0.0.1:0",
        "MILLPOND_S3P": "127.0.0.1:0",
        "MILLPOND_RUSTLOG": "127.0.0.1:0",
        "MILLPOND_PACKET_BYTES_MAX": str(PACKET_BYTES + 100),
        "MILLPOND_CONNECTIONS_BEFORE_READY_MAX": "10000",
        "MILLPOND_MEMORY_BYTES_MAX": str(budget_bytes),
        "MILLPOND_TLS_LISTENERS": "s3p",
        "MILLPOND_STREAM_SHELF_BYTES_MAX": str(8 * MIB),
        # The budget does not cover what is stored in memory.
        "MILLPOND_NODE_MESSAGES_MAX": str(STORED_MAX),
        "MILLPOND_NODE_KEYS_MAX": str(STORED_MAX),
    }
    if os.environ.get("NO_BUDGET"):
        del settings["MILLPOND_MEMORY_BYTES_MAX"]
    with tempfile.TemporaryDirectory() as folder:
        pair = make_certificate("node", ["127.0.0.1"], 30, time.time())
        path = Path(folder, "node.pem")
        path.touch(0o600)
        path.write_bytes(pair.key + pair.certificate)
        settings["MILLPOND_TLS_CERT"] = str(path)
        # In a session of its own it is no fork of a process that has imported more than a node.
        options = {"env": environment(**settings), "start_new_session": True}
        with serving("--http", "127.0.0.1:0", **options) as node:
            yield node


def _fill(ports: Ports) -> None:
    http(ports.http, "PUT", "/v1/stream/big", b"", "text/plain")
    for _ in range(BIG_BYTES // 2**18):
        http(ports.http, "POST", "/v1/stream/big", ZEROS[: 2**18], "text/plain")
    http(ports.http, "PUT", "/v1/stream/small", b"", "text/plain")
    http(ports.http, "PUT", "/v1/stream/other", b"", "text/plain")
    http(ports.http, "POST", "/v1/stream/other", b"x", "text/plain")


def _use(ports: Ports) -> None:
    """Use every listener as any other client does. Raises OSError or AssertionError."""
    assert http(ports.http, "GET", "/v1/stream/other", b"").startswith(b"HTTP/1.1 200")
    http(ports.http, "POST", "/v1/stream/other", b"y", "text/plain")
    assert http(ports.http, "GET", "/v1/stream/big", b"")[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 503")
    with socket.create_connection(("127.0.0.1", ports.p2p), ANSWER_S) as client:
        put = b"\x06" + p.u32(7) + bytes(4) + b"hello"
        client.sendall(_hello(b"other") + _framed(put))
        assert client.recv(4096)
    with (
        socket.create_connection(("127.0.0.1", ports.s3p), ANSWER_S) as plain,
        _client_context().wrap_socket(plain) as client,
    ):
        client.sendall(b"*4\r\n$6\r\nAPPEND\r\n$5\r\nsmall\r\n*0\r\n*1\r\n$1\r\nx\r\n")
        assert client.recv(4096)
    with socket.create_connection(("127.0.0.1", ports.rustlog), ANSWER_S) as client:
        client.sendall(_framed(b'{"type":"Ping"}'))
        assert b"Pong" in client.recv(4096)


def http(port: int, method: str, path: str, body: bytes, kind: str = "text/plain") -> bytes:
    """The whole answer to one request on a connection of its own."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += f"content-type: {kind}\r\n"
    pieces: list[bytes] = []
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as client:
            client.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
            while piece := client.recv(2**20):
                pieces.append(piece)
    except OSError as exc:
        exc.add_note(f"{method} {path}: {sum(map(len, pieces))} bytes of the answer came")
        raise
    return b"".join(pieces)


def _rest(pid: int) -> None:
    """Wait until the node has read what it was sent, which may take longer than its other
    clients wait."""
    ends_at, before = time.monotonic() + REST_S, _cpu_s(pid)
    while time.monotonic() < ends_at:
        time.sleep(QUIET_S / 2)
        now = _cpu_s(pid)
        if now - before < QUIET_S / 20:
            return
        before = now


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def _metric(ports: Ports, name: str) -> int:
    for line in http(ports.http, "GET", "/metrics", b"").decode().splitlines():
        if line.startswith(name):
            return int(float(line.split()[-1]))
    return 0


def main() -> None:
    from tests.attacks.table import ALL  # which imports this module

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", type=int, default=BUDGET_BYTES // MIB, help="MiB")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    given = parser.parse_args()
    print(f"| attack, memory_bytes_max {given.budget} MiB | RSS before | peak | after | closed |")
    print("| --- | --- | --- | --- | --- |")
    for name, attack in ALL.items():
        if given.only in name:
            try:
                found = run(attack, given.budget * MIB)
            except (OSError, AssertionError) as exc:
                traceback.print_exc()
                print(f"| {name} | failed: {exc!r} |", flush=True)
                continue
            sizes = [f"{size // MIB} MiB" for size in (found.before, found.peak, found.after)]
            print(
                f"| {name} | {' | '.join(sizes)} | {found.closed} | {found.served_s:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
