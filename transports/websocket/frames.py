"""WebSocket frames, after the upgrade: one binary message is one packet
(docs/reference/wire-protocol.md).

A whole binary frame is cut out and unmasked here; every other frame goes, whole, to the core of
`websockets`, made on first need: it answers pings and closes, and judges what is wrong.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable

from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side

from millpond.transports.errors import FrameEmpty, FrameTooLarge, UpgradeRefused, WireError
from millpond.transports.p2p.framing import CORRELATED_BYTES, Upgrade
from millpond.transports.speedups import is_native, native

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

_BINARY = 0x82
_MASKED = 0x80
_TEXT = 1
_WIDE = {126: 2, 127: 8}
"""The bytes of a length behind its first seven bits, where those say that some follow."""
HEAD_BYTES_MAX = 2**16
FEED_BYTES_MAX = 2**12
"""Up to 680 pings, or fragments of a byte, of which each takes ten times as long as a packet."""
_HEAD_END = b"\r\n\r\n"

# At DEBUG the core logs whole HTTP requests, tokens included, and every frame.
core_log = logging.getLogger(f"{__name__}.core")
core_log.setLevel(logging.WARNING)


def _header(size: int, mask_bit: int) -> bytes:
    if size < 126:
        return bytes((_BINARY, mask_bit | size))
    if size < 2**16:
        return struct.pack(">BBH", _BINARY, mask_bit | 126, size)
    return struct.pack(">BBQ", _BINARY, mask_bit | 127, size)


_SERVER_HEADERS = [_header(size, 0) for size in range(2048)]


class FrameCodec:
    """Frames in both directions, once the upgrade is done. Clients mask theirs, with bytes from
    `entropy`."""

    feed_bytes_max = FEED_BYTES_MAX
    plain_packet_max = 0

    __slots__ = (
        "_close_bytes",
        "_core",
        "_entropy",
        "_is_open",
        "_is_server",
        "_message",
        "_midway",
        "_needed_bytes",
        "_out",
        "_packet_max",
        "_skipped_bytes",
        "_tail",
        "closed",
        "error",
        "other_frames",
        "upgrade",
    )

    def __init__(
        self,
        packet_max: int,
        *,
        is_server: bool,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._packet_max = packet_max
        self._entropy = entropy
        self._is_server = is_server
        self._core: Protocol | None = None
        self._tail = bytearray()
        self._needed_bytes = 0
        self._skipped_bytes = 0
        """The bytes that are still to come of a frame that is discarded."""
        self._message = bytearray()
        self._midway = False
        self._out = b""
        self._close_bytes = b""
        self._is_open = False
        self.closed = False
        self.other_frames = 0
        self.error: WireError | None = None
        self.upgrade: Upgrade | None = None

    @property
    def pending_frame_bytes(self) -> int:
        """The size of the message of which a part has come, as far as its frames tell."""
        tail = self._tail
        if len(tail) < 2:
            return len(self._message)
        head_bytes = 2 + _WIDE.get(tail[1] & 0x7F, 0) + 4 * bool(tail[1] & _MASKED)
        return len(self._message) + max(0, self._needed_bytes - head_bytes)

    @property
    def has_partial(self) -> bool:
        """A part of a message has come, perhaps only of a frame's header."""
        return bool(self._tail or self._message)

    @property
    def partial_type(self) -> int | None:
        """The first byte of the message of which a part has come; None: it has not come yet."""
        if self._message:
            return self._message[0]
        tail = self._tail
        if len(tail) < 2 or tail[0] & 0x0F != Opcode.BINARY:
            return None
        mask_at = 2 + _WIDE.get(tail[1] & 0x7F, 0)
        at = mask_at + 4 * bool(tail[1] & _MASKED)
        if len(tail) <= at:
            return None
        return tail[at] ^ tail[mask_at] if at > mask_at else tail[at]

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a message, or of the request before, that came so far."""
        # A bytearray that grows has an eighth of its size to spare.
        return (len(self._message) + len(self._tail)) * 9 // 8

    def prefixed(self, data: bytes) -> bytes:
        """The messages of which the next bytes consist, as packets behind their lengths."""
        if not (self._is_open and self._is_server and is_native):
            return b""
        if self._tail or self._skipped_bytes or self._midway or self.error is not None:
            return b""
        return native.unmask_frames(data, self._packet_max)

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that `data` completes; `error` and `closed` tell why there are no more.

        FrameTooLarge as soon as the length is there; FrameEmpty; WireError for text and for
        broken frames.
        """
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed_bytes:
                return []
            data = bytes(self._tail)
            self._tail.clear()
        elif self._skipped_bytes:
            skipped = min(len(data), self._skipped_bytes)
            self._skipped_bytes -= skipped
            data = data[skipped:]
        return self._split(data)

    def skip_packet(self) -> bytes:
        """Discard the message of which a part has come, now, and its rest as it comes. Not one
        that comes in fragments."""
        tail = self._tail
        if self._midway or self.partial_type is None or tail[0] != _BINARY:
            return b""
        at = 2 + _WIDE.get(tail[1] & 0x7F, 0)
        mask = bytes(tail[at : at + 4]) if tail[1] & _MASKED else bytes(4)
        at += 4 * bool(tail[1] & _MASKED)
        if len(tail) < at + CORRELATED_BYTES:
            return b""  # a refusal could not tell of which request it is
        first = apply_mask(bytes(tail[at : at + CORRELATED_BYTES]), mask)
        self._skipped_bytes = self._needed_bytes - len(tail)
        self._tail = bytearray()
        return first

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""
        self._tail, self._message = bytearray(), bytearray()

    def _take_head(self, data: bytes) -> bytes | None:
        """The HTTP head up to its empty line, when all of it is there; the rest stays in `_tail`.

        Raises UpgradeRefused when it grows too long.
        """
        scanned = max(0, len(self._tail) - len(_HEAD_END))
        self._tail += data
        end = self._tail.find(_HEAD_END, scanned)
        size = len(self._tail) if end < 0 else end + len(_HEAD_END)
        if size > HEAD_BYTES_MAX:
            raise UpgradeRefused(431, "the header is too long")
        if end < 0:
            return None
        head = bytes(self._tail[:size])
        del self._tail[: len(head)]
        return head

    def frame(self, packets: list[bytes]) -> bytes:
        """Every packet as one binary frame; nothing before the upgrade or after the close."""
        if not self._is_open:
            return b""
        if not self._is_server:
            return self._frame_masked(packets)
        try:
            return b"".join([_SERVER_HEADERS[len(packet)] + packet for packet in packets])
        except IndexError:
            return b"".join([_header(len(packet), 0) + packet for packet in packets])

    @property
    def has_output(self) -> bool:
        """`take_output` has something."""
        return bool(self._out)

    def take_output(self) -> bytes:
        """The HTTP side of the upgrade, pongs, and the answer to a close."""
        out, self._out = self._out, b""
        return out

    def close_frame(self, code: int) -> bytes:
        """The close frame: with `code`, or with that of the error which ended the stream."""
        if not self._is_open:
            return self.take_output()
        self._is_open = False
        if not self._close_bytes:
            core = self._parser()
            core.send_close(code)
            self._close_bytes = b"".join(core.data_to_send())
        return self.take_output() + self._close_bytes

    def _split(self, data: bytes) -> list[bytes]:
        packets: list[bytes] = []
        masked = _MASKED if self._is_server else 0
        offset, end, needed = 0, len(data), 2
        while end - offset >= 2 and not (self.error or self.closed):
            first, second = data[offset], data[offset + 1]
            start = offset + (6 if second & _MASKED else 2)
            size = second & 0x7F
            if size > 125:
                wide = 2 if size == 126 else 8
                if end - offset < 2 + wide:
                    needed = 2 + wide
                    break
                start += wide
                size = int.from_bytes(data[offset + 2 : offset + 2 + wide], "big")
                if not (126 if wide == 2 else 2**16) <= size < 2**63:
                    self._fail(CloseCode.PROTOCOL_ERROR, "a length in a form that is not its own")
                    break
            stop = start + size
            is_plain = first == _BINARY and second & _MASKED == masked and not self._midway
            if is_plain and stop <= end and 0 < size <= self._packet_max:
                body = data[start:stop]
                packets.append(apply_mask(body, data[start - 4 : start]) if masked else body)
            elif first & 0x0F == _TEXT:
                self._fail(CloseCode.UNSUPPORTED_DATA, "text frame")
            elif size > self._packet_max:
                self._handle_frame(data[offset:], packets)
            elif stop > end:
                needed = stop - offset
                break
            else:
                self._handle_frame(data[offset:stop], packets)
            offset = stop
        if not (self.error or self.closed):
            self._tail += data[offset:]
            self._needed_bytes = needed
        return packets

    def _parser(self) -> Protocol:
        if self._core is None:
            side = Side.SERVER if self._is_server else Side.CLIENT
            self._core = Protocol(side, max_size=self._packet_max, logger=core_log)
        return self._core

    def _handle_frame(self, frame: bytes, packets: list[bytes]) -> None:
        """Let the core take one frame, of which at least the header is there."""
        self.other_frames += 1
        core = self._parser()
        core.receive_data(frame)
        for event in core.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.CLOSE:
                self.closed = True
                self._is_open = False
            elif event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._add_fragment(event, packets)
        output = b"".join(core.data_to_send())
        match core.parser_exc:
            case None:
                self._out += output
                return
            case PayloadTooBig(size=size):
                whole = (size or 0) + len(self._message)
                self.error = FrameTooLarge(whole, self._packet_max)
            case broken:
                self.error = WireError(str(broken))
        self._close_bytes = output

    def _add_fragment(self, frame: Frame, packets: list[bytes]) -> None:
        self._message += frame.data
        self._midway = not frame.fin
        if frame.fin and self._message:
            packets.append(bytes(self._message))
            self._message.clear()
        elif frame.fin:
            self.error = FrameEmpty("empty message")

    def _fail(self, code: CloseCode, reason: str) -> None:
        core = self._parser()
        core.fail(code)
        self._close_bytes = b"".join(core.data_to_send())
        self.error = WireError(reason)

    def _frame_masked(self, packets: list[bytes]) -> bytes:
        keys = self._entropy(4 * len(packets))
        parts: list[bytes] = []
        for index, packet in enumerate(packets):
            key = keys[4 * index : 4 * index + 4]
            parts += (_header(len(packet), _MASKED), key, apply_mask(packet, key))
        return b"".join(parts)

    def _open(self, upgrade: Upgrade) -> None:
        self.upgrade = upgrade
        self._is_open = True
