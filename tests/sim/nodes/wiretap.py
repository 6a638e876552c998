"""Recorder at the nodes' ends of all P2P connections: bytes become events, by its own parser."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from anyio.abc import TaskGroup

from millpond.node.testing.network import Links
from millpond.transports.io.interface import Session, SessionFactory, Wire
from tests.sim.nodes import events as e

MSG, ACK, PUT, KEPT = 2, 3, 6, 7
HELLO, READY, CREDIT, TOUCH, TOUCHED, MSGX, JOBS, JOBS_REPLY, NACK = (
    *(0x80, 0x83, 0x84, 0x86, 0x87, 0x88, 0x96, 0x97, 0xFF),
)
GOODBYE, ABORT = b"\xff\xff\x00", b"\xff\xff\xff"
BY_KEY, BY_REQUEST, BY_ID = (6,), (0x90, 0x92, 0x94, 0x96), (4, 0x86)
JOB_PUT, JOB_PUT_MANY = 1, 32
CHANNEL, KEY, ROLE, WINDOW, AFTER, MODE, DURABILITY = 0x01, 0x02, 0x04, 0x07, 0x0C, 0x0E, 0x81

Tell = Callable[[e.Event], None]


class TappedLinks(Links):
    """The links of a world, recorded: `tell` gets each event; `now` is the world's time."""

    def __init__(self, seed: int, now: Callable[[], float], tell: Tell) -> None:
        super().__init__(seed)
        self._now = now
        self._tell = tell
        self._tapped = 0

    def listen(self, name: str, factories: dict[str, SessionFactory], tasks: TaskGroup) -> None:
        """See `Links.listen`."""
        tapped = dict(factories)
        tapped["p2p"] = partial(self._tap, name, factories["p2p"])
        super().listen(name, tapped, tasks)

    def _tap(self, node: str, make: SessionFactory) -> Session:
        self._tapped += 1
        return _Tapped(make(), node, self._tapped, self._now, self._tell)


class _Tapped:
    """A session of a node, and the events of what it receives and writes."""

    def __init__(
        self, session: Session, node: str, conn: int, now: Callable[[], float], tell: Tell
    ) -> None:
        self._session = session
        self._address = (node, conn)
        self._who = ""
        self._is_gone = False
        self._now = now
        self._tell = tell
        self._in, self._out = _Packets(), _Packets()
        self._job_puts: dict[int, list[int]] = {}

    def opened(self, wire: Wire) -> None:
        self._who = wire.peer
        self._say(e.Open)
        self._session.opened(_TappedWire(wire, self._wrote))

    def received(self, data: bytes) -> None:
        for packet in self._in.feed(data):
            self._received(packet)
        self._session.received(data)

    def uncongested(self) -> None:
        self._session.uncongested()

    def eof(self) -> None:
        # End without GOODBYE: from here on the node may push its messages to others.
        self._say(e.Bye, False)
        self._session.eof()

    def ended(self) -> None:
        self._say(e.Closed)
        self._is_gone = True
        self._session.ended()

    def _say(self, kind: type[e.Wired], *values: Any) -> None:
        node, conn = self._address
        self._tell(kind(self._now(), node, conn, self._who, *values))

    def _received(self, packet: bytes) -> None:
        body = packet[1:]
        match packet[0]:
            case 0x80:
                tags = _tags(packet[8:])
                role, after = tags.get(ROLE, b"\x03")[0], tags.get(AFTER)
                resume = None if after is None else int.from_bytes(after)
                self._say(e.Hello, tags.get(CHANNEL, b""), role, tags.get(KEY, b""), resume)
            case 0x06:
                self._say(e.Put, *struct.unpack(">II", body[:8]), body[8:])
            case 0x03:
                self._say(e.Ack, *struct.unpack(">Q", body))
            case 0x08:
                self._say(e.ListRequested, *struct.unpack(">HQQ", body))
            case 0x84:
                self._say(e.Credit, *struct.unpack(">H", body))
            case 0x86:
                self._say(e.Touch, *struct.unpack(">QI", body))
            case 0x96:
                self._received_job(*_operation(body))
            case 0xFF if packet in (GOODBYE, ABORT):
                self._say(e.Bye, False)
            case 0xFF if packet[1] in (MSG, MSGX):
                delay = int.from_bytes(packet[11:15])
                self._say(e.Nack, int.from_bytes(packet[3:11]), packet[2], delay)
            case _:
                pass

    def _received_job(self, request: int, operation: int, body: dict[str, Any]) -> None:
        if operation not in (JOB_PUT, JOB_PUT_MANY):
            self._say(e.JobRequested, request, operation, body)
            return
        # A bulk put has one part here, and no other key is among the next ones.
        jobs = body["jobs"] if operation == JOB_PUT_MANY else [body["data"]]
        keys = self._job_puts[request] = [(body["key"] + n) % 2**32 for n in range(len(jobs))]
        due = body.get("due", 0) / 1000
        for key, data in zip(keys, jobs, strict=True):
            self._say(e.Put, key, body.get("ttl", 0), data, due)

    def _wrote(self, data: bytes) -> None:
        for packet in self._out.feed(data):
            self._said(packet)

    def _said(self, packet: bytes) -> None:
        body = packet[1:]
        push = e.Missed if self._is_gone else e.Push
        match packet[0]:
            case 0x83:
                tags = _tags(packet[2:])
                window, mode = int.from_bytes(tags[WINDOW]), tags[MODE][0]
                self._say(e.Ready, window, mode, tags[DURABILITY][0])
            case 0x07:
                self._say(e.Kept, *struct.unpack(">IIQ", body))
            case 0x02:
                self._say(push, int.from_bytes(body[:8]), 0, body[8:])
            case 0x88:
                self._say(push, *struct.unpack(">QH", body[:10]), body[10:])
            case 0x05:
                self._say(e.Shown, int.from_bytes(body[:8]), body[8:])
            case 0x09:
                self._say(e.Listed, struct.unpack(f">{len(body) // 8}Q", body))
            case 0x87:
                self._say(e.Touched, *struct.unpack(">QI", body))
            case 0x97:
                self._said_job(*_operation(body))
            case 0xFF if packet in (GOODBYE, ABORT):
                self._say(e.Bye, True)
            case 0xFF:
                self._refused(packet)
            case _:
                pass

    def _said_job(self, request: int, operation: int, body: dict[str, Any]) -> None:
        if operation not in (JOB_PUT, JOB_PUT_MANY):
            self._say(e.JobReplied, request, operation, body)
            return
        keys = self._job_puts.pop(request)
        runs = body["runs"] if operation == JOB_PUT_MANY else [(body["id"], 1)]
        ids = [each for first, count in runs for each in range(first, first + count)]
        for key, message_id in zip(keys, ids, strict=True):
            if not body.get("existing"):
                self._say(e.Kept, key, body["ttl"], message_id)

    def _refused(self, packet: bytes) -> None:
        _, kind, code = packet[:3]
        size = 4 if kind in (*BY_KEY, *BY_REQUEST) else 8 if kind in BY_ID else 0
        number = int.from_bytes(packet[3 : 3 + size])
        if kind == JOBS and number in self._job_puts:
            for key in self._job_puts.pop(number):
                self._say(e.Refused, PUT, code, key)
            return
        self._say(e.Refused, kind, code, number)


class _TappedWire:
    """A wire, and what is written to it."""

    def __init__(self, wire: Wire, wrote: Callable[[bytes], None]) -> None:
        self._wire = wire
        self._wrote = wrote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def write(self, data: bytes) -> None:
        if data:
            self._wrote(data)
        self._wire.write(data)


class _Packets:
    """Bytes in, whole packets out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        packets = []
        while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4])):
            packets.append(bytes(buffer[4:size]))
            del buffer[:size]
        return [packet for packet in packets if packet]


def _tags(raw: bytes) -> dict[int, bytes]:
    tags, at = {}, 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 1 : at + 3])
        tags[raw[at]] = raw[at + 3 : at + 3 + size]
        at += 3 + size
    return tags


def _operation(body: bytes) -> tuple[int, int, dict[str, Any]]:
    number, operation = struct.unpack(">IB", body[:5])
    return number, operation, msgspec.msgpack.decode(body[5:]) if body[5:] else {}
