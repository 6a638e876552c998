"""One connection of a client to a node: handshake, replies and pushes, as a session on any wire.

It is synchronous: the packets of one read are handled at once, and the packets that they cause
leave in one write. `inflight` and `inbox` outlive the connection; `link` dials again.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec

from millpond.actors.messages import GetAck, ListAck, Mode, Msg, PutAck, TouchAck
from millpond.node.client.errors import (
    ConnectionLost,
    HandshakeRefused,
    ModeMismatch,
    NotEncrypted,
    PeerMismatch,
    handshake_refused,
)
from millpond.node.client.in_flight import InFlight
from millpond.node.client.inbox import Counts, Inbox
from millpond.node.ip import is_remote
from millpond.node.peers.authentication import Credentials, MutualAuth
from millpond.transports.errors import MalformedHandshake, MalformedPacket, UpgradeRefused
from millpond.transports.io.interface import Wire
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import Hello, Ready, decode_ready, encode_hello

NORMAL, PROTOCOL_ERROR = 1000, 1002
WINDOW = 32
NO_HANDSHAKE = Ready()


class SessionContext(msgspec.Struct, frozen=True):
    """The parts of a client that a session uses; `on_live` is called once it may send requests."""

    inflight: InFlight
    inbox: Inbox
    counts: Counts
    now: Callable[[], float]
    on_live: Callable[[Session], None]


class Session:
    """A connection from the upgrade to its end.

    Events: `handshake_ended`, it is live or over; `closing`, it begins to end, from either side;
    `closed`, it has ended. `failure` is the reason. `closed_by_node`: the node closed it.
    """

    def __init__(
        self,
        number: int,
        framing: Framing,
        hello: Hello,
        context: SessionContext,
        *,
        bare: bool = False,
        credentials: Credentials | None = None,
        allow_plain: bool = False,
    ) -> None:
        """`allow_plain`: show token and identity to another machine without TLS, too."""
        self.number = number
        self.ready: Ready | None = None
        self.live = False
        self.failure: Exception | None = None
        self.closed_by_node = False
        self.received_at = context.now()
        self.handshake_ended = anyio.Event()
        self.closing = anyio.Event()
        self.closed = anyio.Event()
        self._framing = framing
        self._hello = hello
        self._context = context
        self._bare = bare
        self._credentials = credentials
        self._allow_plain = allow_plain
        self._auth: MutualAuth | None = None
        self._hello_sent = False
        self._closing = False
        self._is_draining = False
        self._out: list[bytes] = []
        self._wire: Wire | None = None

    # Calls of the wire.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.received_at = self._context.now()
        shown = self._unprotected(wire)
        if shown:
            self.failure = (
                NotEncrypted(f"{shown} not sent: {wire.host} is reached without TLS")
                if wire.host
                else ConnectionLost("the connection was reset at once")
            )
            self._closing = True  # nothing leaves, not even the upgrade of a WebSocket
            wire.abort()
            return
        self._send_hello()
        self.flush()

    def _unprotected(self, wire: Wire) -> str:
        """The secrets that others could read or misuse on the way; "" if there are none."""
        if wire.secure or self._allow_plain or not is_remote(wire.host):
            return ""
        if self._hello.token is not None:
            return "the token was"
        return "" if self._credentials is None else "the identity was"

    def received(self, data: bytes) -> None:
        self.received_at = self._context.now()
        self._context.inflight.begin_read()
        for raw in self._framing.feed(data):
            if self._closing:
                return
            try:
                packet = p.decode(raw)
            except MalformedPacket:
                self._context.counts.malformed += 1
            else:
                self._handle(packet)
        if not self._hello_sent:
            self._send_hello()
        self.flush()
        if self._is_draining and not self._context.inflight.streams.has_unrepeatable:
            self.close()
        if self._framing.error is not None:
            self._fail(self._framing.error)
        elif self._framing.closed:
            self.close()

    def uncongested(self) -> None:
        """Nothing to do: the bytes that wait are bounded by the requests in flight."""

    def eof(self) -> None:
        self.close()

    def ended(self) -> None:
        if self.failure is None and self._wire is not None:
            self.failure = self._wire.failure
        self.live = False
        self._closing = True
        self.handshake_ended.set()
        self.closing.set()
        self.closed.set()

    # Calls of the link and the channel.

    @property
    def fileno(self) -> int:
        """The descriptor of the socket; -1: there is none."""
        return -1 if self._wire is None else self._wire.fileno

    def send(self, packet: bytes) -> None:
        """Queue a packet; it leaves with the next `flush`."""
        self._out.append(packet)

    def flush(self) -> None:
        """Write the queued packets, in one piece."""
        if self._closing or self._wire is None:
            return
        framing = self._framing
        if framing.has_output:
            self._wire.write(framing.take_output())
        if self._out:
            self._wire.write(framing.frame(self._out))
            self._out.clear()

    def start_without_handshake(self) -> None:
        """Go on without a handshake: the other end has none (PA-40)."""
        if not self._closing:
            self._become_live(NO_HANDSHAKE)

    def fail(self, failure: Exception) -> None:
        """The connection could not be opened, or ends with this error; the first one counts."""
        if self.failure is None:
            self.failure = failure

    def leave(self) -> None:
        """Say goodbye and close (P2P-17)."""
        if self._hello_sent:
            self.send(p.GOODBYE)
        self.close()

    def close(self, code: int = NORMAL) -> None:
        """Write the queued packets, and close."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        self.live = False
        self.handshake_ended.set()
        self.closing.set()
        if self._wire is not None:
            close_frame = self._framing.close_frame(code)
            if close_frame:
                self._wire.write(close_frame)
            self._wire.close()

    def abort(self) -> None:
        """End now; queued packets are dropped."""
        if self._wire is not None:
            self._wire.abort()

    def negotiated(self, extension: int) -> bool:
        """Whether packets of this type mean anything on this connection (P2P-26)."""
        return self.ready is not None and extension in self.ready.extensions

    # Packets.

    def _handle(self, packet: p.Packet) -> None:
        if not (self.live or self._bare or self._is_draining):
            self._handle_handshake(packet)
            return
        context = self._context
        match packet:
            case PutAck():
                context.inflight.put_acked(packet)
            case Msg():
                reply = context.inbox.push(packet, self.number)
                if reply is not None:
                    self.send(reply)
            case GetAck():
                context.inflight.get_acked(packet)
            case ListAck(ids=ids):
                context.inflight.list_acked(ids)
            case TouchAck():
                context.inflight.touch_acked(packet)
            case p.AdminReply() | p.PeersReply() | p.JobsReply():
                context.inflight.operation_replied(packet)
            case p.StreamReply():
                context.inflight.streams.replied(packet)
            case p.Pong():
                context.inflight.ponged(self.received_at)
            case p.Ping(timestamp=timestamp):
                times = None if timestamp is None else (timestamp, 0, 0)
                self.send(p.encode(p.Pong(times)))
            case p.Refused() if packet.packet_type != p.HELLO:
                context.inflight.refused(packet)
            case _:
                self._handle_handshake(packet)

    def _handle_handshake(self, packet: p.Packet) -> None:
        """Handshake and close; other packets have no meaning here (P2P-19)."""
        match packet:
            case p.Close(goodbye=goodbye):
                self._handle_close(goodbye)
            case p.Handshake(packet_type=p.READY, raw=raw):
                self._handle_ready(raw)
            case p.Handshake(packet_type=p.CHALLENGE, raw=raw):
                self._handle_challenge(raw)
            case p.Refused(packet_type=p.HELLO, code=code) if not self.live:
                self._handle_refusal(code)
            case _:
                pass

    def _send_hello(self) -> None:
        if self._framing.upgrade is not None:
            self._hello_sent = True
            self.send(self._hello_packet())

    def _hello_packet(self) -> bytes:
        if self._credentials is None or self._wire is None:
            return encode_hello(self._hello)
        certificate_hash = self._wire.peer_certificate_hash
        self._auth = MutualAuth(self._credentials, self._hello, certificate_hash)
        return self._auth.packet

    def _handle_challenge(self, raw: bytes) -> None:
        """The node proves its identity and asks for ours; once per connection."""
        auth = self._auth
        if auth is None:
            self._fail(HandshakeRefused("the node wants an identity, and none was given"))
        elif auth.peer is None:
            try:
                self.send(auth.answer(raw))
            except (MalformedHandshake, PeerMismatch) as error:
                self._fail(error)

    def _handle_ready(self, raw: bytes) -> None:
        if self.ready is not None and self.ready is not NO_HANDSHAKE:
            return
        # A READY may come before HELLO is sent: right behind the upgrade of a WebSocket.
        if self._credentials is not None and (self._auth is None or self._auth.peer is None):
            self._fail(PeerMismatch("the node did not prove its identity"))
            return
        try:
            ready = decode_ready(raw)
        except MalformedHandshake as error:
            self._fail(error)
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
        self._context.on_live(self)
        self.handshake_ended.set()
        self.flush()

    def _handle_refusal(self, code: int) -> None:
        self.failure = handshake_refused(code)

    def _handle_close(self, goodbye: bool) -> None:
        self.closed_by_node = True
        if self.failure is None:
            text = "the node said goodbye" if goodbye else "the node aborted the connection"
            self.failure = ConnectionLost(text)
        if goodbye and self.live and self._context.inflight.streams.has_unrepeatable:
            # Requests that must not be repeated still get their replies; no new ones are sent.
            self._is_draining = True
            self.live = False
            self.handshake_ended.set()
            self.closing.set()
        else:
            self.close()

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        # After a refused upgrade the other end reads no packets.
        if self._hello_sent and not isinstance(error, UpgradeRefused):
            self.send(p.ABORT)
        self.close(PROTOCOL_ERROR)


def _name(mode: Mode | None) -> str:
    return "no" if mode is None else mode.name.lower()
