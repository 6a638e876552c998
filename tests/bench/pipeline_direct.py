"""A backfill by the source of Spark from the node beside one from its replica (`mode=direct`).

    python -m tests.bench.pipeline_direct [--rows N] [--size BYTES] [--rounds R] [--partitions P]

A node has settled records in a replica, a folder. Each round reads all of them in either mode, with
the tasks in this process, one after the other, without Spark. Printed are rows a second by the
clock, and the CPU of the node and of the reader.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from millpond.pipeline.spark.planning import batch_ranges
from millpond.pipeline.spark.read_task import read_range
from tests.bench.arrow_files import cpu_of, told_load
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.replicas import snapshot

TOPIC = "backfill"
MODES = ("node", "direct")


def fill(node: NodeProcess, count: int, size: int, partitions: int) -> None:
    """Records in partitions, and what pushes them out of the journal; then a snapshot."""
    names = [f"{TOPIC}/{number}" for number in range(partitions)]
    node.make("ballast", *names)
    for name in names:
        bodies = [b"%0*d" % (size, number) for number in range(count // partitions)]
        node.fill(name, bodies)
    for _ in range(100):
        node.fill("ballast", [b"x" * 900_000])
    time.sleep(3.0)
    snapshot(node)


def read(node: NodeProcess, mode: str, partitions: int) -> tuple[int, int]:
    """Read all; the rows, and the tasks that had a file."""
    given = {"subscribe": TOPIC, "mode": mode, "minPartitions": str(partitions)}
    ranges = batch_ranges(node.options(**given))
    rows = sum(batch.num_rows for each in ranges for batch in read_range(each))
    return rows, sum(each.direct is not None for each in ranges)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=2)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        replica = f"file://{Path(folder)}/replica"
        with NodeProcess(Path(folder) / "pond", "--replica", replica) as node:
            fill(node, args.rows, args.size, args.partitions)
            found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
            for _ in range(args.rounds + 1):
                for mode in MODES:
                    before = time.perf_counter(), cpu_of(node.pid), time.process_time()
                    rows, files = read(node, mode, args.partitions)
                    after = time.perf_counter(), cpu_of(node.pid), time.process_time()
                    assert rows == args.rows, rows
                    assert (mode == "direct") == bool(files)
                    wall, theirs, ours = (
                        end - start for start, end in zip(before, after, strict=True)
                    )
                    found[mode].append((wall, theirs, ours))
            for mode, taken in found.items():
                wall, theirs, ours = (median(each) for each in zip(*taken[1:], strict=True))
                print(
                    f"{args.size:5} B  {mode:6}  {args.rows / wall:10.0f} rows/s  cpu of the node"
                    f" {theirs:6.3f} s, of the reader {ours:6.3f} s  {told_load()}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
