"""HTTP/2 (RFC 9113) on a wire: `h2` implements it, each stream is an exchange of its own.

Input counts against the flow-control windows until the application has taken it, so a stream that
nobody reads holds up no other stream. Frames are counted: a client that floods the node with frames
without content is told to calm down. Heads of all connections are decoded in turns
(`head_queue`); until its turn has come, a connection is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import h2.events as events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import ProtocolError, StreamClosedError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs, StreamState

from millpond.transports.http.asgi import Headers
from millpond.transports.http.server.exchange import Buffer, Exchange, ResponseHead
from millpond.transports.http.server.head_queue import head_cost
from millpond.transports.http.server.heads import BadHead, request_scope
from millpond.transports.http.server.http2_limits import (
    HEADER_BYTES,
    FrameLimiter,
    FrameTooLong,
    HeadTooLong,
)
from millpond.transports.http.server.interface import ConnectionActivity, Server
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Wire
from millpond.transports.server.memory_budget import MemoryAccount
from millpond.transports.server.rate_limit import TokenBucket

PREFACE_BYTES = 24
"""The length of the preface, which is complete when a connection becomes one of HTTP/2."""
FRAMES_PER_S = 10_000
"""The accepted rate of frames. A frame without content counts for 5, a reset stream for 20;
content, in either direction, earns a frame for each KiB."""
UNREAD_REPLY_BYTES_MAX = 2**18
"""The most bytes of replies to frames, while the client does not read."""
OVERSIZED_HEADS_MAX = 4
"""The most heads in a row that are answered with 431; one more ends the connection."""
PING = b"millpond"
_PLAIN_DATA = b"\0\0"
"""Type and flags of a DATA frame behind which more of its stream comes."""
_LAST_DATA = b"\0\1"
"""The same of the last one."""
_CONNECTION_ONLY = frozenset((b"connection", b"transfer-encoding", b"keep-alive"))


EXCHANGE_BYTES = 3 * 2**14
"""About the memory of an exchange by itself: its task, its scope, the stream of h2."""
WINDOW_AT_FIRST = 2**16 - 1
FRAME_BYTES_MAX = 2**14
"""The default of HTTP/2. Larger frames save a quarter of the time of an upload (16 MiB: 32 instead
of 44 ms), but few clients send them, and some rely on the default."""
PIECE_BYTES = 2**16
"""A response is given to the wire in pieces of about this size, until the wire is full."""
HEADER_TABLE_BYTES = 2**12


class _H2Connection(H2Connection):
    MAX_CLOSED_STREAMS = 2**12
    """The closed streams that are remembered; more takes megabytes."""

    def receive_body(self, number: int, body: bytes) -> list[Event] | None:
        """The events that `receive_data` returns for a whole DATA frame without flags, at a third
        of its cost:
        h2 makes an object of each frame, and a text of its bytes for a log that nobody reads. None:
        `receive_data` has to judge it."""
        stream = self.streams.get(number)
        if stream is None or stream.state_machine.state is not StreamState.OPEN:
            return None  # its end may have come in the same input, and is not handled yet
        size = len(body)
        try:
            self.state_machine.process_input(ConnectionInputs.RECV_DATA)
            self._inbound_flow_control_window_manager.window_consumed(size)
            _, found = stream.receive_data(body, False, size)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise
        return found

    def body_frames(self, number: int, body: memoryview, *, is_last: bool) -> bytes:
        """The DATA frames of a body that the windows have room for, in one piece, counted as
        `send_data` counts them: that makes an object of each frame, and copies its bytes four
        times. Waiting data has to be sent before them."""
        stream, size, step = self.streams[number], len(body), self.max_outbound_frame_size
        self.state_machine.process_input(ConnectionInputs.SEND_DATA)
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        if is_last:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
        identifier = number.to_bytes(4, "big")
        pieces: list[Buffer] = []
        for at in range(0, size, step):
            piece = body[at : at + step]
            flags = _LAST_DATA if is_last and at + step >= size else _PLAIN_DATA
            pieces += (b"%b%b%b" % (len(piece).to_bytes(3, "big"), flags, identifier), piece)
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        return b"".join(pieces)


class _H2StateMachine(H2ConnectionStateMachine):
    """A state machine that still answers after GOAWAY; h2's own would refuse to send."""

    def process_input(self, input_: ConnectionInputs) -> list[Event]:
        if input_ is ConnectionInputs.RECV_GOAWAY:
            return []
        return super().process_input(input_)


def _new_h2_connection(settings: ServerSettings) -> _H2Connection:
    """The server side of a connection."""
    connection = _H2Connection(config=H2Configuration(client_side=False, header_encoding=None))
    connection.state_machine = _H2StateMachine()
    connection.local_settings = _h2_settings(settings, settings.streams_max)
    connection.max_inbound_frame_size = FRAME_BYTES_MAX
    # Above all that a head of this size expands to, except by references to its table: a head that
    # is decoded is answered, while an end in its middle ends the connection.
    connection.decoder.max_header_list_size = 2 * _head_bytes_max(settings)
    return connection


def _head_bytes_max(settings: ServerSettings) -> int:
    """The longest head in frames. One that fits into a frame is read whatever the limit of headers
    is, and answered with 431."""
    return max(2 * settings.header_bytes_max, 2 * FRAME_BYTES_MAX)


def _h2_settings(settings: ServerSettings, streams_max: int) -> Settings:
    """The settings that the client is told."""
    return Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: streams_max,
            SettingCodes.INITIAL_WINDOW_SIZE: settings.window_bytes,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            SettingCodes.MAX_HEADER_LIST_SIZE: 2 * settings.header_bytes_max,
            SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
        },
    )


class Http2:
    """Implements `interface.HttpProtocol`, `exchange.ExchangeProtocol` and
    `head_queue.HeadReader`."""

    def __init__(self, wire: Wire, server: Server, connection: ConnectionActivity) -> None:
        self.head_started_at = inf
        self.decoded_until = 0.0
        self.soon: Callable[[Callable[[], None]], None] = wire.soon
        self._wire = wire
        self._server = server
        self._connection = connection
        self._preface_bytes = PREFACE_BYTES
        self._input = b""
        """Input that waits for its turn to be decoded."""
        self._oversized_heads = 0
        """Heads in a row that were too large."""
        self._frame_limiter = FrameLimiter(FRAME_BYTES_MAX, _head_bytes_max(server.settings))
        self._exchanges: dict[int, Exchange] = {}
        self._waiting: dict[Exchange, None] = {}
        """The exchanges that wait to write."""
        self._expecting: set[int] = set()
        """Streams that wait for "100 Continue" before they send a body."""
        self._stalled: dict[int, float] = {}
        """The streams of which the client reads nothing, and since when."""
        self._frame_bucket = TokenBucket(FRAMES_PER_S, server.now())
        self._unread_reply_bytes = 0
        self._pinged_at = inf
        self._is_draining = self._is_closed = False
        self._h2 = _new_h2_connection(server.settings)
        self._h2.initiate_connection()
        # A stream above the limit is refused here; h2 would end the connection, with all streams.
        self._h2.local_settings = _h2_settings(server.settings, 2 * server.settings.streams_max)
        extra = server.settings.connection_window_bytes - WINDOW_AT_FIRST
        self._h2.increment_flow_control_window(extra)

    @property
    def is_idle(self) -> bool:
        return not (self._exchanges or self._input)

    @property
    def is_paused(self) -> bool:
        return bool(self._input)

    @property
    def held_bytes(self) -> int:
        exchanges = self._exchanges.values()
        held = sum([each.held_bytes for each in exchanges]) + len(exchanges) * EXCHANGE_BYTES
        return held + self._frame_limiter.head_bytes + len(self._input)

    @property
    def waits_for_client(self) -> bool:
        waiting = [each for each in self._exchanges.values() if each.waits_for_client]
        held = sum([each.held_bytes for each in waiting]) + len(waiting) * EXCHANGE_BYTES
        held += self._frame_limiter.head_bytes
        return 2 * held >= self.held_bytes

    # Called by the connection.

    def received(self, data: bytes) -> None:
        self._pinged_at = inf
        if self._input:
            self._input += data
            return
        queue, at = self._server.head_queue, 0
        while at < len(data):
            if not queue.is_free:
                self._input = data[at:]
                self.head_started_at = inf  # a head is not late while we do not read
                self._wire.pause()
                queue.wait(self)
                break
            at = self._read_piece(data, at)
        self._answer_frames()

    def read_on(self) -> bool:
        data, self._input = self._input, b""
        if not data:
            return False  # it was closed meanwhile
        try:
            self._input = data[self._read_piece(data, 0) :]
            self._answer_frames()
        except BaseException:
            self._wire.abort()
            raise
        if self._input:
            self.head_started_at = inf
            return True
        if not (self._is_closed or self._connection.is_waiting_for_memory):
            self._wire.resume()
        if self._is_draining and self.is_idle:
            self._end(ErrorCodes.NO_ERROR)
        return False

    def _read_piece(self, data: bytes, at: int) -> int:
        """Read up to the end of the next head. Gives the place behind it."""
        limiter = self._frame_limiter
        try:
            end = limiter.check(data, at + self._preface_bytes)
        except FrameTooLong:
            return self._end_before(data, ErrorCodes.FRAME_SIZE_ERROR)
        except HeadTooLong:
            return self._end_before(data, ErrorCodes.ENHANCE_YOUR_CALM)
        self._preface_bytes = 0
        try:
            found = self._receive_frames(data, at, limiter.whole_from, end)
        except ProtocolError:
            self._count_head([])
            self._flush()
            self._close()
            return len(data)
        self._count_head(found)
        self._watch_head()
        self._spend(limiter.frames)
        for event in found:
            if not self._is_closed:
                self._handle(event)
        return len(data) if self._is_closed else end

    def _receive_frames(self, data: bytes, at: int, whole_from: int, end: int) -> list[Event]:
        """The events of input in which a frame begins at `whole_from`. Raises ProtocolError."""
        found: list[Event] = []
        if at < whole_from:
            found = self._h2.receive_data(data[at:whole_from])
            at = whole_from
        while end - at > HEADER_BYTES and data[at + 3 : at + 5] == _PLAIN_DATA:
            begin = at + HEADER_BYTES
            after = begin + int.from_bytes(data[at : at + 3], "big")
            number = int.from_bytes(data[at + 5 : begin], "big")
            exchange = self._exchanges.get(number)
            if not begin < after <= end or exchange is None or exchange.is_complete:
                break
            more = self._h2.receive_body(number, data[begin:after])
            if more is None:
                break
            found += more
            at = after
        if at < end:
            found += self._h2.receive_data(data[at:end])
        return found

    def _end_before(self, data: bytes, reason: ErrorCodes) -> int:
        """End the connection without reading the input."""
        self._end(reason)
        return len(data)

    def _count_head(self, found: list[Event]) -> None:
        block_bytes = self._frame_limiter.whole_head_bytes
        if not block_bytes:
            return
        fields = size = 0
        for event in found:
            if isinstance(event, events.RequestReceived | events.TrailersReceived):
                fields += len(event.headers)
                size += _size(event.headers)
        self._server.head_queue.spend(self, head_cost(block_bytes, fields, size))

    def _answer_frames(self) -> None:
        """Write the answers; a client that sends too many frames, or does not read, is closed."""
        if self._is_closed:
            return
        size = self._flush()
        self._unread_reply_bytes += size if self._wire.congested else 0
        if self._unread_reply_bytes > UNREAD_REPLY_BYTES_MAX:
            self._wire.abort()
        elif self._frame_bucket.debt_ms(self._server.now()):
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)

    def _watch_head(self) -> None:
        """Watch the time of a frame that has begun; bodies may come as slowly as they like."""
        if not self._frame_limiter.is_partial or self._exchanges:
            self.head_started_at = inf
        elif self.head_started_at == inf:
            self.head_started_at = self._server.now()
            self._connection.head_started(self.head_started_at)

    def uncongested(self) -> None:
        self._unread_reply_bytes = 0
        self._resume_writers(self._waiting)

    def eof(self) -> None:
        for exchange in tuple(self._exchanges.values()):
            exchange.disconnect()
        self._close()

    def ended(self) -> None:
        self._is_closed = True
        exchanges, self._exchanges = self._exchanges, {}
        self._waiting.clear()
        self._stalled.clear()
        self._expecting.clear()
        self._input = b""
        vars(self._h2).clear()  # it refers to itself: break the cycle, for the garbage collector
        for exchange in exchanges.values():
            exchange.disconnect()

    def discard(self) -> None:
        self._is_closed = True
        self._h2.incoming_buffer = FrameBuffer(server=True)  # with the half of a head
        self._frame_limiter.head_bytes = 0
        self._input = b""
        for exchange in tuple(self._exchanges.values()):
            exchange.disconnect()

    def refuse_input(self) -> bool:
        refused = [each.refuse_input() for each in tuple(self._exchanges.values())]
        return True in refused

    def finish(self) -> None:
        """Close after the exchanges in progress. GOAWAY comes with the close: clients drop what
        comes after it (docs/reference/s2.md)."""
        self._is_draining = True
        if self.is_idle:
            self._end(ErrorCodes.NO_ERROR)

    def check_liveness(self, now: float) -> float:
        """Ping a silent client; abort the connection if it does not answer. A stream that the
        client does not read for too long is reset."""
        if self._is_closed:
            return inf
        settings = self._server.settings
        for number in [each for each in self._stalled if self._is_stalled(each, now)]:
            self._reset(number, ErrorCodes.CANCEL)
            self._exchanges[number].disconnect()
            del self._stalled[number]
        if self._input:
            self._pinged_at = inf  # its answer may wait behind the input
            return now + settings.ping_s
        if now >= self._pinged_at + settings.ping_wait_s:
            self._wire.abort()
        elif self._pinged_at == inf and now >= self._connection.received_at + settings.ping_s:
            self._pinged_at = now
            self._h2.ping(PING)
        self._flush()
        pinged_by = self._pinged_at + settings.ping_wait_s
        return pinged_by if pinged_by != inf else self._connection.received_at + settings.ping_s

    def _is_stalled(self, number: int, now: float) -> bool:
        return now >= self._stalled[number] + self._server.settings.idle_s

    # Events of h2.

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.DataReceived():
                self._receive_data(event)
            case events.RequestReceived():
                self._open_stream(event.stream_id, event.headers)
            case events.StreamEnded():
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None:
                    exchange.complete()
            case events.StreamReset():
                self._spend(19)
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None:
                    exchange.disconnect()
            case events.WindowUpdated():
                of_one = [each for each in self._waiting if each.number == event.stream_id]
                self._resume_writers(of_one if event.stream_id else self._waiting)
            case events.RemoteSettingsChanged():
                self._spend(4)
                # The client chooses the size of the table, which is searched for each header.
                if self._h2.encoder.header_table_size > HEADER_TABLE_BYTES:
                    self._h2.encoder.header_table_size = HEADER_TABLE_BYTES
                self._resume_writers(self._waiting)
            case events.ConnectionTerminated():
                self.finish()
            case events.TrailersReceived():
                pass
            case _:
                self._spend(4)

    def _open_stream(self, number: int, found: Headers) -> None:
        method, target, headers = _read(found)
        server, wire = self._server, self._wire
        try:
            scope = request_scope(wire, "2", method, target, headers, wire.secure)
        except BadHead:
            self._reset(number, ErrorCodes.PROTOCOL_ERROR)
            return
        if len(self._exchanges) >= server.settings.streams_max:
            self._spend(19)
            self._reset(number, ErrorCodes.REFUSED_STREAM)
            return
        if self._is_oversized(headers):
            self._oversized_heads += 1
            if self._oversized_heads > OVERSIZED_HEADS_MAX:
                self._end(ErrorCodes.ENHANCE_YOUR_CALM)
                return
        else:
            self._oversized_heads = 0
        exchange = self._exchanges[number] = Exchange(self, scope, number)
        if dict(headers).get(b"expect", b"").lower() == b"100-continue":
            self._expecting.add(number)
        server.serve_in_task(exchange)

    def _is_oversized(self, headers: Headers) -> bool:
        """True for a head that the application answers with 431."""
        settings = self._server.settings
        return len(headers) > settings.headers_max or _size(headers) > settings.header_bytes_max

    def _receive_data(self, event: events.DataReceived) -> None:
        exchange = self._exchanges.get(event.stream_id)
        size = event.flow_controlled_length
        if event.data:
            self._spend(-(size // 1024))
        elif event.stream_ended is None:
            self._spend(4)
        if exchange is None or exchange.is_input_ended:
            if size:
                self._h2.acknowledge_received_data(size, event.stream_id)
        elif event.data:
            exchange.feed(event.data, size)
        elif size:
            self._h2.acknowledge_received_data(size, event.stream_id)

    def _reset(self, number: int, reason: ErrorCodes) -> None:
        try:
            self._h2.reset_stream(number, reason)
        except StreamClosedError:
            return  # later input has reset the stream already

    def _spend(self, cost: int) -> None:
        self._frame_bucket.spend(cost, self._server.now())

    # Called by exchanges: ExchangeProtocol.

    def body_wanted(self, exchange: Exchange) -> None:
        """Send "100 Continue" to a client that expects it (RFC 9110, 10.1.1)."""
        if exchange.number in self._expecting and not exchange.is_started:
            self._expecting.discard(exchange.number)
            self._h2.send_headers(exchange.number, [(b":status", b"100")])
            self._flush()

    def body_taken(self, exchange: Exchange, size: int) -> None:
        if not self._is_closed:
            self._h2.acknowledge_received_data(size, exchange.number)
            self._flush()

    def is_congested(self, exchange: Exchange) -> bool:
        if self._wire.congested:
            self._waiting[exchange] = None
            return True
        return False

    def may_answer(self, exchange: Exchange) -> bool:
        if self._is_closed or exchange.number not in self._exchanges:
            return True  # nothing is written any more
        may = not self._wire.congested and self._may_write(exchange)
        if not may:
            self._waiting[exchange] = None
        self._track_stall(exchange.number, not may, False)
        return may

    def now(self) -> float:
        return self._server.now()

    def account(self) -> MemoryAccount | None:
        return self._connection.account()

    def write(
        self, exchange: Exchange, head: ResponseHead | None, body: Buffer, is_last: bool
    ) -> Buffer:
        if self._is_closed or exchange.number not in self._exchanges:
            return b""
        if head is not None:
            self._write_head(exchange, head, is_last and not body)
            if is_last and not body:
                self._flush()
                return b""
        rest: Buffer = b""
        if body or is_last:
            rest = self._write_body(exchange.number, body, is_last)
        if rest:
            self._waiting[exchange] = None
        self._track_stall(exchange.number, bool(rest), len(rest) < len(body))
        self._flush()
        return rest

    def _track_stall(self, number: int, has_rest: bool, has_moved: bool) -> None:
        if not has_rest:
            self._stalled.pop(number, None)
        elif has_moved or number not in self._stalled:
            self._stalled[number] = self._server.now()

    def _write_head(self, exchange: Exchange, head: ResponseHead, is_whole: bool) -> None:
        status, headers = head
        lines = [(b":status", b"%d" % status)]
        lines += [each for each in headers if each[0] not in _CONNECTION_ONLY]
        lines.append((b"date", self._server.date(self._server.now())))
        self._h2.send_headers(exchange.number, lines, end_stream=is_whole)

    def _write_body(self, number: int, body: Buffer, is_last: bool) -> Buffer:
        if not body:
            self._h2.end_stream(number)
            return b""
        connection, at, size = self._h2, 0, len(body)
        body = memoryview(body)
        self._flush()
        while at < size and not self._wire.congested:
            window = connection.local_flow_control_window(number)
            if window <= 0:
                break
            end = min(at + window, at + PIECE_BYTES, size)
            piece = connection.body_frames(number, body[at:end], is_last=is_last and end == size)
            self._wire.write(piece)
            self._connection.wrote(len(piece))
            self._spend(-((end - at) // 1024) - 1)
            at = end
        return body[at:]

    def finished(self, exchange: Exchange) -> None:
        if self._exchanges.pop(exchange.number, None) is None:
            return
        self._waiting.pop(exchange, None)
        self._expecting.discard(exchange.number)
        self._stalled.pop(exchange.number, None)
        if not exchange.is_disconnected:
            if not exchange.is_answered:
                self._reset(exchange.number, ErrorCodes.INTERNAL_ERROR)
            elif not exchange.is_complete:
                # The client need not send the rest of its request (RFC 9113, 8.1).
                self._reset(exchange.number, ErrorCodes.NO_ERROR)
            self._flush()
        self._connection.idle_since = self._server.now()
        if self._is_draining and self.is_idle:
            self._end(ErrorCodes.NO_ERROR)

    def _resume_writers(self, waiting: Iterable[Exchange]) -> None:
        """Wake the exchanges that can write now; one update must not wake all of them in vain."""
        for exchange in tuple(waiting):
            if exchange in self._waiting and self._may_write(exchange):
                del self._waiting[exchange]
                exchange.resume_writing()

    def _may_write(self, exchange: Exchange) -> bool:
        try:
            return (
                exchange.is_disconnected or self._h2.local_flow_control_window(exchange.number) > 0
            )
        except StreamClosedError:
            return False  # the same input has reset it, and disconnects it in a moment

    # The end of the connection.

    def _end(self, reason: ErrorCodes) -> None:
        if self._is_closed:
            return
        self._h2.close_connection(reason)
        self._flush()
        self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._input = b""
        for exchange in tuple(self._exchanges.values()):
            exchange.disconnect()
        self._wire.close()

    def _flush(self) -> int:
        data = self._h2.data_to_send()
        if data:
            self._wire.write(data)
            self._connection.wrote(len(data))
        return len(data)


def _size(headers: Headers) -> int:
    return sum([len(name) + len(value) for name, value in headers])


def _read(found: Headers) -> tuple[bytes, bytes, Headers]:
    """Method, target and headers; h2 has checked that they are there, and in order."""
    method = target = b""
    headers: Headers = []
    for name, value in found:
        if name == b":method":
            method = value
        elif name == b":path":
            target = value
        elif name == b":authority":
            headers.append((b"host", value))
        elif not name.startswith(b":"):
            headers.append((name, value))
    return method, target, headers
