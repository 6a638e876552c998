"""Micro-batches without a trigger interval: the time from an append to the end of its batch.

    python -m tests.bench.pipeline_latency [--batches N] [--partitions P] [--kafka]

One record at a time goes to a partition in turn, and the next one when the query has it. Prints the
medians of the clock and of the CPU of all processes in the first and in the last quarter of the
batches, so that growth is seen, after ten batches that warm up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from millpond.pipeline.spark.session import build_session
from tests.bench.arrow_files import cpu_s, told_load
from tests.bench.kafka_broker import KafkaBroker, source_jars
from tests.pipeline.pipeline_nodes import NodeProcess

WARM = 10
LIMIT_S = 600.0


def measure(
    what: str, frame: Any, append: Callable[[int], None], batches: int, checkpoint: Path
) -> None:
    """Prints a line."""
    arrived = Event()

    def on_batch(rows: Any, number: int) -> None:
        if rows.count():
            arrived.set()

    writing = frame.writeStream.foreachBatch(on_batch)
    query = writing.option("checkpointLocation", str(checkpoint)).start()
    spent: list[tuple[float, float]] = []
    for number in range(WARM + batches):
        arrived.clear()
        cpu, began = cpu_s(), time.perf_counter()
        append(number)
        if not arrived.wait(LIMIT_S):
            raise RuntimeError(f"no batch: {query.exception()}")
        spent.append((time.perf_counter() - began, cpu_s() - cpu))
    query.stop()
    part = max(1, batches // 4)
    told = []
    for name, some in (("first", spent[WARM : WARM + part]), ("last", spent[-part:])):
        clock, cpu = (1000 * median(each) for each in zip(*some, strict=True))
        told.append(f"{name} quarter {clock:5.0f} ms, cpu {cpu:5.0f} ms")
    print(f"{what:10} {batches} batches: {'; '.join(told)}  {told_load()}", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--kafka", action="store_true")
    args = parser.parse_args()
    conf = {"spark.driver.extraClassPath": source_jars()} if args.kafka else {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        node = stack.enter_context(NodeProcess(folder / "pond"))
        node.make(*(f"t/{i}" for i in range(args.partitions)))
        spark = build_session("bench", conf=conf)
        stack.callback(spark.stop)
        given = {"address": node.address, "subscribe": "t", "startingOffsets": "earliest"}
        frame = spark.readStream.format("millpond").options(**given).load()

        def append(number: int) -> None:
            node.fill(f"t/{number % args.partitions}", [b"one"])

        measure("millpond", frame, append, args.batches, folder / "checkpoint")
        if args.kafka:
            broker = stack.enter_context(KafkaBroker(folder / "kafka", args.partitions))
            servers = {"kafka.bootstrap.servers": broker.address}

            def produce(number: int) -> None:
                row = spark.createDataFrame(
                    [(b"one", number % args.partitions)], "value BINARY, partition INT"
                )
                row.write.format("kafka").options(**servers, topic="t").save()

            produce(0)
            reading = spark.readStream.format("kafka").options(**servers, subscribe="t")
            frame = reading.option("startingOffsets", "earliest").load()
            measure("kafka", frame, produce, args.batches, folder / "kafka-checkpoint")


if __name__ == "__main__":
    main()
