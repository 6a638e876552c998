"""Audit of the console: each change that somebody makes on the page is an event of the node.

The framing of a WebSocket at the HTTP port sees the packets of both directions. It remembers the
requests that change something, and records them with their answers: what was asked for, by whom,
and whether the node did it. Other clients are not audited.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec

from millpond.node.events import Field
from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import MalformedHandshake
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import Hello, decode_hello
from millpond.transports.websocket.framing import ServerFraming

AGENT = b"millpond console"
EVENT = "changed by the console"
PENDING_MAX = 2048
"""A connection has fewer requests in flight than that."""
HEAD = 6
"""The bytes of a request before its body: type, number, operation."""
MORE = 0x80
"""A mark in the operation of an answer that is not complete."""

CHANGES = {
    p.ADMIN: {7: "create channel", 8: "delete channel", 9: "purge channel", 10: "put message"},
    p.STREAM: {
        1: "create stream",
        2: "append record",
        5: "trim stream",
        6: "delete stream",
        7: "configure stream",
        11: "create topic",
        12: "delete topic",
    },
    p.PEERS: {3: "add peer", 4: "remove peer"},
    p.JOBS: {
        1: "put job",
        4: "retry job",
        5: "cancel job",
        6: "retry dead jobs",
        7: "purge dead jobs",
        10: "put schedule",
        11: "delete schedule",
        12: "pause schedule",
        13: "run schedule",
        21: "set queue",
        23: "take job",
        39: "retry flow",
        40: "cancel flow",
    },
}
"""The operations that change something, by the type of their packet."""
NAMES = ("channel", "stream", "topic", "peer")
DETAILS = (
    *("mode", "id", "ids", "all", "sequence", "name", "paused"),
    *("concurrency", "rate", "key_concurrency", "key_rate", "ageing"),
)
"""Fields of requests that are told: the object, and what is done to it. Data is not."""

Record = Callable[[str, dict[str, Field]], None]
Change = dict[str, Field]


class AuditedFraming(ServerFraming):
    """The framing of connection `number`, whose changes are recorded with `record`."""

    __slots__ = ("_hello", "_number", "_pending", "_record")

    def __init__(self, packet_max: int, policy: BrowserPolicy, number: int, record: Record) -> None:
        super().__init__(packet_max, policy)
        self._number = number
        self._record = record
        self._hello: Hello | None = None
        """That of a console; None: none has come."""
        self._pending: dict[tuple[int, bytes], Change] = {}

    def feed(self, data: bytes) -> list[bytes]:
        """See the base."""
        packets = super().feed(data)
        for packet in packets:
            if packet[:1] == b"\x80":
                self._hello = _console_hello(packet)
            elif self._hello is not None and packet and packet[0] in CHANGES:
                self._remember(packet)
        return packets

    def frame(self, packets: list[bytes]) -> bytes:
        """See the base."""
        if self._pending:
            for packet in packets:
                self._settle(packet)
        return super().frame(packets)

    def _remember(self, packet: bytes) -> None:
        change = CHANGES[packet[0]].get(packet[HEAD - 1]) if len(packet) >= HEAD else None
        if change is not None and len(self._pending) < PENDING_MAX:
            asked = {"change": change} | _told(packet[HEAD:])
            if packet[0] == p.JOBS and self._hello is not None:
                asked["queue"] = _text(self._hello.channel or b"")
            self._pending[packet[0], packet[1 : HEAD - 1]] = asked

    def _settle(self, packet: bytes) -> None:
        """Record the change that this packet answers, if it does."""
        if packet[0] == p.NACK and len(packet) >= HEAD + 1:
            key, outcome = (packet[1], packet[3:7]), f"refused (code {packet[2]:02x})"
        elif packet[0] - 1 in CHANGES and len(packet) >= HEAD and packet[HEAD - 1] < MORE:
            key, outcome = (packet[0] - 1, packet[1 : HEAD - 1]), "done"
        else:
            return
        change = self._pending.pop(key, None)
        if change is not None:
            who: Change = {"connection": self._number, "by": self._who()}
            self._record(EVENT, who | change | {"outcome": outcome})

    def _who(self) -> str:
        """How the client logged in; a token is told by the start of its digest."""
        token = None if self._hello is None else self._hello.token
        return "no token" if token is None else f"token {sha256(token).hexdigest()[:8]}"


def _console_hello(packet: bytes) -> Hello | None:
    try:
        hello = decode_hello(packet)
    except MalformedHandshake:
        return None
    return hello if hello.user_agent == AGENT else None


def _told(body: bytes) -> Change:
    """The fields of a request that tell what it changes."""
    try:
        fields = msgspec.msgpack.decode(body, type=dict[str, object])
    except msgspec.MsgspecError:
        return {}
    found = {name: _text(fields[name]) for name in NAMES if name in fields}
    return found | {name: _text(fields[name]) for name in DETAILS if name in fields}


def _text(value: object) -> Field:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
