"""Responses of HTTP: whole ones, streamed ones, and the plain form of a rejection.

Header bytes leave exactly as they are given (docs/reference/http-apis.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millpond.transports.http.asgi import (
    WHOLE_RESPONSE,
    EncodedResponse,
    Headers,
    Message,
    Send,
)
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request

Pairs = Sequence[tuple[bytes, bytes]]
SERVER = (b"server", b"millpond")
_JSON = (b"content-type", b"application/json")


class Response(msgspec.Struct, frozen=True, gc=False):
    """A whole response; its `content-length` is added where none is given."""

    status: int
    headers: Pairs = ()
    body: bytes = b""

    def all_headers(self, more: Pairs = ()) -> Headers:
        """The headers and `more`, with those that every whole response has."""
        headers = [*self.headers, *more] if more else self.headers
        if self.status == 304:
            return [*headers, SERVER]
        for name, _ in headers:
            if name == b"content-length":
                return [*headers, SERVER]
        return [*headers, (b"content-length", b"%d" % len(self.body)), SERVER]

    def encoded(self, more: Pairs = ()) -> EncodedResponse:
        """The response with `more` headers, as HTTP/1.1 writes it."""
        return EncodedResponse(self.status, header_lines(self.all_headers(more)), self.body)


def header_lines(headers: Pairs) -> bytes:
    """Headers as lines of HTTP/1.1."""
    lines = [b"%b: %b\r\n" % each for each in headers]
    block = b"".join(lines)
    assert block.count(b"\n") == len(lines), "a header of ours holds a line"
    return block


def json_response(status: int, content: object, headers: Pairs = ()) -> Response:
    """A response with a JSON body."""
    return Response(status, (_JSON, *headers), msgspec.json.encode(content))


def plain_rejection(reason: Rejection) -> Response:
    """A rejection as JSON `{"code", "message"}`, for APIs without a form of their own."""
    return json_response(reason.status, {"code": reason.code, "message": reason.message})


class ResponseWriter:
    """The writer of one response: `respond`, or `start`, any number of `write`, `end`.

    Awaiting them is the backpressure. They do not tell whether the client is still there: see
    `Request.run_until_disconnect`.
    """

    __slots__ = (
        "_encode_error",
        "_is_head",
        "_request",
        "_send",
        "bytes_sent",
        "is_ended",
        "is_started",
        "status",
    )

    def __init__(self, send: Send, request: Request) -> None:
        self._send = send
        self._request = request
        self._is_head = request.method == "HEAD"
        self.status = 0
        self.bytes_sent = 0
        self.is_started = self.is_ended = False
        self._encode_error: Callable[[Rejection], bytes] | None = None

    async def respond(self, response: Response) -> None:
        """Send a whole response. An unread body of the request is read for a little longer."""
        lingers = self._request.may_have_body
        status, body = response.status, response.body
        headers = response.all_headers(self._request.cors)
        self.is_started, self.status = True, status
        if self._is_head:
            body = b""
        self.bytes_sent += len(body)
        self.is_ended = not lingers
        if self._request.is_own_server and not lingers:
            await self._send(
                {"type": WHOLE_RESPONSE, "status": status, "headers": headers, "body": body}
            )
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": lingers})
        if lingers:
            await self._request.linger()
            await self.end()

    async def start(
        self,
        status: int,
        headers: Pairs,
        encode_error: Callable[[Rejection], bytes] | None = None,
    ) -> None:
        """Send the head of a stream. It leaves at once, before the first piece.

        `encode_error` gives the last piece of a stream that is aborted or crashes; without it the
        connection is broken off, so that nobody takes the stream for complete.
        """
        self._encode_error = encode_error
        self.is_started, self.status = True, status
        all_headers = [*headers, *self._request.cors, SERVER]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        if not self._is_head:
            # Some servers keep the head back until there is a piece, however small.
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def write(self, piece: bytes) -> None:
        """Send a piece of a stream. Waits while the client does not read."""
        if self._is_head or not piece:
            return
        self.bytes_sent += len(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """Mark the stream as complete."""
        if not self.is_ended:
            self.is_ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, reason: Rejection) -> None:
        """End a stream that was started with its final error, if it has one."""
        if self._encode_error is not None:
            await self.write(self._encode_error(reason))
            await self.end()

    def release(self) -> None:
        """Drop the server's objects; see `Request.release`."""
        self._send = _discard


async def _discard(message: Message) -> None:
    """The `send` of a request that is over."""
