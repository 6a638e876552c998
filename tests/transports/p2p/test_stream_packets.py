"""Packets 0x92 and 0x93 on a recorded wire, with a real node behind it: order, ends, pressure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from millpond.transports.p2p.streams.operations import Operation as Op
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig

pytestmark = pytest.mark.wire

EXTENSIONS = {p.EXTENSIONS: b"\x90\x91\x92\x93"}
WAIT_MS = 5000
UPGRADE = (
    b"GET /v1/channels/%s HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n"
)


def packet_of(number: int, operation: Op, **fields: Any) -> bytes:
    return p.stream(number, operation, msgspec.msgpack.encode({"stream": b"s", **fields}))


def answer_of(packet: bytes) -> tuple[int, int, dict[str, Any]]:
    assert packet[0] == 0x93, packet
    return int.from_bytes(packet[1:5], "big"), packet[5], msgspec.msgpack.decode(packet[6:])


def bodies(packet: bytes) -> list[bytes]:
    return [body for span in answer_of(packet)[2]["spans"] for body in span["bodies"]]


def line_with_stream(rig: Rig, **more: Any) -> RecordedConnection:
    line = rig.logged_in(tags=EXTENSIONS | more.get("tags", {}))
    assert answer_of(line.ask(packet_of(0, Op.CREATE))[0]) == (0, Op.CREATE, {})
    return line


def waiting(line: RecordedConnection) -> int:
    (answer,) = line.ask(packet_of(999, Op.DESCRIBE))
    return int(answer_of(answer)[2]["waiting"])


def test_requests_of_one_read_are_carried_out_in_order_and_answered_in_one_write() -> None:
    line = line_with_stream(Rig())
    answers = line.ask(
        packet_of(1, Op.APPEND, bodies=[b"a"]),
        p.put(7, b"hi"),
        packet_of(2, Op.APPEND, bodies=[b"b", b"c"], match=1),
        packet_of(3, Op.READ),
        packet_of(4, Op.APPEND, bodies=[b"d"], match=1),
        p.PING,
    )
    replies = {packet[1:5]: packet for packet in answers if packet[0] == 0x93}
    assert answer_of(replies[p.u32(1)])[2]["first"] == 0
    assert answer_of(replies[p.u32(2)])[2]["first"] == 1
    assert bodies(replies[p.u32(3)]) == [b"a", b"b", b"c"]
    assert p.nack(0x92, 0x44, p.u32(4)) in answers
    assert p.PONG in answers and any(packet[0] == 7 for packet in answers)


def test_packets_that_were_not_negotiated_are_dropped() -> None:
    """P2P-26."""
    line = Rig().logged_in(tags={p.EXTENSIONS: b"\x90\x91"})
    assert line.ask(packet_of(1, Op.CREATE), p.PING) == [p.PONG]


def test_a_malformed_request_is_refused_with_what_it_has() -> None:
    """PA-23, PS-12."""
    line = line_with_stream(Rig())
    assert line.ask(b"\x92" + p.u32(7)) == [p.nack(0x92, 0xF0, p.u32(7))]
    assert line.ask(p.stream(7, 99, b"\x80")) == [p.nack(0x92, 0xF0, p.u32(7))]
    assert line.ask(b"\x93" + p.u32(7) + b"\x01\x80", p.PING) == [p.PONG]


def test_a_waiting_read_is_answered_by_an_append_and_by_its_time() -> None:
    rig = Rig()
    line, other = line_with_stream(rig), rig.logged_in(tags=EXTENSIONS)
    assert (
        line.ask(packet_of(1, Op.READ, wait_ms=WAIT_MS), packet_of(2, Op.READ, wait_ms=2 * WAIT_MS))
        == []
    )
    assert waiting(other) == 2
    rig.advance(WAIT_MS / 1000 + 0.01)
    (first,) = line.take_packets()
    assert answer_of(first)[0] == 1 and bodies(first) == []
    other.ask(packet_of(1, Op.APPEND, bodies=[b"x"]))
    (second,) = line.take_packets()
    assert answer_of(second)[0] == 2 and bodies(second) == [b"x"]


@pytest.mark.parametrize("end", ["eof", "goodbye"])
def test_after_a_half_close_requests_are_answered_and_reads_stop_waiting(end: str) -> None:
    rig = Rig()
    line, other = line_with_stream(rig), rig.logged_in(tags=EXTENSIONS)
    line.connection.received(
        p.framed(
            packet_of(1, Op.READ, wait_ms=WAIT_MS),
            packet_of(2, Op.READ, sequence=1, wait_ms=WAIT_MS),
            packet_of(3, Op.APPEND, bodies=[b"x"]),
            *([p.GOODBYE] if end == "goodbye" else []),
        )
    )
    if end == "eof":
        line.eof()
    rig.settle()
    answers = [answer_of(packet) for packet in line.take_packets()]
    assert sorted(number for number, _, _ in answers) == [1, 3] and line.wire.closed
    line.end()
    assert waiting(other) == 0


def test_with_a_connection_its_reads_end() -> None:
    rig = Rig()
    line, other = line_with_stream(rig), rig.logged_in(tags=EXTENSIONS)
    line.say(*(packet_of(number, Op.READ, wait_ms=WAIT_MS) for number in range(1, 11)))
    assert waiting(other) == 10
    line.end()
    assert waiting(other) == 0
    other.ask(packet_of(1, Op.APPEND, bodies=[b"x"]))
    assert line.take_packets() == []


def test_a_cancelled_read_is_not_answered_and_its_place_is_free() -> None:
    line = line_with_stream(Rig())
    line.say(*(packet_of(number, Op.READ, wait_ms=WAIT_MS) for number in range(1, 65)))
    assert line.ask(packet_of(65, Op.DESCRIBE)) == [p.nack(0x92, 0x26, p.u32(65))]
    assert line.ask(p.stream(1, Op.CANCEL, b"")) == []
    assert waiting(line) == 63
    answers = line.ask(packet_of(66, Op.APPEND, bodies=[b"x"]))
    assert sorted(answer_of(packet)[0] for packet in answers) == [*range(2, 65), 66]


def test_an_answer_larger_than_the_packets_of_the_other_end_comes_in_parts() -> None:
    rig = Rig()
    line_with_stream(rig).ask(packet_of(1, Op.APPEND, bodies=[bytes(range(256)) * 20]))
    small = rig.logged_in(tags=EXTENSIONS | {p.PACKET_MAX: p.u32(1024)})
    parts = small.ask(packet_of(2, Op.READ))
    assert len(parts) == 6 and all(len(part) <= 1024 for part in parts)
    assert [part[5] for part in parts] == [0x83] * 5 + [3]
    whole = parts[-1][:6] + b"".join(part[6:] for part in parts)
    assert bodies(whole) == [bytes(range(256)) * 20]


def test_a_client_that_does_not_read_its_answers_is_read_no_further() -> None:
    """Backpressure: answers wait, and further requests wait in the other end's socket."""
    rig = Rig()
    line = line_with_stream(rig)
    for _ in range(4):
        line.ask(packet_of(1, Op.APPEND, bodies=[bytes(500_000)]))
    line.wire.reads = False
    for number in range(10):
        if not line.wire.paused:
            line.say(packet_of(number, Op.READ, bytes_max=2**20))
    assert line.wire.paused and line.wire.unsent_bytes < 8 * 2**20
    line.wire.reads = True
    line.read()
    assert not line.wire.paused


def test_a_crash_of_the_stream_is_reported_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_with_stream(Rig())
    assert line.ask(packet_of(1, Op.READ, wait_ms=WAIT_MS)) == []

    def fail(*args: object) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr("millpond.actors.streams.stream.Stream.handle", fail)
        answers = line.ask(packet_of(2, Op.APPEND, bodies=[b"x"]))
    refused = [p.nack(0x92, 0xFE, p.u32(number)) for number in (1, 2)]
    assert sorted(answers) == refused


@pytest.mark.parametrize("name", [b"\0", b"\0topics", b"\0stream\0s"])
def test_no_channel_is_a_streams_cell(name: bytes) -> None:
    rig = Rig()
    line_with_stream(rig)
    refused = [p.nack(0x80, 0xF0), p.ABORT]
    assert rig.connect().ask(p.hello(name, EXTENSIONS)) == refused
    web = rig.connect_websocket()
    web.feed(UPGRADE % name.replace(b"\0", b"%00"))
    web.feed(Frame(Opcode.BINARY, p.hello(name)).serialize(mask=True))
    assert web.wire.is_over and not any(packet[0] == 0x83 for packet in web.take_packets())
