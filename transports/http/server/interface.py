"""Interfaces between an HTTP server, its connections, and the HTTP versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from millpond.transports.http.asgi import Headers
from millpond.transports.http.server.exchange import Exchange
from millpond.transports.http.server.head_cache import HeadCache
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Wire


class HttpProtocol(Protocol):
    """A version of HTTP on a connection."""

    @property
    def is_idle(self) -> bool:
        """No request is under way, and none has begun."""

    @property
    def head_started_at(self) -> float:
        """Since when a head is under way; infinity: none is."""

    def received(self, data: bytes) -> None: ...
    def uncongested(self) -> None: ...
    def eof(self) -> None: ...
    def ended(self) -> None: ...
    def finish(self) -> None:
        """Answer the requests in progress, announce the end, and close."""

    def check_liveness(self, now: float) -> float:
        """Time has passed: see whether the other end is still there. When to look again."""


class ConnectionActivity(Protocol):
    """A connection, as its HTTP version sees it."""

    received_at: float
    """The time of the last input."""

    idle_since: float
    """The end of the last request."""

    def head_started(self, now: float) -> None:
        """A head has begun whose end has not come yet."""


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
"""The headers of CORS of a rejection by the server, for the headers of the request that it read."""


class Server(Protocol):
    """The server of a connection: its settings, clock, and the application behind it."""

    settings: ServerSettings
    head_cache: HeadCache
    rejection_headers: RejectionHeaders

    def now(self) -> float:
        """Seconds, of the node's clock."""

    def date(self) -> bytes:
        """The value of the header of that name."""

    def opened(self, connection: TrackedConnection) -> None: ...
    def closed(self, connection: TrackedConnection) -> None: ...
    def wake_at(self, connection: TrackedConnection, when: float) -> None: ...
    def serve(self, exchange: Exchange) -> None:
        """Pass an exchange to the application; at once, if it came whole and needs no task."""

    def serve_in_task(self, exchange: Exchange) -> None:
        """Pass an exchange to the application in a task of its own."""
