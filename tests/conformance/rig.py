"""A node without a loop, a socket or a clock of its own: connections on wires that only record.

Time passes when the test says so, and everything is synchronous: what a connection does with
hostile input can be tried a hundred thousand times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.io.anyio_wire import HIGH_WATER_BYTES
from millpond.transports.p2p.connection import P2PConnection
from tests.conformance import packets as p
from tests.conformance.peer import LengthPrefixed
from tests.conformance.served import LOBBY, SEED_OF_NODE_5, START_S

UPGRADE = (
    b"GET /v1/channels/CHANNEL HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: SUBPROTOCOL\r\n\r\n"
)


class RecordedWire:
    """Keeps what is written. The other end takes it at once, unless `reads` is False."""

    secure = False
    peer_certificate_hash: bytes | None = None
    failure: OSError | None = None

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.peer = f"{host}:40000"
        self.reads = True
        self.high_water_bytes = HIGH_WATER_BYTES
        self.paused = self.closed = self.aborted = False
        self.unsent_bytes = 0
        self.unsent_bytes_peak = 0
        self.written = bytearray()

    @property
    def congested(self) -> bool:
        return self.unsent_bytes > self.high_water_bytes

    @property
    def is_over(self) -> bool:
        return self.closed or self.aborted

    def write(self, data: bytes) -> None:
        if self.is_over:
            return
        self.written += data
        if not self.reads:
            self.unsent_bytes += len(data)
            self.unsent_bytes_peak = max(self.unsent_bytes_peak, self.unsent_bytes)

    def soon(self, callback: Callable[[], None]) -> None:
        callback()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Upgradable:
    """Reads the bytes of a node on a WebSocket: the 101, then frames without a mask."""

    def __init__(self) -> None:
        self._tail = b""
        self._is_open = False
        self.close_code: int | None = None

    def encode(self, packets: Iterable[bytes]) -> bytes:
        """Packets as a client sends them, with a mask of zeros."""
        return b"".join(map(_message, packets))

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        self._tail += data
        if not self._is_open:
            head, end, rest = self._tail.partition(b"\r\n\r\n")
            if not end:
                return [], b""
            self._is_open = head.startswith(b"HTTP/1.1 101 ")
            self._tail = rest if self._is_open else b""
        found = []
        while (frame := self._next_frame()) is not None:
            opcode, body = frame
            if opcode == 2:
                found.append(body)
            elif opcode == 8:
                self.close_code = int.from_bytes(body[:2], "big")
        return found, b""

    def _next_frame(self) -> tuple[int, bytes] | None:
        if len(self._tail) < 2:
            return None
        assert self._tail[0] & 0xF0 == 0x80 and self._tail[1] < 128, "whole frames, no mask"
        size, start = self._tail[1], 2
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(self._tail[2:start], "big")
        if len(self._tail) < start + size:
            return None
        opcode, body = self._tail[0] & 0x0F, self._tail[start : start + size]
        self._tail = self._tail[start + size :]
        return opcode, body


def _message(packet: bytes) -> bytes:
    size = len(packet)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 2**16:
        head = b"\x82\xfe" + p.u16(size)
    else:
        head = b"\x82\xff" + p.u64(size)
    return head + bytes(4) + packet


class RecordedConnection:
    """One connection and its wire, driven as the transports drive them."""

    def __init__(
        self,
        rig: Rig,
        connection: P2PConnection,
        wire: RecordedWire,
        framing: LengthPrefixed | Upgradable | None = None,
    ) -> None:
        self._rig = rig
        self._framing = framing or LengthPrefixed()
        self._has_ended = False
        self.connection = connection
        self.wire = wire
        connection.opened(wire)

    def feed(self, data: bytes) -> None:
        """Bytes as one read brings them; none once the wire was closed."""
        if not self.wire.is_over:
            self.connection.received(data)
        self._rig.settle()

    def say(self, *packets: bytes) -> None:
        self.feed(self._framing.encode(packets))

    def take_packets(self) -> list[bytes]:
        """The packets that were written since the last look."""
        data = bytes(self.wire.written)
        self.wire.written.clear()
        return self._framing.feed(data)[0]

    def ask(self, *packets: bytes) -> list[bytes]:
        self.say(*packets)
        return self.take_packets()

    def read(self) -> None:
        """The other end takes everything that waits."""
        was_congested = self.wire.congested
        self.wire.unsent_bytes = 0
        if was_congested and not self.wire.is_over:
            self.connection.uncongested()
        self._rig.settle()

    def eof(self) -> None:
        if not self.wire.is_over:
            self.connection.eof()
        self._rig.settle()

    def end(self) -> None:
        """The connection is gone, as it is at some time after its close."""
        if not self._has_ended:
            self._has_ended = True
            self.connection.ended()
        self._rig.settle()


class Rig:
    """A node that is never entered: its loop is `advance`."""

    def __init__(self, **settings: Any) -> None:
        self._elapsed_s = 0.0
        self.tick_s = 0.0
        """The time between two looks at the clock; 0: it stands still."""
        settings = {"default_channel": LOBBY.decode()} | settings
        self.node = Node(
            Config(**settings),
            rng=Random(SEED_OF_NODE_5),
            clock=Clock(monotonic=self._monotonic, wall=lambda: START_S),
        )

    def _monotonic(self) -> float:
        self._elapsed_s += self.tick_s
        return self._elapsed_s

    def connect(self, host: str = "127.0.0.1") -> RecordedConnection:
        """A new TCP connection."""
        session = self.node.new_session("p2p")
        assert isinstance(session, P2PConnection)
        return RecordedConnection(self, session, RecordedWire(host))

    def connect_websocket(self, host: str = "127.0.0.1") -> RecordedConnection:
        """A connection whose upgrade is still to come."""
        session = self.node.new_session("ws")
        assert isinstance(session, P2PConnection)
        return RecordedConnection(self, session, RecordedWire(host), Upgradable())

    def upgraded(
        self, channel: str = "chat%2F1", subprotocol: str = "p2pbuf.v1.hello", host: str = "::1"
    ) -> RecordedConnection:
        """A WebSocket that has sent nothing yet."""
        line = self.connect_websocket(host)
        named = UPGRADE.replace(b"CHANNEL", channel.encode())
        line.feed(named.replace(b"SUBPROTOCOL", subprotocol.encode()))
        return line

    def logged_in(
        self,
        channel: bytes = b"chat/1",
        tags: p.Tags | None = None,
        *,
        over: str = "tcp",
        host: str = "127.0.0.1",
        **how: Any,
    ) -> RecordedConnection:
        """A connection past its READY, `over` tcp or ws."""
        line = self.connect(host) if over == "tcp" else self.upgraded(host=host)
        (ready,) = line.ask(p.hello(channel, tags, **how))
        p.read_ready(ready)
        return line

    def advance(self, seconds: float) -> None:
        """Let time pass, and every deadline on the way at its own moment."""
        end = self._elapsed_s + seconds
        while (at := self._next_at()) <= end:
            self._elapsed_s = max(self._elapsed_s, at)
            self.settle()
        self._elapsed_s = end
        self.settle()

    def settle(self) -> None:
        """Run the scheduler until nothing is due and no mail waits."""
        scheduler = self.node.scheduler
        while scheduler.turn(self.node.clock.now()) or not scheduler.is_idle:
            pass

    def _next_at(self) -> float:
        return self.node.scheduler.timers.next_at - START_S
