"""RustLog, the client's side: requests in, frames out; frames in, responses out."""

from __future__ import annotations

import msgspec

from millpond.transports.errors import WireError
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.rustlog.codec import framed
from millpond.transports.rustlog.messages import FRAME_BYTES_MAX, Request, Response

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Response).decode


class MalformedResponse(WireError):
    """A frame that is no response; what is answered next is not known any more."""


def encode_request(request: Request) -> bytes:
    """The request as a frame; nothing of it is checked."""
    return framed(_encode(request))


class ResponseDecoder:
    """Bytes in, responses out. `error` is set once the connection cannot be read any further."""

    __slots__ = ("_framing", "error")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._framing = LengthPrefixed(frame_bytes_max)
        self.error: WireError | None = None

    def feed(self, data: bytes) -> list[Response]:
        """The responses that `data` completes, also those before an error."""
        if self.error is not None:
            return []
        found: list[Response] = []
        for payload in self._framing.feed(data):
            try:
                found.append(_decode(payload))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self.error = MalformedResponse(f"response: {error}")
                return found
        self.error = self._framing.error
        return found
