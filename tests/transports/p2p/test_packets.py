"""P2P packets, both ways: the worked bytes of docs/reference/wire-protocol.md, and every layout
that is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.actors.messages import (
    Ack,
    Credit,
    Get,
    GetAck,
    List,
    ListAck,
    Msg,
    Nack,
    NackReason,
    Put,
    PutAck,
    Touch,
    TouchAck,
)
from millpond.transports.errors import MalformedPacket
from millpond.transports.p2p import packets as p

pytestmark = pytest.mark.wire

ID = 0x1BA3CA3A0FC05007
MOMENT = 0x0000019AA3B5EC00

BOTH_WAYS = [
    ("P2P-06 PUT", "06 0a0b0c0d 0000003c 6869", Put(0x0A0B0C0D, 60, b"hi")),
    ("P2P-06 PUT key 1", "06 00000001 0000003c 6869", Put(1, 60, b"hi")),
    ("P2P-20 PUT of nothing", "06 00000001 0000003c", Put(1, 60, b"")),
    ("P2P-06 PUT_ACK", "07 0a0b0c0d 0000003c 1ba3ca3a0fc05007", PutAck(0x0A0B0C0D, 60, ID)),
    ("P2P-09 MSG", "02 1ba3ca3a0fc05007 6869", Msg(ID, 1, b"hi")),
    ("P2P-20 MSG of nothing", "02 1ba3ca3a0fc05007", Msg(ID, 1, b"")),
    ("P2P-11 GET_ACK", "05 1ba3ca3a0fc05007 6869", GetAck(ID, b"hi")),
    ("P2P-09 MSG_ACK", "03 1ba3ca3a0fc05007", Ack(ID)),
    ("P2P-11 GET", "04 1ba3ca3a0fc05007", Get(ID)),
    ("P2P-13 LIST all", "08 0000 0000000000000000 0000000000000000", List(0, 0, 0)),
    ("P2P-13 LIST to the end", "08 0000 0000000000000000 ffffffffffffffff", List(0, 0, 2**64 - 1)),
    ("PA-04 LIST newest", "08 ffff ffffffffffffffff 0000000000000001", List(65535, 2**64 - 1, 1)),
    ("P2P-13 LIST_ACK", "09 1ba3ca3a0fc05007", ListAck([ID])),
    ("P2P-13 LIST_ACK two", "09 0000000000000001 1ba3ca3a0fc05007", ListAck([1, ID])),
    ("P2P-13 LIST_ACK none", "09", ListAck([])),
    ("P2P-12 NACK GET", "ff 04 02 000000000000002a", p.Refused(4, 2, bytes(7) + b"\x2a")),
    ("PA-10 NACK PUT", "ff 06 22 0a0b0c0d", p.Refused(6, 0x22, bytes.fromhex("0a0b0c0d"))),
    ("P2P-21 NACK bare", "ff 08 21", p.Refused(8, 0x21)),
    ("PA-25 NACK ff, other code", "ff ff 05", p.Refused(0xFF, 5)),
    ("3b NACK HELLO", "ff 80 f5", p.Refused(0x80, 0xF5)),
    (
        "PA-37 NACK MSG later",
        "ff 02 30 1ba3ca3a0fc05007 00001388",
        Nack(ID, NackReason.LATER, 5000),
    ),
    ("PA-37 NACK MSG later, unsaid", "ff 02 30 1ba3ca3a0fc05007", Nack(ID, NackReason.LATER)),
    ("3d NACK MSG reject", "ff 02 31 1ba3ca3a0fc05007", Nack(ID, NackReason.REJECT)),
    ("3c NACK MSG busy", "ff 02 32 1ba3ca3a0fc05007", Nack(ID, NackReason.BUSY)),
    ("3e NACK MSG undecryptable", "ff 02 33 1ba3ca3a0fc05007", Nack(ID, NackReason.CANNOT_DECRYPT)),
    ("3c NACK MSG otherwise", "ff 02 fe 1ba3ca3a0fc05007", Nack(ID, NackReason.OTHER)),
    ("P2P-04 PING", "00", p.Ping()),
    ("P2P-05 PING t", "00 0000019aa3b5ec00", p.Ping(MOMENT)),
    ("P2P-04 PONG", "01", p.Pong()),
    ("P2P-05 PONG", "01 0000019aa3b5ec00" + "0" * 32, p.Pong((MOMENT, 0, 0))),
    ("P2P-17 goodbye", "ff ff 00", p.Close(goodbye=True)),
    ("P2P-17 abort", "ff ff ff", p.Close(goodbye=False)),
    ("PS-03 CREDIT", "84 0020", Credit(32)),
    ("3d TOUCH", "86 1ba3ca3a0fc05007 00007530", Touch(ID, 30_000)),
    ("3d TOUCH_ACK", "87 1ba3ca3a0fc05007 00007530", TouchAck(ID, 30_000)),
    ("3g ADMIN", "90 00000007 02 81", p.Admin(7, 2, b"\x81")),
    ("3g ADMIN_REPLY", "91 00000007 02", p.AdminReply(7, 2, b"")),
    ("3g STREAM", "92 00000007 03 80", p.Stream(7, 3, b"\x80")),
    ("3g STREAM_REPLY", "93 00000007 83 81", p.StreamReply(7, 3 | p.MORE, b"\x81")),
    ("3b READY", "83 01", p.Handshake(0x83, b"\x83\x01")),
    ("3b CHALLENGE", "81 01", p.Handshake(0x81, b"\x81\x01")),
    ("3b AUTH", "82", p.Handshake(0x82, b"\x82")),
    ("P2P-19 reserved", "0a", p.Unknown(0x0A)),
]

ONE_WAY = [
    ("MSGX", "88 1ba3ca3a0fc05007 0003 6869", Msg(ID, 3, b"hi")),
    ("MSGX of nothing", "88 1ba3ca3a0fc05007 ffff", Msg(ID, 65535, b"")),
    ("MSGX given back", "ff 88 31 1ba3ca3a0fc05007", Nack(ID, NackReason.REJECT)),
    ("another reason", "ff 02 77 1ba3ca3a0fc05007", Nack(ID, NackReason.OTHER)),
    ("a reason with more to say", "ff 02 31 1ba3ca3a0fc05007 aa", Nack(ID, NackReason.REJECT)),
    ("no id to give back", "ff 02 31", p.Refused(2, 0x31)),
    ("half an id", "ff 02 31 1ba3ca3a", p.Refused(2, 0x31, bytes.fromhex("1ba3ca3a"))),
    ("goodbye with diagnostics", "ff ff 00 aabb", p.Close(goodbye=True)),
    ("abort with diagnostics", "ff ff ff 00", p.Close(goodbye=False)),
    ("PS-08 somebody's 80", "80 01 02 03", p.Unknown(0x80)),
    ("PS-08 nearly P2PB", "80 503250", p.Unknown(0x80)),
    ("P2P-19 reserved, with a body", "7e 01", p.Unknown(0x7E)),
    ("P2P-19 unknown extension", "fe 01 02", p.Unknown(0xFE)),
    ("P2P-19 unassigned extension", "85", p.Unknown(0x85)),
]

MALFORMED = [
    ("PA-29 PING", "00 00", 0x00, ""),
    ("PING of 7", "00" + "00" * 7, 0x00, ""),
    ("PING of 9", "00" + "00" * 9, 0x00, ""),
    ("PONG", "01 00", 0x01, ""),
    ("PONG of 23", "01" + "00" * 23, 0x01, ""),
    ("PONG of 25", "01" + "00" * 25, 0x01, ""),
    ("MSG", "02 1ba3ca3a0fc050", 0x02, "1ba3ca3a0fc050"),
    ("MSG bare", "02", 0x02, ""),
    ("MSG_ACK short", "03 1ba3ca3a0fc050", 0x03, "1ba3ca3a0fc050"),
    ("MSG_ACK long", "03 1ba3ca3a0fc05007 00", 0x03, "1ba3ca3a0fc05007"),
    ("PS-12 GET short", "04 1ba3", 0x04, "1ba3"),
    ("GET long", "04 1ba3ca3a0fc05007 00", 0x04, "1ba3ca3a0fc05007"),
    ("GET_ACK", "05 00", 0x05, "00"),
    ("PS-12 PUT without ttl", "06 0a0b0c0d", 0x06, "0a0b0c0d"),
    ("PUT of half a ttl", "06 0a0b0c0d 0000", 0x06, "0a0b0c0d"),
    ("PS-12 PUT of half a key", "06 0a0b", 0x06, "0a0b"),
    ("PUT bare", "06", 0x06, ""),
    ("PUT_ACK short", "07 0a0b0c0d 0000003c 1ba3ca3a0fc050", 0x07, "0a0b0c0d"),
    ("PUT_ACK long", "07 0a0b0c0d 0000003c 1ba3ca3a0fc0500700", 0x07, "0a0b0c0d"),
    ("LIST short", "08" + "00" * 17, 0x08, ""),
    ("LIST long", "08" + "00" * 19, 0x08, ""),
    ("LIST_ACK", "09" + "00" * 9, 0x09, ""),
    ("CREDIT short", "84 20", 0x84, ""),
    ("CREDIT long", "84 000020", 0x84, ""),
    ("TOUCH", "86 1ba3ca3a0fc05007 000075", 0x86, "1ba3ca3a0fc05007"),
    ("TOUCH_ACK", "87 1ba3ca3a0fc05007 0000753000", 0x87, "1ba3ca3a0fc05007"),
    ("MSGX without attempts", "88 1ba3ca3a0fc05007 00", 0x88, "1ba3ca3a0fc05007"),
    ("ADMIN", "90 00000007", 0x90, "00000007"),
    ("ADMIN_REPLY", "91 000000", 0x91, "000000"),
    ("NACK bare", "ff", 0xFF, ""),
    ("NACK without a code", "ff ff", 0xFF, ""),
    ("NACK MSG, odd delay", "ff 02 30 1ba3ca3a0fc05007 0013", 0xFF, "1ba3ca3a0fc05007"),
    ("PA-24 nothing at all", "", 0xFF, ""),
]


def named(rows: list[tuple]) -> list:
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


@pytest.mark.parametrize(("wire", "value"), named(BOTH_WAYS))
def test_worked_bytes_in_both_directions(wire: str, value: p.Packet) -> None:
    raw = bytes.fromhex(wire)
    assert p.decode(raw) == value
    assert p.encode(value) == raw


@pytest.mark.parametrize(("wire", "value"), named(ONE_WAY))
def test_packets_that_are_read_but_written_differently(wire: str, value: p.Packet) -> None:
    assert p.decode(bytes.fromhex(wire)) == value


@pytest.mark.parametrize(("wire", "packet_type", "correlation"), named(MALFORMED))
def test_errors_of_malformed_packets_have_type_and_correlation(
    wire: str, packet_type: int, correlation: str
) -> None:
    """P2P-21, PA-23, PS-12."""
    with pytest.raises(MalformedPacket) as caught:
        p.decode(bytes.fromhex(wire))
    assert caught.value.packet_type == packet_type
    assert caught.value.correlation == bytes.fromhex(correlation)


def test_a_handshake_packet_is_handed_on_whole() -> None:
    """3b: HELLO of 3i."""
    raw = bytes.fromhex("80503250420101030100 06636861742f31".replace(" ", ""))
    assert p.decode(raw) == p.Handshake(p.HELLO, raw)


def test_msgx_has_the_attempt_up_to_two_bytes() -> None:
    """3d."""
    wire = bytes.fromhex("88 1ba3ca3a0fc05007 0003 6869")
    assert p.encode_msgx(Msg(ID, 3, b"hi")) == wire
    assert p.encode(Msg(ID, 3, b"hi")) == bytes.fromhex("02 1ba3ca3a0fc05007 6869")
    assert p.encode_msgx(Msg(ID, 70_000, b""))[9:] == b"\xff\xff"


@pytest.mark.parametrize(
    ("decode_run", "kind"), [(p.decode_puts, Put), (p.decode_acks, Ack)], ids=["puts", "acks"]
)
@pytest.mark.parametrize(
    "wires",
    [
        "",
        "06 0a0b0c0d 0000003c 6869|06 00000001 0000003c|06 00000002 00000000 00",
        "03 1ba3ca3a0fc05007|03 0000000000000000|03 ffffffffffffffff",
        "06 0a0b0c0d 0000003c 6869|03 1ba3ca3a0fc05007|06 0a0b0c0d 0000003c 6869",
        "03 1ba3ca3a0fc05007|06 0a0b0c0d 0000003c 6869|03 1ba3ca3a0fc05007",
        "06 0a0b0c0d 0000003c 6869|06 0a0b0c0d 000000|06 0a0b0c0d 0000003c 6869",
        "03 1ba3ca3a0fc05007|03 1ba3ca3a0fc050|03 1ba3ca3a0fc05007",
        "03 1ba3ca3a0fc05007|03 1ba3ca3a0fc0500700|03 1ba3ca3a0fc05007",
        "00|06 0a0b0c0d 0000003c 6869",
    ],
)
def test_a_run_is_what_its_packets_are_one_by_one(
    decode_run: Callable[[list[bytes]], list[Put] | list[Ack]], kind: type, wires: str
) -> None:
    packets = [bytes.fromhex(wire) for wire in wires.split("|") if wire]
    values: list[p.Packet] = []
    for packet in packets:
        try:
            value = p.decode(packet)
        except MalformedPacket:
            break
        if not isinstance(value, kind):
            break
        values.append(value)
    assert decode_run(packets) == values


def test_only_requests_are_ever_answered() -> None:
    """P2P-03, PA-23: an odd type is an acknowledgement, ff a NACK."""
    acks = {kind for kind in range(256) if p.is_ack(kind)}
    assert {1, 3, 5, 7, 9, p.TOUCH_ACK, p.ADMIN_REPLY, p.NACK} <= acks
    assert acks.isdisjoint({0, 2, 4, 6, 8, p.CREDIT, p.TOUCH, p.MSGX, p.ADMIN, p.HELLO})


def test_negotiated_extensions_are_not_standard() -> None:
    """P2P-02, P2P-26."""
    assert all(128 <= kind <= 254 for kind in p.EXTENSIONS)


def test_data_is_opaque() -> None:
    """P2P-31: every byte survives, also what looks like a packet."""
    data = bytes(range(256)) + p.ABORT + b"\x00\x00\x00\x01\x00"
    assert p.decode(p.encode(Put(7, 1, data))) == Put(7, 1, data)
    assert p.decode(p.encode(Msg(7, 1, data))) == Msg(7, 1, data)
    assert p.decode(p.encode(GetAck(7, data))) == GetAck(7, data)


@pytest.mark.parametrize("number", [0, 1, 2**32 - 1])
def test_numbers_reach_their_ends(number: int) -> None:
    """PA-11 key 0 is a key like any other; ids are u64."""
    top = number << 32 | number
    values: list[p.Packet] = [
        Put(number, number, b"x"),
        PutAck(number, number, top),
        List(number & 0xFFFF, top, top),
        Touch(top, number),
        Nack(top, NackReason.LATER, number),
        p.Pong((top, top, top)),
    ]
    assert [p.decode(p.encode(value)) for value in values] == values


def test_the_longest_list_fits() -> None:
    """PA-05: 65,535 ids are 524,281 bytes."""
    ids = list(range(1, 65536))
    raw = p.encode(ListAck(ids))
    assert len(raw) == 524_281
    assert p.decode(raw) == ListAck(ids)
