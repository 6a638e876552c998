"""Tables of state kept from a node's streams, beside the same job over an Arrow file.

    python -m tests.bench.pipeline_state [--events N] [--keys K] [--rounds R] [--formats F,F]

Each round makes a table from nothing, in batches of a million events, in each format.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import count as counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from millpond.pipeline.spark.session import build_session
from millpond.pipeline.state.formats import table_in
from millpond.pipeline.state.job import JobOptions, run_job
from tests.bench.arrow_files import ArrowFiles, best_of, into_files, told_load
from tests.pipeline.pipeline_nodes import NodeProcess

PER_BATCH = "1000000"
_EVENT = (
    b'{"type":"user","key":"user-%d","value":{"name":"user %d","balance":%d,"tags":["a","b"],'
    b'"seen":"2026-01-01T00:00:%02dZ"},"headers":{"operation":"%s"}}'
)


def events(partition: int, count: int, keys: int) -> list[bytes]:
    """Changes of a partition's own keys, all of them at least once if there are enough."""
    rng = Random(partition)
    places = list(range(min(keys, count))) + [rng.randrange(keys) for _ in range(count - keys)]
    rng.shuffle(places)
    return [
        _EVENT % (2 * key + partition, key, i, i % 60, b"delete" if i % 40 == 39 else b"upsert")
        for i, key in enumerate(places)
    ]


def materialize(
    spark: Any, folder: Path, numbers: Any, source: dict[str, str], format: str
) -> None:
    """A table from nothing; `source` has `files`, or is of ours."""
    place = folder / f"run-{next(numbers)}"
    options = JobOptions(
        source, place / "table", place / "checkpoint", place / "dead", format=format
    )
    records = None
    if "files" in source:
        reading = spark.readStream.format("arrowfiles").options(**source)
        records = reading.option("maxOffsetsPerTrigger", PER_BATCH).load()
    with table_in(options.table, format).lock():
        run_job(spark, options, records=records).awaitTermination()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--formats", default="delta")
    parser.add_argument("--no-files", action="store_true", help="without the Arrow files")
    args = parser.parse_args()
    spark = build_session("bench")
    spark.dataSource.register(ArrowFiles)
    with TemporaryDirectory() as name, NodeProcess(Path(name) / "pond") as node:
        folder, numbers = Path(name), counter()
        for i in range(2):
            node.make(f"state/{i}")
            node.fill(f"state/{i}", events(i, args.events // 2, args.keys // 2))
        source = {"address": node.address, "subscribe": "state", "maxOffsetsPerTrigger": PER_BATCH}
        files = {"files": into_files(node, "state", folder)}
        run = partial(materialize, spark, folder, numbers)
        runs = {}
        for format in args.formats.split(","):
            runs[f"millpond {format}"] = partial(run, source, format)
            if not args.no_files:
                runs[f"arrow file {format}"] = partial(run, files, format)
        found = best_of(runs, args.rounds)
        tables = [table_in(folder / f"run-{i}" / "table").read() for i in range(len(runs))]
        ours, *others = (each.sort_by("key").select(("key", "value")) for each in tables)
        assert all(each == ours for each in others), "all keep the same state"
        for what, took in found.items():
            beside = found.get(what.replace("millpond", "arrow file"), took)
            times = beside.wall_s / took.wall_s
            print(
                f"{args.events} events, {args.keys} keys  {what:18}  {took.wall_s:6.1f} s"
                f"  {args.events / took.wall_s:8.0f} events/s  {times:4.2f}"
                f"  cpu {took.cpu_s:6.1f} s  {ours.num_rows} rows  {told_load()}",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main()
