"""How a connection that serves streams begins and ends: admission, idleness, last words, goodbye.

What lies between, requests and answers, is `stream_connection`.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf

import msgspec

from millpond.actors.messages import Port, Rights
from millpond.transports.io.interface import Wire
from millpond.transports.server.interface import NodeServices, Principal
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal


class FlowSettings(msgspec.Struct, frozen=True, gc=False):
    """Limits of a connection that serves streams; docs/reference/limits.md.

    `ahead_bytes_max` is read while a request waits for a record; `under_way_bytes_max` of requests
    are with the streams at once, and `turn_bytes_max` of large answers are made before others get
    their turn.
    """

    idle_s: float = 300.0
    unread_bytes_max: int = 2**20
    ahead_bytes_max: int = 2**16
    under_way_bytes_max: int = 2**24
    turn_bytes_max: int = 2**22


JUDGED_MAX = 64
"""Of so many streams a connection remembers what it may do there."""


class Turned(Enum):
    """Why a connection is turned away before its first request."""

    TOO_MANY = "too many connections"
    NOT_ADMITTED = "access refused"


class Phase(Enum):
    OPEN = auto()
    ENDING = auto()
    """Nothing more is taken; what was taken is answered."""
    CLOSED = auto()


# Reading a member of an enum costs more than a global; these are read for every read.
OPEN, ENDING, CLOSED = Phase.OPEN, Phase.ENDING, Phase.CLOSED


class StreamVisit(Port):
    """A connection without its requests."""

    LISTENER = ""
    """The name of the door that it comes by."""

    __slots__ = (
        "_flow",
        "_host",
        "_is_admitted",
        "_is_free",
        "_judged",
        "_last_words",
        "_now",
        "_out",
        "_out_bytes",
        "_phase",
        "_principal",
        "_rate",
        "_traffic",
        "_unsent_before",
        "_wire",
        "deadline",
        "number",
        "received_at",
    )

    def __init__(self, number: int, host: NodeServices, flow: FlowSettings) -> None:
        self.number = number
        self.received_at = self._now = 0.0
        self.deadline = inf
        self._host = host
        self._flow = flow
        self._wire: Wire
        self._phase = OPEN
        self._principal = Principal()
        self._is_admitted = False
        self._is_free = False
        """It may do everything in all streams, so each of them need not be asked for."""
        self._judged: dict[bytes, Rights] = {}
        self._rate: TokenBucket | None = None
        """What it may ask for, together with other connections of the same peer."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unsent_before = 0
        self._last_words = b""
        self._traffic = host.protocol_stats[self.LISTENER]

    def _turning_away(self, why: Turned) -> bytes:
        """What a connection hears that is turned away."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """Something changed: perhaps requests that wait need not any more."""
        raise NotImplementedError

    def start_drain(self) -> None:
        """The node stops: what streams have is answered, nothing more is taken."""
        raise NotImplementedError

    @property
    def _awaits(self) -> bool:
        """The other end waits for an answer."""
        raise NotImplementedError

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        host = self._host
        self.received_at = self._now = host.now()
        self._traffic.connections += 1
        if not host.register(self):
            self._turn_away(Turned.TOO_MANY)
            return
        certificate = wire.peer_certificate_hash
        self._principal = Principal(None, None, wire.host, self.LISTENER, certificate)
        self._judge()
        self._rate = host.shared_bucket(self._principal)
        if self._is_admitted:
            # There is no handshake to wait for, and a pool may keep connections for later.
            host.handshake_done(self)
        host.arm(self, self.received_at + self._flow.idle_s)

    # What it may do.

    def _judge(self) -> None:
        host, principal = self._host, self._principal
        self._is_admitted = host.may_use_streams(principal)
        self._is_free = host.authorize_stream(principal, b"") == Rights.ALL
        self._judged.clear()

    def _may(self, right: Rights, name: bytes) -> bool:
        """Has it one of these rights in the stream or topic of this name?"""
        if self._is_free:
            return True
        rights = self._judged.get(name)
        if rights is None:
            if len(self._judged) >= JUDGED_MAX:
                self._judged.clear()
            rights = self._host.authorize_stream(self._principal, name) or Rights.NONE
            self._judged[name] = rights
        return bool(rights & right)

    def _refused(self, refusal: Refusal) -> None:
        self._host.counters.refused += 1
        self._host.record_refusal(refusal, self.address)

    def _is_malformed(self) -> None:
        self._host.counters.malformed += 1
        self._host.record_refusal(Refusal.MALFORMED, self.address)

    def reauthorize(self) -> None:
        """What it may do has changed, perhaps; who may do nothing any more is sent away."""
        was_admitted = self._is_admitted
        self._judge()
        if was_admitted and not self._is_admitted:
            self.start_drain()

    # What the node calls: Visitor.

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def address(self) -> str:
        """The other end's host, without its port."""
        return self._wire.host

    def wake(self, now: float) -> None:
        """Requests wait for their turn, or the connection was silent for long (S3A-31)."""
        if self._phase is not CLOSED:
            self._go_on()
        if self._phase is CLOSED:
            return
        idle_s = self._flow.idle_s
        unsent = self._wire.unsent_bytes
        if now < self.received_at + idle_s:
            self._unsent_before = 0
            self._host.arm(self, self.received_at + idle_s)
        elif self._awaits or self._unsent_before > unsent or unsent > self._unsent_before == 0:
            # Something is awaited of us, or the other end reads, if slowly.
            self._unsent_before = unsent
            self._host.arm(self, now + idle_s)
        elif unsent:
            self._host.counters.stalled += 1
            self._wire.abort()
        else:
            self._close()

    @property
    def writable(self) -> bool:
        return self._phase is not CLOSED and not self._wire.congested

    def _write_out(self) -> None:
        out = self._out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        if data:
            self._wire.write(data)

    # The end.

    def close(self) -> None:
        """The end of the node's patience."""
        self._close()

    def _turn_away(self, why: Turned) -> None:
        is_full = why is Turned.TOO_MANY
        self._refused(Refusal.TOO_MANY if is_full else Refusal.NOT_ALLOWED)
        self._end_now(self._turning_away(why))

    def _end(self, last_words: bytes) -> None:
        """Take nothing more; once everything is answered, say this and close."""
        if self._phase is OPEN:
            self._phase = ENDING
            self._last_words = last_words

    def _end_now(self, last_words: bytes) -> None:
        """Say this behind what was said, and close; nobody else is answered (S3P-44)."""
        self._last_words = last_words
        self._close()

    def _close(self) -> None:
        if self._phase is CLOSED:
            return
        if self._last_words:
            self._out.append(self._last_words)
        if self._out:
            self._write_out()
        self._forget()
        self._wire.close()

    def _forget(self) -> None:
        """Nothing comes, nothing leaves: let go of what was kept for that."""
        self._phase = CLOSED
        self._out.clear()
        self._host.disarm(self)
