"""One connection: which HTTP it speaks, and its deadlines."""

from __future__ import annotations

from math import inf

from millpond.transports.http.server.http1 import Http1
from millpond.transports.http.server.http2 import Http2
from millpond.transports.http.server.interface import HttpProtocol, Server
from millpond.transports.io.interface import Wire

LOOK_S_MIN = 1.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class HttpConnection:
    """A session (`transports.io.interface`) that becomes HTTP/1.1 or HTTP/2 with its first
    bytes."""

    __slots__ = (
        "_first",
        "_server",
        "_speaker",
        "_stuck",
        "deadline",
        "idle_at",
        "quiet_at",
        "wire",
    )

    def __init__(self, server: Server) -> None:
        self.deadline = inf
        self.wire: Wire
        self.quiet_at = 0.0
        """When something came last."""
        self.idle_at = 0.0
        """When a request was over last; a sign of life is none."""
        self._server = server
        self._speaker: HttpProtocol | None = None
        self._first = b""
        self._stuck = (0, 0.0)
        """So many bytes wait for the other end, since then."""

    @property
    def is_idle(self) -> bool:
        """Nobody would miss it."""
        return self._speaker is None or self._speaker.is_idle

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        self.quiet_at = self.idle_at = self._server.now()
        self._server.wake_at(self, self.quiet_at + self._server.settings.head_s)
        self._server.opened(self)

    def received(self, data: bytes) -> None:
        self.quiet_at = self._server.now()
        if self._speaker is not None:
            self._speaker.received(data)
            return
        self._first += data
        if self._first.startswith(PREFACE):
            self._speak(Http2(self.wire, self._server, self))
        elif not PREFACE.startswith(self._first):
            self._speak(Http1(self.wire, self._server, self))

    def _speak(self, speaker: HttpProtocol) -> None:
        self._speaker = speaker
        settings = self._server.settings
        self._server.wake_at(self, self.quiet_at + min(settings.ping_s, settings.idle_s))
        first, self._first = self._first, b""
        speaker.received(first)

    def uncongested(self) -> None:
        if self._speaker is not None:
            self._speaker.uncongested()

    def eof(self) -> None:
        if self._speaker is not None:
            self._speaker.eof()
        else:
            self.wire.close()

    def ended(self) -> None:
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speaker.ended()  # the two no longer hold each other: no work for the collector
        self._server.left(self)

    def start_drain(self) -> None:
        """The node stops: what was asked is answered, then it closes."""
        if self._speaker is not None:
            self._speaker.finish()
        else:
            self.wire.close()

    def head_began(self, now: float) -> None:
        """A head is under way, whose end did not come with its beginning."""
        self._server.wake_at(self, now + self._server.settings.head_s)

    def wake(self, now: float) -> None:
        """A deadline may have passed."""
        settings, speaker = self._server.settings, self._speaker
        if speaker is None or now >= speaker.head_at + settings.head_s:
            self.wire.close()
            return
        later = now + settings.ping_s
        if speaker.is_idle and now >= self.idle_at + settings.idle_s:
            speaker.finish()
        elif speaker.is_idle:
            later = min(later, self.idle_at + settings.idle_s)
        elif self._is_stuck(now):
            self.wire.abort()
            return
        later = min(later, max(speaker.look(now), now + LOOK_S_MIN))
        self._server.wake_at(self, min(speaker.head_at + settings.head_s, later))

    def _is_stuck(self, now: float) -> bool:
        """Who takes nothing of what waits for it, for long, is not there."""
        unsent = self.wire.unsent_bytes if self.wire.congested else 0
        before, since = self._stuck
        if unsent != before:
            self._stuck = (unsent, now)
            return False
        return unsent > 0 and now >= since + self._server.settings.idle_s
