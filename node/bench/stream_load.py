"""The load of `millpond bench s3p`, `rustlog` and `s2`: appends, reads and followers of streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import Driver
from millpond.node.bench.load import CONNECT_S, Clocks, Run, dial_all, run_load
from millpond.node.bench.scenarios import StreamKind, StreamLoad
from millpond.node.bench.stream_workloads import StreamWorkload, workload_of
from millpond.node.client.errors import ConnectionLost
from millpond.transports.io import tcp

POLL_S = 0.001
READ_BACK_S = 30.0


class StreamTarget(msgspec.Struct, frozen=True):
    """The server under load. `rss` (bytes) and `folder` are known of a server of our own."""

    server: str
    host: str
    port: int
    prefix: str
    driver: Callable[[], Driver]
    rss: Callable[[], int] | None = None
    folder: Path | None = None


class StreamResult(msgspec.Struct, frozen=True):
    """The result of a load.

    `count` are records. Latencies are of one request or, in TAIL rows, from an append until its
    record arrives. `generator` is the load generator's share of a core, `server_us` the server's
    CPU time for each of `count`; `memory_each` and `disk_each` are bytes for each appended record
    (None: unknown); `checked` are the records that were read back or reached a follower.
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
    """Run one load. Raises ConnectionLost and TimeoutError if it cannot start."""
    run = Run(clocks.now)

    def connection() -> DriverConnection:
        return DriverConnection(target.driver(), run.faults, run.broken.set)

    workloads = [
        workload_of(load, number, f"{target.prefix}-{number}", run, connection)
        for number in range(load.connections)
    ]
    connections = [each for workload in workloads for each in workload.connections]
    rss_before = target.rss() if target.rss is not None else 0
    async with anyio.create_task_group() as tasks:

        async def dial(connection: DriverConnection) -> None:
            try:
                await tcp.dial(tasks, target.host, target.port, connection)
            except OSError as error:
                raise ConnectionLost(str(error)) from error

        with anyio.fail_after(CONNECT_S):
            await dial_all(connections, dial)
            await _prepare_all(workloads)
        if any(each.driver.polls for each in connections) and load.kind is StreamKind.TAIL:
            tasks.start_soon(_poll, workloads)
        result = await run_load(
            run, workloads, seconds, clocks, read_back_s=READ_BACK_S, reads_after_faults=False
        )
        tasks.cancel_scope.cancel()
    appended = sum(workload.appended for workload in workloads)
    count = result.count * load.batch
    server_s, rss, folder = result.server_s, target.rss, target.folder
    return StreamResult(
        row=load.name,
        kind=load.kind,
        server=target.server,
        connections=load.connections,
        pipeline=load.pipeline,
        batch=load.batch,
        size=load.size,
        seconds=round(result.seconds, 3),
        count=count,
        rate=result.rate(load.batch),
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        max_us=result.max_us,
        generator=result.generator,
        server_us=None if server_s is None else _per_record(server_s * 1e6, count),
        memory_each=None if rss is None else _per_record(rss() - rss_before, appended),
        disk_each=None if folder is None else _per_record(_disk_bytes(folder), appended),
        checked=result.checked,
        faults=run.faults.by_name(),
        first_fault=run.faults.first,
        ok=count > 0 and not run.faults,
    )


async def _prepare_all(workloads: list[StreamWorkload]) -> None:
    async with anyio.create_task_group() as tasks:
        for workload in workloads:
            tasks.start_soon(workload.prepare)


async def _poll(workloads: list[StreamWorkload]) -> None:
    while True:
        await anyio.sleep(POLL_S)
        for workload in workloads:
            workload.poll()


def _per_record(total: float, count: int) -> float | None:
    return round(total / count, 2) if count else None


def _disk_bytes(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
