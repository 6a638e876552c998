"""A node with many streams for minutes: a follower for each, writers, trimming; memory over time.

    python -m tests.bench.soak --seconds 600            1,000 streams, 100 writers, 2,000 records/s
    python -m tests.bench.soak --durability disk --data /var/tmp

Followers check that they see each record once, whole and in order, and trim what they have seen, so
the memory must not grow. Exit code 1 if anything was lost, came twice, or was refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.store.changes import Position
from millpond.node.bench.drivers.connection import DriverConnection
from millpond.node.bench.drivers.interface import (
    START,
    Answer,
    Appended,
    Created,
    RecordPosition,
    Records,
    S3pDriver,
    after,
)
from millpond.node.bench.own_node import OwnNode, on_disk, own_node
from millpond.node.bench.payload import Payload
from millpond.node.bench.results import Latencies
from millpond.node.bench.servers import rss_of
from millpond.node.bench.verify import Fault, Faults
from millpond.node.cli.commands.serve import raise_descriptor_limit
from millpond.transports.io import tcp
from millpond.transports.io.address import parse_address
from millpond.transports.s3p.client_codec import encode_trim

WAIT_MS = 5_000
COUNT = 100
TRIM_EVERY = 10
TICK_S = 0.01
SETTLE_S = 10.0
DIALLED_MAX = 64
SAMPLES = 20


class Soak(msgspec.Struct):
    """The parameters and the results of a soak test."""

    streams: int
    writers: int
    rate: float
    size: int
    faults: Faults
    latencies: Latencies
    appended: int = 0
    kept: int = 0
    seen: int = 0
    trims: int = 0


class Log:
    """One stream: what was appended to it, and what its follower has seen."""

    __slots__ = (
        "_sent_at",
        "_soak",
        "_untrimmed",
        "connection",
        "content",
        "last",
        "name",
        "next",
        "place",
        "seen",
    )

    def __init__(self, number: int, soak: Soak, connection: DriverConnection) -> None:
        self.name = f"soak-{number}"
        self.content = Payload(number, soak.size)
        self.next = self.seen = 0
        self.place = START
        self.last: RecordPosition = (-1, -1)
        self._soak = soak
        self.connection = connection
        self._untrimmed = 0
        self._sent_at: dict[int, float] = {}

    def make(self, now: float) -> bytes:
        """The next record, which is being appended."""
        self._sent_at[self.next] = now
        self.next += 1
        return self.content.make(self.next - 1)

    def follow(self) -> None:
        """Read what comes next; before that, now and then, trim what was seen."""
        self.connection.on_answers = self._take
        requests = [self.connection.driver.read(self.name, self.place, COUNT, 0, WAIT_MS)]
        if self._untrimmed >= TRIM_EVERY:
            self._untrimmed = 0
            self._soak.trims += 1
            requests.insert(0, encode_trim(self.name.encode(), Position(*self.place)))
        self.connection.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        now = time.perf_counter()
        for answer in batch:
            match answer:
                case Records(records=records):
                    for place, body in records:
                        self._see(place, body, now)
                    self.follow()
                case Created():
                    pass
                case _:
                    self._soak.faults.note(Fault.REFUSED, f"{self.name}: {answer}")

    def _see(self, place: RecordPosition, body: bytes, now: float) -> None:
        sequence = self.content.read(body)
        if sequence != self.seen or place < self.place:
            text = f"{self.name}: record {sequence} at {place} came where {self.seen} was due"
            self._soak.faults.note(Fault.DISORDERED, text)
        self.seen = self.seen + 1 if sequence is None else sequence + 1
        self.place = after(place)
        self._untrimmed += 1
        self._soak.seen += 1
        sent_at = self._sent_at.pop(sequence, None) if sequence is not None else None
        if sent_at is not None:
            self._soak.latencies.add(now - sent_at)


class Writer:
    """Appends to its streams, one record each, in turn."""

    def __init__(self, logs: list[Log], soak: Soak, connection: DriverConnection) -> None:
        self._logs = logs
        self._soak = soak
        self.connection = connection
        self._asked: list[Log] = []
        self._turn = 0
        connection.on_answers = self._take

    def append(self, count: int, now: float) -> None:
        """So many records."""
        requests = []
        for _ in range(count):
            log = self._logs[self._turn]
            self._turn = (self._turn + 1) % len(self._logs)
            self._asked.append(log)
            requests.append(self.connection.driver.append(log.name, [log.make(now)]))
        self._soak.appended += count
        self.connection.send(b"".join(requests))

    def _take(self, batch: list[Answer]) -> None:
        logs, self._asked = self._asked[: len(batch)], self._asked[len(batch) :]
        for log, answer in zip(logs, batch, strict=True):
            match answer:
                case Appended(first=place):
                    if place <= log.last:
                        text = f"{log.name}: {place} was given after {log.last}"
                        self._soak.faults.note(Fault.DISORDERED, text)
                    log.last = place
                    self._soak.kept += 1
                case _:
                    self._soak.faults.note(Fault.REFUSED, f"{log.name}: {answer}")


async def run(soak: Soak, node: OwnNode, seconds: float) -> dict[str, Any]:
    """Connect, append and follow for so long, and wait until everything was seen."""
    connections = [_connection(soak) for _ in range(soak.streams + soak.writers)]
    async with anyio.create_task_group() as tasks:
        await _dial(tasks, parse_address(node.listeners["s3p"]), connections)
        logs = [
            Log(number, soak, connection)
            for number, connection in enumerate(connections[: soak.streams])
        ]
        for log, connection in zip(logs, connections[: soak.streams], strict=True):
            await connection.create(log.name)
            log.follow()
        writers = [
            Writer(logs[number :: soak.writers], soak, connection)
            for number, connection in enumerate(connections[soak.streams :])
        ]
        began = time.perf_counter()
        samples = await _append(soak, writers, rss_of(node.pid), seconds)
        took_s = time.perf_counter() - began
        await _settle(soak)
        for connection in connections:
            connection.leave()
        tasks.cancel_scope.cancel()
    return _told(soak, took_s, samples, logs)


async def _append(
    soak: Soak, writers: list[Writer], rss: Callable[[], int] | None, seconds: float
) -> list[int]:
    """Append at the rate for so long; the node's memory, in bytes, every now and then."""
    samples: list[int] = []
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        if rss is not None and elapsed >= len(samples) * seconds / SAMPLES:
            samples.append(rss())
            _progress(soak, elapsed, samples[-1])
        _write(soak, writers, elapsed)
        await anyio.sleep(TICK_S)
    return samples


async def _settle(soak: Soak) -> None:
    for _ in range(int(SETTLE_S / TICK_S)):
        if soak.seen >= soak.appended and soak.kept >= soak.appended:
            return
        await anyio.sleep(TICK_S)


def _connection(soak: Soak) -> DriverConnection:
    return DriverConnection(S3pDriver(), soak.faults, lambda: None)


async def _dial(
    tasks: TaskGroup, address: tuple[str, int], connections: list[DriverConnection]
) -> None:
    for start in range(0, len(connections), DIALLED_MAX):
        async with anyio.create_task_group() as dials:
            for connection in connections[start : start + DIALLED_MAX]:
                dials.start_soon(partial(tcp.dial, tasks, *address, connection))


def _write(soak: Soak, writers: list[Writer], elapsed: float) -> None:
    """Send the records that are due, spread over the writers; a second's worth at most."""
    due = min(int(elapsed * soak.rate) - soak.appended, int(soak.rate))
    now = time.perf_counter()
    share, rest = divmod(max(0, due), len(writers))
    first = soak.appended % len(writers)
    for place in range(len(writers)):
        count = share + (place < rest)
        if count:
            writers[(first + place) % len(writers)].append(count, now)


def _progress(soak: Soak, elapsed: float, rss: int) -> None:
    connection = f"{elapsed:7.1f} s  RSS {rss / 2**20:7.1f} MiB  appended {soak.appended:,}"
    print(
        f"{connection}  seen {soak.seen:,}  trims {soak.trims:,}  faults {dict(soak.faults.counts)}"
    )
    sys.stdout.flush()


def _told(soak: Soak, took_s: float, samples: list[int], logs: list[Log]) -> dict[str, Any]:
    p50_us, p99_us, p999_us, max_us = soak.latencies.percentiles_us(0.5, 0.99, 0.999, 1.0)
    return {
        "seconds": round(took_s, 1),
        "streams": soak.streams,
        "writers": soak.writers,
        "appended": soak.appended,
        "kept": soak.kept,
        "seen": soak.seen,
        "missing": sum(log.next - log.seen for log in logs),
        "trims": soak.trims,
        "p50_us": p50_us,
        "p99_us": p99_us,
        "p999_us": p999_us,
        "max_us": max_us,
        "rss_mib": [round(rss / 2**20, 1) for rss in samples],
        "faults": {fault.value: count for fault, count in soak.faults.counts.items()},
        "first_fault": soak.faults.first,
    }


@contextmanager
def _node(durability: str, data: Path | None, connections: int) -> Iterator[OwnNode]:
    limits = {
        "connections_max": str(connections + 100),
        "connections_per_address_max": str(connections + 100),
    }
    if durability == "memory":
        with own_node(listener="s3p", **limits) as node:
            yield node
        return
    with (
        tempfile.TemporaryDirectory(prefix="millpond-soak-", dir=data) as folder,
        own_node(*on_disk(Path(folder), durability), listener="s3p", **limits) as node,
    ):
        yield node


def main(argv: list[str]) -> int:
    """Exit 0 if all that was appended was seen once and in order, 1 if not."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2_000.0, help="records a second, of all")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--durability", choices=("memory", "os", "disk"), default="memory")
    parser.add_argument("--data", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    raise_descriptor_limit()
    shape = (options.streams, options.writers, options.rate, options.size)
    soak = Soak(*shape, Faults(), Latencies())
    with _node(options.durability, options.data, options.streams + options.writers) as node:
        backend = {"use_uvloop": find_spec("uvloop") is not None}
        told = anyio.run(run, soak, node, options.seconds, backend_options=backend)
    print(json.dumps(told))
    is_whole = told["seen"] == told["kept"] == told["appended"] > 0 and not told["missing"]
    return 0 if is_whole and not soak.faults else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
