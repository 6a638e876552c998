"""Interfaces between an HTTP server, its connections, and the HTTP versions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from millpond.transports.http.asgi import DirectHandler, Headers
from millpond.transports.http.server.exchange import Exchange
from millpond.transports.http.server.head_cache import HeadCache
from millpond.transports.http.server.head_queue import HeadQueue
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Session, Wire
from millpond.transports.server.memory_budget import MemoryAccount, MemoryBudget


class HttpProtocol(Protocol):
    """A version of HTTP on a connection."""

    @property
    def is_idle(self) -> bool:
        """No request is under way, and none has begun."""

    @property
    def head_started_at(self) -> float:
        """The time at which the head that is being received began; infinity: none is."""

    def received(self, data: bytes) -> None: ...
    def uncongested(self) -> None: ...
    def eof(self) -> None: ...
    def ended(self) -> None: ...
    def discard(self) -> None:
        """Discard what came and was not answered: the connection is about to be aborted."""

    def refuse_input(self) -> bool:
        """Refuse the bodies that are being collected, as there is no memory for them. False: there
        are none."""

    def finish(self) -> None:
        """Answer the requests in progress, announce the end, and close."""

    @property
    def held_bytes(self) -> int:
        """The bytes of requests and responses in memory, outside of the wire."""

    @property
    def waits_for_client(self) -> bool:
        """None of the `held_bytes` become free before the client sends or reads."""

    @property
    def is_paused(self) -> bool:
        """It has paused the wire, and resumes it itself."""

    def check_liveness(self, now: float) -> float:
        """Check that the client is still there; returns the time of the next check."""


class ConnectionActivity(Protocol):
    """A connection, as its HTTP version sees it."""

    received_at: float
    """The time of the last input."""

    idle_since: float
    """The end of the last request."""

    def head_started(self, now: float) -> None:
        """A head has begun whose end has not come yet."""

    @property
    def is_waiting_for_memory(self) -> bool:
        """The wire is not read until there is memory."""

    def account(self) -> MemoryAccount | None:
        """The connection's part of the node's memory; None: memory is not limited."""

    def wrote(self, size_bytes: int) -> None:
        """So many bytes were given to the wire."""


class TrackedConnection(Protocol):
    """A connection, as its server sees it. Implements
    `millpond.actors.runtime.timers.TimerOwner`."""

    deadline: float
    wire: Wire

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress."""

    def wake(self, now: float) -> None: ...
    def start_drain(self) -> None:
        """Answer the requests in progress, then close: the node stops."""


RejectionHeaders = Callable[[Headers], Sequence[tuple[bytes, bytes]]]
"""Gives the CORS headers of a rejection by the server, from the headers of the request."""


class Server(Protocol):
    """The server of a connection: its settings, clock, and the application behind it."""

    settings: ServerSettings
    head_cache: HeadCache
    head_queue: HeadQueue
    rejection_headers: RejectionHeaders
    direct_handler: DirectHandler | None
    """Answers requests of HTTP/1.1 that came whole and need no task; None: nothing does."""
    memory: MemoryBudget | None
    """Limits what all connections hold together; None: nothing does."""

    def now(self) -> float:
        """Seconds, of the node's clock."""

    def principal_key(self, host: str) -> Hashable:
        """The client at an address, for its share of the memory; None: it has none of its own."""

    @property
    def date(self) -> Callable[[float], bytes]:
        """The value of the `Date` header, at a time in seconds since 1970."""

    def opened(self, connection: TrackedConnection) -> None: ...
    def closed(self, connection: TrackedConnection) -> None: ...
    def wake_at(self, connection: TrackedConnection, when: float) -> None: ...
    @property
    def new_websocket(self) -> Callable[[], Session] | None:
        """A session for a connection whose first request opens a WebSocket to a channel; None: this
        server has no WebSockets."""

    def serve_in_task(self, exchange: Exchange) -> None:
        """Pass an exchange to the application in a task of its own."""
