"""One connection of a client: handshake, answers and pushes, as a session on any wire.

Synchronous: what one read brought is worked off at once, and what it caused leaves in one write.
Nothing here knows of dialling again; `inflight` and `inbox` outlive it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec

from millpond.actors.messages import GetAck, ListAck, Mode, Msg, PutAck, TouchAck
from millpond.node.client.errors import ConnectionLost, HandshakeRefused, ModeMismatch, PeerMismatch
from millpond.node.client.in_flight import InFlight
from millpond.node.client.inbox import Counts, Inbox
from millpond.node.peers.authentication import Credentials, MutualAuth
from millpond.transports.errors import MalformedHandshake, MalformedPacket, UpgradeRefused
from millpond.transports.io.interface import Wire
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import Hello, Ready, decode_ready, encode_hello
from millpond.transports.p2p.nacks import HelloCode

NORMAL, PROTOCOL_ERROR = 1000, 1002
WINDOW = 32
BARE = Ready()


class Desk(msgspec.Struct, frozen=True):
    """What a connection works with, and who hears that it may be used."""

    inflight: InFlight
    inbox: Inbox
    counts: Counts
    now: Callable[[], float]
    on_live: Callable[[Session], None]


class Session:
    """`settled`: live or over. `leaving`: about to end, from either side. `gone`: ended."""

    def __init__(
        self,
        number: int,
        framing: Framing,
        hello: Hello,
        desk: Desk,
        *,
        bare: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        self.number = number
        self.ready: Ready | None = None
        self.live = False
        self.failure: Exception | None = None
        self.told_to_leave = False
        self.received_at = desk.now()
        self.settled = anyio.Event()
        self.leaving = anyio.Event()
        self.gone = anyio.Event()
        self._framing = framing
        self._hello = hello
        self._desk = desk
        self._bare = bare
        self._credentials = credentials
        self._introduction: MutualAuth | None = None
        self._greeted = False
        self._closing = False
        self._lingers = False
        self._out: list[bytes] = []
        self._wire: Wire | None = None

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.received_at = self._desk.now()
        self._greet()
        self.flush()

    def received(self, data: bytes) -> None:
        self.received_at = self._desk.now()
        self._desk.inflight.receipts = 0
        for raw in self._framing.feed(data):
            if self._closing:
                return
            try:
                packet = p.decode(raw)
            except MalformedPacket:
                self._desk.counts.malformed += 1
            else:
                self._take(packet)
        if not self._greeted:
            self._greet()
        self.flush()
        if self._lingers and not self._desk.inflight.streams.is_owed:
            self.close()
        if self._framing.error is not None:
            self._break_off(self._framing.error)
        elif self._framing.closed:
            self.close()

    def uncongested(self) -> None:
        """What may wait to be sent is bounded by what may be in flight."""

    def eof(self) -> None:
        self.close()

    def ended(self) -> None:
        if self.failure is None and self._wire is not None:
            self.failure = self._wire.failure
        self.live = False
        self._closing = True
        self.settled.set()
        self.leaving.set()
        self.gone.set()

    # What the link and the channel call.

    def send(self, packet: bytes) -> None:
        """Take one packet; it leaves with the next `flush`."""
        self._out.append(packet)

    def flush(self) -> None:
        """Write what `send` took, in one piece."""
        if self._closing or self._wire is None:
            return
        framing = self._framing
        if framing.has_output:
            self._wire.write(framing.take_output())
        if self._out:
            self._wire.write(framing.frame(self._out))
            self._out.clear()

    def go_bare(self) -> None:
        """The other end has no handshake: on as the seed text has it (PA-40)."""
        if not self._closing:
            self._become_live(BARE)

    def leave(self) -> None:
        """Say goodbye and close (P2P-17)."""
        if self._greeted:
            self.send(p.GOODBYE)
        self.close()

    def close(self, code: int = NORMAL) -> None:
        """Send what waits, and close."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self.live = False
        self.settled.set()
        self.leaving.set()
        if self._wire is not None:
            farewell = self._framing.close_frame(code)
            if farewell:
                self._wire.write(farewell)
            self._wire.close()

    def abort(self) -> None:
        """End now, whatever waits."""
        if self._wire is not None:
            self._wire.abort()

    def negotiated(self, extension: int) -> bool:
        """Whether packets of this type mean anything on this connection (P2P-26)."""
        return self.ready is not None and extension in self.ready.extensions

    # Packets.

    def _take(self, packet: p.Packet) -> None:
        if not (self.live or self._bare or self._lingers):
            self._take_greeting(packet)
            return
        desk = self._desk
        match packet:
            case PutAck():
                desk.inflight.put_acked(packet)
            case Msg():
                reply = desk.inbox.push(packet, self.number)
                if reply is not None:
                    self.send(reply)
            case GetAck():
                desk.inflight.got(packet)
            case ListAck(ids=ids):
                desk.inflight.listed(ids)
            case TouchAck():
                desk.inflight.touched(packet)
            case p.AdminReply() | p.PeersReply() | p.JobsReply():
                desk.inflight.administered(packet)
            case p.StreamReply():
                desk.inflight.streams.answered(packet)
            case p.Pong():
                desk.inflight.ponged(self.received_at)
            case p.Ping(timestamp=timestamp):
                times = None if timestamp is None else (timestamp, 0, 0)
                self.send(p.encode(p.Pong(times)))
            case p.Refused() if packet.packet_type != p.HELLO:
                desk.inflight.refused(packet)
            case _:
                self._take_greeting(packet)

    def _take_greeting(self, packet: p.Packet) -> None:
        """Handshake and farewell; everything else has no meaning here (P2P-19)."""
        match packet:
            case p.Close(goodbye=goodbye):
                self._told_to_leave(goodbye)
            case p.Handshake(packet_type=p.READY, raw=raw):
                self._welcomed(raw)
            case p.Handshake(packet_type=p.CHALLENGE, raw=raw):
                self._challenged(raw)
            case p.Refused(packet_type=p.HELLO, code=code) if not self.live:
                self._refused(code)
            case _:
                pass

    def _greet(self) -> None:
        if self._framing.upgrade is not None:
            self._greeted = True
            self.send(self._first_words())

    def _first_words(self) -> bytes:
        if self._credentials is None or self._wire is None:
            return encode_hello(self._hello)
        certificate_hash = self._wire.peer_certificate_hash
        self._introduction = MutualAuth(self._credentials, self._hello, certificate_hash)
        return self._introduction.packet

    def _challenged(self, raw: bytes) -> None:
        """The node proves who it is and asks us to; that is done once."""
        introduction = self._introduction
        if introduction is None:
            self._break_off(HandshakeRefused("the node asks for an identity, none was given"))
        elif introduction.peer is None:
            try:
                self.send(introduction.answer(raw))
            except (MalformedHandshake, PeerMismatch) as error:
                self._break_off(error)

    def _welcomed(self, raw: bytes) -> None:
        if self.ready is not None and self.ready is not BARE:
            return
        if self._introduction is not None and self._introduction.peer is None:
            self._break_off(PeerMismatch("the node does not prove who it is"))
            return
        try:
            ready = decode_ready(raw)
        except MalformedHandshake as error:
            self._break_off(error)
            return
        wanted = self._hello.mode
        if wanted is not None and ready.mode not in (None, wanted):
            self.failure = ModeMismatch(f"the channel is in {_name(ready.mode)} mode")
            self.leave()
        elif self.live:
            self.ready = ready
        else:
            self._become_live(ready)

    def _become_live(self, ready: Ready) -> None:
        self.ready = ready
        self.live = True
        self._desk.on_live(self)
        self.settled.set()
        self.flush()

    def _refused(self, code: int) -> None:
        try:
            reason = HelloCode(code)
        except ValueError:
            self.failure = HandshakeRefused(f"refused with code {code:#04x}", code)
        else:
            text = reason.name.lower().replace("_", " ")
            self.failure = HandshakeRefused(f"the node refused the handshake: {text}", reason)

    def _told_to_leave(self, goodbye: bool) -> None:
        self.told_to_leave = True
        if self.failure is None:
            text = "the node said goodbye" if goodbye else "the node broke the connection off"
            self.failure = ConnectionLost(text)
        if goodbye and self.live and self._desk.inflight.streams.is_owed:
            # What must not be asked twice is still answered, and nothing else is asked here.
            self._lingers = True
            self.live = False
            self.settled.set()
            self.leaving.set()
        else:
            self.close()

    def _break_off(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        # A refused upgrade never became a connection: there is nobody to say a packet to.
        if self._greeted and not isinstance(error, UpgradeRefused):
            self.send(p.ABORT)
        self.close(PROTOCOL_ERROR)


def _name(mode: Mode | None) -> str:
    return "no" if mode is None else mode.name.lower()
