"""RustLog, the server's side: frames in, requests of either form out."""

from __future__ import annotations

from millpond.transports.errors import FrameTooLarge
from millpond.transports.p2p.framing import LENGTH_BYTES, LengthPrefixed
from millpond.transports.rustlog.binary_codec import (
    MalformedPayload,
    decode_error,
    frame_error,
    speaks_binary,
)
from millpond.transports.rustlog.binary_codec import decode_request as decode_binary
from millpond.transports.rustlog.binary_messages import BinaryError, BinaryRequest, ErrorCode
from millpond.transports.rustlog.codec import RepeatedFetch, RepeatedProduce, RustlogLimits
from millpond.transports.rustlog.codec import decode_request as decode_json
from millpond.transports.rustlog.json_fallback import DecodedJson, MalformedJson, MalformedRequest
from millpond.transports.rustlog.messages import (
    INSUFFICIENT_SPACE,
    INVALID_REQUEST,
    RECORD_TOO_LARGE,
    Error,
    Fetch,
    PackedProduce,
)

DecodedRequest = DecodedJson | BinaryRequest
"""A request in the form that it came in; an error in its place is the answer to one that is
refused."""

_NO_MEMORY = "the node has no memory for the request now"
NO_MEMORY = Error(INSUFFICIENT_SPACE, _NO_MEMORY)
NO_MEMORY_IN_BINARY = BinaryRequest(BinaryError(ErrorCode.INTERNAL, _NO_MEMORY))

_OPENING_BRACE = ord("{")


class Decoder:
    """Bytes in, requests out. After an error nothing more comes: send it, and close."""

    __slots__ = ("_fetches", "_framing", "_is_binary", "_limits", "_produces", "error")

    def __init__(self, limits: RustlogLimits) -> None:
        self._limits = limits
        self._produces = RepeatedProduce(limits)
        self._fetches = RepeatedFetch()
        self._framing = LengthPrefixed(limits.frame_bytes_max)
        self._is_binary = False
        """The last well-formed request was of the binary form, also one whose values were refused
        (RB-03)."""
        self.error: Error | BinaryRequest | None = None

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a frame that came so far."""
        return self._framing.buffered_bytes

    def refuse(self) -> DecodedRequest | None:
        """Refuse the frame of which a part has come, as there is no memory for it: an Error in its
        place. Its rest is read and dropped."""
        start = self._framing.skip_packet()
        if not start:
            return None
        is_binary = speaks_binary(start, was_binary=self._is_binary)
        return NO_MEMORY_IN_BINARY if is_binary else NO_MEMORY

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""
        self._framing.clear()

    def feed_one(self, data: bytes) -> PackedProduce | Fetch | None:
        """The request that is all of `data`, a Produce that differs from the one before in its
        records alone, or a Fetch that does so in its offset. None: nothing is read, `data` is to be
        fed."""
        if self.error is not None or self._framing.has_partial or self._is_binary:
            return None
        if int.from_bytes(data[:LENGTH_BYTES], "big") != len(data) - LENGTH_BYTES:
            return None
        found = self._fetches.take(data, LENGTH_BYTES)
        return found if found is not None else self._produces.take(data, LENGTH_BYTES)

    def feed(self, data: bytes) -> list[DecodedRequest]:
        """The requests that `data` completes, also those before an error; an Error in their place
        is the answer to one that is refused (RL-07, RL-08, RB-08)."""
        if self.error is not None:
            return []
        found: list[DecodedRequest] = []
        produces, limits = self._produces, self._limits
        for payload in self._framing.feed(data):
            if payload[0] != _OPENING_BRACE and speaks_binary(payload, was_binary=self._is_binary):
                try:
                    found.append(BinaryRequest(decode_binary(payload, limits)))
                except MalformedPayload as malformed:
                    found.append(BinaryRequest(decode_error(malformed)))
                else:
                    self._is_binary = True
                continue
            request = produces.take(payload)
            if request is not None:
                self._is_binary = False
                found.append(request)
                continue
            try:
                decoded_json = decode_json(payload, limits)
            except MalformedJson as error:
                self.error = Error(INVALID_REQUEST, str(error))
                return found
            except MalformedRequest as malformed_json:
                found.append(malformed_json.answer)
                continue
            found.append(decoded_json)
            self._is_binary = False
            produces.remember(payload, decoded_json)
            self._fetches.remember(payload, decoded_json)
        broken = self._framing.error
        if broken is None:
            return found
        if self._is_binary:
            self.error = BinaryRequest(frame_error(broken))
        elif isinstance(broken, FrameTooLarge):  # RLA-11
            details = {"size": broken.size, "size_max": broken.size_max}
            self.error = Error(RECORD_TOO_LARGE, "frame too large", details)
        else:
            self.error = Error(INVALID_REQUEST, "empty frame")
        return found
