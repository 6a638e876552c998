"""Errors of the remote end on the wire.

WireError
 +-- FrameTooLarge       a length above the limit, refused before it is buffered
 +-- FrameEmpty          a length of zero
 +-- MalformedPacket     a known packet with an impossible body; the stream is still in sync
 +-- MalformedHandshake  a HELLO, CHALLENGE or READY that cannot be read
 +-- UpgradeRefused      an HTTP request that is no acceptable WebSocket upgrade
 +-- S3pError            s3p.commands: a command that cannot be read; has the code and text of the
 |                       answer
 +-- MalformedReply      s3p.client_codec: bytes of a server that are no reply of S3P
 +-- MalformedJson       rustlog.json_fallback: a frame whose body is no JSON that RustLog allows
 +-- MalformedRequest    rustlog.json_fallback: one whose body is JSON, and no request
 +-- MalformedPayload    rustlog.binary_codec: one of the binary form that is no request or response
 +-- MalformedResponse   rustlog.client_codec: bytes of a server that are no response of RustLog

The last six stand beside their codecs, in the modules that are named.

"""

from __future__ import annotations


class WireError(Exception):
    """The remote end broke the protocol."""


class FrameTooLarge(WireError):
    """A frame announces `size` bytes, more than `size_max`."""

    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(f"frame of {size} bytes, at most {size_max} are allowed")
        self.size = size
        self.size_max = size_max


class FrameEmpty(WireError):
    """A frame announces no bytes at all."""


class MalformedPacket(WireError):
    """A packet of a known type has a body that its layout does not allow (PA-23)."""

    def __init__(self, packet_type: int, correlation: bytes = b"") -> None:
        super().__init__(f"malformed packet of type {packet_type:#04x}")
        self.packet_type = packet_type
        self.correlation = correlation


class MalformedHandshake(WireError):
    """A handshake packet that cannot be read (PS-07)."""


class UpgradeRefused(WireError):
    """The HTTP request does not become a WebSocket; `status` was answered."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
