"""A WebSocket on a connection that came to an HTTP listener: a session with the wire to itself."""

from __future__ import annotations

from math import inf

from millpond.transports.io.interface import Session


class WebSocketProtocol:
    """The session of a WebSocket in place of a version of HTTP. Implements
    `interface.HttpProtocol`; the server counts, drains and times the connection no more."""

    __slots__ = ("_session", "ended", "eof", "received", "uncongested")

    is_idle = False
    head_started_at = inf
    held_bytes = 0
    waits_for_client = True
    is_paused = True

    def __init__(self, session: Session) -> None:
        self._session = session
        self.received = session.received
        self.uncongested = session.uncongested
        self.eof = session.eof
        self.ended = session.ended

    def discard(self) -> None:
        """The session discards its own."""

    def refuse_input(self) -> bool:
        """No bodies are collected."""
        return False

    def finish(self) -> None:
        """The registry of connections drains the session."""

    def check_liveness(self, now: float) -> float:
        """The session sends its own pings."""
        return inf
