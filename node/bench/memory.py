"""The memory of a node for idle channels, waiting messages and idle connections."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.messages import Put, PutAck, Role
from millpond.node.bench.drivers.p2p import Answer, P2pConnection
from millpond.node.bench.load import leave_all
from millpond.node.bench.payload import Payload
from millpond.node.bench.scenarios import Idle, MemoryRow
from millpond.node.bench.target import BenchTarget
from millpond.node.bench.verify import Faults, Receipts
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.packets import encode

WARM_COUNT = 2_000
"""The first connections are not counted: they grow the node's pools and tables."""
WORKERS = 16
TTL_S = 3600
SETTLE_S = 0.3
CONNECTION_S = 20.0


class MemoryResult(msgspec.Struct, frozen=True):
    """Growth of the node's resident memory, in bytes, for each of `count`.

    `channels`: how many more the node has; an empty channel without connections is forgotten.
    """

    row: str
    kind: Idle
    count: int
    size: int
    bytes_each: float
    channels: int
    faults: dict[str, int]
    first_fault: str
    ok: bool


async def measure_memory(row: MemoryRow, target: BenchTarget) -> MemoryResult:
    """The growth of the node's memory.

    Raises ConnectionLost, TimeoutError, and RequestError where the right `admin` is missing.
    """
    connections = _IdleConnections(row, target)
    async with anyio.create_task_group() as tasks:
        await connections.open(tasks, min(WARM_COUNT, row.count))
        before = await _settled_info(target)
        await connections.open(tasks, row.count)
        after = await _settled_info(target)
        await leave_all(connections.kept)
        tasks.cancel_scope.cancel()
    faults = connections.faults
    return MemoryResult(
        row=row.name,
        kind=row.idle,
        count=row.count,
        size=row.size,
        bytes_each=round((after["rss_bytes"] - before["rss_bytes"]) / row.count, 1),
        channels=after["channels"] - before["channels"],
        faults=faults.by_name(),
        first_fault=faults.first,
        ok=not faults,
    )


async def _settled_info(target: BenchTarget) -> dict[str, int]:
    await anyio.sleep(SETTLE_S)
    return await target.info()


class _IdleConnections:
    """Connections to channels of their own, which do what the row says; some stay open."""

    def __init__(self, row: MemoryRow, target: BenchTarget) -> None:
        self.faults = Faults()
        self.kept: list[P2pConnection] = []
        self._row = row
        self._target = target
        self._next = 0

    async def open(self, tasks: TaskGroup, count: int) -> None:
        numbers = iter(range(self._next, self._next + count))
        self._next += count
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(self._work, tasks, numbers)

    async def _work(self, tasks: TaskGroup, numbers: Iterator[int]) -> None:
        for number in numbers:
            with anyio.fail_after(CONNECTION_S):
                await self._use(tasks, number)

    async def _use(self, tasks: TaskGroup, number: int) -> None:
        idle, stays = self._row.idle, self._row.idle is Idle.CONNECTION
        role = Role.PRODUCER if idle is Idle.WAITING else Role.CONSUMER
        hello = Hello(channel=self._target.channel(number), role=role)
        connection = self._target.connection(hello, self.faults, lambda: None)
        await self._target.dial(tasks, connection)
        if idle is Idle.WAITING:
            await self._put(connection, number)
        if stays:
            self.kept.append(connection)
        else:
            await leave_all([connection])

    async def _put(self, connection: P2pConnection, number: int) -> None:
        receipts, answered = Receipts(self.faults), anyio.Event()

        def take(batch: list[Answer]) -> None:
            for answer in batch:
                if isinstance(answer, PutAck) and receipts.settle(answer):
                    answered.set()

        connection.on_answers = take
        receipts.outstanding.add(number)
        data = Payload(number, self._row.size).make(0)
        connection.send([encode(Put(number, TTL_S, data))])
        with anyio.move_on_after(CONNECTION_S / 2):
            await answered.wait()
        receipts.close()
