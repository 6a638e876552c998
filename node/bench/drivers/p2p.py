"""The P2P connection of a load: a handshake, then packets in batches; no queue, no future."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from millpond.actors.messages import Ack, Durability, GetAck, ListAck, Msg, PutAck
from millpond.node.bench.verify import Fault, Faults
from millpond.node.client.errors import ConnectionLost, HandshakeRefused, ModeMismatch
from millpond.transports.errors import MalformedHandshake, MalformedPacket, UpgradeRefused
from millpond.transports.io.interface import Wire
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import Hello, decode_ready, encode_hello
from millpond.transports.p2p.nacks import decode_refused

NORMAL = 1000

Answer = PutAck | Msg | GetAck | ListAck
OnAnswers = Callable[[list[Answer]], None]


def ignore(batch: list[Answer]) -> None:
    """Drop answers that nobody waits for."""


class P2pConnection:
    """One connection of a load, as a session on any wire. `on_answers` takes its packets.

    `settled` is set after the handshake or its failure; `failure` is the reason, `durability` what
    the node's receipts promise (None: unknown). Later mistakes are counted in `faults`, and
    `on_end` is called if the node ends the connection.
    """

    def __init__(
        self, framing: Framing, hello: Hello, faults: Faults, on_end: Callable[[], None]
    ) -> None:
        self.on_answers: OnAnswers = ignore
        self.failure: ConnectionLost | None = None
        self.durability: Durability | None = None
        self.settled = anyio.Event()
        self.closed = anyio.Event()
        self._framing = framing
        self._hello = hello
        self._faults = faults
        self._on_end = on_end
        self._wire: Wire | None = None
        self._has_sent_hello = self._is_leaving = False

    # Session: called by the wire.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._shake_hands()

    def received(self, data: bytes) -> None:
        batch: list[Answer] = []
        for raw in self._framing.feed(data):
            self._decode(raw, batch)
        if batch:
            self.on_answers(batch)
        if not self._has_sent_hello:
            self._shake_hands()
        if self._framing.error is not None:
            self._fail(_lost(self._framing.error))
            self._close()
        elif self._framing.closed:
            self._close()

    def uncongested(self) -> None:
        """The pipeline bounds the bytes that wait."""

    def eof(self) -> None:
        self._close()

    def ended(self) -> None:
        if not self._is_leaving:
            self._fail(ConnectionLost("the node ended the connection"))
        self._wire = None
        self.closed.set()

    # Called by the load.

    def send(self, packets: list[bytes]) -> None:
        """Write packets together; nothing once the connection is closed."""
        if packets and self._wire is not None:
            self._wire.write(self._framing.frame(packets))

    def acknowledge(self, ids: Sequence[int]) -> None:
        """MSG_ACK for each, which deletes it (P2P-10)."""
        self.send([p.encode(Ack(each)) for each in ids])

    def leave(self) -> None:
        """Say goodbye and close (P2P-17)."""
        self._is_leaving = True
        self.send([p.GOODBYE])
        self._close()

    def _decode(self, raw: bytes, batch: list[Answer]) -> None:
        try:
            packet = p.decode(raw)
        except MalformedPacket as error:
            self._faults.note(Fault.DAMAGED, str(error))
            return
        match packet:
            case PutAck() | Msg() | GetAck() | ListAck():
                batch.append(packet)
            case _:
                self._take_other(packet)

    def _take_other(self, packet: p.Packet) -> None:
        match packet:
            case p.Ping(timestamp=timestamp):
                times = None if timestamp is None else (timestamp, 0, 0)
                self.send([p.encode(p.Pong(times))])
            case p.Handshake(packet_type=p.READY, raw=raw):
                self._ready(raw)
            case p.Refused(packet_type=p.HELLO, code=code):
                self._fail(HandshakeRefused(f"the node refused the handshake ({code:#04x})", code))
            case p.Refused():
                self._faults.note(Fault.REFUSED, str(decode_refused(packet)))
            case p.Close(goodbye=goodbye):
                text = "said goodbye" if goodbye else "broke the connection off"
                self._fail(ConnectionLost(f"the node {text}"))
                self._close()
            case _:
                pass  # unknown packets are dropped (P2P-19)

    def _shake_hands(self) -> None:
        if self._wire is not None and self._framing.has_output:
            self._wire.write(self._framing.take_output())
        if self._framing.upgrade is not None:
            self._has_sent_hello = True
            self.send([encode_hello(self._hello)])

    def _ready(self, raw: bytes) -> None:
        try:
            ready = decode_ready(raw)
        except MalformedHandshake as error:
            self._fail(_lost(error))
            return
        if self._hello.mode is not None and ready.mode not in (None, self._hello.mode):
            self._fail(
                ModeMismatch(f"the node has channel {self._hello.channel!r} in another mode")
            )
            return
        self.durability = ready.durability
        self.settled.set()

    def _fail(self, error: ConnectionLost) -> None:
        if self.failure is not None or self._is_leaving:
            return
        self.failure = error
        if self.settled.is_set():
            self._faults.note(Fault.DISCONNECTED, str(error))
            self._on_end()
        self.settled.set()

    def _close(self) -> None:
        if self._wire is not None:
            frame = self._framing.close_frame(NORMAL)
            if frame:
                self._wire.write(frame)
            self._wire.close()


def _lost(error: Exception) -> ConnectionLost:
    if isinstance(error, UpgradeRefused):
        return HandshakeRefused(str(error), status=error.status)
    return ConnectionLost(str(error))
