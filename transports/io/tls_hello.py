"""The limit of a ClientHello, checked before OpenSSL sees its length.

OpenSSL allocates a whole message when its head has come, so nine bytes could hold 128 KiB (RFC
8446, 4 and 5.1).
"""

from __future__ import annotations

HELLO_BYTES_MAX = 2**14
_RECORD_HEAD_BYTES, _MESSAGE_HEAD_BYTES = 5, 4
_HANDSHAKE = 22
"""The type of records with messages in plain text, which of a client are its ClientHellos."""


class HelloTooLong(ConnectionError):
    """The client announces a ClientHello that is longer than any."""


class HelloLimiter:
    """The limit on the handshake of one client, applied to its records as they come."""

    __slots__ = ("_is_handshake", "_message_head", "_message_left", "_record_head", "_record_left")

    def __init__(self) -> None:
        self._record_head = self._message_head = b""
        """As far as they came; a message may begin in one record and end in another."""
        self._record_left = self._message_left = 0
        self._is_handshake = False

    def check(self, data: bytes) -> None:
        """Look at what came. Raises HelloTooLong."""
        at = 0
        while at < len(data):
            if self._record_left:
                piece = data[at : at + self._record_left]
                self._record_left -= len(piece)
                if self._is_handshake:
                    self._check_messages(piece)
            else:
                piece = data[at : at + _RECORD_HEAD_BYTES - len(self._record_head)]
                self._record_head += piece
                if len(self._record_head) == _RECORD_HEAD_BYTES:
                    head, self._record_head = self._record_head, b""
                    self._is_handshake = head[0] == _HANDSHAKE
                    self._record_left = int.from_bytes(head[3:], "big")
            at += len(piece)

    def _check_messages(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            step = min(self._message_left, len(data) - at)
            self._message_left -= step
            at += step
            piece = data[at : at + _MESSAGE_HEAD_BYTES - len(self._message_head)]
            self._message_head += piece
            at += len(piece)
            if len(self._message_head) == _MESSAGE_HEAD_BYTES:
                head, self._message_head = self._message_head, b""
                self._message_left = int.from_bytes(head[1:], "big")
                if self._message_left > HELLO_BYTES_MAX:
                    raise HelloTooLong(f"a ClientHello of {self._message_left} bytes")
