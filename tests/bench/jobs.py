"""Job queues side by side: a node, arq, Celery and huey on Redis, huey on SQLite, procrastinate on
PostgreSQL, BullMQ on Redis; all durable, each with one worker process.

    python -m venv PEERS/python && PEERS/python/bin/pip install arq huey procrastinate[psycopg]
    python -m venv PEERS/celery && PEERS/celery/bin/pip install celery[redis]
    mkdir PEERS/node && cd PEERS/node && npm install bullmq ioredis
    python -m tests.bench.jobs --peers PEERS [--jobs 5000] [--rounds 3]

It needs `redis-server` and, as root, the programs of PostgreSQL. A peer that is not there has no
row, and one that fails is left out of the medians. After `--minutes` no round begins. Each round
measures all, one after the other; the table has the medians. CPU is that of the server with its
children and of the program, for a job that is put and run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "bench" / "jobs_peers.py"
BULLMQ = ROOT / "tests" / "bench" / "jobs_bullmq.mjs"
LIMIT_S = 180.0
READY_S = 10.0
NODE = "node"

HEADER = """\
| queue | put/s | put/s in bulk | run/s | put to start, p10, p50 | CPU of a job |
| --- | ---: | ---: | ---: | ---: | ---: |"""


class NotMeasured(Exception):
    """A queue was not measured: its program failed, or jobs were lost."""


class Rates(NamedTuple):
    """Jobs put, put in bulk and run a second; the time in ms from the put to the start of the
    handler of an idle worker, that of the fastest tenth and the median; the processor time of a
    job, in us. None: it has no such thing."""

    put: float
    bulk: float | None
    run: float
    p10_ms: float | None
    p50_ms: float | None
    cpu_us: float


@contextmanager
def redis(folder: Path) -> Iterator[tuple[int, int]]:
    """A server of its own, with a sync for each write; its process and port."""
    port = free_port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    words += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "eady to accept" in line:
                    break
            yield process.pid, port
        finally:
            process.terminate()


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[int, str]]:
    """A server of its own, of the user postgres; its process and the words to connect."""
    port = free_port()
    shutil.chown(folder, "postgres")
    data = folder / "data"
    as_user = ("runuser", "-u", "postgres", "--")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    initialize = (*as_user, "initdb", "-D", str(data), "-A", "trust", "-U", "bench")
    subprocess.run(initialize, check=True, cwd=folder, **quiet)  # type: ignore[call-overload]
    words = (*as_user, "postgres", "-D", str(data), "-p", str(port), "-k", str(folder))
    with subprocess.Popen(
        (*words, "-c", "listen_addresses=127.0.0.1"), cwd=folder, **quiet
    ) as process:  # type: ignore[call-overload]
        try:
            ends_at = time.monotonic() + READY_S
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert time.monotonic() < ends_at, "the server does not start"
                time.sleep(0.05)
            time.sleep(0.5)
            pid = int((data / "postmaster.pid").read_text().split("\n")[0])
            yield pid, f"host=127.0.0.1 port={port} user=bench dbname=postgres"
            os.kill(pid, 2)
        finally:
            process.wait(READY_S)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run(*words: str) -> dict[str, Any]:
    """A command's one object."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise NotMeasured(f"{words}: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def rates(told: dict[str, Any]) -> Rates:
    """The figures of a run in which every job was done."""
    if told.get("missing") or told.get("faults"):
        raise NotMeasured(f"jobs were lost: {told}")
    waits, cpu_us = (told.get("p10_ms"), told.get("p50_ms")), told.get("cpu_us")
    if "worker_us" in told:  # of a node
        waits = told["p10_us"] / 1000, told["p50_us"] / 1000
        cpu_us = told["worker_us"] + told["node_us"]
    assert cpu_us is not None
    return Rates(told["put_rate"], told.get("bulk_rate"), told["run_rate"], *waits, cpu_us)


def measurements(
    peers: Path, jobs: int, concurrency: int
) -> Iterator[tuple[str, Callable[[], Rates]]]:
    """One round: the queues that are there, and how each is measured."""
    shape = ("--jobs", str(jobs), "--concurrency", str(concurrency))
    yield NODE, partial(of_node, shape)
    python, celery = (str(peers / each / "bin" / "python") for each in ("python", "celery"))
    if shutil.which("redis-server") is not None:
        for name, program in (("arq", python), ("huey", python), ("Celery", celery)):
            if Path(program).exists():
                yield f"{name} on Redis", partial(of_redis, program, name.lower(), shape)
        node = shutil.which("node")
        if node is not None and (peers / "node" / "node_modules" / "bullmq").exists():
            yield "BullMQ on Redis", partial(of_bullmq, node, peers / "node", shape)
    if Path(python).exists():
        yield "huey on SQLite", partial(of_sqlite, python, shape)
        if os.geteuid() == 0 and shutil.which("initdb") is not None:
            yield "procrastinate on PostgreSQL", partial(of_postgres, python, shape)


def of_node(shape: Sequence[str]) -> Rates:
    """A node of its own, with its data on disk."""
    ours = (sys.executable, "-m", "millpond", "bench", "jobs", "--json", *shape)
    return rates(run(*ours, "--durability", "disk"))


def of_redis(program: str, peer: str, shape: Sequence[str]) -> Rates:
    """A peer of Python with Redis."""
    with scratch() as folder, redis(folder) as (pid, port):
        address = ("--address", f"redis://127.0.0.1:{port}/0")
        return rates(run(program, str(PEERS), peer, "--server", str(pid), *address, *shape))


def of_bullmq(program: str, modules: Path, shape: Sequence[str]) -> Rates:
    """BullMQ with Redis."""
    with scratch() as folder, redis(folder) as (pid, port):
        words = (str(BULLMQ), "--modules", str(modules), "--server", str(pid), "--port", str(port))
        return rates(run(program, *words, *shape))


def of_sqlite(program: str, shape: Sequence[str]) -> Rates:
    """Huey with a file."""
    with scratch() as folder:
        words = (str(PEERS), "huey", "--address", str(folder / "huey.sqlite3"))
        return rates(run(program, *words, *shape))


def of_postgres(program: str, shape: Sequence[str]) -> Rates:
    """Procrastinate with PostgreSQL."""
    with scratch() as folder, postgres(folder) as (pid, address):
        words = (str(PEERS), "procrastinate", "--address", address, "--server", str(pid))
        return rates(run(program, *words, *shape))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a disk."""
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir="/var/tmp") as name:
        yield Path(name)


def table(found: dict[str, list[Rates]]) -> list[str]:
    """The lines: medians."""
    lines = HEADER.splitlines()
    for name, measured in found.items():
        columns = [_median(column) for column in zip(*measured, strict=True)]
        put, bulk, ran, p10_ms, p50_ms, cpu_us = columns
        cells = [_shown(put), _shown(bulk), _shown(ran)]
        cells.append("-" if p50_ms is None else f"{p10_ms:.2f} ms, {p50_ms:.2f} ms")
        cells.append(f"{cpu_us or 0.0:,.0f} us")
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def _median(values: Sequence[float | None]) -> float | None:
    there = [each for each in values if each is not None]
    return median(there) if there else None


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def attempt(name: str, measure: Callable[[], Rates]) -> Rates | None:
    """The figures of one queue; None: it was not measured, and standard error says why."""
    try:
        found = measure()
    except (NotMeasured, OSError, subprocess.SubprocessError, AssertionError) as exc:
        print(f"{name} is not measured: {exc}", file=sys.stderr, flush=True)
        return None
    print(name, found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="no round begins that ends later"
    )
    args = parser.parse_args()
    found: dict[str, list[Rates]] = defaultdict(list)
    ends_at = time.monotonic() + args.minutes * 60
    took_s = 0.0
    for _ in range(args.rounds):
        at = time.monotonic()
        if at + took_s > ends_at:
            print("no time for another round", file=sys.stderr)
            break
        for name, measure in measurements(args.peers, args.jobs, args.concurrency):
            measured = attempt(name, measure)
            if measured is not None:
                found[name].append(measured)
        took_s = time.monotonic() - at
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
