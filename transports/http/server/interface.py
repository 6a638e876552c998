"""Who is who on a connection: the server that holds it, the version of HTTP that it speaks."""

from __future__ import annotations

from typing import Protocol

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
        """Answer what was asked, say that this is all, and close; at once where nothing was."""

    def check_liveness(self, now: float) -> float:
        """Time has passed: see whether the other end is still there. When to look again."""


class ConnectionActivity(Protocol):
    """A connection, as the version of HTTP that it speaks sees it."""

    received_at: float
    """When something came last."""

    idle_since: float
    """When a request was over last."""

    def head_started(self, now: float) -> None:
        """A head is under way, whose end did not come with its beginning."""


class TrackedConnection(Protocol):
    """A connection, as its server sees it. Implements
    `millpond.actors.runtime.timers.TimerOwner`."""

    deadline: float
    wire: Wire

    @property
    def is_idle(self) -> bool:
        """Nobody would miss it."""

    def wake(self, now: float) -> None: ...
    def start_drain(self) -> None:
        """The node stops: what was asked is answered, then it closes."""


class Server(Protocol):
    """Who holds the connections, and has requests answered."""

    settings: ServerSettings
    head_cache: HeadCache

    def now(self) -> float:
        """Seconds, of the node's clock."""

    def date(self) -> bytes:
        """The value of the header of that name."""

    def opened(self, connection: TrackedConnection) -> None: ...
    def closed(self, connection: TrackedConnection) -> None: ...
    def wake_at(self, connection: TrackedConnection, when: float) -> None: ...
    def serve(self, exchange: Exchange) -> None:
        """Have the application answer; at once, if it came whole and needs no task."""

    def serve_in_task(self, exchange: Exchange) -> None:
        """The same, in a task of its own."""
