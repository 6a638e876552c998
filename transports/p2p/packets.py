"""P2P packets and their values: a type byte, then a body of a strict layout (P2P-01, P2P-21)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from millpond.actors.messages import (
    Ack,
    AttemptStarted,
    CellMessage,
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
from millpond.transports.p2p.framing import LENGTH_BYTES, split_packets_in_python
from millpond.transports.speedups import is_native, native

PING, PONG, MSG, MSG_ACK, GET, GET_ACK, PUT, PUT_ACK, LIST, LIST_ACK = range(10)
HELLO, CHALLENGE, AUTH, READY = 0x80, 0x81, 0x82, 0x83
HANDSHAKE = frozenset((HELLO, CHALLENGE, AUTH, READY))
CREDIT, TOUCH, TOUCH_ACK, MSGX, BEGUN, ADMIN, ADMIN_REPLY = 0x84, *range(0x86, 0x8A), 0x90, 0x91
STREAM, STREAM_REPLY, PEERS, PEERS_REPLY, JOBS, JOBS_REPLY = range(0x92, 0x98)
NACK = 0xFF

EXTENSIONS = frozenset({CREDIT, TOUCH, TOUCH_ACK, MSGX, BEGUN, *range(ADMIN, JOBS_REPLY + 1)})
"""The types that only a handshake makes meaningful (P2P-26); each is listed on its own."""
DEFAULT_EXTENSIONS = EXTENSIONS - {BEGUN}
"""The extensions of a client that promises nothing; `BEGUN` promises a packet for each attempt."""


MORE = 0x80
"""On the operation of a STREAM_REPLY: its body goes on in the next one."""
OPERATION_BYTES = 6
"""Of a packet with an operation, besides its body."""

HELLO_MAGIC = b"\x80P2PB"
GOODBYE = b"\xff\xff\x00"
ABORT = b"\xff\xff\xff"

LATER, REJECT, BUSY, CANNOT_DECRYPT, UNSPECIFIED = 0x30, 0x31, 0x32, 0x33, 0xFE
_REASONS = {
    LATER: NackReason.LATER,
    REJECT: NackReason.REJECT,
    BUSY: NackReason.BUSY,
    CANNOT_DECRYPT: NackReason.CANNOT_DECRYPT,
}
_REASON_CODES = {reason: code for code, reason in _REASONS.items()} | {
    NackReason.OTHER: UNSPECIFIED
}

_KEY_TTL = struct.Struct(">BII")
_KEY_TTL_ID = struct.Struct(">BIIQ")
_ID = struct.Struct(">BQ")
_ID_MS = struct.Struct(">BQI")
_ID_ATTEMPT = struct.Struct(">BQH")
_RANGE = struct.Struct(">BHQQ")
_COUNT = struct.Struct(">BH")
_TIMES = struct.Struct(">BQQQ")
_OPERATION = struct.Struct(">BIB")
_NACK_ID = struct.Struct(">BBBQ")
_NACK_ID_MS = struct.Struct(">BBBQI")
_read_key_ttl, _read_id = _KEY_TTL.unpack_from, _ID.unpack_from
_pack_put_ack = _KEY_TTL_ID.pack
_pack_id = _ID.pack


class Ping(msgspec.Struct, frozen=True, gc=False):
    """PING. `timestamp` is the sender's own, opaque here; None: a simple PING (P2P-04, P2P-05)."""

    timestamp: int | None = None


class Pong(msgspec.Struct, frozen=True, gc=False):
    """`times`: the mirrored timestamp, when the PING came, when this left; each may be 0."""

    times: tuple[int, int, int] | None = None


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A NACK that neither closes nor gives a message back; `transports.p2p.nacks` reads it."""

    packet_type: int
    code: int
    correlation: bytes = b""


class Close(msgspec.Struct, frozen=True, gc=False):
    """The other end closes: with GOODBYE, or with ABORT because of an error (P2P-17)."""

    goodbye: bool


class Handshake(msgspec.Struct, frozen=True, gc=False):
    """HELLO, CHALLENGE, AUTH or READY, whole, for `millpond.transports.p2p.handshake` to read."""

    packet_type: int
    raw: bytes


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """A packet of an unknown type, which is dropped (P2P-19)."""

    packet_type: int


class _Operation(msgspec.Struct, frozen=True, gc=False):
    """An operation of our own extensions (docs/reference/wire-protocol.md); the body is msgpack."""

    request_id: int
    operation: int
    body: bytes


class Admin(_Operation, frozen=True, gc=False):
    """A request about the node itself."""


class AdminReply(_Operation, frozen=True, gc=False):
    """Its answer."""


class Stream(_Operation, frozen=True, gc=False):
    """A request to a stream or about streams (`millpond.transports.p2p.streams.bodies`)."""


class StreamReply(_Operation, frozen=True, gc=False):
    """Its answer, or a part of it: more follows where `operation` has `MORE` set."""


class Peers(_Operation, frozen=True, gc=False):
    """A request about peers, and messages to them."""


class PeersReply(_Operation, frozen=True, gc=False):
    """Its answer."""


class Jobs(_Operation, frozen=True, gc=False):
    """A request about the jobs of the connection's channel (`transports.p2p.jobs.bodies`)."""


class JobsReply(_Operation, frozen=True, gc=False):
    """Its answer."""


Message = Put | PutAck | Msg | Ack | Get | GetAck | List | ListAck | Nack
Operation = Admin | AdminReply | Stream | StreamReply | Peers | PeersReply | Jobs | JobsReply
Extension = Touch | TouchAck | AttemptStarted | Credit | Operation
Packet = Message | Extension | Ping | Pong | Refused | Close | Handshake | Unknown


def is_ack(packet_type: int) -> bool:
    """True for what is never answered, malformed or not: acknowledgements and NACK (PA-23)."""
    return packet_type & 1 == 1


def decode(packet: bytes) -> Packet:
    """The value of one packet; MSGX becomes a Msg too. Raises MalformedPacket."""
    try:
        decoder = DECODERS[packet[0]]
    except IndexError:
        raise MalformedPacket(NACK) from None
    return decoder(packet)


def decode_puts_in_python(packets: list[bytes]) -> list[Put]:
    """The values of the PUTs that `packets` begin with, up to one that is malformed: most reads of
    a producer bring nothing else."""
    puts: list[Put] = []
    for packet in packets:
        if packet[0] != PUT or len(packet) < 9:
            break
        _, key, ttl = _read_key_ttl(packet)
        puts.append(Put(key, ttl, packet[9:]))
    return puts


def decode_acks_in_python(packets: list[bytes]) -> list[Ack]:
    """The values of the MSG_ACKs that `packets` begin with, up to one that is malformed."""
    acks: list[Ack] = []
    for packet in packets:
        if packet[0] != MSG_ACK or len(packet) != 9:
            break
        acks.append(Ack(_read_id(packet)[1]))
    return acks


def decode_run_in_python(
    data: bytes, size_max: int, count_max: int
) -> tuple[list[CellMessage], int]:
    """The values of the PUTs, or of the MSG_ACKs, that `data` begins with behind their lengths:
    packets of one type, `count_max` at most. Gives also where the first one begins that is of
    another type, malformed, not whole or longer than `size_max` bytes."""
    packets, _ = split_packets_in_python(data, size_max, count_max)
    is_ack = bool(packets) and packets[0][0] == MSG_ACK
    values: list[CellMessage] = []
    values += decode_acks_in_python(packets) if is_ack else decode_puts_in_python(packets)
    return values, sum(map(len, packets[: len(values)])) + LENGTH_BYTES * len(values)


def encode_put_acks_in_python(replies: Sequence[object], packets: list[bytes]) -> int:
    """Append a packet to `packets` for each of the PutAcks that `replies` begin with; gives how
    many."""
    count = 0
    for reply in replies:
        if type(reply) is not PutAck:
            break
        packets.append(_pack_put_ack(PUT_ACK, reply.key, reply.ttl, reply.id))
        count += 1
    return count


def _decode_puts_natively(packets: list[bytes]) -> list[Put]:
    return native.read_puts(packets, Put)


def _decode_acks_natively(packets: list[bytes]) -> list[Ack]:
    return native.read_acks(packets, Ack)


decode_puts = _decode_puts_natively if is_native else decode_puts_in_python
decode_acks = _decode_acks_natively if is_native else decode_acks_in_python
decode_run: Callable[[bytes, int, int], tuple[list[CellMessage], int]] = (
    partial(native.read_packet_run, Put, Ack) if is_native else decode_run_in_python
)
encode_put_acks: Callable[[Sequence[object], list[bytes]], int] = (
    partial(native.write_put_acks, PutAck, ("key", "ttl", "id"))
    if is_native
    else encode_put_acks_in_python
)


def encode(packet: Packet) -> bytes:
    """The packet of one value; a Msg becomes MSG, without its attempt."""
    return ENCODERS[type(packet)](packet)


def encode_msg(msg: Msg) -> bytes:
    """A push, without its attempt."""
    return _pack_id(MSG, msg.id) + msg.data


def encode_msgx(msg: Msg) -> bytes:
    """A push with its attempt, at most the largest u16; only where negotiated (3d)."""
    return _ID_ATTEMPT.pack(MSGX, msg.id, min(msg.attempt, 0xFFFF)) + msg.data


def _decode_ping(packet: bytes) -> Ping:
    match len(packet):
        case 1:
            return Ping()
        case 9:
            return Ping(_ID.unpack(packet)[1])
        case _:
            raise MalformedPacket(PING)


def _decode_pong(packet: bytes) -> Pong:
    match len(packet):
        case 1:
            return Pong()
        case 25:
            _, mirrored, received, sent = _TIMES.unpack(packet)
            return Pong((mirrored, received, sent))
        case _:
            raise MalformedPacket(PONG)


def _decode_msg(packet: bytes) -> Msg:
    if len(packet) < 9:
        raise MalformedPacket(MSG, packet[1:])
    return Msg(_ID.unpack_from(packet)[1], 1, packet[9:])


def _decode_msgx(packet: bytes) -> Msg:
    if len(packet) < 11:
        raise MalformedPacket(MSGX, packet[1:9])
    _, message_id, attempt = _ID_ATTEMPT.unpack_from(packet)
    return Msg(message_id, attempt, packet[11:])


def _id_alone(value: Callable[[int], Packet]) -> Callable[[bytes], Packet]:
    def decode_id(packet: bytes) -> Packet:
        if len(packet) != 9:
            raise MalformedPacket(packet[0], packet[1:9])
        return value(_ID.unpack(packet)[1])

    return decode_id


def _id_and_ms(value: Callable[[int, int], Packet]) -> Callable[[bytes], Packet]:
    def decode_id_ms(packet: bytes) -> Packet:
        if len(packet) != 13:
            raise MalformedPacket(packet[0], packet[1:9])
        _, message_id, ms = _ID_MS.unpack(packet)
        return value(message_id, ms)

    return decode_id_ms


def _operation(value: Callable[[int, int, bytes], Packet]) -> Callable[[bytes], Packet]:
    def decode_operation(packet: bytes) -> Packet:
        if len(packet) < 6:
            raise MalformedPacket(packet[0], packet[1:5])
        _, request_id, operation = _OPERATION.unpack_from(packet)
        return value(request_id, operation, packet[6:])

    return decode_operation


def _decode_get_ack(packet: bytes) -> GetAck:
    if len(packet) < 9:
        raise MalformedPacket(GET_ACK, packet[1:])
    return GetAck(_ID.unpack_from(packet)[1], packet[9:])


def _decode_put(packet: bytes) -> Put:
    if len(packet) < 9:
        raise MalformedPacket(PUT, packet[1:5])
    _, key, ttl = _KEY_TTL.unpack_from(packet)
    return Put(key, ttl, packet[9:])


def _decode_put_ack(packet: bytes) -> PutAck:
    if len(packet) != 17:
        raise MalformedPacket(PUT_ACK, packet[1:5])
    _, key, ttl, message_id = _KEY_TTL_ID.unpack(packet)
    return PutAck(key, ttl, message_id)


def _decode_list(packet: bytes) -> List:
    if len(packet) != 19:
        raise MalformedPacket(LIST)
    _, limit, start, end = _RANGE.unpack(packet)
    return List(limit, start, end)


def _decode_list_ack(packet: bytes) -> ListAck:
    count, odd = divmod(len(packet) - 1, 8)
    if odd:
        raise MalformedPacket(LIST_ACK)
    return ListAck(list(struct.unpack_from(f">{count}Q", packet, 1)))


def _decode_credit(packet: bytes) -> Credit:
    if len(packet) != 3:
        raise MalformedPacket(CREDIT)
    return Credit(_COUNT.unpack(packet)[1])


def _decode_hello(packet: bytes) -> Handshake | Unknown:
    # Type 80 is HELLO only if "P2PB" follows (PS-08).
    return Handshake(HELLO, packet) if packet.startswith(HELLO_MAGIC) else Unknown(HELLO)


def _decode_handshake(packet: bytes) -> Handshake:
    return Handshake(packet[0], packet)


def _decode_unknown(packet: bytes) -> Unknown:
    return Unknown(packet[0])


def _decode_nack(packet: bytes) -> Nack | Refused | Close:
    if len(packet) < 3:
        raise MalformedPacket(NACK)
    refused_type, code, correlation = packet[1], packet[2], packet[3:]
    if refused_type == NACK and code in (0x00, 0xFF):
        return Close(code == 0x00)
    # A pushed message comes back under the type it went out with. The id is optional by the seed,
    # but without it nothing can be given back.
    if refused_type in (MSG, MSGX) and len(correlation) >= 8:
        return _decode_give_back(code, correlation)
    return Refused(refused_type, code, correlation)


def _decode_give_back(code: int, correlation: bytes) -> Nack:
    message_id = int.from_bytes(correlation[:8], "big")
    delay = correlation[8:]
    if code != LATER or not delay:
        return Nack(message_id, _REASONS.get(code, NackReason.OTHER))
    if len(delay) != 4:
        raise MalformedPacket(NACK, correlation[:8])
    return Nack(message_id, NackReason.LATER, int.from_bytes(delay, "big"))


def _encode_nack(nack: Nack) -> bytes:
    code = _REASON_CODES[nack.reason]
    if nack.reason is NackReason.LATER and nack.delay_ms is not None:
        return _NACK_ID_MS.pack(NACK, MSG, code, nack.id, nack.delay_ms)
    return _NACK_ID.pack(NACK, MSG, code, nack.id)


def _encode_ping(ping: Ping) -> bytes:
    return b"\x00" if ping.timestamp is None else _ID.pack(PING, ping.timestamp)


def _encode_pong(pong: Pong) -> bytes:
    return b"\x01" if pong.times is None else _TIMES.pack(PONG, *pong.times)


def _encode_put_ack(ack: PutAck) -> bytes:
    return _pack_put_ack(PUT_ACK, ack.key, ack.ttl, ack.id)


def _encode_list_ack(ack: ListAck) -> bytes:
    return struct.pack(f">B{len(ack.ids)}Q", LIST_ACK, *ack.ids)


# The key fixes the type of the function's argument, which an annotation of a dict cannot express.
ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Put: lambda put: _KEY_TTL.pack(PUT, put.key, put.ttl) + put.data,
    PutAck: _encode_put_ack,
    Msg: encode_msg,
    Ack: lambda ack: _ID.pack(MSG_ACK, ack.id),
    Get: lambda get: _ID.pack(GET, get.id),
    GetAck: lambda ack: _ID.pack(GET_ACK, ack.id) + ack.data,
    List: lambda request: _RANGE.pack(LIST, request.limit, request.start, request.end),
    ListAck: _encode_list_ack,
    Nack: _encode_nack,
    Touch: lambda touch: _ID_MS.pack(TOUCH, touch.id, touch.ms),
    TouchAck: lambda ack: _ID_MS.pack(TOUCH_ACK, ack.id, ack.ms),
    AttemptStarted: lambda begun: _ID.pack(BEGUN, begun.id),
    Credit: lambda credit: _COUNT.pack(CREDIT, credit.count),
    Ping: _encode_ping,
    Pong: _encode_pong,
    Refused: lambda refused: bytes((NACK, refused.packet_type, refused.code)) + refused.correlation,
    Close: lambda closing: GOODBYE if closing.goodbye else ABORT,
    Admin: lambda a: _OPERATION.pack(ADMIN, a.request_id, a.operation) + a.body,
    AdminReply: lambda a: _OPERATION.pack(ADMIN_REPLY, a.request_id, a.operation) + a.body,
    Stream: lambda s: _OPERATION.pack(STREAM, s.request_id, s.operation) + s.body,
    StreamReply: lambda s: _OPERATION.pack(STREAM_REPLY, s.request_id, s.operation) + s.body,
    Peers: lambda a: _OPERATION.pack(PEERS, a.request_id, a.operation) + a.body,
    PeersReply: lambda a: _OPERATION.pack(PEERS_REPLY, a.request_id, a.operation) + a.body,
    Jobs: lambda a: _OPERATION.pack(JOBS, a.request_id, a.operation) + a.body,
    JobsReply: lambda a: _OPERATION.pack(JOBS_REPLY, a.request_id, a.operation) + a.body,
    Handshake: lambda handshake: handshake.raw,
    Unknown: lambda unknown: bytes((unknown.packet_type,)),
}

_KNOWN: dict[int, Callable[[bytes], Packet]] = {
    PING: _decode_ping,
    PONG: _decode_pong,
    MSG: _decode_msg,
    MSG_ACK: _id_alone(Ack),
    GET: _id_alone(Get),
    GET_ACK: _decode_get_ack,
    PUT: _decode_put,
    PUT_ACK: _decode_put_ack,
    LIST: _decode_list,
    LIST_ACK: _decode_list_ack,
    HELLO: _decode_hello,
    CHALLENGE: _decode_handshake,
    AUTH: _decode_handshake,
    READY: _decode_handshake,
    CREDIT: _decode_credit,
    TOUCH: _id_and_ms(Touch),
    TOUCH_ACK: _id_and_ms(TouchAck),
    MSGX: _decode_msgx,
    BEGUN: _id_alone(AttemptStarted),
    ADMIN: _operation(Admin),
    ADMIN_REPLY: _operation(AdminReply),
    STREAM: _operation(Stream),
    STREAM_REPLY: _operation(StreamReply),
    PEERS: _operation(Peers),
    PEERS_REPLY: _operation(PeersReply),
    JOBS: _operation(Jobs),
    JOBS_REPLY: _operation(JobsReply),
    NACK: _decode_nack,
}
DECODERS = [_KNOWN.get(packet_type, _decode_unknown) for packet_type in range(256)]
