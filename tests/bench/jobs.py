"""Job queues side by side: a node, arq on Redis, huey on SQLite, in memory and on the disk.

    python -m venv PEERS && PEERS/bin/pip install arq huey
    python -m tests.bench.jobs --peers PEERS/bin/python [--jobs 5000] [--rounds 3]

Each round measures all, one after the other; the table has the medians. End to end is both phases
together, jobs put and run, and how many times the peer's that is at the same durability.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "bench" / "jobs_peers.py"
LIMIT_S = 300.0
READY_S = 10.0

Rates = tuple[float, float, float]
"""Jobs put, run, and both one after the other, a second."""

HEADER = """\
| queue | put/s | run/s | end to end/s | / arq | / huey |
| --- | ---: | ---: | ---: | ---: | ---: |"""


@contextmanager
def redis(folder: Path, *options: str) -> Iterator[int]:
    """A server of its own; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with subprocess.Popen(
        [*words, "--save", "", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "eady to accept" in line:
                    break
            yield port
        finally:
            process.terminate()


def run(*words: str) -> dict[str, Any]:
    """A command's one object."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def rates(told: dict[str, Any]) -> Rates:
    """The figures of a run in which every job was done."""
    if told.get("missing") or told.get("faults"):
        raise SystemExit(f"jobs were lost: {told}")
    put, ran = told["put_rate"], told["run_rate"]
    return put, ran, 1 / (1 / put + 1 / ran)


def measure(peers: str, jobs: int, concurrency: int) -> Iterator[tuple[str, Rates]]:
    """One round."""
    shape = ("--jobs", str(jobs), "--concurrency", str(concurrency))
    ours = (sys.executable, "-m", "millpond", "bench", "jobs", "--json", *shape)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=Path.home()) as name:
        folder = Path(name)
        for durability, options, fsync in (
            ("memory", ("--appendonly", "no"), ()),
            ("disk", ("--appendonly", "yes", "--appendfsync", "always"), ("--fsync",)),
        ):
            yield f"node, {durability}", rates(run(*ours, "--durability", durability))
            with redis(folder, *options) as port:
                told = run(peers, str(PEERS), "arq", "--redis", str(port), *shape)
            yield f"arq on Redis, {durability}", rates(told)
            file = str(folder / f"{durability}.sqlite3")
            told = run(peers, str(PEERS), "huey", "--file", file, *fsync, *shape)
            yield f"huey on SQLite, {durability}", rates(told)
            for path in folder.glob("*.sqlite3*"):
                path.unlink()


def table(found: dict[str, list[Rates]]) -> list[str]:
    """The lines: medians, and by how much a node is ahead."""
    middle = {
        name: [median(column) for column in zip(*measured, strict=True)]
        for name, measured in found.items()
    }
    lines = HEADER.splitlines()
    for name, (put, ran, both) in middle.items():
        ratios = ["", ""]
        if name.startswith("node"):
            durability = name.partition(", ")[2]
            peers = (f"arq on Redis, {durability}", f"huey on SQLite, {durability}")
            ratios = [f"{both / middle[peer][2]:.2f}" if peer in middle else "" for peer in peers]
        figures = [f"{rate:,.0f}" for rate in (put, ran, both)]
        lines.append(f"| {' | '.join([name, *figures, *ratios])} |")
    return lines


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, metavar="PYTHON", help="has arq and huey")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[Rates]] = defaultdict(list)
    for _ in range(args.rounds):
        for name, each in measure(args.peers, args.jobs, args.concurrency):
            found[name].append(each)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
