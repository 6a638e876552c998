"""Puts one load on a server of streams for some seconds, and says how it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import Driver
from millpond.node.bench.load import (
    CONNECT_S,
    SETTLE_BROKEN_S,
    SETTLE_S,
    WARM_S_MAX,
    WARM_SHARE,
    Clocks,
    Run,
    without_collector,
)
from millpond.node.bench.stream_rows import StreamKind, StreamLoad
from millpond.node.bench.stream_workloads import Workload, workload_of
from millpond.node.bench.target import LEAVE_S
from millpond.node.bench.verify import Fault
from millpond.node.client.errors import ConnectionLost
from millpond.transports.io import tcp

DIALLED_MAX = 64
POLL_S = 0.001
READ_BACK_S = 30.0


class StreamTarget(msgspec.Struct, frozen=True):
    """The server that is measured. `rss` and `folder` are known of a server of our own: its memory
    in bytes, and where its data is on the disk."""

    server: str
    host: str
    port: int
    prefix: str
    speech: Callable[[], Driver]
    rss: Callable[[], int] | None = None
    folder: Path | None = None


class StreamResult(msgspec.Struct, frozen=True):
    """A load's figures. `count` are records, latencies those of one request or, in TAIL rows, from
    an append until its record was seen.

    `server_us` is the server's work for each of `count`; `memory_each` and `disk_each` what a
    record that was appended costs it in bytes (None: it cannot be seen); `checked` how many were
    read back or seen by a follower.
    """

    row: str
    kind: StreamKind
    server: str
    connections: int
    pipeline: int
    batch: int
    size: int
    seconds: float
    count: int
    rate: float
    p50_us: int
    p99_us: int
    max_us: int
    generator: float
    server_us: float | None
    memory_each: float | None
    disk_each: float | None
    checked: int
    faults: dict[str, int]
    first_fault: str
    ok: bool


async def measure_streams(
    load: StreamLoad, target: StreamTarget, seconds: float, clocks: Clocks
) -> StreamResult:
    """Run one load. Raises ConnectionLost and TimeoutError when it cannot even begin."""
    run = Run(clocks.now)

    def dialled() -> DriverConnection:
        return DriverConnection(target.speech(), run.faults, run.broken.set)

    works = [
        workload_of(load, number, f"{target.prefix}-{number}", run, dialled)
        for number in range(load.connections)
    ]
    lines = [line for work in works for line in work.lines]
    before = target.rss() if target.rss is not None else 0
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(CONNECT_S):
            await _dial_all(tasks, target, lines)
            await _prepare_all(works)
        if any(line.speech.polls for line in lines) and load.kind is StreamKind.TAIL:
            tasks.start_soon(_poll, works)
        with without_collector():
            result = await _timed(run, works, load, target.server, seconds, clocks)
        checked = await _settle(run, works)
        await _leave_all(lines)
        tasks.cancel_scope.cancel()
    appended = sum(work.appended for work in works)
    return msgspec.structs.replace(
        result,
        memory_each=None if target.rss is None else _each(target.rss() - before, appended),
        disk_each=None if target.folder is None else _each(_size(target.folder), appended),
        checked=checked,
        faults={fault.value: count for fault, count in run.faults.counts.items()},
        first_fault=run.faults.first,
        ok=result.count > 0 and not run.faults,
    )


async def _dial_all(tasks: TaskGroup, target: StreamTarget, lines: list[DriverConnection]) -> None:
    async def dial(line: DriverConnection) -> None:
        try:
            await tcp.dial(tasks, target.host, target.port, line)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    for start in range(0, len(lines), DIALLED_MAX):
        async with anyio.create_task_group() as dials:
            for line in lines[start : start + DIALLED_MAX]:
                dials.start_soon(dial, line)


async def _prepare_all(works: list[Workload]) -> None:
    async with anyio.create_task_group() as preparing:
        for work in works:
            preparing.start_soon(work.prepare)


async def _poll(works: list[Workload]) -> None:
    while True:
        await anyio.sleep(POLL_S)
        for work in works:
            work.poll()


async def _timed(
    run: Run, works: list[Workload], load: StreamLoad, server: str, seconds: float, clocks: Clocks
) -> StreamResult:
    for work in works:
        work.start()
    await run.last(min(WARM_S_MAX, WARM_SHARE * seconds))
    server_cpu = clocks.node_cpu or (lambda: 0.0)
    began, own_s, server_s = clocks.now(), clocks.own_cpu(), server_cpu()
    run.is_measuring = True
    await run.last(seconds)
    run.is_measuring = False
    took_s = clocks.now() - began
    own_s, server_s = clocks.own_cpu() - own_s, server_cpu() - server_s
    count = run.latencies.count * load.batch
    p50_us, p99_us, max_us = run.latencies.percentiles_us(0.5, 0.99, 1.0)
    return StreamResult(
        row=load.name,
        kind=load.kind,
        server=server,
        connections=load.connections,
        pipeline=load.pipeline,
        batch=load.batch,
        size=load.size,
        seconds=round(took_s, 3),
        count=count,
        rate=round(count / took_s, 1),
        p50_us=p50_us,
        p99_us=p99_us,
        max_us=max_us,
        generator=round(own_s / took_s, 3),
        server_us=_each(server_s * 1e6, count) if clocks.node_cpu else None,
        memory_each=None,
        disk_each=None,
        checked=0,
        faults={},
        first_fault="",
        ok=False,
    )


async def _settle(run: Run, works: list[Workload]) -> int:
    """Send no more, wait for what is under way, and read back; how many records were checked."""
    run.is_sending = False
    is_broken = run.broken.is_set()
    with anyio.move_on_after(SETTLE_BROKEN_S if is_broken else SETTLE_S):
        for work in works:
            await work.settle()
    for work in works:
        work.close()
    checked = 0
    if is_broken or run.faults:
        return checked
    with anyio.move_on_after(READ_BACK_S) as patience:
        try:
            for work in works:
                checked += await work.read_back()
        except ConnectionLost:
            return checked  # the line has counted it
    if patience.cancelled_caught:
        text = f"reading back was not done within {READ_BACK_S:g} s"
        run.faults.note(Fault.UNACKNOWLEDGED, text)
    return checked


async def _leave_all(lines: list[DriverConnection]) -> None:
    for line in lines:
        line.leave()
    with anyio.move_on_after(LEAVE_S):
        for line in lines:
            await line.gone.wait()


def _each(total: float, count: int) -> float | None:
    return round(total / count, 2) if count else None


def _size(folder: Path) -> int:
    """Bytes that the files below take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
