"""Packets in a byte stream: a u32 big-endian length, then that many bytes
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

import struct
import sys
from typing import Protocol

import msgspec

from millpond.transports.errors import FrameEmpty, FrameTooLarge, WireError
from millpond.transports.speedups import is_native, native

LENGTH_BYTES = 4
_HEADER = struct.Struct(">I")
_size_at = _HEADER.unpack_from
_PREFIXES = [_HEADER.pack(size) for size in range(2048)]
_RUN_MIN = 8
FEED_BYTES_MAX = 2**14
CORRELATED_BYTES = 9
"""The bytes of a packet that its refusal repeats at most: the type, and an id."""


class Upgrade(msgspec.Struct, frozen=True):
    """Facts known before the first packet: from a WebSocket's path and headers; none on TCP.

    `hello`: True where the subprotocol promises a HELLO, False where it promises none.
    """

    channel: bytes | None = None
    hello: bool | None = None
    token: bytes | None = None

    def __repr__(self) -> str:
        """Without the token: this may end up in a log."""
        return f"Upgrade(channel={self.channel!r}, hello={self.hello})"


class Framing(Protocol):
    """The framing of packets in a byte stream, with bytes of its own (handshake, close)."""

    @property
    def feed_bytes_max(self) -> int:
        """So many bytes are fed at once, as those of small frames take a while."""

    @property
    def other_frames(self) -> int:
        """The number of frames so far that are no whole packet: fragments, pings."""

    @property
    def upgrade(self) -> Upgrade | None:
        """Set once packets may flow."""

    @property
    def closed(self) -> bool:
        """The other end closed the stream by a frame."""

    @property
    def error(self) -> WireError | None:
        """The error after which the stream cannot be read; set once, later input is ignored."""

    @property
    def plain_packet_max(self) -> int:
        """The next bytes are whole packets behind their lengths, of so many bytes at most, as far
        as they go: they need not be fed. 0: the framing has to see them."""

    def prefixed(self, data: bytes) -> bytes:
        """The next bytes as whole packets behind their lengths, which need not be fed then. b"":
        they are not whole packets alone, or the framing has to see them."""

    @property
    def pending_frame_bytes(self) -> int:
        """The size of the packet of which a part has come; 0: none, or it is not known yet."""

    @property
    def has_partial(self) -> bool:
        """A part of a packet has come."""

    @property
    def partial_type(self) -> int | None:
        """The type byte of the packet of which a part has come; None: it has not come yet."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a packet that came so far."""

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that `data` completes, also those before an error."""

    def skip_packet(self) -> bytes:
        """Discard the packet of which a part has come, now, and its rest as it comes. Gives its
        first bytes, CORRELATED_BYTES at most; b"" and nothing is discarded where no packet can be
        skipped."""

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""

    def frame(self, packets: list[bytes]) -> bytes:
        """The packets as bytes of the stream."""

    @property
    def has_output(self) -> bool:
        """`take_output` has something."""

    def take_output(self) -> bytes:
        """Bytes that the framing itself sends; given out once."""

    def close_frame(self, code: int) -> bytes:
        """The bytes that end the stream, with a WebSocket close code."""


def split_packets_in_python(
    data: bytes, size_max: int, count_max: int = sys.maxsize
) -> tuple[list[bytes], int]:
    """The whole packets that `data` begins with, `count_max` at most, and where they end: there
    begins one more, or one that is not whole or whose length is 0 or above `size_max` bytes."""
    end = len(data)
    if 4 < end <= size_max + 4 and _size_at(data)[0] == end - 4 and count_max > 0:
        return [data[4:]], end
    packets, offset = _run_of_packets(data, size_max, count_max)
    while end - offset >= 4 and len(packets) < count_max:
        (size,) = _size_at(data, offset)
        start = offset + 4
        if not 0 < size <= min(size_max, end - start):
            break
        offset = start + size
        packets.append(data[start:offset])
    return packets, offset


def _run_of_packets(data: bytes, size_max: int, count_max: int) -> tuple[list[bytes], int]:
    # Acks and pipelined requests mostly come in runs of one size, and a run splits in C at a
    # quarter of the loop's cost. One look per feed; equal headers prove the run.
    size = int.from_bytes(data[:4], "big")
    stride = size + 4
    count = min(len(data) // stride, count_max)
    end = count * stride
    if count < _RUN_MIN or not 0 < size <= size_max:
        return [], 0
    for index in (3, 2, 1, 0):
        if data[index:end:stride] != data[index : index + 1] * count:
            return [], 0
    run = struct.iter_unpack(f"4x{size}s", memoryview(data)[:end])
    return [packet for (packet,) in run], end


def frame_packets_in_python(packets: list[bytes]) -> bytes:
    """Every packet behind its length, in one piece."""
    try:
        if len(packets) == 1:
            return _PREFIXES[len(packets[0])] + packets[0]
        return b"".join([_PREFIXES[len(packet)] + packet for packet in packets])
    except IndexError:
        parts = [part for packet in packets for part in (_HEADER.pack(len(packet)), packet)]
        return b"".join(parts)


split_packets = native.split_packets if is_native else split_packets_in_python
frame_packets = native.frame_packets if is_native else frame_packets_in_python


class LengthPrefixed:
    """The framing of plain TCP. A length of 0 or above `frame_size_max` bytes is an error."""

    feed_bytes_max = FEED_BYTES_MAX
    other_frames = 0
    upgrade = Upgrade()
    closed = False
    has_output = False

    __slots__ = (
        "_body",
        "_frame_size_max",
        "_head",
        "_is_skipping",
        "_missing",
        "error",
        "plain_packet_max",
    )

    def __init__(self, frame_size_max: int) -> None:
        self._frame_size_max = frame_size_max
        self._head = b""
        self._body = bytearray()
        self._missing = 0
        self._is_skipping = False
        self.plain_packet_max = frame_size_max
        """The largest packet; 0 while a part of one has come."""
        self.error: WireError | None = None

    @property
    def pending_frame_bytes(self) -> int:
        """The size of the packet of which a part has come."""
        return len(self._body) + self._missing

    @property
    def has_partial(self) -> bool:
        """A part of a packet has come, perhaps only of its length."""
        return not self.plain_packet_max

    @property
    def partial_type(self) -> int | None:
        """The type byte of the packet of which a part has come; None: it has not come yet."""
        return self._body[0] if self._body else None

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a packet that came so far."""
        # A bytearray that grows has an eighth of its size to spare.
        return len(self._body) * 9 // 8 + len(self._head)

    def prefixed(self, data: bytes) -> bytes:
        """Nothing: they are so, unless a part of a packet has come."""
        return b""

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that `data` completes; `error` is set if the stream broke after them.

        A bad length is refused as soon as its four bytes are there, before any byte of the body
        is kept (P2P-18, PA-24, PA-34, RL-02).
        """
        return self._split(data) if self.plain_packet_max else self._resume(data)

    def skip_packet(self) -> bytes:
        """Discard the packet of which a part has come, now, and its rest as it comes."""
        if not self._missing or self._is_skipping or self.error:
            return b""
        if len(self._body) < CORRELATED_BYTES:
            return b""  # a refusal could not tell of which request it is
        first = bytes(self._body[:CORRELATED_BYTES])
        self._is_skipping = True
        self._body = bytearray()
        return first

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""
        self._head, self._body = b"", bytearray()

    frame = staticmethod(frame_packets)

    def take_output(self) -> bytes:
        """Nothing: this framing has no bytes of its own."""
        return b""

    def close_frame(self, code: int) -> bytes:
        """Nothing: the end of the stream is the end of the connection."""
        return b""

    def _split(self, data: bytes) -> list[bytes]:
        packets, end = split_packets(data, self._frame_size_max)
        left = len(data) - end
        self.plain_packet_max = 0 if left else self._frame_size_max
        if left < 4:
            self._head = data[end:]
            return packets
        (size,) = _size_at(data, end)
        if 0 < size <= self._frame_size_max:
            self._missing = size - (left - 4)
            self._body += memoryview(data)[end + 4 :]
        else:
            self._refuse(size)
        return packets

    def _resume(self, data: bytes) -> list[bytes]:
        if self.error:
            return []
        if not self._missing:
            return self._split(self._head + data)
        if self._is_skipping:
            return self._skip(data)
        if len(data) < self._missing:
            self._missing -= len(data)
            self._body += data
            return []
        self._body += memoryview(data)[: self._missing]
        packet = bytes(self._body)
        rest = data[self._missing :]
        self._body.clear()
        self._missing = 0
        return [packet, *self._split(rest)]

    def _skip(self, data: bytes) -> list[bytes]:
        skipped = min(len(data), self._missing)
        self._missing -= skipped
        if self._missing:
            return []
        self._is_skipping = False
        return self._split(data[skipped:])

    def _refuse(self, size: int) -> None:
        self.plain_packet_max = 0
        self.error = FrameTooLarge(size, self._frame_size_max) if size else FrameEmpty("length 0")
