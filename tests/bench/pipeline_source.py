"""Reads of the Spark source beside those of a data source of the same schema over an Arrow file.

    python -m tests.bench.pipeline_source [--rows N] [--rounds R]

Both are Python data sources that yield the same Arrow batches into `noop`, in one session. Spark's
own scan of the same rows in Parquet stands beside them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millpond.pipeline.spark.session import build_session
from tests.bench.arrow_files import ArrowFiles, best_of, into_files, told_load
from tests.pipeline.pipeline_nodes import NodeProcess


def into_noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(
    spark: Any, node: NodeProcess, folder: Path, size: int, count: int, rounds: int
) -> None:
    """Two partitions with half of the rows each; prints a line for each source."""
    topic = f"bench-{size}"
    names = [f"{topic}/{i}" for i in range(2)]
    node.make(*names)
    for name in names:
        node.fill(name, [b"%0*d" % (size, i) for i in range(count // 2)])
    ours = spark.read.format("millpond").options(address=node.address, subscribe=topic).load()
    files = into_files(node, topic, folder)
    theirs = spark.read.format("arrowfiles").option("files", files).load()
    parquet = str(folder / f"{topic}.parquet")
    theirs.write.parquet(parquet)
    frames = {"millpond": ours, "arrow file": theirs, "parquet": spark.read.parquet(parquet)}
    runs = {name: lambda frame=frame: into_noop(frame) for name, frame in frames.items()}
    found = best_of(runs, rounds)
    for what, took in found.items():
        rate = count / took.wall_s
        times = found["arrow file"].wall_s / took.wall_s
        print(
            f"{size:5} B  {what:10}  {rate:9.0f} rows/s  {rate * size / 1e6:7.1f} MB/s"
            f"  {times:5.2f}  cpu {took.cpu_s:5.2f} s  {told_load()}",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 B; of 1 KiB a quarter")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    spark = build_session("bench")
    spark.dataSource.register(ArrowFiles)
    with TemporaryDirectory() as name, NodeProcess(Path(name) / "pond") as node:
        measure(spark, node, Path(name), 100, args.rows, args.rounds)
        measure(spark, node, Path(name), 1024, args.rows // 4, args.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
