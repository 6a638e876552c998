"""HTTP/1.1 (RFC 9112) on a wire: `httptools` parses it, requests are answered in their order.

Input that cannot be parsed ends the connection after the responses that are due. A connection whose
request was not read to its end is closed with the response, as the next request cannot be found.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from math import inf

import httptools

from millpond.transports.http.asgi import ADMITTED, DirectRequests, EncodedResponse, Headers
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.response import plain_rejection
from millpond.transports.http.server.chunked_body import ChunkedBody
from millpond.transports.http.server.exchange import Buffer, Exchange, ResponseHead
from millpond.transports.http.server.head_cache import END, HEAD_BYTES_MAX, CachedHead, length_of
from millpond.transports.http.server.heads import (
    BadHead,
    body_length,
    head_rejection,
    line_rejection,
    port_of,
    request_scope,
    response_head,
)
from millpond.transports.http.server.http1_response import CLOSE, Http1Response
from millpond.transports.http.server.interface import ConnectionActivity, Server
from millpond.transports.io.interface import Wire
from millpond.transports.server.memory_budget import MemoryAccount

HEAD_PIECE_BYTES = 2**12
BODY_PIECE_BYTES = 2**16
"""Heads and bodies are parsed in pieces of this size, so that the rest of the input can wait."""
PIECE_BYTES = 2**16
"""A response is given to the wire in pieces of this size, until the wire is full."""
AHEAD_MAX = 16
"""Requests that are read while one is answered."""
CACHED_BYTES_MAX = 2**16
"""Larger requests spend little of their time on their heads."""
FRAMING_BYTES_PER_BYTE = 16
"""Framing that is accepted per byte of body: tiny chunks, or chunks with extensions."""
REQUEST_LINE_BYTES = 1024
"""Most bytes of a request line besides its URL, where it cannot be parsed."""
_NOT_TEXT = re.compile(rb"[^\t\r -\x7e\x80-\xff]")
_FRAMING = (b"content-length", b"transfer-encoding")
_EMPTY_LINES = re.compile(rb"[\r\n]*")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,9})\r\n")
"""The usual form of it; a body whose length has another form is read by itself."""


class InputBuffer:
    """Received bytes that were not parsed yet, in the pieces in which they came: none is copied."""

    __slots__ = ("_at", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self._at = 0
        """The bytes of the first piece that were taken."""

    def add(self, data: bytes) -> None:
        """Append `data`, which is not empty."""
        self.pieces.append(data)

    def take(self, size: int) -> bytes:
        """The next bytes, at most `size`, from one piece; the buffer is not empty."""
        piece, at = self.pieces[0], self._at
        if at + size < len(piece):
            self._at = at + size
            return piece[at : self._at]
        self.pieces.popleft()
        self._at = 0
        return piece[at:] if at else piece

    def skip_empty_lines(self) -> bool:
        """Discard ends of lines that come next. False: there is nothing else."""
        while self.pieces:
            piece = self.pieces[0]
            self._at = _EMPTY_LINES.match(piece, self._at).end()  # type: ignore[union-attr]
            if self._at < len(piece):
                return True
            self.pieces.popleft()
            self._at = 0
        return False

    def size_of_chunks(self, chunked: ChunkedBody, size: int) -> int:
        """The size of what comes next up to the end of a body in chunks; else `size`."""
        piece, at = self.pieces[0], self._at
        return chunked.size_to_end(piece, at, min(len(piece), at + size))

    def size_of_head(self, before: bytes, size: int) -> int:
        """The size of what comes next up to the end of a head, with it; else `size`. A body that is
        not in chunks counts as well, where that is easily seen.

        `before`: the last bytes that were taken, fewer than an end has.
        """
        piece, at = self.pieces[0], self._at
        if before:
            straddling = (before + piece[at : at + len(END) - 1]).find(END)
            if straddling >= 0:
                return straddling + len(END) - len(before)
        end = piece.find(END, at, at + size)
        if end < 0:
            return size
        length = _LENGTH.search(piece, at, end + 2)
        body_bytes = min(int(length[1]), BODY_PIECE_BYTES) if length is not None else 0
        return end + len(END) - at + body_bytes

    def put_back(self, data: bytes) -> None:
        """Prepend bytes that were taken last, or the end of them."""
        if not data:
            return
        if self._at:
            self.pieces[0] = self.pieces[0][self._at :]
            self._at = 0
        self.pieces.appendleft(data)

    def clear(self) -> None:
        """Discard everything."""
        self.pieces.clear()
        self._at = 0


class Http1:
    """Implements `interface.HttpProtocol`, `exchange.ExchangeProtocol`, `asgi.DirectConnection` and
    the callbacks of httptools.

    A request whose head is cached has no exchange as long as nothing but its answer happens on the
    connection; `_direct_exchange_of_head` makes it where something does.
    """

    def __init__(self, wire: Wire, server: Server, connection: ConnectionActivity) -> None:
        self.head_started_at = inf
        self.soon: Callable[[Callable[[], None]], None] = wire.soon
        self.client = (wire.host, port_of(wire))
        self._wire = wire
        self._server = server
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Http1Response] = deque()
        """The responses that are due; the first one is in progress."""
        self._input = InputBuffer()
        self.is_paused = False
        self._is_read_closed = False
        """Nothing more is read."""
        self._is_draining = False
        """Nothing is read behind the request whose body is being read."""
        self._is_eof = False
        """The client sends no more; some of it may not have been read yet."""
        self._in_head = self._is_upgrade = self._is_replaying_head = self._is_serving = False
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = self._framing_bytes = self._body_bytes = 0
        self._last_head = 0
        self._request_line = b""
        self._has_request_line = self._had_request = False
        self._has_trailer = False
        """Fields have come behind the body that is read."""
        self._is_line_broken = False
        """The request line cannot be parsed, and has not come to its end: the answer depends on all
        of it."""
        self._last_bytes = b""
        """The last three bytes of a head, where its end may have begun."""
        self._body_length: int | None = None
        """The length of the body that is read; None: it is in chunks."""
        self._chunked = ChunkedBody()
        self._direct: DirectRequests | None = None
        """The application's side of requests that need no task, from the first one on; another one
        behind a long head."""
        self._direct_head: CachedHead | None = None
        """The head of a request in progress that has no exchange yet."""
        self._direct_body = b""
        """The body of that request."""
        self._direct_exchange: Exchange | None = None
        """The exchange of a request in progress that has no task."""

    @property
    def is_idle(self) -> bool:
        return not (
            self._queue or self._in_head or self._input.pieces or self._direct_head is not None
        )

    @property
    def certificate(self) -> bytes | None:
        return self._wire.peer_certificate_hash

    @property
    def held_bytes(self) -> int:
        held = len(self._direct_body) + (self._head_bytes if self._in_head else 0)
        held += sum([each.head_bytes + each.exchange.held_bytes for each in self._queue])
        return held + sum(map(len, self._input.pieces))

    @property
    def waits_for_client(self) -> bool:
        if self._direct_head is not None:
            return False
        queue = self._queue
        return not queue or queue[0].exchange.waits_for_client

    # Called by the connection.

    def received(self, data: bytes) -> None:
        if self._direct_head is not None:
            self._add_direct_exchange()
        is_first = not (
            self._queue
            or self._in_head
            or self._input.pieces
            or self._is_read_closed
            or self._is_draining
            or self._is_eof
        )
        if is_first and not self._wire.congested:
            cached = self._server.head_cache.find(data)
            if cached is not None:
                self._serve_cached(cached, data[-cached.length :] if cached.length else b"")
                return
        self._input.add(data)
        self._read(data if is_first else b"")

    def _serve_cached(self, cached: CachedHead, body: bytes) -> None:
        """Serve a request that is all there is."""
        direct = self._direct or self._new_direct()
        self._direct_head, self._direct_body = cached, body
        now = self._connection.received_at
        if direct is None or not direct.begin(cached.scope, body, now):
            exchange = self._add_direct_exchange()
            self._direct_exchange = None
            self._server.serve_in_task(exchange)

    def _new_direct(self) -> DirectRequests | None:
        handler = self._server.direct_handler
        self._direct = None if handler is None else handler(self)
        return self._direct

    def _add_direct_exchange(self) -> Exchange:
        """Give the request in progress an exchange, in the queue."""
        cached, body = self._direct_head, self._direct_body
        assert cached is not None, "a request of a cached head is in progress"
        self._direct_head, self._direct_body = None, b""
        exchange = Exchange(self, cached.scope_for(self.client, self.certificate))
        if body:
            exchange.feed(body, len(body))
        exchange.complete()
        response = Http1Response(exchange, True, ())
        response.is_served = True
        self._queue.append(response)
        self._direct_exchange = exchange
        return exchange

    def _cache_head(self, data: bytes) -> None:
        """Cache the head of a request that was all of `data`, if it came twice in a row."""
        queue = self._queue
        if len(queue) != 1 or len(data) > CACHED_BYTES_MAX or self._is_read_closed:
            return
        if self._input.pieces:
            return
        if not queue[0].is_http11:
            return
        exchange = queue[0].exchange
        size = len(data) - self._body_bytes
        if not exchange.is_complete or not data.endswith(END, 0, size) or size > HEAD_BYTES_MAX:
            return
        head = data[:size]
        before, self._last_head = self._last_head, hash(head)
        if before == self._last_head and length_of(self._headers) == self._body_bytes:
            self._server.head_cache.keep(head, self._body_bytes, exchange.scope)

    def uncongested(self) -> None:
        if self._queue:
            self._queue[0].exchange.resume_writing()
        self._serve_queue()
        if self._input.pieces:
            self._read()

    def eof(self) -> None:
        """A client that half-closes gets the responses to its requests."""
        self._is_eof = True
        if self._direct_head is not None:
            self._add_direct_exchange()
        self._read()

    def ended(self) -> None:
        self._is_read_closed = True
        if self._direct_head is not None:
            self._add_direct_exchange()
        self._input.clear()
        queue, self._queue = self._queue, deque()
        for response in queue:
            response.exchange.disconnect()
        # They refer to this object: break the cycles, for the garbage collector.
        del self._parser
        self._direct = None

    def discard(self) -> None:
        self._is_read_closed = True
        if self._direct_head is not None:
            self._add_direct_exchange()
        self._input.clear()
        self._url, self._headers, self._head_bytes = b"", [], 0
        for response in tuple(self._queue):
            response.head_bytes = 0
            response.exchange.disconnect()

    def refuse_input(self) -> bool:
        return self._is_in_body and self._queue[-1].exchange.refuse_input()

    def finish(self) -> None:
        self._is_draining = True
        if self._direct_head is not None:
            self._add_direct_exchange()
        self._is_read_closed = self._is_read_closed or not self._is_in_body
        if not self._queue:
            self._wire.close()

    def check_liveness(self, now: float) -> float:
        """Never again: TCP's own probes tell whether the client is there."""
        return inf

    # Parsing.

    def _read(self, first: bytes = b"") -> None:
        """Parse as far as there is room for it; the rest waits, and the client with it.

        `first`: all bytes there are, beginning with a request.
        """
        while self._input.pieces and not (self._is_read_closed or self._is_full):
            self._read_piece()
        if self._is_read_closed:
            self._input.clear()
        if first:
            self._cache_head(first)
        self._serve_queue()
        self._pause(bool(self._input.pieces))
        if self._is_eof and not self._input.pieces:
            if self._is_line_broken:
                self._reject(Rejection.BAD_REQUEST)
            self._is_read_closed = True
            for response in self._queue:
                response.exchange.end_input()
            if not self._queue:
                self._wire.close()

    @property
    def _is_full(self) -> bool:
        """True for a client that does not read its responses, or is too far ahead of them."""
        queue = self._queue
        if not queue:
            return self._wire.congested
        if not self._is_in_body and (len(queue) > AHEAD_MAX or self._wire.congested):
            return True
        unread = sum([response.exchange.unread_bytes for response in queue])
        return unread > self._server.settings.unread_bytes_max

    def _pause(self, is_full: bool) -> None:
        if is_full == self.is_paused:
            return
        self.is_paused = is_full
        if is_full:
            self.head_started_at = inf  # a head is not late while we do not read
            self._wire.pause()
        elif not self._connection.is_waiting_for_memory:
            self._wire.resume()

    def _read_piece(self) -> None:
        """Parse bytes of at most one request, so that each request line is seen."""
        is_in_body, before = self._is_in_body, self._body_bytes
        if is_in_body and self._body_length is not None:
            piece = self._input.take(min(BODY_PIECE_BYTES, max(1, self._body_length - before)))
        elif is_in_body:
            piece = self._input.take(self._input.size_of_chunks(self._chunked, BODY_PIECE_BYTES))
        else:
            if not self._in_head:
                if not self._input.skip_empty_lines():
                    return
                self._request_line, self._has_request_line, self._last_bytes = b"", False, b""
                self._is_line_broken = False
            piece = self._input.take(self._input.size_of_head(self._last_bytes, HEAD_PIECE_BYTES))
            self._last_bytes = (self._last_bytes + piece[-3:])[-3:]
            is_good = self._has_request_line or self._check_request_line(piece)
            if self._is_line_broken or not is_good:
                self._stop_reading()
                return
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._input.put_back(piece[int(upgrade.args[0]) :])
            if not self._is_read_closed:
                self._ignore_upgrade()
            return
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self._stop_reading()
            return
        self._count(len(piece) - max(0, self._body_bytes - before))
        if self._has_trailer and not self._is_in_body:
            # `connection: close` in a trailer would stop the parser for good.
            self._has_trailer = False
            self._parser = httptools.HttpRequestParser(self)

    def _check_request_line(self, piece: bytes) -> bool:
        """Look at the request line as it comes. False: it has more blanks than one between its
        parts (RFC 9112, 3), which the parser passes over."""
        line, end, _ = (self._request_line + piece).partition(b"\n")
        self._request_line, self._has_request_line = line, bool(end)
        return b"  " not in line and line.count(b" ") <= 2

    @property
    def _is_in_body(self) -> bool:
        return bool(self._queue) and not (self._in_head or self._queue[-1].exchange.is_complete)

    def _count(self, size: int) -> None:
        """Limit bytes outside of bodies: heads, and the framing of chunks."""
        settings = self._server.settings
        if self._in_head:
            self._head_bytes += size
            if self.head_started_at == inf:
                self.head_started_at = self._server.now()
                self._connection.head_started(self.head_started_at)
            if len(self._url) > settings.url_bytes_max:
                self._reject(Rejection.URL_TOO_LONG)
            elif self._head_bytes > settings.url_bytes_max + 2 * settings.header_bytes_max:
                self._reject(Rejection.HEADERS_TOO_LARGE)
        elif self._is_in_body:
            self._framing_bytes += size
            allowed = settings.header_bytes_max + FRAMING_BYTES_PER_BYTE * self._body_bytes
            if self._framing_bytes > allowed + HEAD_PIECE_BYTES:
                self._stop_reading()

    def _ignore_upgrade(self) -> None:
        """Answer a request for an upgrade in HTTP/1.1 (RFC 9110, 7.8). The parser stops there; a
        new one reads on, told how the body is framed."""
        framing = [each for each in self._headers if each[0] in _FRAMING]
        lines = b"".join(b"%b: %b\r\n" % each for each in framing)
        self._is_upgrade, self._is_replaying_head = False, True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
        self._is_replaying_head = False

    def _stop_reading(self) -> None:
        if self._is_in_body:
            # The application rejects the body, unless it has answered already.
            self._is_read_closed = True
            self._queue[-1].exchange.end_input()
            self._queue[-1].is_keep_alive = False
            return
        line = self._request_line
        longest = self._server.settings.url_bytes_max + REQUEST_LINE_BYTES
        if _NOT_TEXT.search(line) is not None or len(line) > longest:
            self._reject(Rejection.BAD_REQUEST)
            return
        if not self._has_request_line:
            self._is_line_broken = self._in_head = True
            self._head_bytes = len(line)
            if self.head_started_at == inf:
                self.head_started_at = self._server.now()
                self._connection.head_started(self.head_started_at)
            return
        why = line_rejection(line)
        if why is None and not self._had_request:
            # Something else than HTTP: h2spec takes an answer in HTTP/1.1 for a broken frame.
            self._is_read_closed = True
            self._in_head, self.head_started_at = False, inf
            self._wire.close()
            return
        self._reject(why or Rejection.BAD_REQUEST)

    def _reject(self, reason: Rejection) -> None:
        """Respond in place of the application, after the responses that are due, and close."""
        if self._is_read_closed:
            return
        self._is_read_closed = True
        self._in_head, self.head_started_at = False, inf
        response = plain_rejection(reason).encoded(self._server.rejection_headers(self._headers))
        date = self._server.date(self.now())
        head = response_head(response.status, response.lines, date, CLOSE)
        if self._queue:
            self._queue[-1].rejection = head + response.body
        else:
            self._wire.write(head + response.body)
            self._wire.close()

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._is_replaying_head:
            return
        self._in_head = True
        self._url, self._headers = b"", []
        self._head_bytes = self._framing_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._is_replaying_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))
        elif not self._is_replaying_head:
            self._has_trailer = True  # which is dropped

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.head_started_at = inf
        if self._is_read_closed or self._is_replaying_head:
            return
        self._had_request = True
        wire, parser = self._wire, self._parser
        version, method = parser.get_http_version(), parser.get_method()
        reason = head_rejection(version, method, self._url, self._headers, self._server.settings)
        if reason is not None:
            self._reject(reason)
            return
        try:
            scope = request_scope(wire, version, method, self._url, self._headers, wire.secure)
        except BadHead:
            self._reject(Rejection.BAD_PATH)
            return
        self._is_upgrade = parser.should_upgrade()
        self._body_length = body_length(self._headers)
        if self._body_length is None:
            self._chunked = ChunkedBody()
        response = Http1Response(Exchange(self, scope), version == "1.1", self._headers)
        response.head_bytes = self._head_bytes
        self._queue.append(response)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._queue and not self._is_read_closed:
            self._queue[-1].exchange.feed(body, len(body))

    def on_message_complete(self) -> None:
        if not self._queue or self._is_read_closed or self._is_upgrade:
            return
        response = self._queue[-1]
        response.exchange.complete()
        # Input behind a request with "connection: close" is ignored.
        self._is_read_closed = self._is_draining or not response.is_keep_alive

    # Called by exchanges: ExchangeProtocol.

    def body_wanted(self, exchange: Exchange) -> None:
        response = self._queue[0] if self._queue else None
        if response is None or response.exchange is not exchange:
            return  # the connection is gone
        if response.expects_continue and not exchange.is_started:
            response.expects_continue = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def body_taken(self, exchange: Exchange, size: int) -> None:
        if self._input.pieces:
            self._read()

    def is_congested(self, exchange: Exchange) -> bool:
        return self._wire.congested

    def may_answer(self, exchange: Exchange) -> bool:
        return not self._wire.congested

    def now(self) -> float:
        return self._server.now()

    def account(self) -> MemoryAccount | None:
        return self._connection.account()

    def write(
        self, exchange: Exchange, head: ResponseHead | None, body: Buffer, is_last: bool
    ) -> Buffer:
        queue = self._queue
        if not queue or queue[0].exchange is not exchange:
            return b""  # the connection is gone
        response, is_closing = queue[0], self._is_closing
        date = self._server.date(self.now())
        if len(body) <= PIECE_BYTES:
            self._write_piece(response.encode(head, bytes(body), is_last, date, is_closing))
            return b""
        rest = memoryview(body)
        while rest:
            piece, rest = bytes(rest[:PIECE_BYTES]), rest[PIECE_BYTES:]
            is_end = is_last and not rest
            self._write_piece(response.encode(head, piece, is_end, date, is_closing))
            head = None
            if self._wire.congested:
                break
        return rest

    @property
    def _is_closing(self) -> bool:
        """True if no request is read behind the first one in the queue."""
        return (
            (self._is_read_closed or self._is_draining)
            and len(self._queue) == 1
            and not self._queue[0].rejection
        )

    def _write_piece(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        if data:
            self._wire.write(data)
            self._connection.wrote(len(data))

    def finished(self, exchange: Exchange) -> None:
        if not self._queue or self._queue[0].exchange is not exchange:
            return  # the connection is gone
        response = self._queue[0]
        if not response.is_whole:
            # A response without its end must not look whole.
            self._is_read_closed = True
            if response.ends_with_connection:
                self._wire.abort()
            else:
                self._wire.close()
            return
        del self._queue[0]
        if response.head_bytes:
            self._release_head()
        if response.rejection:
            self._wire.write(response.rejection)
        if response.rejection or not (response.is_keep_alive and exchange.is_complete):
            self._is_read_closed = True
            self._queue.clear()
        if self._is_read_closed and not self._queue:
            self._wire.close()
            return
        self._connection.idle_since = self._server.now()
        if self._queue:
            self._serve_queue()
        if self._input.pieces:
            self._read()

    def _release_head(self) -> None:
        """Keep nothing of a long head whose request is over: the memory of an idle connection is
        counted as that of any other."""
        self._direct = None
        if not (self._queue or self._in_head):
            self._url, self._headers, self._request_line = b"", [], b""

    def _serve_queue(self) -> None:
        """Serve the first request in line. One that is answered at once makes room for the next:
        in this loop, and not within the end of the one before."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            # A client that does not read its answers gets no further ones made.
            while self._queue and not (self._queue[0].is_served or self._wire.congested):
                self._queue[0].is_served = True
                self._serve(self._queue[0].exchange)
        finally:
            self._is_serving = False

    def _serve(self, exchange: Exchange) -> None:
        """Have a request answered: at once, if it came whole and needs no task."""
        direct = (self._direct or self._new_direct()) if exchange.is_complete else None
        self._direct_exchange = exchange
        if direct is None or not direct.begin(exchange.scope, exchange.body(), self.now()):
            self._direct_exchange = None
            self._server.serve_in_task(exchange)

    # Called by the application: DirectConnection.

    def respond(self, response: EncodedResponse) -> None:
        exchange = self._direct_exchange
        if exchange is not None:
            self._respond_in_queue(exchange, response)
            return
        self._direct_head, self._direct_body = None, b""
        # A cached head is one of HTTP/1.1 that keeps its connection open.
        server, connection = self._server, self._connection
        now = connection.idle_since = server.now()
        data = response_head(response.status, response.lines, server.date(now)) + response.body
        self._wire.write(data)
        connection.wrote(len(data))

    def _respond_in_queue(self, exchange: Exchange, response: EncodedResponse) -> None:
        self._direct_exchange = None
        if self._queue and self._queue[0].exchange is exchange and not exchange.is_disconnected:
            date = self._server.date(self.now())
            self._write_piece([self._queue[0].encode_whole(response, date, self._is_closing)])
        exchange.answered()

    def defer(self) -> None:
        exchange = self._direct_exchange or self._add_direct_exchange()
        self._direct_exchange = None
        exchange.scope[ADMITTED] = True
        self._server.serve_in_task(exchange)

    def break_off(self) -> None:
        exchange = self._direct_exchange or self._add_direct_exchange()
        self._direct_exchange = None
        exchange.finish()
