"""A Python data source over local Arrow IPC files, with the schema of ours: what the same batches
cost where no node is asked for them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millpond.pipeline.spark.planning import batch_ranges
from millpond.pipeline.spark.read_task import read_range
from millpond.pipeline.spark.source import spark_schema
from tests.pipeline.pipeline_nodes import NodeProcess

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Batches(InputPartition):
    """Those from `start` to before `end` of a file."""

    file: str
    start: int
    end: int


class ArrowFiles(DataSource):
    """Batches as they are in files (option `files`, with commas), one task for each."""

    @classmethod
    def name(cls) -> str:
        return "arrowfiles"

    def schema(self) -> Any:
        return spark_schema(with_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        return FilesReader(self.options["files"].split(","))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        rows_max = self.options.get("maxoffsetspertrigger")
        return FilesStream(self.options["files"].split(","), int(rows_max) if rows_max else None)


def _read(partition: Any) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(partition.file) as file:
        reader = pa.ipc.open_file(file)
        for i in range(partition.start, partition.end):
            yield reader.get_batch(i)


def _counts(file: str) -> list[int]:
    """The number of rows in each batch of a file."""
    with pa.memory_map(file) as mapped:
        reader = pa.ipc.open_file(mapped)
        return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]


class FilesReader(DataSourceReader):
    """All of them."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [Batches(each, 0, len(_counts(each))) for each in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class FilesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same in batches of a query; offsets are numbers of batches in files."""

    def __init__(self, files: list[str], rows_max: int | None) -> None:
        self._files = files
        self._rows_max = rows_max

    def initialOffset(self) -> dict[str, Any]:
        return dict.fromkeys(sorted(self._files), 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = {}
        for file, at in sorted(start.items()):
            counts = _counts(file)
            left = limit.max_rows // len(start) if isinstance(limit, ReadMaxRows) else sum(counts)
            while at < len(counts) and left > 0:
                left -= counts[at]
                at += 1
            end[file] = at
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """Files do not grow."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [Batches(file, start[file], end[file]) for file in end if start[file] < end[file]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing hangs on it."""


def into_files(node: NodeProcess, topic: str, folder: Path) -> str:
    """The batches that our source gives of a topic as files, for the option `files`."""
    files = []
    for each in batch_ranges(node.options(subscribe=topic)):
        file = folder / f"{topic}-{each.partition}.arrow"
        found = read_range(each)
        first = next(found)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
            writer.write_batch(first)
            for batch in found:
                writer.write_batch(batch)
        files.append(str(file))
    return ",".join(files)


@dataclass
class Took:
    """Seconds on the clock, and of all processors: Spark, its workers, and the node."""

    wall_s: float
    cpu_s: float


def best_of(runs: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, Took]:
    """The quickest of some rounds in which each runs once, with the CPU of one in the middle; the
    first round warms up."""
    found: dict[str, list[Took]] = {name: [] for name in runs}
    for number in range(1 + rounds):
        for name, run in runs.items():
            began, cpu = time.perf_counter(), cpu_s()
            run()
            took = Took(time.perf_counter() - began, cpu_s() - cpu)
            found[name].append(took)
            told = f"round {number}  {name:10}  {took.wall_s:7.2f} s  cpu {took.cpu_s:7.2f} s"
            print(f"{told}  {told_load()}", file=sys.stderr, flush=True)
    return {
        name: Took(min(each.wall_s for each in all_[1:]), median(each.cpu_s for each in all_[1:]))
        for name, all_ in found.items()
    }


def cpu_s() -> float:
    """The CPU time of this process and its children."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15])) / CLOCK_TICKS
    total = 0.0
    for pid, seconds in used.items():
        above: int | None = pid
        while above and above != os.getpid():
            above = parents.get(above)
        total += seconds if above else 0.0
    return total


def cpu_of(pid: int) -> float:
    """The CPU time of a process, of all its threads, to the nanosecond."""
    spent = 0
    for each in Path(f"/proc/{pid}/task").glob("*"):
        spent += int((each / "schedstat").read_text().split()[0])
    return spent / 1e9


def told_load() -> str:
    """A line on the machine's other load."""
    return "load " + " ".join(f"{each:.1f}" for each in os.getloadavg())
