"""A node with very many messages alive, and one with very much history: memory, disk, restarts.

    python -m tests.bench.live [--disk DIR] [--messages N] [--channels N] [--history BYTES]

The node is a process of its own on a folder of its own, which is removed at the end. Prints what
was found as it is found, and a JSON object of it all at the end; 1 is the exit code if anything
that was read back was not what was put.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from millpond.actors.messages import Get, GetAck, List, ListAck, Put, PutAck, Role
from millpond.node.bench.drivers.p2p import Answer, P2pConnection
from millpond.node.bench.own_node import cpu_of, file_system
from millpond.node.bench.payload import Payload
from millpond.node.bench.results import Latencies
from millpond.node.bench.target import BenchTarget
from millpond.node.bench.verify import Fault, Faults
from millpond.node.client.url import parse_url
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.packets import encode
from tests.bench.servers import ROOT

READY_S, STOP_S, ANSWER_S = 600.0, 120.0, 120.0
TTL_S = 86_400
WORKERS = 8
COLD_READS = 500
LIVE_BYTES, PIPELINE = 10**6, 16
REST_S, REST_SHARE, REST_S_MAX = 2.0, 0.03, 300.0
SAMPLE_S = 0.25
LOG_CHARACTERS = 2000
RAISED = {
    "MILLPOND_NODE_MESSAGES_MAX": "100000000",
    "MILLPOND_NODE_BYTES_MAX": "17179869184",
    "MILLPOND_NODE_KEYS_MAX": "100000000",
    "MILLPOND_KEYS_MAX": "100000000",
    "MILLPOND_PASSIVATE_AFTER_S": "5",
}


class Server:
    """The node, on one folder, over restarts. `restart_s`: from its start until it was ready."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.restart_s = 0.0
        self._log = (folder / "stderr").open("wb")
        self.start()

    def start(self) -> None:
        """Start the node, and wait for its ready line."""
        serve = ("serve", "--data", str(self.data), "--durability", "disk")
        where = ("--p2p", "127.0.0.1:0", "--ws", "off", "--json")
        where += ("--s3p", "off", "--rustlog", "off", "--http", "off")
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millpond", *serve, *where, "--log-level", "info"],
            cwd=ROOT,
            env={**os.environ, **RAISED},
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the node did not start")
        self.restart_s = time.perf_counter() - began
        url = f"tcp://{json.loads(line)['listeners']['p2p']}"
        self.target = BenchTarget(url, parse_url(url), b"live")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """End the node; the seconds that took."""
        began = time.perf_counter()
        self.process.send_signal(number)
        self.process.wait(STOP_S)
        return time.perf_counter() - began

    def rest(self) -> float:
        """Wait until the node does next to nothing; the seconds that took, 300 at most."""
        cpu, began = cpu_of(self.process.pid), time.perf_counter()
        assert cpu is not None, "Linux tells"
        worked_s = REST_S
        while worked_s > REST_S * REST_SHARE and time.perf_counter() < began + REST_S_MAX:
            before = cpu()
            time.sleep(REST_S)
            worked_s = cpu() - before
        return round(time.perf_counter() - began, 1)

    def memory(self) -> dict[str, int]:
        """Resident memory in MiB: now, and at its peak."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        names = {"rss_mib": "VmRSS", "rss_peak_mib": "VmHWM"}
        return {name: int(fields[field].split()[0]) // 1024 for name, field in names.items()}

    def disk_mib(self) -> dict[str, float]:
        """Space on the disk by folder, in MiB."""
        sizes: dict[str, int] = {}
        for path in self.data.rglob("*"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # unlinked meanwhile
            name = path.relative_to(self.data).parts[0]
            sizes[name] = sizes.get(name, 0) + found.st_blocks * 512
        return {name: round(size / 2**20, 1) for name, size in sorted(sizes.items())}

    def close(self) -> None:
        """End the node whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def last_words(self) -> str:
        """The end of what the node logged."""
        return Path(self._log.name).read_text(errors="replace")[-LOG_CHARACTERS:]


class RequestConnection:
    """A connection that sends some packets, and waits for as many answers."""

    def __init__(self, target: BenchTarget, channel: int, faults: Faults) -> None:
        hello = Hello(channel=target.channel(channel), role=Role.BOTH, want_push=False)
        self._connection: P2pConnection = target.connection(hello, faults, lambda: None)
        self._connection.on_answers = self._take
        self._target = target
        self._answers: list[Answer] = []
        self._wanted = 0
        self._complete = anyio.Event()

    async def dial(self, tasks: TaskGroup) -> None:
        await self._target.dial(tasks, self._connection)

    async def request(self, packets: list[bytes]) -> list[Answer]:
        """The answers, in order. Raises TimeoutError."""
        self._answers, self._wanted, self._complete = [], len(packets), anyio.Event()
        self._connection.send(packets)
        with anyio.fail_after(ANSWER_S):
            await self._complete.wait()
        return self._answers

    def acknowledge(self, ids: list[int]) -> None:
        """Delete these messages."""
        self._connection.acknowledge(ids)

    async def leave(self) -> None:
        """Say goodbye, and wait until the connection is closed."""
        self._connection.leave()
        with anyio.move_on_after(ANSWER_S):
            await self._connection.closed.wait()

    def _take(self, batch: list[Answer]) -> None:
        self._answers += batch
        if len(self._answers) >= self._wanted:
            self._complete.set()


async def fill(target: BenchTarget, channels: int, each: int, size: int, faults: Faults) -> None:
    """Put `each` messages into every channel, on a connection for each."""
    numbers = iter(range(channels))

    async def work() -> None:
        for number in numbers:
            content = Payload(number, size)
            connection = RequestConnection(target, number, faults)
            await connection.dial(tasks)
            puts = [encode(Put(key, TTL_S, content.make(key))) for key in range(each)]
            answers = await connection.request(puts)
            if not all(isinstance(answer, PutAck) for answer in answers):
                faults.note(Fault.UNEXPECTED, f"channel {number} was not filled")
            await connection.leave()

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(work)
        tasks.cancel_scope.cancel()


async def read_channel(
    target: BenchTarget, number: int, each: int, size: int, faults: Faults
) -> float:
    """Connect to a channel, list it, and read it; the seconds until it was listed."""
    async with anyio.create_task_group() as tasks:
        began = time.perf_counter()
        connection = RequestConnection(target, number, faults)
        await connection.dial(tasks)
        (listed,) = await connection.request([encode(List(2**16 - 1, 0, 0))])
        took_s = time.perf_counter() - began
        ids = listed.ids if isinstance(listed, ListAck) else []
        if len(ids) != each:
            faults.note(Fault.LOST, f"channel {number} lists {len(ids)} messages of {each}")
        if ids:
            answers = await connection.request([encode(Get(message_id)) for message_id in ids])
            found = [answer.data for answer in answers if isinstance(answer, GetAck)]
            if found != list(map(Payload(number, size).make, range(len(ids)))):
                faults.note(Fault.DAMAGED, f"channel {number} holds something else")
        await connection.leave()
        tasks.cancel_scope.cancel()
    return took_s


async def read_channels(
    target: BenchTarget, numbers: list[int], each: int, size: int, faults: Faults
) -> dict[str, float]:
    """One after the other; milliseconds from connecting to the answer of LIST."""
    latencies = Latencies()
    for number in numbers:
        latencies.add(await read_channel(target, number, each, size, faults))
    p50_us, p99_us, max_us = latencies.percentiles_us(0.5, 0.99, 1.0)
    return {"p50_ms": p50_us / 1e3, "p99_ms": p99_us / 1e3, "max_ms": max_us / 1e3}


def live(server: Server, options: argparse.Namespace, faults: Faults) -> Iterator[tuple[str, Any]]:
    """Fill, restart, kill, read."""
    channels, size = options.channels, options.size
    each = max(1, options.messages // channels)
    yield "before", server.memory()
    began = time.perf_counter()
    anyio.run(fill, server.target, channels, each, size, faults)
    took_s = time.perf_counter() - began
    told = {"messages": channels * each, "seconds": round(took_s, 1)}
    yield "filled", {**told, "per_s": round(channels * each / took_s)}
    yield "full", {**server.memory(), "disk_mib": server.disk_mib()}
    rest_s = server.rest()
    yield "at rest", {"seconds": rest_s, **server.memory(), "disk_mib": server.disk_mib()}
    stop_s = server.stop()
    server.start()
    times = {"stop_s": round(stop_s, 2), "ready_s": round(server.restart_s, 2)}
    yield "restarted", {**times, **server.memory()}
    server.stop(signal.SIGKILL)
    server.start()
    yield "killed", {"ready_s": round(server.restart_s, 2), **server.memory()}
    some = random.Random(1).sample(range(channels), min(COLD_READS, channels))
    for what in ("cold reads", "reads again"):
        yield what, anyio.run(read_channels, server.target, some, each, size, faults)
    yield "after reads", {**server.memory(), "disk_mib": server.disk_mib()}


async def flow(
    server: Server, total: int, size: int, faults: Faults, peaks: dict[str, float]
) -> float:
    """Let so many bytes go through a channel that never holds more than `LIVE_BYTES`; seconds."""
    content, kept, sequence = Payload(0, size), [], 0
    async with anyio.create_task_group() as tasks:
        connection = RequestConnection(server.target, 0, faults)
        await connection.dial(tasks)
        began = sampled = time.perf_counter()
        while sequence * size < total:
            batch = range(sequence, sequence + PIPELINE)
            answers = await connection.request(
                [encode(Put(k, TTL_S, content.make(k))) for k in batch]
            )
            kept += [answer.id for answer in answers if isinstance(answer, PutAck)]
            sequence += PIPELINE
            done = max(0, len(kept) - LIVE_BYTES // size)
            connection.acknowledge(kept[:done])
            del kept[:done]
            if time.perf_counter() > sampled + SAMPLE_S:
                sampled = time.perf_counter()
                sizes = server.disk_mib()
                for name, mib in {**sizes, "total": round(sum(sizes.values()), 1)}.items():
                    peaks[name] = max(peaks.get(name, 0.0), mib)
        took_s = time.perf_counter() - began
        (listed,) = await connection.request([encode(List(2**16 - 1, 0, 0))])
        if not isinstance(listed, ListAck) or listed.ids != kept:
            faults.note(Fault.LOST, "the channel does not list what it has to hold")
        await connection.leave()
        tasks.cancel_scope.cancel()
    return took_s


def history(
    server: Server, options: argparse.Namespace, faults: Faults
) -> Iterator[tuple[str, Any]]:
    """Much goes through, little stays."""
    peaks: dict[str, float] = {}
    total, size = options.history, options.history_size
    took_s = anyio.run(flow, server, total, size, faults, peaks)
    rate = round(total / took_s / 1e6, 1)
    yield "history", {"bytes": total, "seconds": round(took_s, 1), "mb_per_s": rate}
    yield "peak of the disk, MiB", peaks
    server.rest()
    yield "after history", {**server.memory(), "disk_mib": server.disk_mib()}
    server.stop(signal.SIGKILL)
    server.start()
    yield "killed after history", {"ready_s": round(server.restart_s, 2), **server.memory()}


@contextmanager
def fresh(disk: Path) -> Iterator[Server]:
    """A node on a new folder."""
    with tempfile.TemporaryDirectory(prefix="live-", dir=disk) as folder:
        server = Server(Path(folder))
        try:
            yield server
        except Exception:
            print(server.last_words(), file=sys.stderr)
            raise
        finally:
            server.close()


def main(argv: list[str]) -> int:
    """Measure both; exit 0 when all that was read back was what was put."""
    parser = argparse.ArgumentParser(prog="tests.bench.live", description=__doc__)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), metavar="DIR")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--channels", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--history", type=float, default=1e9, metavar="BYTES", help="0: none")
    parser.add_argument("--history-size", type=int, default=16_384)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so the node is stopped
    faults, found = Faults(), {"file system": file_system(options.disk)}
    for part, wanted in ((live, options.messages), (history, options.history)):
        if wanted:
            with fresh(options.disk) as server:
                for name, told in part(server, options, faults):
                    print(f"{name:22} {json.dumps(told)}", flush=True)
                    found[name] = told
    found["faults"] = {fault.value: count for fault, count in faults.counts.items()}
    print(json.dumps(found))
    if faults:
        print(f"at fault: {faults.first}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
