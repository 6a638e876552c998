"""Reads of the Spark source beside those of a data source of the same schema over an Arrow file.

    python -m tests.bench.pipeline_source [--rows N] [--rounds R] [--kafka]

Both are Python data sources that yield the same Arrow batches into `noop`, in one session. Spark's
own scan of the same rows in Parquet stands beside them, and with `--kafka` its source for Kafka
(`kafka_broker`). The CPU is that of all processes: Spark, its workers, the node and the broker.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millpond.pipeline.spark.session import build_session
from tests.bench.arrow_files import ArrowFiles, best_of, into_files, told_load
from tests.bench.kafka_broker import KafkaBroker, source_jars
from tests.pipeline.pipeline_nodes import NodeProcess


def into_noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(
    spark: Any,
    node: NodeProcess,
    folder: Path,
    size: int,
    count: int,
    rounds: int,
    broker: KafkaBroker | None,
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
    if broker is not None:
        given = {"kafka.bootstrap.servers": broker.address}
        filled = theirs.select("value", "partition").write.format("kafka").options(**given)
        filled.option("topic", topic).save()
        reading = spark.read.format("kafka").options(**given, subscribe=topic)
        frames["kafka"] = reading.load()
    runs = {name: lambda frame=frame: into_noop(frame) for name, frame in frames.items()}
    found = best_of(runs, rounds)
    for what, took in found.items():
        rate = count / took.wall_s
        times = found["arrow file"].cpu_s / took.cpu_s
        print(
            f"{size:5} B  {what:10}  cpu {took.cpu_s:5.2f} s  {count / took.cpu_s:9.0f} rows/CPU s"
            f"  {times:5.2f} of the files'  clock {rate:9.0f} rows/s  {told_load()}",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 100 B; of 1 KiB a quarter")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kafka", action="store_true", help="beside Kafka's source")
    args = parser.parse_args()
    conf = {"spark.driver.extraClassPath": source_jars()} if args.kafka else {}
    spark = build_session("bench", conf=conf)
    spark.dataSource.register(ArrowFiles)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        node = stack.enter_context(NodeProcess(folder / "pond"))
        broker = stack.enter_context(KafkaBroker(folder / "kafka")) if args.kafka else None
        measure(spark, node, folder, 100, args.rows, args.rounds, broker)
        measure(spark, node, folder, 1024, args.rows // 4, args.rounds, broker)
    spark.stop()


if __name__ == "__main__":
    main()
