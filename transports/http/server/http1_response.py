"""Framing of an HTTP/1.1 response, and the decision to keep its connection open (RFC 9112)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from millpond.transports.http.asgi import EncodedResponse, Headers
from millpond.transports.http.response import header_lines
from millpond.transports.http.server.exchange import Exchange, ResponseHead
from millpond.transports.http.server.heads import response_head

_BODILESS = frozenset({204, 304})
CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"


class Http1Response:
    """The response that a connection owes to one exchange.

    `left`: bytes of the body that are still to come, where its length was given.
    """

    __slots__ = (
        "ends_with_connection",
        "exchange",
        "expects_continue",
        "has_body",
        "head_bytes",
        "is_chunked",
        "is_http11",
        "is_keep_alive",
        "is_served",
        "is_whole",
        "left",
        "rejection",
    )

    def __init__(
        self, exchange: Exchange, is_http11: bool, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        self.exchange = exchange
        self.is_http11 = is_http11
        self.head_bytes = 0
        """The bytes of a long head of the request; those of a short one are not counted."""
        self.is_served = False
        """The application answers it."""
        self.expects_continue = False
        """The client waits for "100 Continue" before it sends the body."""
        self.is_keep_alive = is_http11
        """The connection may stay open."""
        tokens: set[bytes] = set()
        for name, value in headers:
            if name == b"connection":
                tokens.update(token.strip() for token in value.lower().split(b","))
            elif name == b"expect":
                self.expects_continue = is_http11 and value.lower() == b"100-continue"
        if tokens:
            self.is_keep_alive = b"close" not in tokens and (is_http11 or b"keep-alive" in tokens)
        self.has_body = True
        self.is_chunked = self.is_whole = self.ends_with_connection = False
        self.left: float = inf
        self.rejection = b""
        """The rejection of the next request, which could not be read."""

    def encode(
        self, head: ResponseHead | None, body: bytes, is_last: bool, date: bytes, is_closing: bool
    ) -> list[bytes]:
        """The bytes of a piece of the response, in pieces."""
        out = [] if head is None else [self._head(*head, date, is_closing)]
        if self.has_body and self.is_chunked:
            if body:
                out += (b"%x\r\n" % len(body), body, b"\r\n")
            if is_last:
                out.append(b"0\r\n\r\n")
        elif self.has_body:
            # Never more than was promised: the rest would be taken for the next response.
            out.append(body if len(body) <= self.left else body[: max(0, int(self.left))])
            self.left -= len(body)
        self.is_whole = is_last and (not self.has_body or self.left in (0, inf))
        return out

    def encode_whole(self, response: EncodedResponse, date: bytes, is_closing: bool) -> bytes:
        """The bytes of a whole response."""
        status = response.status
        head = response_head(status, response.lines, date, self._persistence(is_closing))
        self.has_body = self.exchange.scope["method"] != "HEAD" and status not in _BODILESS
        self.is_whole = True
        return head + response.body if self.has_body else head

    def _head(self, status: int, headers: Headers, date: bytes, is_closing: bool) -> bytes:
        """The head, with the headers that tell where the response ends."""
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = value
                break
        self.has_body = (
            self.exchange.scope["method"] != "HEAD" and status >= 200 and status not in _BODILESS
        )
        more = b""
        if length is not None:
            self.left = int(length)
        elif self.has_body and self.is_http11:
            self.is_chunked = True
            more = b"transfer-encoding: chunked\r\n"
        elif self.has_body:
            self.ends_with_connection, self.is_keep_alive = True, False
        more += self._persistence(is_closing)
        return response_head(status, header_lines(headers), date, more)

    def _persistence(self, is_closing: bool) -> bytes:
        """The header that tells whether the connection stays open, where that has to be told."""
        if is_closing or (self.expects_continue and not self.exchange.is_complete):
            self.is_keep_alive = False  # a body may follow that was not asked for
        if not self.is_keep_alive:
            return CLOSE
        return b"" if self.is_http11 else _KEEP_ALIVE
