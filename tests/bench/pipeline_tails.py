"""The tails of many streams, as a reader of the pipeline asks for them before each batch.

    python -m tests.bench.pipeline_tails [--streams N] [--rounds R] [--changed C]

Between two rounds C streams get a record. Prints the CPU of the node and of the reader for a plan
of a batch, medians of the rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from millpond.pipeline.spark.discovery import TAILS_AGE_S
from millpond.pipeline.spark.planning import StreamPlan
from tests.bench.arrow_files import cpu_of, told_load
from tests.pipeline.pipeline_nodes import NodeProcess


def measure(node: NodeProcess, names: list[str], rounds: int, changed: int) -> None:
    """Prints a line for topics that are named, and one for a pattern."""
    topics = sorted({each.partition("/")[0] for each in names})
    for given in ({"subscribe": ",".join(topics)}, {"subscribePattern": "t.*"}):
        plan = StreamPlan(node.options(**given))
        at = plan.begin()
        spent: list[tuple[float, float, float]] = []
        for number in range(1 + rounds):
            for each in Random(number).sample(names, changed):
                node.fill(each, [b"one more"])
            time.sleep(TAILS_AGE_S * 20)  # the answer before is no longer good
            nodes, reader, wall = cpu_of(node.pid), time.process_time(), time.perf_counter()
            at = plan.advance(at, None, None)
            wall, reader = time.perf_counter() - wall, time.process_time() - reader
            spent.append((cpu_of(node.pid) - nodes, reader, wall))
        plan.close()
        nodes, reader, wall = (1000 * median(each) for each in zip(*spent[1:], strict=True))
        print(
            f"{len(names)} streams, {changed} with new records, {next(iter(given)):16}"
            f"  node {nodes:5.0f} ms of CPU, reader {reader:5.0f}, clock {wall:5.0f}"
            f"  {told_load()}",
            flush=True,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--changed", type=int, default=50)
    args = parser.parse_args()
    names = [f"t{i // 1000}/{i % 1000}" for i in range(args.streams)]
    with TemporaryDirectory() as name, NodeProcess(Path(name) / "pond") as node:
        node.make(*names)
        for each in names:
            node.fill(each, [b"first"])
        measure(node, names, args.rounds, args.changed)


if __name__ == "__main__":
    main()
