"""A peer that keeps to a script: it speaks real bytes over any wire and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from millpond.actors.messages import Mode, Put, PutAck
from millpond.node.client.settings import SimulatedSettings
from millpond.transports.io.interface import Session, Wire
from millpond.transports.io.memory import Network
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import Ready, encode_ready

T = TypeVar("T")
Answer = Callable[["Line", p.Packet], None]
READY = Ready(
    packet_max=2**20, keep_alive_ms=20_000, window=4, extensions=p.EXTENSIONS, mode=Mode.PAIR
)


def greet(line: Line, packet: p.Packet) -> None:
    """Answer HELLO with READY, and nothing else."""
    if isinstance(packet, p.Handshake) and packet.packet_type == p.HELLO:
        line.say(encode_ready(READY))


def keep(line: Line, packet: p.Packet) -> None:
    """Answer HELLO, PING and PUT; the id of a message is its key plus 1000."""
    greet(line, packet)
    if isinstance(packet, Put):
        line.say(p.encode(PutAck(packet.key, packet.ttl, packet.key + 1000)))
    if isinstance(packet, p.Ping):
        line.say(p.encode(p.Pong()))


class Line:
    """One accepted connection, as the peer sees it."""

    def __init__(self, peer: Peer) -> None:
        self.packets: list[p.Packet] = []
        self.over = False
        self.at = anyio.current_time()
        self._peer = peer
        self._framing = LengthPrefixed(2**20)
        self._wire: Wire

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._peer.lines.append(self)
        self._peer.stir()

    def received(self, data: bytes) -> None:
        self._peer.reads.append(len(data))
        for raw in self._framing.feed(data):
            packet = p.decode(raw)
            self.packets.append(packet)
            self._peer.answer(self, packet)
        self._peer.stir()

    def uncongested(self) -> None: ...

    def eof(self) -> None:
        self._wire.close()

    def ended(self) -> None:
        self.over = True
        self._peer.stir()

    def say(self, *packets: bytes) -> None:
        self._wire.write(self._framing.frame(list(packets)))

    def cut(self) -> None:
        self._wire.abort()

    def of(self, kind: type[T]) -> list[T]:
        return [packet for packet in self.packets if isinstance(packet, kind)]


class Peer:
    """Listens as `peer` on a simulated network; `answer` is its script."""

    def __init__(self, answer: Answer = greet, seed: int = 1) -> None:
        self.network = Network(Random(seed))
        self.answer = answer
        self.lines: list[Line] = []
        self.dialled_at: list[float] = []
        self.reads: list[int] = []
        self.up = True
        self._stirred = anyio.Event()
        self.network.listen("peer", lambda: Line(self))

    async def dial(self, tasks: TaskGroup, host: str, port: int, session: Session) -> None:
        """For `SimulatedSettings(dialer=...)`."""
        self.dialled_at.append(anyio.current_time())
        if not self.up:
            raise ConnectionRefusedError("nobody listens")
        await self.network.connect(tasks, host, session, source="client")

    @property
    def line(self) -> Line:
        return self.lines[-1]

    def stir(self) -> None:
        self._stirred.set()

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait until something holds; at most 100 seconds of the running clock."""
        with anyio.fail_after(100):
            while not fact():
                # Events of the client do not stir the peer: look again soon.
                self._stirred = anyio.Event()
                with anyio.move_on_after(0.01):
                    await self._stirred.wait()

    async def received(self, kind: type[T], count: int = 1) -> list[T]:
        """Wait for so many packets of a kind on the newest line."""
        await self.until(lambda: self.lines and len(self.line.of(kind)) >= count)
        return self.line.of(kind)


def take_settings(options: dict[str, Any], **sources: Any) -> SimulatedSettings:
    """Simulated settings with these sources, and with those of the options that are settings."""
    names = [each.name for each in fields(SimulatedSettings) if each.name in options]
    return SimulatedSettings(**sources, **{name: options.pop(name) for name in names})
