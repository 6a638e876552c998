"""One HTTP connection: the choice of its HTTP version, and its deadlines.

A connection whose first request is for a channel (`GET /v1/channels/CHANNEL`) is a WebSocket of the
P2P protocol, as at the listener `ws`.
"""

from __future__ import annotations

import sys
from math import inf

from millpond.transports.http.server.interface import HttpProtocol, Server
from millpond.transports.io.interface import Session, Wire
from millpond.transports.server.memory_budget import (
    CHECK_BYTES,
    READ_BYTES,
    SMALL_BYTES,
    MemoryAccount,
    MemoryWaiter,
)

CHECK_S_MIN = 1.0
WEBSOCKET = b"GET /v1/channels/"
"""The first bytes of a request for a WebSocket of a channel."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class HttpConnection:
    """A session (`transports.io.interface`) that becomes HTTP/1.1 or HTTP/2 with its first
    bytes."""

    __slots__ = (
        "_account",
        "_check_at",
        "_preface",
        "_protocol",
        "_received_bytes",
        "_server",
        "_unsent",
        "_waiter",
        "_written_bytes",
        "deadline",
        "idle_since",
        "received_at",
        "wire",
    )

    def __init__(self, server: Server) -> None:
        self.deadline = inf
        self.wire: Wire
        self.received_at = 0.0
        """The time of the last input."""
        self.idle_since = 0.0
        """The end of the last request; pings do not count."""
        self._server = server
        self._protocol: HttpProtocol | None = None
        self._preface = b""
        self._unsent = (0, 0.0)
        """The number of unsent bytes, and since when it has not changed."""
        self._account: MemoryAccount | None = None
        self._received_bytes = self._written_bytes = 0
        self._check_at = CHECK_BYTES
        """The bytes received and written at which the memory is measured again."""
        self._waiter: MemoryWaiter | None = None
        """Set while the wire is not read, as there is no memory."""

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress."""
        return self._protocol is None or self._protocol.is_idle

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        self.received_at = self.idle_since = self._server.now()
        self._server.wake_at(self, self.received_at + self._server.settings.head_s)
        if self._server.memory is not None:
            self._server.memory.connection_opened()
        self._server.opened(self)

    def received(self, data: bytes) -> None:
        self.received_at = self._server.now()
        self._received_bytes += len(data)
        if self._protocol is not None:
            self._protocol.received(data)
        else:
            self._begin(data)
        if self._received_bytes + self._written_bytes >= self._check_at:
            self._check_memory()

    def _begin(self, data: bytes) -> None:
        self._preface += data
        if self._preface.startswith(PREFACE):
            from millpond.transports.http.server.http2 import Http2  # it takes time to load

            self._set_protocol(Http2(self.wire, self._server, self))
        elif self._server.new_websocket is not None and self._preface.startswith(WEBSOCKET):
            self._hand_over(self._server.new_websocket())
        elif not PREFACE.startswith(self._preface) and not self._may_be_websocket:
            from millpond.transports.http.server.http1 import Http1

            self._set_protocol(Http1(self.wire, self._server, self))

    @property
    def _may_be_websocket(self) -> bool:
        return self._server.new_websocket is not None and WEBSOCKET.startswith(self._preface)

    def _hand_over(self, session: Session) -> None:
        """Leave the connection to the session of a WebSocket, which has deadlines, limits and an
        account of memory of its own."""
        from millpond.transports.http.server.websocket import WebSocketProtocol

        self._server.closed(self)
        self._check_at = sys.maxsize
        self._protocol = WebSocketProtocol(session)
        session.opened(self.wire)
        received, self._preface = self._preface, b""
        session.received(received)

    def _set_protocol(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol
        settings = self._server.settings
        self._server.wake_at(self, self.received_at + min(settings.ping_s, settings.idle_s))
        received, self._preface = self._preface, b""
        protocol.received(received)

    def uncongested(self) -> None:
        if self._protocol is not None:
            self._protocol.uncongested()

    def eof(self) -> None:
        if self._protocol is not None:
            self._protocol.eof()
        else:
            self.wire.close()

    def ended(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.ended()  # the two no longer hold each other: no work for the collector
        account, self._account, self._waiter = self._account, None, None
        if account is not None:
            account.close(self._server.now())
        if self._server.memory is not None:
            self._server.memory.connection_ended(self._server.now())
        self._server.closed(self)

    def start_drain(self) -> None:
        """Answer the requests in progress, then close: the node stops."""
        if self._protocol is not None:
            self._protocol.finish()
        else:
            self.wire.close()

    def head_started(self, now: float) -> None:
        """A head has begun whose end has not come yet."""
        self._server.wake_at(self, now + self._server.settings.head_s)

    # Memory: called by the HTTP version, and by the budget (`MemoryHolder`).

    def account(self) -> MemoryAccount | None:
        """The connection's part of the node's memory; None: nobody counts, or it has ended."""
        memory = self._server.memory
        if self._account is None and memory is not None and self._protocol is not None:
            principal = self._server.principal_key(self.wire.host)
            self._account = memory.open(self, principal, self._server.now())
        return self._account

    def wrote(self, size_bytes: int) -> None:
        self._written_bytes += size_bytes
        if self._received_bytes + self._written_bytes >= self._check_at:
            self._check_memory()

    @property
    def is_waiting_for_memory(self) -> bool:
        return self._waiter is not None

    @property
    def held_bytes(self) -> int:
        protocol = self._protocol
        return self.wire.unsent_bytes + (0 if protocol is None else protocol.held_bytes)

    @property
    def moved_bytes(self) -> int:
        return self._received_bytes + self._written_bytes - self.wire.unsent_bytes

    @property
    def waits_for_client(self) -> bool:
        if self.wire.congested or self._protocol is None:
            return True
        return self._waiter is None and self._protocol.waits_for_client

    def close_for_memory(self) -> None:
        if self._protocol is not None:
            self._protocol.discard()
        self.wire.abort()

    def _check_memory(self) -> None:
        """Measure what the connection holds, and read on only if there is room."""
        self._check_at = self._received_bytes + self._written_bytes + CHECK_BYTES
        if self._account is None and self.held_bytes <= SMALL_BYTES:
            return
        account, now = self.account(), self._server.now()
        if account is None or account.has_room(READ_BYTES, now) or self._waiter is not None:
            return
        if account.held_bytes:
            self._waiter = account.wait(READ_BYTES, now, self._read_on, self._refuse_input)
            self.wire.pause()

    def _refuse_input(self) -> bool:
        is_refused = self._protocol is not None and self._protocol.refuse_input()
        if is_refused:
            self._read_on()
        return is_refused

    def _read_on(self) -> None:
        self._waiter = None
        if self._protocol is not None and not self._protocol.is_paused:
            self.wire.resume()

    def wake(self, now: float) -> None:
        """A deadline may have passed."""
        settings, protocol = self._server.settings, self._protocol
        if protocol is None or now >= protocol.head_started_at + settings.head_s:
            self.wire.close()
            return
        later = now + settings.ping_s
        if protocol.is_idle and now >= self.idle_since + settings.idle_s:
            protocol.finish()
        elif protocol.is_idle:
            later = min(later, self.idle_since + settings.idle_s)
        elif self._is_stalled(now):
            self.wire.abort()
            return
        later = min(later, max(protocol.check_liveness(now), now + CHECK_S_MIN))
        self._server.wake_at(self, min(protocol.head_started_at + settings.head_s, later))

    def _is_stalled(self, now: float) -> bool:
        """True for a client that has read nothing for too long, while bytes wait for it."""
        unsent = self.wire.unsent_bytes if self.wire.congested else 0
        before, since = self._unsent
        if unsent != before:
            self._unsent = (unsent, now)
            return False
        return unsent > 0 and now >= since + self._server.settings.idle_s
