"""Attacks that are the same on every listener, with the requests of each: connections that stay,
requests behind each other, one that is too long, and one of very many small parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millpond.transports.p2p.streams.operations import Operation
from tests.attacks.memory import (
    MIB,
    PACKET_BYTES,
    ZEROS,
    Attack,
    Line,
    Ports,
    SecureLine,
    _framed,
    _hello,
    _http2_client,
    _http2_head,
    http,
    pump,
    read_all,
)
from tests.conformance import packets as p

HUGE_BYTES = 64 * MIB
"""More than any request may have."""
HUGE = [ZEROS] * (HUGE_BYTES // len(ZEROS))
PIPELINED_BYTES = MIB
CONNECTIONS = 3000
SECURE_CONNECTIONS = 1000
STREAMS = {p.EXTENSIONS: b"\x92\x93"}
UPGRADE = (
    b"GET /v1/channels/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
)


Part = bytes | Callable[[], bytes]
"""Bytes to send. All that are long together take much memory: they are made when they are sent."""


def _lines(count: int, *parts: Part, port: str) -> Attack:
    """So many connections that send the same, and read nothing."""

    def attack(ports: Ports) -> list[Line]:
        kind = SecureLine if port == "s3p" else Line
        made = _made(parts)
        return [kind(getattr(ports, port), *made, receive_bytes=4096) for _ in range(count)]

    return attack


def _made(parts: Sequence[Part]) -> list[bytes]:
    return [each if isinstance(each, bytes) else each() for each in parts]


def _repeated(request: bytes) -> bytes:
    return request * (PIPELINED_BYTES // len(request))


# P2P. A message of a WebSocket has a mask of zeros.


def _half_read(attack: Attack) -> Attack:
    """The same, but every second connection reads its answers."""

    def prepared(ports: Ports) -> list[Line]:
        lines = attack(ports)
        read_all(lines[::2])
        return lines

    return prepared


def _small_puts(framed: Callable[[bytes], bytes]) -> bytes:
    """PUTs of a byte, each under an idempotency key of its own."""
    count = PIPELINED_BYTES // len(framed(p.put(1, b"x")))
    return b"".join([framed(p.put(key, b"x")) for key in range(1, count + 1)])


def _puts_to_channels(ports: Ports) -> list[Line]:
    puts = _small_puts(_framed)
    return [
        Line(ports.p2p, _hello(b"chat/%d" % number), puts, receive_bytes=4096)
        for number in range(60)
    ]


def _message(packet: bytes, first: int = 0x82) -> bytes:
    size = len(packet)
    if size < 126:
        return bytes((first, 0x80 | size)) + bytes(4) + packet
    if size < 2**16:
        return bytes((first, 0xFE)) + p.u16(size) + bytes(4) + packet
    return bytes((first, 0xFF)) + p.u64(size) + bytes(4) + packet


def _tcp(count: int, *parts: Part, tags: p.Tags | None = None) -> Attack:
    return _lines(count, _hello(b"chat", tags), *parts, port="p2p")


def _websocket(count: int, *parts: Part, tags: p.Tags | None = None) -> Attack:
    def attack(ports: Ports) -> list[Line]:
        made = [_message(p.hello(b"chat", tags)), *_made(parts)]
        lines = [Line(ports.ws, UPGRADE, receive_bytes=4096) for _ in range(count)]
        pump(lines)
        for line in lines:
            line.socket.setblocking(True)
            assert b" 101 " in line.socket.recv(4096)
            line.socket.setblocking(False)
            line._parts = [memoryview(each) for each in made]
        return lines

    return attack


def _stream_packet(operation: Operation, fields: dict[str, object]) -> bytes:
    return p.stream(1, operation, msgspec.msgpack.encode({"stream": b"small", **fields}))


def _tiny_bodies() -> bytes:
    """An append of two million records of two bytes."""
    return _stream_packet(Operation.APPEND, {"bodies": [b"xy"] * ((PACKET_BYTES - 100) // 4)})


def _tiny_headers() -> bytes:
    """An append of eight million lists of headers without one."""
    headers: list[list[object]] = [[]] * (PACKET_BYTES - 100)
    return _stream_packet(Operation.APPEND, {"bodies": [b"x"], "headers": headers})


def _stream_reads(ports: Ports) -> list[Line]:
    fields = {"bytes_max": MIB, "count": 1000, "stream": b"big"}
    body = msgspec.msgpack.encode(fields)
    reads = [_message(p.stream(number, Operation.READ, body)) for number in range(1, 65)]
    return _websocket(100, b"".join(reads), tags=STREAMS)(ports)


# S3P and RustLog.


def _append(*records: bytes, count: int = 0) -> bytes:
    head = b"*4\r\n$6\r\nAPPEND\r\n$5\r\nsmall\r\n*0\r\n*%d\r\n" % (count or len(records))
    return head + b"".join([b"$%d\r\n%b\r\n" % (len(each), each) for each in records])


def _json_frame(text: str) -> bytes:
    return _framed(text.encode())


def _tiny_records(size_max: int) -> bytes:
    head = '{"type":"Produce","topic":"small","partition":0,"records":['
    count = (size_max - len(head) - 100) // 7
    return _json_frame(head + ",".join(['"eHk="'] * count) + "]}")


def _tiny_ignored(size_max: int) -> bytes:
    head = '{"type":"Ping","x":['
    return _json_frame(head + ",".join(["[]"] * ((size_max - len(head) - 100) // 3)) + "]}")


def _tiny_fields(size_max: int) -> bytes:
    head = '{"type":"Ping"'
    fields = [f',"{number:06x}":0' for number in range((size_max - len(head) - 100) // 11)]
    return _json_frame(head + "".join(fields) + "}")


FRAME_BYTES = 10 * MIB
PRODUCE = _json_frame('{"type":"Produce","topic":"small","partition":0,"records":["eHk="]}')
METRICS = _json_frame('{"type":"MetricsFetch"}')


# HTTP/1.1.

BASIN = "s2-basin: millpond\r\n"
JSON = "content-type: application/json\r\n"


def _request(method: str, path: str, headers: str = "", body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}"
    if body or method != "GET":
        head += f"content-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _http(count: int, *parts: Part) -> Attack:
    return _lines(count, *parts, port="http")


def _half(method: str, path: str, headers: str, size: int) -> Attack:
    """Bodies of so many bytes, without their last ones."""
    head = _request(method, path, headers + f"content-length: {size}\r\n")
    head = head.replace(b"content-length: 0\r\n", b"")
    return _http(60, head, ZEROS[: size - 100])


def _huge(method: str, path: str, headers: str) -> Attack:
    """Bodies that do not say how long they are, and do not end."""
    head = _request(method, path, headers + "transfer-encoding: chunked\r\n")
    head = head.replace(b"content-length: 0\r\n", b"") + b"%x\r\n" % HUGE_BYTES
    return _http(60, head, *HUGE)


def _tiny(item: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """JSON of so many bytes with as many small items as there can be."""
    count = (size - len(before) - len(after) - 2) // (len(item) + 1)
    return before + b",".join([item] * count) + after


BODY_BYTES = 16 * MIB
S2_BYTES = 8 * MIB
APPEND, TRANSACTION = "/v1/streams/small/records", "/millpond/v1/transactions/small/w/1"


def _http_attacks(
    name: str,
    method: str,
    path: str,
    headers: str,
    half_bytes: int,
    tiny: Sequence[Callable[[], bytes]],
    small: bytes,
    unread: bytes,
) -> dict[str, Attack]:
    """The attacks on one API over HTTP/1.1."""

    def tiny_requests() -> bytes:
        return b"".join([_request(method, path, headers, make()) for make in tiny])

    halves = f"{half_bytes // MIB} MiB" if half_bytes >= MIB else f"{half_bytes // 2**10} KiB"
    return {
        f"{name}: 60 half bodies of {halves}": _half(method, path, headers, half_bytes),
        f"{name}: 60 times 1 MiB of requests whose answers are not read": _http(
            60, _repeated(unread)
        ),
        f"{name}: 3,000 connections": _http(CONNECTIONS, small),
        f"{name}: 60 times 1 MiB of small requests": _http(60, _repeated(small)),
        f"{name}: 60 bodies of 64 MiB": _huge(method, path, headers),
        f"{name}: 60 bodies of tiny items": _http(60, tiny_requests),
    }


S2_SMALL = _request("GET", f"{APPEND}/tail", BASIN)
DURABLE_SMALL = _request("GET", "/v1/stream/other")
STATE_SMALL = _request("GET", "/millpond/state/small?key=x")
PLAN_SMALL = _request("POST", TRANSACTION, BASIN + JSON, b'{"parts":[]}')
BASINS_SMALL = _request("GET", "/v1/basins?limit=1")
METRICS_SMALL = _request("GET", "/metrics")


def _with_basins(attack: Attack) -> Attack:
    """After many basins were made, so that lists of them are long."""

    def prepared(ports: Ports) -> list[Line]:
        for number in range(300):
            body = b'{"basin":"attack-%04d"}' % number
            http(ports.http, "POST", "/v1/basins", body, "application/json")
        return attack(ports)

    return prepared


def _with_state(attack: Attack) -> Attack:
    def prepared(ports: Ports) -> list[Line]:
        http(ports.http, "PUT", "/millpond/state/small", b"")
        return attack(ports)

    return prepared


# HTTP/2.


def _http2(
    count: int,
    requests: int,
    path: str,
    headers: dict[str, str],
    *,
    data: Sequence[bytes] = (),
    method: str = "GET",
    receive_bytes: int = 4096,
) -> Attack:
    """Connections with so many requests, and frames of DATA on the first one of each."""
    client = _http2_client(2**31 - 1)
    for _ in range(requests):
        number = client.get_next_available_stream_id()
        head = _http2_head(method, path, headers)
        client.send_headers(number, head, end_stream=not data)
    frames = [len(each).to_bytes(3, "big") + b"\0\0" + p.u32(1) + each for each in data]
    return _lines(count, client.data_to_send(), *frames, port="http")


def _http2_repeated(path: str, headers: dict[str, str]) -> Attack:
    """Heads of small requests, one behind the other, beyond the streams that may be open."""
    client = _http2_client(2**31 - 1)
    sent = [client.data_to_send()]
    client.send_headers(1, _http2_head("GET", path, headers), end_stream=True)
    block = client.data_to_send()[9:]
    client.send_headers(3, _http2_head("GET", path, headers), end_stream=True)
    again = client.data_to_send()[9:]
    for number in range(1, 20_001, 2):
        payload = block if number == 1 else again
        sent.append(len(payload).to_bytes(3, "big") + b"\x01\x05" + p.u32(number) + payload)
    return _lines(60, b"".join(sent), port="http")


S2_HEADERS = {"s2-basin": "millpond"}
S2_TAIL = f"{APPEND}/tail"

# A secret of the page that does not exist; the answers are short, and each ends its connection.
PAGE = b"GET /chat HTTP/1.1\r\nHost: localhost\r\n\r\n"
LOGIN = b"POST /chat/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


MORE: dict[str, Attack] = {
    "P2P: 3,000 connections": _tcp(CONNECTIONS),
    "P2P: 60 times 1 MiB of PINGs": _tcp(60, _repeated(_framed(p.PING))),
    "P2P: 60 times 1 MiB of small PUTs, half of the answers read": _half_read(
        _tcp(60, lambda: _small_puts(_framed))
    ),
    "P2P: 60 channels with 1 MiB of small PUTs, half of the answers read": _half_read(
        _puts_to_channels
    ),
    "P2P: 60 packets of 64 MiB": _tcp(60, p.u32(HUGE_BYTES), *HUGE),
    "P2P: 60 appends of two million records": _tcp(
        60, lambda: _framed(_tiny_bodies()), tags=STREAMS
    ),
    "P2P: 60 appends of eight million empty headers": _tcp(
        60, lambda: _framed(_tiny_headers()), tags=STREAMS
    ),
    "WebSocket: 100 times 64 unread reads of a stream": _stream_reads,
    "WebSocket: 3,000 connections": _websocket(CONNECTIONS),
    "WebSocket: 60 times 1 MiB of PINGs": _websocket(60, _repeated(_message(p.PING))),
    "WebSocket: 60 times 1 MiB of small PUTs, half of the answers read": _half_read(
        _websocket(60, lambda: _small_puts(_message))
    ),
    "WebSocket: 60 messages of 64 MiB": _websocket(
        60, b"\x82\xff" + p.u64(HUGE_BYTES) + bytes(4), *HUGE
    ),
    "WebSocket: 60 appends of two million records": _websocket(
        60, lambda: _message(_tiny_bodies()), tags=STREAMS
    ),
    "WebSocket: 60 messages in fragments of a byte": _websocket(
        60, _message(b"\x06", 0x02), (_message(b"x", 0) * 40_000)
    ),
    "S3P over TLS: 1,000 connections": _lines(SECURE_CONNECTIONS, _append(b"x"), port="s3p"),
    "S3P over TLS: 60 times 1 MiB of small APPENDs": _lines(
        60, _repeated(_append(b"x")), port="s3p"
    ),
    "S3P over TLS: 60 records of 64 MiB": _lines(
        60, _append(count=1) + b"$%d\r\n" % HUGE_BYTES, *HUGE, port="s3p"
    ),
    "S3P over TLS: 60 APPENDs of a million records": _lines(
        60, lambda: _append(*([b"xy"] * 1_000_000)), port="s3p"
    ),
    "RustLog: 3,000 connections": _lines(
        CONNECTIONS, _json_frame('{"type":"Ping"}'), port="rustlog"
    ),
    "RustLog: 60 times 1 MiB of unread metrics": _lines(60, _repeated(METRICS), port="rustlog"),
    "RustLog: 60 times 1 MiB of small Produces, half of the answers read": _half_read(
        _lines(60, _repeated(PRODUCE), port="rustlog")
    ),
    "RustLog: 60 times 1 MiB of Pings, half of the answers read": _half_read(
        _lines(60, _repeated(_json_frame('{"type":"Ping"}')), port="rustlog")
    ),
    "RustLog: 60 frames of 64 MiB": _lines(60, p.u32(HUGE_BYTES), *HUGE, port="rustlog"),
    "RustLog: 60 Produces of a million records": _lines(
        60, lambda: _tiny_records(FRAME_BYTES), port="rustlog"
    ),
    "RustLog: 60 frames of 900,000 fields": _lines(
        60, lambda: _tiny_fields(FRAME_BYTES), port="rustlog"
    ),
    "RustLog: 60 frames of three million ignored items": _lines(
        60, lambda: _tiny_ignored(FRAME_BYTES), port="rustlog"
    ),
    **_http_attacks(
        "S2 over HTTP/1.1",
        "POST",
        APPEND,
        BASIN + JSON,
        S2_BYTES,
        [
            partial(_tiny, b'{"body":"x"}', S2_BYTES, b'{"records":[', b"]}"),
            partial(_tiny, b'["",""]', S2_BYTES, b'{"records":[{"body":"","headers":[', b"]}]}"),
            partial(_tiny, b"[]", S2_BYTES, b'{"x":[', b'],"records":[{}]}'),
        ],
        S2_SMALL,
        _request("GET", f"{APPEND}?seq_num=0".replace("small", "big"), BASIN),
    ),
    "S2 over HTTP/2: 3,000 connections": _http2(CONNECTIONS, 1, S2_TAIL, S2_HEADERS),
    "S2 over HTTP/2: 60 times 10,000 small requests": _http2_repeated(S2_TAIL, S2_HEADERS),
    "S2 over HTTP/2: 60 bodies of 64 MiB": _http2(
        60, 1, APPEND, S2_HEADERS, method="POST", data=[ZEROS[: 2**14]] * 4096
    ),
    "S2 over HTTP/2: 60 bodies in frames of a byte": _http2(
        60, 1, APPEND, S2_HEADERS, method="POST", data=[b"x" * 1] * 40_000
    ),
    **_http_attacks(
        "Durable Streams",
        "POST",
        "/v1/stream/json",
        JSON,
        BODY_BYTES,
        [
            partial(_tiny, b"0", BODY_BYTES),
            partial(_tiny, b"[]", BODY_BYTES, b"[[", b"]]"),
        ],
        DURABLE_SMALL,
        _request("GET", "/v1/stream/big"),
    ),
    **{
        name: _with_state(attack)
        for name, attack in _http_attacks(
            "State",
            "POST",
            "/millpond/state/small",
            JSON,
            MIB,
            [
                partial(_tiny, b"{}", MIB),
                partial(
                    _tiny,
                    b"[]",
                    MIB,
                    b'{"type":"t","key":"k","headers":{"operation":"insert"},"value":[',
                    b"]}",
                ),
                partial(_tiny, b'"":0', MIB, b'{"type":"t","key":"k","headers":{', b"}}"),
            ],
            STATE_SMALL,
            _request("GET", "/millpond/state/small"),
        ).items()
    },
    **_http_attacks(
        "Transactions",
        "POST",
        TRANSACTION,
        BASIN + JSON,
        MIB,
        [
            partial(_tiny, b'{"id":"p","rows":1}', MIB, b'{"parts":[', b"]}"),
            partial(_tiny, b"[]", MIB, b'{"x":[', b'],"parts":[]}'),
        ],
        PLAN_SMALL,
        PLAN_SMALL,
    ),
    "Transactions: 60 half parts of 16 MiB": _half(
        "PUT", f"{TRANSACTION}/p", BASIN + "content-type: application/protobuf\r\n", BODY_BYTES
    ),
    **{
        name: _with_basins(attack)
        for name, attack in _http_attacks(
            "Account plane",
            "POST",
            "/v1/basins",
            JSON,
            MIB,
            [partial(_tiny, b"[]", MIB, b'{"x":[', b'],"basin":"tiny-items"}')],
            BASINS_SMALL,
            _request("GET", "/v1/basins?limit=1000"),
        ).items()
    },
    **_http_attacks(
        "Metrics",
        "POST",
        "/metrics",
        JSON,
        BODY_BYTES,
        [partial(_tiny, b"[]", BODY_BYTES)],
        _request("GET", "/ready"),
        METRICS_SMALL,
    ),
    "Console: 3,000 half forms": _lines(CONNECTIONS, LOGIN % 1024, bytes(1000), port="ws"),
    "Console: 3,000 unread pages": _lines(CONNECTIONS, PAGE, port="ws"),
    "Console: 3,000 silent connections": _lines(CONNECTIONS, b"G", port="ws"),
    "Console: 60 times 1 MiB of pages": _lines(60, _repeated(PAGE), port="ws"),
    "Console: 60 forms of 64 MiB": _lines(60, LOGIN % HUGE_BYTES, *HUGE, port="ws"),
    "Console: 3,000 heads of tiny headers": _lines(
        CONNECTIONS, PAGE[:-2] + b"a:b\r\n" * 1600 + b"\r\n", port="ws"
    ),
}
