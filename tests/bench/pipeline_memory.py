"""The memory of Spark's processes and the driver in a scan and in a job of a million keys.

    python -m tests.bench.pipeline_memory [--rows N] [--keys K] [--conf NAME=VALUE ...]

Prints the largest sums seen (every 0.2 s) of the proportional set sizes: pages that forks share are
counted once. A new session for each, and the node is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from millpond.pipeline.spark.session import build_session
from millpond.pipeline.state.formats import table_in
from millpond.pipeline.state.job import JobOptions, run_job
from tests.bench.arrow_files import told_load
from tests.bench.pipeline_source import into_noop
from tests.bench.pipeline_state import events
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess

EVERY_S = 0.2


class Memory(threading.Thread):
    """A watcher of the memory of this process and its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.peak: Counter[str] = Counter()

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            now = memory_of(os.getpid())
            if now.total() > self.peak.total():
                self.peak = now

    def end(self) -> Counter[str]:
        """End it; MB of each kind of process at the largest sum."""
        self._ended.set()
        self.join()
        return self.peak


def memory_of(pid: int) -> Counter[str]:
    """MB of a process (`driver`) and all that it has started, by kind."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found: Counter[str] = Counter()
    for each in parents:
        above: int | None = each
        while above and above != pid:
            above = parents.get(above)
        if above:
            try:
                kind = Path(f"/proc/{each}/comm").read_text().strip()
                lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
            found["driver" if each == pid else kind.rstrip("0123456789.")] += sum(kilobytes) // 1000
    return found


def scan(address: str, folder: Path, conf: dict[str, str]) -> None:
    """The rows of a topic into nothing, three times."""
    spark = build_session("bench", conf=conf)
    frame = spark.read.format("millpond").options(address=address, subscribe="scan").load()
    for _ in range(3):
        into_noop(frame)
    spark.stop()


def job(address: str, folder: Path, conf: dict[str, str]) -> None:
    """A table of all events."""
    spark = build_session("bench", conf=conf)
    source = {"address": address, "subscribe": "state"}
    options = JobOptions(source, folder / "table", folder / "checkpoint", folder / "dead")
    with table_in(options.table).lock():
        run_job(spark, options).awaitTermination()
    spark.stop()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 B")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    conf = dict(each.split("=", 1) for each in args.conf)
    if args.run:
        what, address, folder = args.run
        memory = Memory()
        memory.start()
        {"scan": scan, "job": job}[what](address, Path(folder), conf)
        print(json.dumps(memory.end()))
        return
    with TemporaryDirectory() as name, NodeProcess(Path(name) / "pond") as node:
        for i in range(2):
            node.make(f"scan/{i}", f"state/{i}")
            node.fill(f"scan/{i}", [b"%0100d" % number for number in range(args.rows // 2)])
            node.fill(f"state/{i}", events(i, args.keys // 2, args.keys // 2))
        for what in ("scan", "job"):
            words = ["--run", what, node.address, name]
            words += [word for each in args.conf for word in ("--conf", each)]
            run = [sys.executable, "-m", "tests.bench.pipeline_memory", *words]
            done = subprocess.run(run, cwd=ROOT, stdout=subprocess.PIPE, check=True)
            peak = Counter(json.loads(done.stdout.splitlines()[-1]))
            parts = ", ".join(f"{kind} {size}" for kind, size in peak.most_common())
            print(f"{what:5} {peak.total():5} MB: {parts}  {told_load()}", flush=True)


if __name__ == "__main__":
    main()
