"""The job of `millpond pipeline run`: a table of the state of streams, and dead letters.

A batch of the query becomes a version of the table. After a kill, Spark runs the last batch again
with the same records; a batch that the table has is not added twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.bucket import WIDE, Floors, add_changes, floors_of, read_bucket
from millpond.pipeline.state.change_feed import BATCHES_KEPT, ChangeFeed, check_gap
from millpond.pipeline.state.changes import changes_of
from millpond.pipeline.state.dead_letters import claim, commit_dead_letters, stage_dead_letters
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import Feed, feed_of, table_in
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.reduce import REJECTS, RESETS, ROWS, reduce_batches
from millpond.pipeline.state.table import (
    BUCKETS,
    VERSIONS_KEPT,
    Reset,
    Table,
    Version,
    behind,
    foreign,
    sync,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN = pa.schema(
    [
        ("bucket", pa.int32()),
        ("rows", pa.int64()),
        ("files", pa.string()),
        ("resets", pa.string()),
        ("changes", pa.string()),
    ]
)
"""The result of a bucket in a batch; `changes` is its staged file of the change feed."""
PER_TRIGGER, BYTES_PER_TRIGGER = 1_000_000, "512m"


@dataclass(frozen=True)
class JobOptions:
    """The options of a job.

    `source`: options of the source. `format`: of a new table. `kept`: Parquet versions to keep.
    `changes`: the place of a change feed, with the last `changes_kept` batches.
    """

    source: dict[str, str]
    table: Location
    checkpoint: Path
    dead_letters: Path | None = None
    every_s: float | None = None
    schemas: dict[str, Any] = field(default_factory=dict)
    buckets: int = BUCKETS
    format: str | None = None
    kept: int = VERSIONS_KEPT
    changes: Location | None = None
    changes_kept: int = BATCHES_KEPT


@dataclass(frozen=True)
class BatchReport:
    """A finished batch; `rows` are its changes of the table."""

    batch: int
    rows: int
    rejected: int
    seconds: float


def run_job(
    session: SparkSession,
    options: JobOptions,
    on_batch: Callable[[BatchReport], None] = lambda done: None,
    records: DataFrame | None = None,
) -> Any:
    """Start the job; returns Spark's query. The caller holds the table's lock until its end.

    `records`: a streaming frame with the columns of the source, instead of the source.
    """
    frame = records
    if frame is None:
        frame = session.readStream.format("millpond").options(**source_of(options)).load()
    batches = BatchWriter(options, on_batch)
    writing = (
        frame.writeStream.queryName("state")
        .option("checkpointLocation", str(options.checkpoint))
        .foreachBatch(batches.apply)
    )
    if options.every_s is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(options.every_s * 1000)} milliseconds").start()


def source_of(options: JobOptions) -> dict[str, str]:
    """The options of the job's source."""
    usual = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(PER_TRIGGER),
        "maxBytesPerTrigger": BYTES_PER_TRIGGER,
    }
    return usual | options.source


class BatchWriter:
    """A writer that applies the batches of a query to the table."""

    def __init__(self, options: JobOptions, on_batch: Callable[[BatchReport], None]) -> None:
        self._options = options
        self._table = table_in(options.table, options.format)
        self._feed = feed_of(self._table, options.changes, options.changes_kept)
        self._on_batch = on_batch
        self._query: str | None = None

    def apply(self, frame: DataFrame, batch: int) -> None:
        """Add a batch to the table, unless the table has it."""
        began = time.monotonic()
        query = self._query or self._begin()
        self._sync_plan(batch)
        if self._feed is not None and (last := self._table.summary()) is not None:
            check_gap(self._feed.folder, self._feed.last(), last.batch)
        match self._table:
            case Table() as table:
                done = _add_to_buckets(table, self._feed, frame, query, batch, self._options)
            case DeltaState() as table:
                done = _add_to_delta(table, self._feed, frame, query, batch, self._options)
            case _:
                assert_never(self._table)
        if done is not None:
            self._on_batch(BatchReport(batch, *done, time.monotonic() - began))

    def _begin(self) -> str:
        """The query's id; it owns dead letters and change feed. Raises PipelineError."""
        query = query_id(self._options.checkpoint)
        if self._options.dead_letters is not None:
            claim(self._options.dead_letters, query)
        if self._feed is not None:
            self._feed.claim(query)
        self._query = query
        return query

    def _sync_plan(self, batch: int) -> None:
        """Sync the plan of a batch to the disk before the table has the batch.

        If a power failure lost it, Spark would plan a longer batch of this number, which would be
        skipped.
        """
        plans = self._options.checkpoint / "offsets"
        sync(plans / str(batch))
        sync(plans)


def _add_to_buckets(
    table: Table,
    feed: Feed | None,
    frame: DataFrame,
    query: str,
    batch: int,
    options: JobOptions,
) -> tuple[int, int] | None:
    before = due(table, query, batch, options.buckets)
    if before is None:
        return None
    written = _write(table, frame, options, before)
    if isinstance(feed, ChangeFeed):
        feed.commit(batch, written.column("changes").drop_null().to_pylist())
    dead_letters, now = options.dead_letters, time.time()
    after = finish(table, before, batch, written, dead_letters, options.kept, now=now)
    return after.events - before.events, after.rejected - before.rejected


def _add_to_delta(
    table: DeltaState,
    feed: Feed | None,
    frame: DataFrame,
    query: str,
    batch: int,
    options: JobOptions,
) -> tuple[int, int] | None:
    """Collect the reduced rows of a batch: one process makes the commit."""
    if not table.is_due(query, batch):
        return None
    from pyspark.sql.pandas.types import from_arrow_schema

    parse = partial(reduce_batches, buckets=1, schemas=options.schemas)
    rows = frame.mapInArrow(parse, from_arrow_schema(ROWS)).toArrow()
    delta_feed = feed if isinstance(feed, DeltaFeed) else None
    return table.add(query, batch, rows, options.dead_letters, delta_feed)


def due(table: Table, query: str, batch: int, buckets: int = BUCKETS) -> Version | None:
    """The version before a batch; None if the table has the batch. Raises PipelineError."""
    before = table.current() or Version(query=query, buckets=buckets)
    if before.query != query:
        raise foreign(table.folder)
    if batch > before.batch + 1:
        raise behind(table.folder, before.batch, batch)
    return before if batch > before.batch else None


def finish(
    table: Table,
    before: Version,
    batch: int,
    written: pa.Table,
    dead_letters: Path | None,
    kept: int = VERSIONS_KEPT,
    *,
    now: float = 0.0,
) -> Version:
    """Commit the version with a batch, after its dead letters. `now`: seconds since 1970."""
    after = msgspec.structs.replace(_next(before, batch, written), committed=now)
    if dead_letters is not None:
        commit_dead_letters(dead_letters, batch, _names(written, REJECTS))
    table.commit(after)
    table.vacuum(kept)
    return after


def query_id(checkpoint: Path) -> str:
    """The id of the query that has this checkpoint."""
    found: str = json.loads((checkpoint / "metadata").read_text("utf-8"))["id"]
    return found


def _write(table: Table, frame: DataFrame, options: JobOptions, before: Version) -> pa.Table:
    """Run a batch: reduce records where they are read, then write each bucket in one task."""
    from pyspark.sql.pandas.types import from_arrow_schema

    parse = partial(
        reduce_batches,
        buckets=before.buckets,
        schemas=options.schemas,
        resets_in_buckets=options.changes is not None,
    )
    dead_letters = None if options.dead_letters is None else str(options.dead_letters)
    write = partial(
        add_to_buckets,
        folder=str(table.folder),
        dead_letters=dead_letters,
        files=before.files,
        floors=dict(before.floors),
        changes=None if options.changes is None else str(options.changes),
    )
    tasks = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)
    return (
        frame.mapInArrow(parse, from_arrow_schema(ROWS))
        .repartition(tasks, "bucket")
        .mapInArrow(write, from_arrow_schema(WRITTEN))
        .toArrow()
    )


def add_to_buckets(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    dead_letters: str | None,
    files: dict[int, list[str]],
    floors: Floors,
    changes: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write a task's rows of a batch, bucket by bucket; yields what it wrote.

    `changes`: the folder of a change feed.
    """
    wide = pa.Table.from_batches(batches, ROWS).cast(WIDE)
    if not wide.num_rows:
        return
    found = wide.sort_by([("bucket", "ascending"), ("offset", "ascending")])
    buckets, firsts = np.unique(found.column("bucket").to_numpy(), return_index=True)
    ends = [*firsts[1:], found.num_rows]
    for bucket, first, end in zip(buckets.tolist(), firsts, ends, strict=True):
        part = found.slice(first, end - first)
        rows, names, resets, staged = part.num_rows, [], [], None
        if bucket == REJECTS:
            if dead_letters is not None:
                names = [stage_dead_letters(Path(dead_letters), part)]
        elif bucket == RESETS:
            resets = [(*partition, floor) for partition, floor in floors_of(part).items()]
        else:
            before = files.get(bucket, [])
            new = part.filter(pc.is_null(part.column("reason")))
            rows, names = new.num_rows, before
            if changes is not None:
                cleared = part.filter(pc.is_valid(part.column("reason")))
                was = read_bucket(Path(folder), before, floors)
                staged = _stage_changes(Path(changes), bucket, changes_of([was], new, cleared))
            if rows:
                names, _ = add_changes(Path(folder), bucket, before, new, floors)
        columns = [[bucket], [rows], [json.dumps(names)], [json.dumps(resets)], [staged]]
        yield pa.RecordBatch.from_pydict(dict(zip(WRITTEN.names, columns, strict=True)), WRITTEN)


def _stage_changes(folder: Path, bucket: int, found: pa.Table) -> str | None:
    return ChangeFeed(folder).stage(bucket, found) if found.num_rows else None


def _next(before: Version, batch: int, written: pa.Table) -> Version:
    files, floors = dict(before.files), dict(before.floors)
    events = rejected = 0
    for row in written.to_pylist():
        match row["bucket"]:
            case bucket if bucket == REJECTS:
                rejected += row["rows"]
            case bucket if bucket == RESETS:
                for topic, partition, offset in json.loads(row["resets"]):
                    key = (topic, partition)
                    floors[key] = max(floors.get(key, 0), offset)
            case bucket:
                files[bucket] = json.loads(row["files"])
                events += row["rows"]
    resets = [
        Reset(topic, partition, floor) for (topic, partition), floor in sorted(floors.items())
    ]
    return Version(
        before.number + 1,
        before.query,
        batch,
        before.buckets,
        files,
        resets,
        before.events + events,
        before.rejected + rejected,
    )


def _names(written: pa.Table, bucket: int) -> list[str]:
    return [
        name
        for row in written.to_pylist()
        if row["bucket"] == bucket
        for name in json.loads(row["files"])
    ]
