"""One producer, its messages under way, and the subscribers that each has to reach."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import anyio

from millpond.actors.messages import Mode, Msg, PutAck, Role
from millpond.node.bench.drivers.p2p import Answer, Peer
from millpond.node.bench.payload import Payload
from millpond.node.bench.scenarios import Kind, Load
from millpond.node.bench.target import Target
from millpond.node.bench.verify import Deliveries, Fault, Faults, Receipts
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.packets import PUT

TTL_S = 60
WINDOW_MIN, WINDOW_MAX = 32, 2**16 - 1
_PUT = struct.Struct(">BII")

Expected = TypeVar("Expected", PutAck, Msg)


class Course(Protocol):
    """What a stream needs of the run that it is part of."""

    faults: Faults
    is_sending: bool
    broken: anyio.Event

    @property
    def now(self) -> Callable[[], float]: ...
    def record(self, sent_at: float, heard_at: float) -> None: ...


class Stream:
    """Keeps `pipeline` messages under way, each until its receipt and all deliveries are in.

    A PUT load has no subscribers: a message is deleted as soon as its receipt is there, so that the
    node stays small, and those put last are `kept` for reading back.
    """

    def __init__(self, load: Load, number: int, target: Target, run: Course) -> None:
        self.kept: list[tuple[int, bytes]] = []
        """Ids and contents of messages that the node has to hold at the end."""
        self._run = run
        self._content = Payload(number, load.size)
        self._receipts = Receipts(run.faults)
        self._pipeline = load.pipeline
        self._next = 0
        self._sent_at: dict[int, float] = {}
        self._missing: dict[int, int] = {}
        self._quiet: anyio.Event | None = None
        subscribers = {Kind.PUT: 0, Kind.PUSH: 1, Kind.FANOUT: load.connections}[load.kind]
        self._deliveries = [Deliveries(self._content, run.faults) for _ in range(subscribers)]
        self.producer, *self._subscribers = self.peers = [
            target.peer(hello, run.faults, self._broken)
            for hello in _hellos(load, target.channel(number), subscribers)
        ]
        self.producer.take = self._take_receipts
        for subscriber, deliveries in zip(self._subscribers, self._deliveries, strict=True):
            subscriber.take = partial(self._take_messages, subscriber, deliveries)

    @property
    def duplicates(self) -> int:
        return sum(each.duplicates for each in self._deliveries)

    def start(self) -> None:
        """Put the first messages; from then on each that has arrived makes room for another."""
        self._put(self._pipeline)

    async def settled(self) -> None:
        """Wait until nothing is under way any more."""
        self._quiet = anyio.Event()
        if self._missing:
            await self._quiet.wait()

    def close(self) -> None:
        """Everything has been waited for: what is not here now is a fault."""
        self._receipts.close()
        for deliveries in self._deliveries:
            deliveries.close(self._next)

    def _put(self, count: int) -> None:
        now, parties = self._run.now(), 1 + len(self._subscribers)
        make, packets = self._content.make, []
        first, self._next = self._next, self._next + count
        for sequence in range(first, self._next):
            self._sent_at[sequence] = now
            self._missing[sequence] = parties
            packets.append(_PUT.pack(PUT, sequence, TTL_S) + make(sequence))
        self._receipts.outstanding.update(range(first, self._next))
        self.producer.send(packets)

    def _take_receipts(self, batch: list[Answer]) -> None:
        now, settle = self._run.now(), self._receipts.settle
        arrived = [ack for ack in self._only(PutAck, batch) if settle(ack)]
        if not self._subscribers:
            for ack in arrived:
                self._run.record(self._sent_at[ack.key], now)
            if self._run.is_sending:
                self.producer.acknowledge([ack.id for ack in arrived])
            else:
                self.kept += [(ack.id, self._content.make(ack.key)) for ack in arrived]
        self._account([ack.key for ack in arrived])

    def _take_messages(self, peer: Peer, deliveries: Deliveries, batch: list[Answer]) -> None:
        now = self._run.now()
        messages = self._only(Msg, batch)
        peer.acknowledge([each.id for each in messages])
        arrived: list[int] = []
        for message in messages:
            sequence = deliveries.take(message.data, self._next)
            if sequence is not None:
                arrived.append(sequence)
                self._run.record(self._sent_at[sequence], now)
        self._account(arrived)

    def _only(self, kind: type[Expected], batch: list[Answer]) -> list[Expected]:
        expected = [each for each in batch if isinstance(each, kind)]
        strange = len(batch) - len(expected)
        if strange:
            text = f"something else came where a {kind.__name__} was due"
            self._run.faults.note(Fault.UNEXPECTED, text, strange)
        return expected

    def _account(self, arrived: list[int]) -> None:
        """Each of these lacks one arrival less; what lacks none makes room."""
        missing, room = self._missing, 0
        for sequence in arrived:
            missing[sequence] -= 1
            if not missing[sequence]:
                del missing[sequence], self._sent_at[sequence]
                room += 1
        if room and self._run.is_sending:
            self._put(room)
        if self._quiet is not None and not missing:
            self._quiet.set()

    def _count_unexpected(self, count: int, batch: list[Answer]) -> None:
        strangers = [each for each in batch if type(each) not in (PutAck, Msg)]
        if count and strangers:
            text = f"a {type(strangers[0]).__name__} came that nobody asked for"
            self._run.faults.note(Fault.UNEXPECTED, text, count)

    def _broken(self) -> None:
        self._run.broken.set()


def _hellos(load: Load, channel: bytes, subscribers: int) -> list[Hello]:
    """How the producer and its subscribers introduce themselves."""
    mode = Mode.FANOUT if load.kind is Kind.FANOUT else Mode.PAIR
    role = Role.PRODUCER if subscribers else Role.BOTH  # to delete, and to read back
    window = min(max(WINDOW_MIN, load.pipeline), WINDOW_MAX)
    consumer = Hello(channel=channel, role=Role.CONSUMER, mode=mode, window=window)
    return [
        Hello(want_push=False, channel=channel, role=role, mode=mode),
        *[consumer] * subscribers,
    ]
