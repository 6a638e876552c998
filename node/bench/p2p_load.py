"""The load of `millpond bench p2p`: PUT, push and fan-out, each in channels of its own."""

from __future__ import annotations

import struct
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from millpond.actors.messages import Get, GetAck, List, ListAck, Mode, Msg, PutAck, Role
from millpond.node.bench.drivers.p2p import Answer, P2pConnection
from millpond.node.bench.load import CONNECT_S, SETTLE_S, Clocks, Run, dial_all, run_load
from millpond.node.bench.payload import Payload
from millpond.node.bench.scenarios import Kind, Load
from millpond.node.bench.target import BenchTarget
from millpond.node.bench.verify import Deliveries, Fault, Faults, Receipts
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.packets import PUT, encode

TTL_S = 60
WINDOW_MIN, WINDOW_MAX = 32, 2**16 - 1
EVERYTHING = List(limit=2**16 - 1, start=0, end=0)
_PUT = struct.Struct(">BII")

Expected = TypeVar("Expected", PutAck, Msg)


class LoadResult(msgspec.Struct, frozen=True):
    """The result of a load; `count` are receipts of a PUT, or messages that reached a subscriber.

    `generator` is this side's share of a core; `node_us` the node's CPU time for each of `count`;
    `durability` what its receipts promise (None: unknown).
    """

    row: str
    kind: Kind
    connections: int
    pipeline: int
    size: int
    seconds: float
    count: int
    rate: float
    p50_us: int
    p99_us: int
    max_us: int
    generator: float
    node_us: float | None
    durability: str | None
    duplicates: int
    faults: dict[str, int]
    first_fault: str
    ok: bool


async def measure(load: Load, target: BenchTarget, seconds: float, clocks: Clocks) -> LoadResult:
    """Run one load. Raises ConnectionLost and TimeoutError if it cannot start."""
    run = Run(clocks.now)
    count = 1 if load.kind is Kind.FANOUT else load.connections
    workloads = [P2pWorkload(load, number, target, run) for number in range(count)]
    connections = [each for workload in workloads for each in workload.connections]
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(CONNECT_S):
            await dial_all(connections, partial(target.dial, tasks))
        # With faults, too: reading back deletes what the load stored.
        result = await run_load(
            run, workloads, seconds, clocks, read_back_s=SETTLE_S, reads_after_faults=True
        )
        tasks.cancel_scope.cancel()
    promised = connections[0].durability
    has_cpu = result.server_s is not None and result.count > 0
    return LoadResult(
        row=load.name,
        kind=load.kind,
        connections=load.connections,
        pipeline=load.pipeline,
        size=load.size,
        seconds=round(result.seconds, 3),
        count=result.count,
        rate=result.rate(),
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        max_us=result.max_us,
        generator=result.generator,
        node_us=round((result.server_s or 0) / result.count * 1e6, 2) if has_cpu else None,
        durability=None if promised is None else promised.name.lower(),
        duplicates=sum(workload.duplicates for workload in workloads),
        faults=run.faults.by_name(),
        first_fault=run.faults.first,
        ok=result.count > 0 and not run.faults,
    )


class P2pWorkload:
    """One producer with `pipeline` messages under way, and the subscribers of its channel.

    A message is under way until its receipt and all deliveries have arrived. A PUT load has no
    subscribers: it deletes a message at its receipt, so that the node stays small, and reads back
    the last ones.
    """

    def __init__(self, load: Load, number: int, target: BenchTarget, run: Run) -> None:
        self._stored: list[tuple[int, bytes]] = []
        """Ids and contents of the messages that the node has to hold at the end."""
        self._kind = load.kind
        self._run = run
        self._payload = Payload(number, load.size)
        self._receipts = Receipts(run.faults)
        self._pipeline = load.pipeline
        self._next = 0
        self._sent_at: dict[int, float] = {}
        self._missing: dict[int, int] = {}
        self._quiet: anyio.Event | None = None
        subscribers = {Kind.PUT: 0, Kind.PUSH: 1, Kind.FANOUT: load.connections}[load.kind]
        self._deliveries = [Deliveries(self._payload, run.faults) for _ in range(subscribers)]
        self._producer, *self._subscribers = self.connections = [
            target.connection(hello, run.faults, run.broken.set)
            for hello in _hellos(load, target.channel(number), subscribers)
        ]
        self._producer.on_answers = self._take_receipts
        for subscriber, deliveries in zip(self._subscribers, self._deliveries, strict=True):
            subscriber.on_answers = partial(self._take_messages, subscriber, deliveries)

    @property
    def duplicates(self) -> int:
        return sum(each.duplicates for each in self._deliveries)

    def start(self) -> None:
        """Put the first messages; each that has arrived is followed by another."""
        self._put(self._pipeline)

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        self._quiet = anyio.Event()
        if self._missing:
            await self._quiet.wait()

    def close(self) -> None:
        """Count as faults the receipts and messages that did not arrive."""
        self._receipts.close()
        for deliveries in self._deliveries:
            deliveries.close(self._next)

    async def read_back(self) -> int:
        """Compare the channel of a PUT load with what it has to hold, and empty it."""
        if self._kind is not Kind.PUT:
            return 0
        check = _StoredCheck(self._stored, self._run.faults)
        ids = [message_id for message_id, _ in self._stored]
        self._producer.on_answers = check.take
        self._producer.send([encode(EVERYTHING), *[encode(Get(each)) for each in ids]])
        await check.done.wait()
        self._producer.acknowledge(ids)
        return len(ids)

    def _put(self, count: int) -> None:
        now, awaited = self._run.now(), 1 + len(self._subscribers)
        make, packets = self._payload.make, []
        first, self._next = self._next, self._next + count
        for sequence in range(first, self._next):
            self._sent_at[sequence] = now
            self._missing[sequence] = awaited
            packets.append(_PUT.pack(PUT, sequence, TTL_S) + make(sequence))
        self._receipts.outstanding.update(range(first, self._next))
        self._producer.send(packets)

    def _take_receipts(self, batch: list[Answer]) -> None:
        now, settle = self._run.now(), self._receipts.settle
        arrived = [ack for ack in self._only(PutAck, batch) if settle(ack)]
        if not self._subscribers:
            for ack in arrived:
                self._run.record(self._sent_at[ack.key], now)
            if self._run.is_sending:
                self._producer.acknowledge([ack.id for ack in arrived])
            else:
                self._stored += [(ack.id, self._payload.make(ack.key)) for ack in arrived]
        self._account([ack.key for ack in arrived])

    def _take_messages(
        self, connection: P2pConnection, deliveries: Deliveries, batch: list[Answer]
    ) -> None:
        now = self._run.now()
        messages = self._only(Msg, batch)
        connection.acknowledge([each.id for each in messages])
        arrived: list[int] = []
        for message in messages:
            sequence = deliveries.take(message.data, self._next)
            if sequence is not None:
                arrived.append(sequence)
                self._run.record(self._sent_at[sequence], now)
        self._account(arrived)

    def _only(self, kind: type[Expected], batch: list[Answer]) -> list[Expected]:
        expected = [each for each in batch if isinstance(each, kind)]
        unexpected = len(batch) - len(expected)
        if unexpected:
            text = f"another packet came in place of a {kind.__name__}"
            self._run.faults.note(Fault.UNEXPECTED, text, unexpected)
        return expected

    def _account(self, arrived: list[int]) -> None:
        """Count an arrival of each; put a new message for each that has arrived everywhere."""
        missing, complete = self._missing, 0
        for sequence in arrived:
            missing[sequence] -= 1
            if not missing[sequence]:
                del missing[sequence], self._sent_at[sequence]
                complete += 1
        if complete and self._run.is_sending:
            self._put(complete)
        if self._quiet is not None and not missing:
            self._quiet.set()


def _hellos(load: Load, channel: bytes, subscribers: int) -> list[Hello]:
    """The handshakes of a producer and its subscribers."""
    mode = Mode.FANOUT if load.kind is Kind.FANOUT else Mode.PAIR
    role = Role.PRODUCER if subscribers else Role.BOTH  # to delete, and to read back
    window = min(max(WINDOW_MIN, load.pipeline), WINDOW_MAX)
    consumer = Hello(channel=channel, role=Role.CONSUMER, mode=mode, window=window)
    return [
        Hello(want_push=False, channel=channel, role=role, mode=mode),
        *[consumer] * subscribers,
    ]


class _StoredCheck:
    """LIST has the ids of the stored messages, and GET their contents."""

    def __init__(self, stored: list[tuple[int, bytes]], faults: Faults) -> None:
        self.done = anyio.Event()
        self._stored = dict(stored)
        self._faults = faults
        self._unread = {"list", *self._stored}

    def take(self, batch: list[Answer]) -> None:
        for answer in batch:
            match answer:
                case ListAck(ids=ids):
                    self._compare(ids)
                case GetAck(id=message_id, data=data):
                    self._unread.discard(message_id)
                    if data != self._stored.get(message_id):
                        text = f"message {message_id} is stored with other content"
                        self._faults.note(Fault.DAMAGED, text)
                case _:
                    self._faults.note(Fault.UNEXPECTED, "a message came without a request")
        if not self._unread:
            self.done.set()

    def _compare(self, ids: list[int]) -> None:
        self._unread.discard("list")
        lost = self._stored.keys() - set(ids)
        if lost:
            self._faults.note(Fault.LOST, f"message {min(lost)} is not listed", len(lost))
        extra = set(ids) - self._stored.keys()
        if extra:
            text = f"message {min(extra)} is still there, although it was deleted"
            self._faults.note(Fault.UNEXPECTED, text, len(extra))
