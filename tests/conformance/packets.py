"""P2P packets written by hand from the specification: the node's codec must not check itself."""

from __future__ import annotations

import struct

PING, PONG = b"\x00", b"\x01"
GOODBYE, ABORT = b"\xff\xff\x00", b"\xff\xff\xff"
AUTHENTICATION_FAILED = b"\xff\x80\xf5"
MALFORMED_HELLO = b"\xff\x80\xf0"
TOO_MANY_CONNECTIONS = b"\xff\x80\xf7"
U64_MAX = 2**64 - 1

CHANNEL, PUBLIC_KEY, NONCE, ROLE, EXTENSIONS, TOKEN = 1, 2, 3, 4, 5, 6
WINDOW, PACKET_MAX, KEEP_ALIVE, LIST_MODE, RESUME_AFTER, MODE = 7, 8, 9, 0x0B, 0x0C, 0x0E
DURABILITY = 0x81
PRODUCER, CONSUMER, BOTH, WORKER = b"\x01", b"\x02", b"\x03", b"\x04"
PAIR, FANOUT, QUEUE = b"\x00", b"\x01", b"\x02"

Tags = dict[int, bytes]


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


def tlv(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + u16(len(value)) + value


def hello(
    channel: bytes | None = None,
    tags: Tags | None = None,
    *,
    flags: int = 1,
    versions: tuple[int, int] = (1, 1),
    tail: bytes = b"",
) -> bytes:
    """The first packet of a client (3b); `tail` goes behind its tags, as it is."""
    body = b"" if channel is None else tlv(CHANNEL, channel)
    body += b"".join(tlv(tag, value) for tag, value in (tags or {}).items())
    return b"\x80P2PB" + bytes((*versions, flags)) + body + tail


def read_ready(packet: bytes) -> tuple[int, Tags]:
    """Flags and tags of a READY; each tag must be there once at most."""
    assert packet[0] == 0x83, packet.hex()
    tags: Tags = {}
    at = 2
    while at < len(packet):
        tag, size = packet[at], struct.unpack_from(">H", packet, at + 1)[0]
        assert tag not in tags and at + 3 + size <= len(packet), packet.hex()
        tags[tag] = packet[at + 3 : at + 3 + size]
        at += 3 + size
    return packet[1], tags


def put(key: int, data: bytes, ttl: int = 60) -> bytes:
    return b"\x06" + u32(key) + u32(ttl) + data


def put_ack(key: int, message_id: int, ttl: int = 60) -> bytes:
    return b"\x07" + u32(key) + u32(ttl) + u64(message_id)


def msg(message_id: int, data: bytes) -> bytes:
    return b"\x02" + u64(message_id) + data


def ack(message_id: int) -> bytes:
    return b"\x03" + u64(message_id)


def get(message_id: int) -> bytes:
    return b"\x04" + u64(message_id)


def get_ack(message_id: int, data: bytes) -> bytes:
    return b"\x05" + u64(message_id) + data


def list_(limit: int = 0, start: int = 0, end: int = 0) -> bytes:
    return b"\x08" + u16(limit) + u64(start) + u64(end)


def list_ack(*ids: int) -> bytes:
    return b"\x09" + b"".join(map(u64, ids))


def nack(packet_type: int, code: int, correlation: bytes = b"") -> bytes:
    return bytes((0xFF, packet_type, code)) + correlation


def not_found(message_id: int) -> bytes:
    return nack(4, 2, u64(message_id))


def credit(count: int) -> bytes:
    return b"\x84" + u16(count)


def touch(message_id: int, ms: int) -> bytes:
    return b"\x86" + u64(message_id) + u32(ms)


def touch_ack(message_id: int, ms: int) -> bytes:
    return b"\x87" + u64(message_id) + u32(ms)


def msgx(message_id: int, attempt: int, data: bytes) -> bytes:
    return b"\x88" + u64(message_id) + u16(attempt) + data


def stream(request_id: int, operation: int, body: bytes) -> bytes:
    return b"\x92" + u32(request_id) + bytes((operation,)) + body


def admin(request_id: int, operation: int, body: bytes) -> bytes:
    return b"\x90" + u32(request_id) + bytes((operation,)) + body


def framed(*packets: bytes) -> bytes:
    """The packets as plain TCP carries them (3a)."""
    return b"".join(u32(len(packet)) + packet for packet in packets)
