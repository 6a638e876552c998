"""CPU time of a PUT with a store in Redis, beside the one in memory: `python -m
tests.bench.redis_store`.

The nodes take turns under `millpond bench p2p --connect`, and each figure is the median of the
rounds: CPU microseconds of the node for a message (PUT, receipt, delete), and of the server. Redis
syncs each write (`appendfsync always`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.node.processes import environment, serving
from tests.redis_server import redis_server

ROWS = ("put-c1-p1-100", "put-c50-p1-100", "put-c50-p16-100")
TICKS = os.sysconf("SC_CLK_TCK")
LIMIT_S = 120


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def messages(url: str, row: str, seconds: float) -> int:
    """Run one row against a node; gives the messages that it answered."""
    words = ("bench", "p2p", "--connect", url, "--rows", row, "--seconds", str(seconds), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "millpond", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return int(json.loads(done.stdout.splitlines()[0])["count"])


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.redis_store")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millpond-redis-"))
    with (
        redis_server(folder / "redis") as redis,
        serving() as in_memory,
        serving("--data", str(folder / "data"), "--store", redis.url) as in_redis,
    ):
        print(f"{'row':16} {'memory':>8} {'Redis':>8} {'ratio':>6} {'the server':>11}   (CPU us)")
        for row in ROWS:
            found: dict[str, list[float]] = {"memory": [], "redis": [], "server": []}
            for _ in range(args.rounds):
                for name, node in (("memory", in_memory), ("redis", in_redis)):
                    began, server = cpu_s(node.process.pid), cpu_s(redis.process.pid)
                    count = messages(node.urls["tcp"], row, args.seconds)
                    found[name].append((cpu_s(node.process.pid) - began) / count * 1e6)
                    if name == "redis":
                        found["server"].append((cpu_s(redis.process.pid) - server) / count * 1e6)
            memory, stored, server_us = (median(each) for each in found.values())
            print(
                f"{row:16} {memory:8.1f} {stored:8.1f} {memory / stored:6.2f} {server_us:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
