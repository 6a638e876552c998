"""A single PUT over a blocking socket, for a program that ends with it.

`connect` needs an event loop and every codec of P2P, which take longer to load than a message takes
to be stored. Here is only the plain case: TCP, no identity, and an answer that comes soon. In every
other case the caller goes on with `connect` and the same idempotency key, which a node takes as the
same message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

DATA_BYTES_MAX = 2**24 - 10
"""Of a message: no packet of P2P has more than 2^24 - 1 bytes, and those of a PUT are 9 more."""
CONNECT_S = 3.0
"""For the connection and the handshake together."""
ANSWER_S = 20.0
"""A node that is silent for longer may have gone: that is for a client which can tell."""
KEEP_ALIVE_MS = 20_000
PACKET_BYTES_MAX = 2**16
"""Of a packet from the node; those that are read here have fewer than a hundred bytes."""
READ_BYTES = 2**12

_PRODUCER = 1
_CHANNEL, _ROLE, _TOKEN, _WINDOW, _PACKET_MAX, _KEEP_ALIVE, _DURABILITY = 1, 4, 6, 7, 8, 9, 0x81
_NACK, _PUT, _PUT_ACK, _HELLO, _READY = 0xFF, 6, 7, 0x80, 0x83
_HELLO_HEAD = b"\x80P2PB\x01\x01\x00"
"""HELLO of version 1, from a client to which nothing is pushed."""
_GOODBYE = b"\xff\xff\x00"
_put = struct.Struct(">BII")
_put_ack = struct.Struct(">BIIQ")


class PutRequest(NamedTuple):
    """A message to store, and the login; `ttl` in seconds, 0 for the channel's own."""

    channel: bytes
    data: bytes
    key: int
    ttl: int = 0
    token: bytes | None = None


class PutReceipt(NamedTuple):
    """The receipt. `durability` is its number on the wire, None if the node does not tell it."""

    id: int
    ttl: int
    key: int
    durability: int | None


class NotPlain(Exception):
    """The exchange is not the plain one, and a client has to take over. `was_ready`: the node had
    accepted the handshake."""

    def __init__(self, text: str, *, was_ready: bool) -> None:
        super().__init__(text)
        self.was_ready = was_ready


class RefusedPacket(Exception):
    """The node refused the handshake or the message: `packet` is its NACK."""

    def __init__(self, packet: bytes) -> None:
        super().__init__(packet.hex())
        self.packet = packet


def put_once(
    host: str,
    port: int,
    request: PutRequest,
    now: Callable[[], float],
    deadline: float | None = None,
) -> PutReceipt:
    """Store a message at the node that listens for P2P there, and leave.

    `now` is monotonic, in seconds, as is `deadline`. Raises TimeoutError at the deadline,
    RefusedPacket and NotPlain.
    """
    exchange = _Exchange(now, deadline)
    try:
        return exchange.run(host, port, request)
    except TimeoutError:
        if deadline is not None and now() >= deadline:
            raise
        raise NotPlain("no answer for long", was_ready=exchange.is_ready) from None
    except OSError as error:
        raise NotPlain(str(error), was_ready=exchange.is_ready) from error


class _Exchange:
    """The connection of one PUT."""

    def __init__(self, now: Callable[[], float], deadline: float | None) -> None:
        self.is_ready = False
        self._now = now
        self._deadline = deadline
        self._limit = now() + CONNECT_S
        """The end of the step that is in progress."""
        self._received = b""
        self._socket: socket.socket

    def run(self, host: str, port: int, request: PutRequest) -> PutReceipt:
        address = (host, port)
        with socket.create_connection(address, self._left_s()) as self._socket:
            self._send(hello_packet(request))
            durability, packet_bytes_max = self._read_ready()
            put = _put.pack(_PUT, request.key, request.ttl) + request.data
            if len(put) > packet_bytes_max:
                raise self._not_plain("the message is too large for the node")
            self._limit = self._now() + ANSWER_S
            self._send(put)
            stored = self._read_receipt(request.key, durability)
            self._send(_GOODBYE)
            return stored

    def _left_s(self) -> float:
        """The seconds that a step of the exchange may take. Raises TimeoutError."""
        limit = self._limit if self._deadline is None else min(self._limit, self._deadline)
        left_s = limit - self._now()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _send(self, packet: bytes) -> None:
        self._socket.settimeout(self._left_s())
        self._socket.sendall(len(packet).to_bytes(4, "big") + packet)

    def _read_ready(self) -> tuple[int | None, int]:
        """The durability that READY promises, and the largest packet that the node takes."""
        ready = self._read()
        if ready.startswith(bytes((_NACK, _HELLO))):
            raise RefusedPacket(ready)
        if len(ready) < 2 or ready[0] != _READY:
            raise self._not_plain("no READY")
        tags = self._tags(ready, 2)
        self.is_ready = True
        durability = tags.get(_DURABILITY)
        packet_max = int.from_bytes(tags.get(_PACKET_MAX, b""), "big")
        number = None if durability is None else int.from_bytes(durability, "big")
        return number, packet_max or 2**20

    def _tags(self, ready: bytes, offset: int) -> dict[int, bytes]:
        values: dict[int, bytes] = {}
        while offset < len(ready):
            start = offset + 3
            end = start + int.from_bytes(ready[offset + 1 : start], "big")
            if end > len(ready):
                raise self._not_plain("a READY that breaks off")
            values[ready[offset]] = ready[start:end]
            offset = end
        return values

    def _read_receipt(self, key: int, durability: int | None) -> PutReceipt:
        answer = self._read()
        if answer.startswith(bytes((_NACK, _PUT))):
            raise RefusedPacket(answer)
        if len(answer) != _put_ack.size or answer[0] != _PUT_ACK:
            raise self._not_plain("no receipt")
        _, acked, ttl, message_id = _put_ack.unpack(answer)
        if acked != key:
            raise self._not_plain("the receipt of another message")
        return PutReceipt(message_id, ttl, key, durability)

    def _read(self) -> bytes:
        """The next packet."""
        while True:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) >= 4 and not 0 < size <= PACKET_BYTES_MAX:
                raise self._not_plain("a packet of another kind")
            if 0 < size <= len(self._received) - 4:
                packet, self._received = self._received[4 : 4 + size], self._received[4 + size :]
                return packet
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise self._not_plain("the connection ended")
            self._received += data

    def _not_plain(self, text: str) -> NotPlain:
        return NotPlain(text, was_ready=self.is_ready)


def hello_packet(request: PutRequest) -> bytes:
    """The HELLO of a producer that gets no messages (docs/reference/wire-protocol.md)."""
    values = [(_CHANNEL, request.channel), (_ROLE, bytes((_PRODUCER,)))]
    if request.token is not None:
        values.append((_TOKEN, request.token))
    values += [(_WINDOW, bytes(2)), (_KEEP_ALIVE, KEEP_ALIVE_MS.to_bytes(4, "big"))]
    tags = [bytes((tag,)) + len(value).to_bytes(2, "big") + value for tag, value in values]
    return _HELLO_HEAD + b"".join(tags)
