"""The load engine: workloads run for some seconds, are checked, and summarized."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import anyio
import msgspec

from millpond.node.bench.results import Latencies
from millpond.node.bench.verify import Fault, Faults
from millpond.node.client.errors import ConnectionLost

WARM_SHARE, WARM_S_MAX = 0.25, 0.5
SETTLE_S, SETTLE_BROKEN_S = 5.0, 0.5
CONNECT_S = 20.0
LEAVE_S = 2.0
FIRST_S, AGAIN_S = 30.0, 0.05
"""The first answer is waited for that long at most; looked for that often."""
DIALLED_MAX = 64
"""Connections made at once: well below the number that a node accepts before they are ready."""


class Clocks(msgspec.Struct, frozen=True):
    """Clocks in seconds: time, CPU time of this process, and of the server (None: unknown)."""

    now: Callable[[], float]
    own_cpu: Callable[[], float]
    node_cpu: Callable[[], float] | None = None


class Run:
    """One load under way: what its workloads report to and go by."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.faults = Faults()
        self.latencies = Latencies()
        self.is_sending = True
        self.is_measuring = False
        self.broken = anyio.Event()

    def record(self, sent_at: float, arrived_at: float) -> None:
        """Record the latency of one operation."""
        if self.is_measuring:
            self.latencies.add(arrived_at - sent_at)

    async def wait(self, seconds: float) -> None:
        """Let the load run, but not after a connection is lost."""
        with anyio.move_on_after(seconds):
            await self.broken.wait()


class LoadConnection(Protocol):
    """A connection of a load, as the engine sees it."""

    closed: anyio.Event

    def leave(self) -> None:
        """Say goodbye and close."""


Dialled = TypeVar("Dialled", bound=LoadConnection)


class Workload(Protocol):
    """The work in one channel or stream. Its connections stand before `start`."""

    @property
    def connections(self) -> Sequence[LoadConnection]: ...

    def start(self) -> None:
        """Send the first requests; from then on each answer is followed by another request."""

    async def settle(self) -> None:
        """Wait until nothing is under way."""

    def close(self) -> None:
        """Count as faults the answers that did not arrive."""

    async def read_back(self) -> int:
        """Compare what is stored with what was sent; the number of records checked."""


class LoadSummary(msgspec.Struct, frozen=True):
    """The summary of a load. `count` operations took `seconds`; latencies are of one.

    `generator` is this side's share of a core, `server_s` the server's CPU time.
    """

    seconds: float
    count: int
    p50_us: int
    p99_us: int
    max_us: int
    generator: float
    server_s: float | None
    checked: int

    def rate(self, batch: int = 1) -> float:
        """Items a second, with so many in an operation."""
        return round(self.count * batch / self.seconds, 1) if self.seconds else 0.0


async def dial_all(
    connections: Sequence[Dialled], dial: Callable[[Dialled], Coroutine[None, None, None]]
) -> None:
    """Make connections, a bounded number at a time."""
    for start in range(0, len(connections), DIALLED_MAX):
        async with anyio.create_task_group() as dials:
            for connection in connections[start : start + DIALLED_MAX]:
                dials.start_soon(dial, connection)


async def leave_all(connections: Sequence[LoadConnection]) -> None:
    """Say goodbye on all connections, and wait shortly until they are closed."""
    for connection in connections:
        connection.leave()
    with anyio.move_on_after(LEAVE_S):
        for connection in connections:
            await connection.closed.wait()


async def run_load(
    run: Run,
    workloads: Sequence[Workload],
    seconds: float,
    clocks: Clocks,
    *,
    read_back_s: float,
    reads_after_faults: bool,
) -> LoadSummary:
    """Run workloads that are connected, check what they stored, and leave.

    Reading back takes at most `read_back_s`; without `reads_after_faults` a run with faults is
    not read back.
    """
    with _without_collector():
        result = await _measure(run, workloads, seconds, clocks)
    run.is_sending = False
    is_broken = run.broken.is_set()
    with anyio.move_on_after(SETTLE_BROKEN_S if is_broken else SETTLE_S):
        for workload in workloads:
            await workload.settle()
    for workload in workloads:
        workload.close()
    checked = 0
    if not is_broken and (reads_after_faults or not run.faults):
        checked = await _read_back(run, workloads, read_back_s)
    await leave_all([each for workload in workloads for each in workload.connections])
    return msgspec.structs.replace(result, checked=checked)


async def _measure(
    run: Run, workloads: Sequence[Workload], seconds: float, clocks: Clocks
) -> LoadSummary:
    for workload in workloads:
        workload.start()
    await run.wait(min(WARM_S_MAX, WARM_SHARE * seconds))
    server_cpu = clocks.node_cpu or (lambda: 0.0)
    began, own_s, server_s = clocks.now(), clocks.own_cpu(), server_cpu()
    run.is_measuring = True
    await run.wait(seconds)
    # A busy disk may take longer than a short load for the first answer; a server at fault is not
    # waited for.
    while not (run.latencies.count or run.faults or run.broken.is_set()):
        if clocks.now() >= began + FIRST_S:
            break
        await run.wait(AGAIN_S)
    run.is_measuring = False
    took_s = clocks.now() - began
    own_s, server_s = clocks.own_cpu() - own_s, server_cpu() - server_s
    p50_us, p99_us, max_us = run.latencies.percentiles_us(0.5, 0.99, 1.0)
    return LoadSummary(
        seconds=took_s,
        count=run.latencies.count,
        p50_us=p50_us,
        p99_us=p99_us,
        max_us=max_us,
        generator=round(own_s / took_s, 3),
        server_s=None if clocks.node_cpu is None else server_s,
        checked=0,
    )


async def _read_back(run: Run, workloads: Sequence[Workload], limit_s: float) -> int:
    checked = 0
    with anyio.move_on_after(limit_s) as scope:
        try:
            for workload in workloads:
                checked += await workload.read_back()
        except ConnectionLost:
            return checked  # the connection has counted it
    if scope.cancelled_caught and not run.faults:
        text = f"reading back took longer than {limit_s:g} s"
        run.faults.note(Fault.UNACKNOWLEDGED, text)
    return checked


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without the garbage collector, which would show as the server's latency."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
