"""How an answer of HTTP/1.1 is framed, and whether its connection goes on behind it (RFC 9112)."""

from __future__ import annotations

from math import inf

from millpond.transports.http.asgi import Headers
from millpond.transports.http.server.exchange import Exchange, Head
from millpond.transports.http.server.heads import response_head

_BODILESS = frozenset({204, 304})


class Http1Response:
    """What one exchange is owed on its connection; `left` bytes of a body whose length was told."""

    __slots__ = (
        "exchange",
        "expects",
        "has_body",
        "is_chunked",
        "is_kept",
        "is_new",
        "is_served",
        "is_told_by_end",
        "is_whole",
        "last_words",
        "left",
    )

    def __init__(self, exchange: Exchange, is_new: bool, headers: Headers) -> None:
        self.exchange = exchange
        self.is_new = is_new
        """Is it HTTP/1.1?"""
        self.is_served = False
        """The application has it in hand."""
        self.expects = False
        """It waits for our word before it sends a body."""
        self.is_kept = is_new
        """The connection may go on behind it."""
        tokens: set[bytes] = set()
        for name, value in headers:
            if name == b"connection":
                tokens.update(token.strip() for token in value.lower().split(b","))
            elif name == b"expect":
                self.expects = is_new and value.lower() == b"100-continue"
        if tokens:
            self.is_kept = b"close" not in tokens and (is_new or b"keep-alive" in tokens)
        self.has_body = True
        self.is_chunked = self.is_whole = self.is_told_by_end = False
        self.left: float = inf
        self.last_words = b""

    def framed(
        self, head: Head | None, body: bytes, is_last: bool, date: bytes, is_closing: bool
    ) -> list[bytes]:
        """What is to be written of a piece of the answer, in pieces."""
        out = [] if head is None else [self._head(*head, date, is_closing)]
        if self.has_body and self.is_chunked:
            if body:
                out += (b"%x\r\n" % len(body), body, b"\r\n")
            if is_last:
                out.append(b"0\r\n\r\n")
        elif self.has_body:
            # Never more than was promised: it would pass for the next answer.
            out.append(body if len(body) <= self.left else body[: max(0, int(self.left))])
            self.left -= len(body)
        self.is_whole = is_last and (not self.has_body or self.left in (0, inf))
        return out

    def _head(self, status: int, headers: Headers, date: bytes, is_closing: bool) -> bytes:
        """Says how the answer's end can be told."""
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = value
                break
        self.has_body = (
            self.exchange.scope["method"] != "HEAD" and status >= 200 and status not in _BODILESS
        )
        more = []
        if length is not None:
            self.left = int(length)
        elif self.has_body and self.is_new:
            self.is_chunked = True
            more.append(b"transfer-encoding: chunked\r\n")
        elif self.has_body:
            self.is_told_by_end, self.is_kept = True, False
        if is_closing or (self.expects and not self.exchange.is_complete):
            self.is_kept = False  # a body that was not asked for may come, or may not
        if not self.is_kept:
            more.append(b"connection: close\r\n")
        elif not self.is_new:
            more.append(b"connection: keep-alive\r\n")
        return response_head(status, headers, date, *more)
