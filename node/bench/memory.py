"""How much memory a node spends on what only waits: channels and connections."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.messages import Put, PutAck, Role
from millpond.node.bench.drivers.p2p import Answer, Peer
from millpond.node.bench.payload import Payload
from millpond.node.bench.scenarios import Idle, MemoryRow
from millpond.node.bench.target import Target, leave_all
from millpond.node.bench.verify import Faults, Receipts
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.packets import encode

WARM_COUNT = 2_000
"""So many come first and are not counted: they grow the node's pools and tables."""
WORKERS = 16
TTL_S = 3600
REST_S = 0.3
VISIT_S = 20.0


class MemoryResult(msgspec.Struct, frozen=True):
    """Growth of the node's resident memory, in bytes, for each of `count`.

    `channels`: how many more the node has; one that holds nothing and has nobody is forgotten.
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


async def measure_memory(footprint: MemoryRow, target: Target) -> MemoryResult:
    """Read the node's memory before and after.

    Raises ConnectionLost, TimeoutError, and RequestError where the right `admin` is missing.
    """
    visitors = _Visitors(footprint, target)
    async with anyio.create_task_group() as tasks:
        await visitors.come(tasks, min(WARM_COUNT, footprint.count))
        before = await _at_rest(target)
        await visitors.come(tasks, footprint.count)
        after = await _at_rest(target)
        await leave_all(visitors.staying)
        tasks.cancel_scope.cancel()
    faults = visitors.faults
    return MemoryResult(
        row=footprint.name,
        kind=footprint.idle,
        count=footprint.count,
        size=footprint.size,
        bytes_each=round((after["rss_bytes"] - before["rss_bytes"]) / footprint.count, 1),
        channels=after["channels"] - before["channels"],
        faults={fault.value: count for fault, count in faults.counts.items()},
        first_fault=faults.first,
        ok=not faults,
    )


async def _at_rest(target: Target) -> dict[str, int]:
    await anyio.sleep(REST_S)
    return await target.info()


class _Visitors:
    """Connections that come to channels of their own, do what the footprint says, and leave."""

    def __init__(self, footprint: MemoryRow, target: Target) -> None:
        self.faults = Faults()
        self.staying: list[Peer] = []
        self._footprint = footprint
        self._target = target
        self._next = 0

    async def come(self, tasks: TaskGroup, count: int) -> None:
        numbers = iter(range(self._next, self._next + count))
        self._next += count
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(self._work, tasks, numbers)

    async def _work(self, tasks: TaskGroup, numbers: Iterator[int]) -> None:
        for number in numbers:
            with anyio.fail_after(VISIT_S):
                await self._visit(tasks, number)

    async def _visit(self, tasks: TaskGroup, number: int) -> None:
        idle, stays = self._footprint.idle, self._footprint.idle is Idle.CONNECTION
        role = Role.PRODUCER if idle is Idle.WAITING else Role.CONSUMER
        hello = Hello(channel=self._target.channel(number), role=role)
        peer = self._target.peer(hello, self.faults, lambda: None)
        await self._target.dial(tasks, peer)
        if idle is Idle.WAITING:
            await self._put(peer, number)
        if stays:
            self.staying.append(peer)
        else:
            await leave_all([peer])

    async def _put(self, peer: Peer, number: int) -> None:
        receipts, answered = Receipts(self.faults), anyio.Event()

        def take(batch: list[Answer]) -> None:
            for answer in batch:
                if isinstance(answer, PutAck) and receipts.settle(answer):
                    answered.set()

        peer.take = take
        receipts.outstanding.add(number)
        data = Payload(number, self._footprint.size).make(0)
        peer.send([encode(Put(number, TTL_S, data))])
        with anyio.move_on_after(VISIT_S / 2):
            await answered.wait()
        receipts.close()
