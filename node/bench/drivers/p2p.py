"""A benchmark's connection: greets, then hands on what came in batches; no queue, no future."""

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
TakeBatch = Callable[[list[Answer]], None]


def ignore(batch: list[Answer]) -> None:
    """For a connection to which nothing is told."""


class Peer:
    """One connection of the load, as a session on any wire.

    `settled` is set once it may be used or never will; `failure` says why not, `durability` what
    the node's receipts promise (None: it did not tell). What goes wrong later is counted in
    `faults`, and `on_end` is called if the node ends the connection.
    """

    def __init__(
        self, framing: Framing, hello: Hello, faults: Faults, on_end: Callable[[], None]
    ) -> None:
        self.take: TakeBatch = ignore
        self.failure: ConnectionLost | None = None
        self.durability: Durability | None = None
        self.settled = anyio.Event()
        self.gone = anyio.Event()
        self._framing = framing
        self._hello = hello
        self._faults = faults
        self._on_end = on_end
        self._wire: Wire | None = None
        self._is_greeted = self._is_leaving = False

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._greet()

    def received(self, data: bytes) -> None:
        batch: list[Answer] = []
        for raw in self._framing.feed(data):
            self._decode(raw, batch)
        if batch:
            self.take(batch)
        if not self._is_greeted:
            self._greet()
        if self._framing.error is not None:
            self._fail(_lost(self._framing.error))
            self._close()
        elif self._framing.closed:
            self._close()

    def uncongested(self) -> None:
        """What may wait to be sent is bounded by the pipeline."""

    def eof(self) -> None:
        self._close()

    def ended(self) -> None:
        if not self._is_leaving:
            self._fail(ConnectionLost("the node ended the connection"))
        self._wire = None
        self.gone.set()

    # What the load calls.

    def send(self, packets: list[bytes]) -> None:
        """Write packets in one piece; nothing to nobody once the connection is gone."""
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
                self._welcomed(raw)
            case p.Refused(packet_type=p.HELLO, code=code):
                self._fail(HandshakeRefused(f"the node refused the handshake ({code:#04x})", code))
            case p.Refused():
                self._faults.note(Fault.REFUSED, str(decode_refused(packet)))
            case p.Close(goodbye=goodbye):
                text = "said goodbye" if goodbye else "broke the connection off"
                self._fail(ConnectionLost(f"the node {text}"))
                self._close()
            case _:
                pass  # unknown to this side: dropped (P2P-19)

    def _greet(self) -> None:
        if self._wire is not None and self._framing.has_output:
            self._wire.write(self._framing.take_output())
        if self._framing.upgrade is not None:
            self._is_greeted = True
            self.send([encode_hello(self._hello)])

    def _welcomed(self, raw: bytes) -> None:
        try:
            ready = decode_ready(raw)
        except MalformedHandshake as error:
            self._fail(_lost(error))
            return
        if self._hello.mode is not None and ready.mode not in (None, self._hello.mode):
            self._fail(ModeMismatch(f"the node keeps channel {self._hello.channel!r} differently"))
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
            farewell = self._framing.close_frame(NORMAL)
            if farewell:
                self._wire.write(farewell)
            self._wire.close()


def _lost(error: Exception) -> ConnectionLost:
    if isinstance(error, UpgradeRefused):
        return HandshakeRefused(str(error), status=error.status)
    return ConnectionLost(str(error))
