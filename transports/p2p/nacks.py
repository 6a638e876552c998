"""NACK codes and their typed errors (P2P-16, docs/reference/wire-protocol.md)."""

from __future__ import annotations

from enum import IntEnum

from millpond.actors.errors import ERRORS, Code, RequestError
from millpond.actors.messages import (
    Ack,
    Attach,
    AttemptStarted,
    Credit,
    Failed,
    Get,
    JobRequest,
    List,
    Message,
    Nack,
    Put,
    StreamRequest,
    Touch,
)
from millpond.transports.errors import MalformedPacket
from millpond.transports.p2p import packets as packet
from millpond.transports.p2p.packets import Refused

CODES: dict[Code, int] = {
    Code.NOT_FOUND: 0x02,
    Code.TTL_REFUSED: 0x20,
    Code.BAD_RANGE: 0x21,
    Code.KEY_REUSED: 0x22,
    Code.EMPTY_DATA: 0x23,
    Code.DATA_TOO_LARGE: 0x24,
    Code.WRONG_ROLE: 0x25,
    Code.BUFFER_FULL: 0x26,
    Code.TOO_LARGE_FOR_PEER: 0x27,
    Code.LEASE_LOST: 0x28,
    Code.NOT_A_QUEUE: 0x29,
    Code.CHANNEL_EXISTS: 0x2A,
    Code.UNKNOWN_CHANNEL: 0x2B,
    Code.NO_LISTENER: 0x2C,
    Code.STREAM_EXISTS: 0x40,
    Code.UNKNOWN_STREAM: 0x41,
    Code.NON_MONOTONIC_ID: 0x42,
    Code.TRIMMED: 0x43,
    Code.SEQUENCE_MISMATCH: 0x44,
    Code.FENCED: 0x45,
    Code.PART_OF_TOPIC: 0x46,
    Code.GROUPS_FULL: 0x47,
    Code.UNKNOWN_PEER: 0x48,
    Code.NO_PREKEY: 0x49,
    Code.STATE_TOO_LARGE: 0x50,
    Code.CLOSED: 0x4A,
    Code.SLOW_DOWN: 0xA0,
    Code.IDS_EXHAUSTED: 0xE0,
    Code.STORAGE_FAILED: 0xE1,
    Code.MALFORMED: 0xF0,
    Code.NOT_NEGOTIATED: 0xF2,
    Code.ENCRYPTED: 0xF6,
    Code.NOT_ALLOWED: 0xF6,
    Code.OUTCOME_UNKNOWN: 0xFE,
    Code.QUARANTINED: 0xFE,
}
# The wire has one byte for "internal". Read back it is the careful one: ask again, same key. It has
# one for "not allowed" too, as only S2's clients can do anything about an encrypted stream.
_BY_BYTE = {byte: code for code, byte in CODES.items()} | {0xFE: Code.OUTCOME_UNKNOWN}

STREAM_TEXTS = {Code.BUFFER_FULL: "the stream or the node is full"}
"""Texts of codes for streams, where those of their errors are about channels."""


_CORRELATION_BYTES = {
    packet.PUT: 4,
    packet.ADMIN: 4,
    packet.STREAM: 4,
    packet.PEERS: 4,
    packet.JOBS: 4,
    packet.GET: 8,
    packet.MSG: 8,
    packet.MSGX: 8,
    packet.MSG_ACK: 8,
    packet.TOUCH: 8,
    packet.NACK: 8,
}


class HelloCode(IntEnum):
    """Codes of refused handshakes (`ff 80 code`); the connection closes after them (3b)."""

    NO_COMMON_VERSION = 0x01
    MALFORMED = 0xF0
    AUTHENTICATION_FAILED = 0xF5
    NOT_ALLOWED = 0xF6
    TOO_MANY_CONNECTIONS = 0xF7
    TLS_REQUIRED = 0xF8
    STORAGE_FAILED = 0xE1
    INTERNAL = 0xFE


class UnknownRefusal(RequestError):
    """The other end refused with a code that is not in the registry: `byte`. Recoverable."""

    code = Code.OUTCOME_UNKNOWN

    def __init__(self, byte: int, delay_ms: int | None = None) -> None:
        super().__init__(f"refused with the unknown code {byte:#04x}", delay_ms)
        self.byte = byte


def encode_refusal(
    packet_type: int, code: Code, correlation: bytes = b"", delay_ms: int | None = None
) -> bytes:
    """The NACK of any packet type; the delay in ms, where there is one, comes last."""
    delay = b"" if delay_ms is None else delay_ms.to_bytes(4, "big")
    return bytes((packet.NACK, packet_type, CODES[code])) + correlation + delay


def encode_failed(failed: Failed) -> bytes:
    """The NACK that answers a request of the channel's vocabulary."""
    packet_type, correlation = _origin(failed.request)
    return encode_refusal(packet_type, failed.code, correlation, failed.delay_ms)


def encode_slow_down(
    request: Put | Get | List | packet.Jobs | packet.Admin, delay_ms: int
) -> bytes:
    """The NACK of a request that came too fast."""
    if isinstance(request, packet.Jobs | packet.Admin):
        correlation = request.request_id.to_bytes(4, "big")
        packet_type = packet.JOBS if isinstance(request, packet.Jobs) else packet.ADMIN
        return encode_refusal(packet_type, Code.SLOW_DOWN, correlation, delay_ms)
    return encode_failed(Failed(request, Code.SLOW_DOWN, delay_ms))


def encode_no_memory(first: bytes) -> bytes:
    """The NACK of a packet that was not read to its end, as there was no memory; `first` are its
    first bytes."""
    correlation = first[1 : 1 + _CORRELATION_BYTES.get(first[0], 0)]
    return encode_refusal(first[0], Code.BUFFER_FULL, correlation)


def encode_malformed(error: MalformedPacket) -> bytes:
    """The NACK of a packet that could not be read, with what correlation it had (PA-23, PS-12)."""
    return encode_refusal(error.packet_type, Code.MALFORMED, error.correlation)


def encode_hello_refusal(code: HelloCode) -> bytes:
    """The NACK of a HELLO; the caller follows it with ABORT."""
    return packet.encode(Refused(packet.HELLO, code))


def decode_refused(refused: Refused) -> RequestError:
    """The typed error of a refused request; its `delay_ms` is the server's."""
    delay = refused.correlation[_CORRELATION_BYTES.get(refused.packet_type, 0) :]
    delay_ms = int.from_bytes(delay, "big") if len(delay) == 4 else None
    code = _BY_BYTE.get(refused.code)
    if code is None:
        return UnknownRefusal(refused.code, delay_ms)
    text = STREAM_TEXTS.get(code, "") if refused.packet_type == packet.STREAM else ""
    return ERRORS[code](text, delay_ms)


def correlation_number(refused: Refused) -> int | None:
    """The number of the refused request: a PUT's key, an Admin's request id, else a message id.

    None where the packet type has no correlation (LIST, CREDIT) or the NACK left it out.
    """
    size = _CORRELATION_BYTES.get(refused.packet_type, 0)
    if not size or len(refused.correlation) < size:
        return None
    return int.from_bytes(refused.correlation[:size], "big")


def _origin(request: Message) -> tuple[int, bytes]:
    match request:
        case Put(key=key):
            return packet.PUT, key.to_bytes(4, "big")
        case Get(id=message_id):
            return packet.GET, message_id.to_bytes(8, "big")
        case Ack(id=message_id):
            return packet.MSG_ACK, message_id.to_bytes(8, "big")
        case Nack(id=message_id):
            return packet.NACK, message_id.to_bytes(8, "big")
        case Touch(id=message_id):
            return packet.TOUCH, message_id.to_bytes(8, "big")
        case AttemptStarted(id=message_id):
            return packet.BEGUN, message_id.to_bytes(8, "big")
        case List():
            return packet.LIST, b""
        case Credit():
            return packet.CREDIT, b""
        case Attach():
            return packet.HELLO, b""
        case StreamRequest(number=number):
            return packet.STREAM, number.to_bytes(4, "big")
        case JobRequest(number=number):
            return packet.JOBS, number.to_bytes(4, "big")
        case _:
            raise AssertionError(f"{request} has no packet, so nobody waits for its answer")
