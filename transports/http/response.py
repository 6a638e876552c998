"""Answers: whole ones, streams of pieces, and the plain form of a refusal.

Header bytes leave exactly as they are given (http.md 0.7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millpond.transports.http.asgi import WHOLE_RESPONSE, Headers, Message, Send
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request

Pairs = Sequence[tuple[bytes, bytes]]
SERVER = (b"server", b"millpond")
_JSON = (b"content-type", b"application/json")


class Response(msgspec.Struct, frozen=True, gc=False):
    """A whole answer; its `content-length` is added where none is given."""

    status: int
    headers: Pairs = ()
    body: bytes = b""


def json_response(status: int, content: object, headers: Pairs = ()) -> Response:
    """An answer with a JSON body."""
    return Response(status, (_JSON, *headers), msgspec.json.encode(content))


def plain_rejection(why: Rejection) -> Response:
    """A refusal as JSON `{"code", "message"}`, for who has no form of its own."""
    return json_response(why.status, {"code": why.code, "message": why.message})


def response_headers(response: Response) -> Headers:
    """Its headers, with those that all whole answers have."""
    headers = response.headers
    if response.status == 304 or b"content-length" in [name for name, _ in headers]:
        return [*headers, SERVER]
    return [*headers, (b"content-length", b"%d" % len(response.body)), SERVER]


class ResponseWriter:
    """Where an API answers one request: `whole`, or `start`, any number of `send`, `end`.

    Awaiting them is the backpressure. They do not tell whether the client is still there: see
    `Request.run_until_disconnect`. `last_words`: what a stream ends with that is cut off or
    crashes; without
    it such a stream is broken off, so that nobody takes it for complete.
    """

    __slots__ = (
        "_is_head",
        "_is_ours",
        "_request",
        "_send",
        "bytes_sent",
        "is_ended",
        "is_started",
        "last_words",
        "status",
    )

    def __init__(self, send: Send, request: Request) -> None:
        self._send = send
        self._request = request
        self._is_ours = request.is_ours
        self._is_head = request.method == "HEAD"
        self.status = 0
        self.bytes_sent = 0
        self.is_started = self.is_ended = False
        self.last_words: Callable[[Rejection], bytes] | None = None

    async def whole(self, response: Response) -> None:
        """Send an answer and be done. What was not read of the request is read on for a little."""
        lingers = self._request.may_have_body
        status, body = response.status, response.body
        headers = response_headers(response)
        self.is_started, self.status = True, status
        if self._is_head:
            body = b""
        self.bytes_sent += len(body)
        self.is_ended = not lingers
        if self._is_ours and not lingers:
            await self._send(
                {"type": WHOLE_RESPONSE, "status": status, "headers": headers, "body": body}
            )
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": lingers})
        if lingers:
            await self._request.linger()
            await self.end()

    def let_go(self) -> None:
        """See `Request.let_go`."""
        self._send = _nowhere

    async def start(self, status: int, headers: Pairs) -> None:
        """The head of a stream. It leaves at once, before there is any piece."""
        self.is_started, self.status = True, status
        head = {"type": "http.response.start", "status": status, "headers": [*headers, SERVER]}
        await self._send(head)
        if not self._is_head:
            # Some servers keep the head back until there is a piece, however small.
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def send(self, piece: bytes) -> None:
        """A piece of a stream, not empty. Waits while the client does not read."""
        if self._is_head or not piece:
            return
        self.bytes_sent += len(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """The stream is complete."""
        if not self.is_ended:
            self.is_ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _nowhere(message: Message) -> None:
    """The request is over."""
