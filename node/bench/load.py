"""Puts one load on a node for some seconds, and says how the node did."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import msgspec

from millpond.node.bench.readback import read_back
from millpond.node.bench.results import Latencies
from millpond.node.bench.scenarios import Kind, Load
from millpond.node.bench.stream import Stream
from millpond.node.bench.target import Target, leave_all
from millpond.node.bench.verify import Fault, Faults

WARM_SHARE, WARM_S_MAX = 0.25, 0.5
SETTLE_S, SETTLE_BROKEN_S = 5.0, 0.5
CONNECT_S = 20.0


class Clocks(msgspec.Struct, frozen=True):
    """Seconds: of the world, of this process's work, of the node's (None: it cannot be seen)."""

    now: Callable[[], float]
    own_cpu: Callable[[], float]
    node_cpu: Callable[[], float] | None = None


class LoadResult(msgspec.Struct, frozen=True):
    """A load's figures; `count` are receipts of a PUT, or messages that reached a subscriber.

    `generator` is this side's share of a core; `node_us` the node's work for each of `count`;
    `durability` what its receipts promise (None: it did not tell).
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


class Run:
    """One load under way: what the streams report to, and what they go by."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.faults = Faults()
        self.latencies = Latencies()
        self.is_sending = True
        self.is_measuring = False
        self.broken = anyio.Event()

    def record(self, sent_at: float, heard_at: float) -> None:
        """A message arrived."""
        if self.is_measuring:
            self.latencies.add(heard_at - sent_at)

    async def last(self, seconds: float) -> None:
        """Let the load run, or not so long if a connection is lost."""
        with anyio.move_on_after(seconds):
            await self.broken.wait()


async def measure(load: Load, target: Target, seconds: float, clocks: Clocks) -> LoadResult:
    """Run one load. Raises ConnectionLost and TimeoutError when it cannot even begin."""
    run = Run(clocks.now)
    streams = lay_out(load, target, run)
    peers = [peer for stream in streams for peer in stream.peers]
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(CONNECT_S):
            await target.dial_all(tasks, peers)
        with without_collector():
            result = await _timed(run, streams, load, seconds, clocks)
        await _settle(run, streams, load)
        await leave_all(peers)
        tasks.cancel_scope.cancel()
    promised = peers[0].durability
    return msgspec.structs.replace(
        result,
        durability=None if promised is None else promised.name.lower(),
        duplicates=sum(stream.duplicates for stream in streams),
        faults={fault.value: count for fault, count in run.faults.counts.items()},
        first_fault=run.faults.first,
        ok=result.count > 0 and not run.faults,
    )


def lay_out(load: Load, target: Target, run: Run) -> list[Stream]:
    """The streams of a load: each has a channel of its own."""
    count = 1 if load.kind is Kind.FANOUT else load.connections
    return [Stream(load, number, target, run) for number in range(count)]


async def _timed(
    run: Run, streams: list[Stream], load: Load, seconds: float, clocks: Clocks
) -> LoadResult:
    for stream in streams:
        stream.start()
    await run.last(min(WARM_S_MAX, WARM_SHARE * seconds))
    node_cpu = clocks.node_cpu or (lambda: 0.0)
    began, own_s, node_s = clocks.now(), clocks.own_cpu(), node_cpu()
    run.is_measuring = True
    await run.last(seconds)
    run.is_measuring = False
    took_s = clocks.now() - began
    own_s, node_s = clocks.own_cpu() - own_s, node_cpu() - node_s
    count = run.latencies.count
    p50_us, p99_us, max_us = run.latencies.percentiles_us(0.5, 0.99, 1.0)
    return LoadResult(
        row=load.name,
        kind=load.kind,
        connections=load.connections,
        pipeline=load.pipeline,
        size=load.size,
        seconds=round(took_s, 3),
        count=count,
        rate=round(count / took_s, 1),
        p50_us=p50_us,
        p99_us=p99_us,
        max_us=max_us,
        generator=round(own_s / took_s, 3),
        node_us=round(node_s / count * 1e6, 2) if clocks.node_cpu and count else None,
        durability=None,
        duplicates=0,
        faults={},
        first_fault="",
        ok=False,
    )


async def _settle(run: Run, streams: list[Stream], load: Load) -> None:
    """Send no more, and wait for what is under way; what then stays away is a fault."""
    run.is_sending = False
    is_broken = run.broken.is_set()
    with anyio.move_on_after(SETTLE_BROKEN_S if is_broken else SETTLE_S) as patience:
        for stream in streams:
            await stream.settled()
        if load.kind is Kind.PUT and not is_broken:
            for stream in streams:
                await read_back(stream.producer, stream.kept, run.faults)
    for stream in streams:
        stream.close()
    if patience.cancelled_caught and not run.faults:
        text = f"LIST or GET was not answered within {SETTLE_S:g} s"
        run.faults.note(Fault.UNACKNOWLEDGED, text)


@contextmanager
def without_collector() -> Iterator[None]:
    """The load makes no cycles, and a collection would show as the node's latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
