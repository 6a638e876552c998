"""How a P2P connection begins and ends: a place in a channel, being turned away, goodbye.

What it says first is `arrival`; what lies between, requests and replies, is `connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import assert_never

from millpond.actors.errors import Code
from millpond.actors.messages import Msg, Port
from millpond.transports.errors import FrameTooLarge, UpgradeRefused, WireError
from millpond.transports.io.interface import Wire
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.challenge import PendingProof
from millpond.transports.p2p.framing import Framing, Upgrade
from millpond.transports.p2p.interface import P2PNodeServices
from millpond.transports.p2p.nacks import HelloCode, encode_hello_refusal
from millpond.transports.p2p.watched import LatencySample, first_watched
from millpond.transports.server.refusals import Refusal

NORMAL, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG = 1000, 1002, 1008, 1009
"""WebSocket close codes; plain TCP has none."""


class Phase(Enum):
    OPENING = auto()
    """The framing is not up yet (WebSocket)."""
    WAITING = auto()
    """Nothing that matters was said yet."""
    PROVING = auto()
    """A HELLO named an identity, and CHALLENGE asks for its proof."""
    REFUSED = auto()
    """Refused, and told so after the delay that is the same for all."""
    OPEN = auto()
    LEAVING = auto()
    """We said goodbye; acks still count until the other end closes."""
    CLOSED = auto()


# Reading a member of an enum costs more than a dictionary look-up; these are read for every packet.
OPENING, WAITING, PROVING, REFUSED = Phase.OPENING, Phase.WAITING, Phase.PROVING, Phase.REFUSED
OPEN, LEAVING, CLOSED = Phase.OPEN, Phase.LEAVING, Phase.CLOSED
TAKING = (OPEN, LEAVING)


class Visit(Port):
    """A connection without what is said on it."""

    __slots__ = (
        "_admission",
        "_certificate_hash",
        "_channel",
        "_encode_msg",
        "_framing",
        "_host",
        "_inbox",
        "_is_provisional",
        "_may_ack",
        "_opened_at",
        "_out",
        "_out_bytes",
        "_owes_ready",
        "_phase",
        "_proof",
        "_put_refusal",
        "_refusal",
        "_stalled_since",
        "_traffic",
        "_upgrade",
        "_watched",
        "_wire",
        "deadline",
        "number",
        "received_at",
    )

    def __init__(self, number: int, host: P2PNodeServices, framing: Framing) -> None:
        self.number = number
        self.received_at = 0.0
        self.deadline = inf
        self._host = host
        self._framing = framing
        self._wire: Wire
        self._phase = OPENING
        self._upgrade: Upgrade | None = None
        self._opened_at = 0.0
        self._proof: PendingProof | None = None
        # Of the certificate that this connection is shown: the node may get another one meanwhile.
        self._certificate_hash = host.certificate_hash
        self._refusal: HelloCode | None = None
        self._is_provisional = False
        self._owes_ready = False
        self._admission: Admission | None = None
        self._channel: bytes | None = None
        self._put_refusal: Code | None = None
        self._may_ack = False
        self._encode_msg: Callable[[Msg], bytes] = p.encode
        self._inbox: list[bytes] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._stalled_since = inf
        # Plain TCP is ready for packets at once; WebSocket has its own handshake.
        self._traffic = host.protocol_stats["ws" if framing.upgrade is None else "p2p"]
        self._watched: LatencySample | None = None
        """The request that is timed."""

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._traffic.connections += 1
        self._opened_at = self.received_at = self._host.now()
        if not self._host.register(self):
            self._upgrade = self._framing.upgrade
            self._host.record_refusal(Refusal.TOO_MANY, wire.host)
            self._turn_away(HelloCode.TOO_MANY_CONNECTIONS)
        elif self._framing.upgrade is not None:
            self._await_greeting(self._framing.upgrade)
        else:
            self._host.arm(self, self._opened_at + self._host.settings.handshake_s)

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def address(self) -> str:
        """The other end's host, without its port."""
        return self._wire.host

    def wake(self, now: float) -> None:
        """A deadline of the connection itself passed; those of its messages are the channel's."""
        settings = self._host.settings
        match self._phase:
            case Phase.REFUSED:
                self._turn_away(self._refusal or HelloCode.NOT_ALLOWED)
            case Phase.OPENING | Phase.WAITING | Phase.PROVING:
                if now >= self._opened_at + settings.handshake_s:
                    self._host.record_refusal(Refusal.TIMEOUT, self.address)
                    self._abort()
                else:
                    self._host.arm(self, self._opened_at + settings.handshake_s)
                    if self._phase is WAITING:
                        self._enter_provisionally()
            case Phase.OPEN | Phase.LEAVING:
                if self._inbox is not None:
                    self._go_on()
                if now >= self._stalled_since + settings.stalled_s:
                    self._host.counters.stalled += 1
                    self._wire.abort()
                elif self._stalled_since < inf:
                    self._host.arm(self, self._stalled_since + settings.stalled_s)
            case Phase.CLOSED:
                pass
            case _:
                assert_never(self._phase)

    # The first words.

    def _await_greeting(self, upgrade: Upgrade) -> None:
        """The framing is up: packets may come."""
        raise NotImplementedError

    def _enter_provisionally(self) -> None:
        """Nothing was said for a while."""
        raise NotImplementedError

    def _enter(self, admission: Admission) -> None:
        self._admission = admission
        self._channel = admission.channel
        self._put_refusal = admission.put_refusal()
        self._may_ack = admission.may_ack
        if p.MSGX in admission.extensions:
            self._encode_msg = p.encode_msgx
        self._phase = OPEN
        self._host.disarm(self)
        self._host.handshake_done(self)
        self._host.attach(admission.channel, self, admission.join, self._host.now())

    # What leaves.

    def _add(self, packet: bytes) -> None:
        if self._phase is CLOSED:
            return
        self._out.append(packet)
        self._out_bytes += len(packet)
        if self._out_bytes > self._host.settings.unsent_bytes_max:
            self._host.counters.stalled += 1
            self._phase = CLOSED
            self._wire.abort()

    def flush(self) -> None:
        out = self._out
        if not out:
            return
        self._wire.write(self._framing.frame(out))
        if self._watched is not None:
            self._look_for(self._watched, out)
        out.clear()
        self._out_bytes = 0
        if self._wire.congested and self._stalled_since == inf:
            self._stalled_since = self._host.now()
            self._host.arm(self, self._stalled_since + self._host.settings.stalled_s)
        if self._inbox is not None:
            self._go_on()

    def _watch(self, packets: list[bytes]) -> None:
        """Time one of the requests that were heard just now."""
        watched = first_watched(packets, self.received_at)
        if watched is not None:
            self._watched = watched
            self._traffic.begin(self.received_at)

    def _look_for(self, watched: LatencySample, packets: list[bytes]) -> None:
        """Was it answered by these?"""
        if any(map(watched.is_answer, packets)):
            self._watched = None
            self._traffic.end(watched.received_at, self._host.now())

    def _go_on(self) -> None:
        """Packets wait in `_inbox`, and something was written: perhaps they need not any more."""

    # The end.

    def _turn_away(self, code: HelloCode) -> None:
        self._host.counters.refused += 1
        if code is HelloCode.MALFORMED:
            self._host.record_refusal(Refusal.MALFORMED, self.address)
        if self._upgrade is not None:
            self._add(encode_hello_refusal(code))
        self._abort()

    def _abort(self, close_code: int = POLICY_VIOLATION) -> None:
        self._host.counters.aborted += 1
        if self._upgrade is not None:
            self._add(p.ABORT)
        self._close(close_code)

    def _break_off(self, error: WireError) -> None:
        """The stream cannot be read any further (PA-24, PA-34)."""
        self._host.record_refusal(Refusal.MALFORMED, self.address)
        match error:
            case UpgradeRefused():
                self._close()
            case FrameTooLarge():
                self._abort(TOO_BIG)
            case _:
                self._abort(PROTOCOL_ERROR)

    def start_drain(self) -> None:
        """No new pushes; acks count until the other end closes (PA-36)."""
        if self._phase in (LEAVING, CLOSED):
            return
        if self._phase is not OPENING:
            self._add(p.GOODBYE)
            self.flush()
        self._is_provisional = False
        if self._phase is OPEN:
            self._phase = LEAVING
        else:
            self._close()

    def reauthorize(self) -> None:
        """What it may do has changed, perhaps: with other rights it has to come in again."""
        admission = self._admission
        if admission is None or self._phase not in TAKING:
            return
        if self._host.authorize(admission.principal, admission.channel) != admission.join.rights:
            self.start_drain()
            self._close(POLICY_VIOLATION)

    def close(self) -> None:
        """The end of the node's patience."""
        self._close()

    def _close(self, close_code: int = NORMAL) -> None:
        if self._phase is CLOSED:
            return
        self.flush()
        farewell = self._framing.close_frame(close_code)
        if farewell:
            self._wire.write(farewell)
        self._phase = CLOSED
        self._host.disarm(self)
        self._leave_channel()
        self._wire.close()

    def _leave_channel(self) -> None:
        channel, self._channel = self._channel, None
        self._admission = None
        self._put_refusal = Code.NOT_ALLOWED
        self._may_ack = False
        if channel is not None:
            self._host.detach(channel, self)
