"""HTTP/1.1 (RFC 9112) on a wire: `httptools` reads it, requests are answered in their order.

What cannot be read ends the connection behind the answers that are due. A connection whose request
was not read to its end is closed with the answer, since what follows cannot be told from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

import httptools

from millpond.transports.http.asgi import Headers
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.response import SERVER, plain_rejection
from millpond.transports.http.server.exchange import Exchange, Head
from millpond.transports.http.server.head_cache import END, HEAD_BYTES_MAX, CachedHead, length_of
from millpond.transports.http.server.heads import (
    BadHead,
    head_rejection,
    port_of,
    request_scope,
    response_head,
)
from millpond.transports.http.server.http1_response import Http1Response
from millpond.transports.http.server.interface import ConnectionActivity, Server
from millpond.transports.io.interface import Wire

HEAD_PIECE_BYTES = 2**12
BODY_PIECE_BYTES = 2**16
"""Heads and bodies are read in pieces of this, so that what lies behind them can wait."""
LARGE_BYTES = 2**16
"""A piece of an answer from here on is not copied to join it with what frames it."""
AHEAD_MAX = 16
"""Requests that are read while one is answered."""
REPEATED_BYTES_MAX = 2**16
"""Larger requests have more to do than to read their heads."""
FRAMING_BYTES_PER_BYTE = 16
"""Of chunks with little in them, or with extensions, that much is borne."""
_FRAMING = (b"content-length", b"transfer-encoding")


class InputBuffer:
    """Bytes in the pieces in which they came: however many wait, none is copied to be joined."""

    __slots__ = ("_at", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._at = 0
        """How much of the first piece was taken."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes) -> None:
        """More of them; `data` is not empty."""
        self._pieces.append(data)

    def take(self, size: int) -> bytes:
        """The next ones, at most so many, from one piece; there have to be some."""
        piece, at = self._pieces[0], self._at
        if at + size < len(piece):
            self._at = at + size
            return piece[at : self._at]
        self._pieces.popleft()
        self._at = 0
        return piece[at:] if at else piece

    def put_back(self, data: bytes) -> None:
        """What was taken last, or its end, comes first again."""
        if not data:
            return
        if self._at:
            self._pieces[0] = self._pieces[0][self._at :]
            self._at = 0
        self._pieces.appendleft(data)

    def clear(self) -> None:
        """Nobody reads them any more."""
        self._pieces.clear()
        self._at = 0


class Http1:
    """Implements `connection.Speaker` and `exchange.Speech`; the callbacks are httptools'."""

    def __init__(self, wire: Wire, server: Server, connection: ConnectionActivity) -> None:
        self.head_at = inf
        self._wire = wire
        self._server = server
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Http1Response] = deque()
        """The first one is being answered."""
        self._unread = InputBuffer()
        self._is_paused = False
        self._is_last = False
        """Nothing more is read."""
        self._is_finishing = False
        """Nothing behind the request whose body is being read."""
        self._is_ending = False
        """The other end has said all; some of it may not have been read yet."""
        self._in_head = self._is_upgrade = self._is_primed = self._is_serving = False
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = self._framing_bytes = self._body_bytes = 0
        self._last_head = 0

    @property
    def is_idle(self) -> bool:
        return not (self._queue or self._in_head or self._unread)

    # What the wire says.

    def received(self, data: bytes) -> None:
        is_first = self.is_idle and not self._is_last
        if is_first and (repeat := self._server.head_cache.find(data)) is not None:
            if not (self._is_finishing or self._is_ending or self._wire.congested):
                self._serve_again(repeat, data)
                return
        self._unread.add(data)
        self._read(data if is_first else b"")

    def _serve_again(self, repeat: CachedHead, data: bytes) -> None:
        """A request whose head was read before, and whose body is there."""
        wire = self._wire
        scope = repeat.scope_for((wire.host, port_of(wire)), wire.peer_certificate_hash)
        reply = Http1Response(Exchange(self, scope), True, [])
        if repeat.length:
            reply.exchange.feed(data[-repeat.length :], repeat.length)
        reply.exchange.complete()
        self._queue.append(reply)
        self._serve_first()

    def _note_head(self, data: bytes) -> None:
        """Keep the head of a request that was all of `data`, if it comes for the second time."""
        queue = self._queue
        if len(queue) != 1 or len(data) > REPEATED_BYTES_MAX or self._unread or self._is_last:
            return
        if not queue[0].is_new:
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
            self._queue[0].exchange.make_room()
        if self._unread:
            self._read()

    def eof(self) -> None:
        """Whoever half-closes hears what it asked for; who asked half of something is gone."""
        self._is_ending = True
        self._read()

    def ended(self) -> None:
        self._is_last = True
        self._unread.clear()
        queue, self._queue = self._queue, deque()
        for reply in queue:
            reply.exchange.cut()
        del self._parser  # it holds this one, and this one it: no work for the collector

    def finish(self) -> None:
        self._is_finishing = True
        self._is_last = self._is_last or not self._is_in_body
        if not self._queue:
            self._wire.close()

    def look(self, now: float) -> float:
        """TCP's own probes tell whether the other end is there."""
        return inf

    # Reading.

    def _read(self, first: bytes = b"") -> None:
        """Read on as far as there is room for it; the rest waits, and the other end with it.
        `first`: these are all there is, and begin with a request."""
        while self._unread and not (self._is_last or self._is_full):
            self._read_piece()
        if self._is_last:
            self._unread.clear()
        if first:
            self._note_head(first)
        self._serve_first()
        self._pause(bool(self._unread))
        if self._is_ending and not self._unread:
            self._hear_end()

    def _hear_end(self) -> None:
        self._is_last = True
        for reply in self._queue:
            reply.exchange.leave()
        if not self._queue:
            self._wire.close()

    @property
    def _is_full(self) -> bool:
        """Who does not read its answers, or asks too far ahead of them, is not read on."""
        queue = self._queue
        if not queue:
            return self._wire.congested
        if not self._is_in_body and (len(queue) > AHEAD_MAX or self._wire.congested):
            return True
        unread = sum([reply.exchange.unread_bytes for reply in queue])
        return unread > self._server.settings.unread_bytes_max

    def _pause(self, is_full: bool) -> None:
        if is_full == self._is_paused:
            return
        self._is_paused = is_full
        if is_full:
            self.head_at = inf  # nobody is late while we do not read
            self._wire.pause()
        else:
            self._wire.resume()

    def _read_piece(self) -> None:
        piece = self._unread.take(BODY_PIECE_BYTES if self._is_in_body else HEAD_PIECE_BYTES)
        before = self._body_bytes
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._unread.put_back(piece[int(upgrade.args[0]) :])
            if not self._is_last:
                self._pass_over_upgrade()
            return
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self._stop_reading()
            return
        self._count(len(piece) - max(0, self._body_bytes - before))

    @property
    def _is_in_body(self) -> bool:
        return bool(self._queue) and not (self._in_head or self._queue[-1].exchange.is_complete)

    def _count(self, size: int) -> None:
        """Limit what is no body: heads, and what chunks are framed by."""
        settings = self._server.settings
        if self._in_head:
            self._head_bytes += size
            if self.head_at == inf:
                self.head_at = self._server.now()
                self._connection.head_began(self.head_at)
            if len(self._url) > settings.url_bytes_max:
                self._refuse(Rejection.URL_TOO_LONG)
            elif self._head_bytes > settings.url_bytes_max + 2 * settings.header_bytes_max:
                self._refuse(Rejection.HEADERS_TOO_LARGE)
        elif self._is_in_body:
            self._framing_bytes += size
            allowed = settings.header_bytes_max + FRAMING_BYTES_PER_BYTE * self._body_bytes
            if self._framing_bytes > allowed + HEAD_PIECE_BYTES:
                self._stop_reading()

    def _pass_over_upgrade(self) -> None:
        """Who would rather speak something else is answered in HTTP/1.1 (RFC 9110, 7.8). The parser
        stops there; another one reads on, told how the body is framed."""
        framing = [each for each in self._headers if each[0] in _FRAMING]
        lines = b"".join(b"%b: %b\r\n" % each for each in framing)
        self._is_upgrade, self._is_primed = False, True
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
        self._is_primed = False

    def _stop_reading(self) -> None:
        if self._is_in_body:
            # The application says so, where it has not answered yet.
            self._is_last = True
            self._queue[-1].exchange.leave()
            self._queue[-1].is_kept = False
        else:
            self._refuse(Rejection.BAD_REQUEST)

    def _refuse(self, why: Rejection) -> None:
        """Answer in place of the application, behind what is due before that, and close."""
        if self._is_last:
            return
        self._is_last = True
        self._in_head, self.head_at = False, inf
        response = plain_rejection(why)
        length = (b"content-length", b"%d" % len(response.body))
        head = response_head(
            response.status,
            [*response.headers, length, SERVER],
            self._server.date(),
            b"connection: close\r\n",
        )
        if self._queue:
            self._queue[-1].last_words = head + response.body
        else:
            self._wire.write(head + response.body)
            self._wire.close()

    # httptools' callbacks.

    def on_message_begin(self) -> None:
        if self._is_primed:
            return
        self._in_head = True
        self._url, self._headers = b"", []
        self._head_bytes = self._framing_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._is_primed:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.head_at = inf
        if self._is_last or self._is_primed:
            return
        wire, parser = self._wire, self._parser
        version, method = parser.get_http_version(), parser.get_method()
        why = head_rejection(version, method, self._url, self._headers, self._server.settings)
        if why is not None:
            self._refuse(why)
            return
        try:
            scope = request_scope(wire, version, method, self._url, self._headers, wire.secure)
        except BadHead:
            self._refuse(Rejection.BAD_PATH)
            return
        self._is_upgrade = parser.should_upgrade()
        reply = Http1Response(Exchange(self, scope), version == "1.1", self._headers)
        self._queue.append(reply)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._queue and not self._is_last:
            self._queue[-1].exchange.feed(body, len(body))

    def on_message_complete(self) -> None:
        if not self._queue or self._is_last or self._is_upgrade:
            return
        reply = self._queue[-1]
        reply.exchange.complete()
        # What lies behind a request that asked for the end is nobody's.
        self._is_last = self._is_finishing or not reply.is_kept

    # What exchanges ask: Speech.

    def asks_for_body(self, exchange: Exchange) -> None:
        reply = self._reply_of(exchange)
        if reply is not None and reply.expects and not exchange.is_started:
            reply.expects = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def taken(self, exchange: Exchange, size: int) -> None:
        if self._unread:
            self._read()

    def is_held_up(self, exchange: Exchange) -> bool:
        return self._wire.congested

    def write(self, exchange: Exchange, head: Head | None, body: bytes, is_last: bool) -> bytes:
        reply = self._reply_of(exchange)
        if reply is None:
            return b""
        pieces = reply.framed(head, body, is_last, self._server.date(), self._is_closing)
        if len(body) < LARGE_BYTES:
            pieces = [b"".join(pieces)]
        for each in pieces:
            if each:
                self._wire.write(each)
        return b""

    @property
    def _is_closing(self) -> bool:
        """Is this the last answer here?"""
        if len(self._queue) > 1 or self._queue[0].last_words:
            return False
        return self._is_last or self._is_finishing

    def conclude(self, exchange: Exchange) -> None:
        reply = self._reply_of(exchange)
        if reply is None:
            return
        if not reply.is_whole:
            self._break_off(reply)
            return
        del self._queue[0]
        if reply.last_words:
            self._wire.write(reply.last_words)
        if reply.last_words or not (reply.is_kept and exchange.is_complete):
            self._is_last = True
            self._queue.clear()
        if self._is_last and not self._queue:
            self._wire.close()
            return
        self._connection.idle_at = self._server.now()
        self._serve_first()
        if self._unread:
            self._read()

    def _serve_first(self) -> None:
        """Have the first in line answered. One that is answered at once makes room for the next:
        here, and not within its own end."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._queue and not self._queue[0].is_served:
                self._queue[0].is_served = True
                self._server.serve(self._queue[0].exchange)
        finally:
            self._is_serving = False

    def soon(self, callback: Callable[[], None]) -> None:
        self._wire.soon(callback)

    def defer(self, exchange: Exchange) -> None:
        self._server.serve_in_task(exchange)

    def _break_off(self, reply: Http1Response) -> None:
        """An answer without its end must not look whole."""
        self._is_last = True
        if reply.is_told_by_end:
            self._wire.abort()
        else:
            self._wire.close()

    def _reply_of(self, exchange: Exchange) -> Http1Response | None:
        """The exchange whose reply it is; None: the connection is gone."""
        if self._queue and self._queue[0].exchange is exchange:
            return self._queue[0]
        return None
