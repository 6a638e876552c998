"""The job of `millpond pipeline run`: a table of the state of streams, and dead letters.

A batch of the query becomes a version of the table. After a kill, Spark runs the last batch again
with the same records; a batch that the table has is not added twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import Batch, batch_of
from millpond.pipeline.state.change_feed import BATCHES_KEPT, ChangeFeed, check_gap
from millpond.pipeline.state.changes import changes_of
from millpond.pipeline.state.dead_letters import DeadLetters
from millpond.pipeline.state.files import Files, files_in
from millpond.pipeline.state.formats import feed_of, table_in
from millpond.pipeline.state.iceberg_table import BUCKETS
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.reduce import ROWS, reduce_batches
from millpond.pipeline.state.table import StateTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PER_TRIGGER, BYTES_PER_TRIGGER = 1_000_000, "512m"


@dataclass(frozen=True)
class JobOptions:
    """The options of a job.

    `source`: options of the source. `format`: of a new table. `kept`: versions to keep. `buckets`:
    of a new Iceberg table. `changes`: the place of a change feed, with the last `changes_kept`
    batches. Checkpoint and dead letters are folders, or URLs of file systems that Spark has.
    """

    source: dict[str, str]
    table: Location
    checkpoint: Path | str
    dead_letters: Path | str | None = None
    every_s: float | None = None
    schemas: dict[str, Any] = field(default_factory=dict)
    format: str | None = None
    kept: int | None = None
    buckets: int = BUCKETS
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


def open_table(options: JobOptions) -> StateTable:
    """The table of a job, which may not exist yet. Raises PipelineError."""
    format, kept, buckets = options.format, options.kept, options.buckets
    return table_in(options.table, format, kept=kept, buckets=buckets)


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
        self._table = open_table(options)
        self._feed: ChangeFeed | None = None
        if options.changes is not None:
            kept, source = options.changes_kept, options.source
            self._feed = feed_of(self._table, options.changes, kept, source=source)
        self._on_batch = on_batch
        self._query = ""
        self._checkpoint: Files | None = None
        self._dead_letters: DeadLetters | None = None

    def apply(self, frame: DataFrame, batch: int) -> None:
        """Add a batch to the table, unless the table has it."""
        began = time.monotonic()
        checkpoint = self._checkpoint or self._begin(frame and frame.sparkSession)
        # If a power failure lost the plan of a batch that the table has, Spark would plan a longer
        # batch of this number, which would be skipped.
        checkpoint.sync("offsets", str(batch))
        query = self._query
        if self._feed is not None and (last := self._table.summary()) is not None:
            check_gap(self._feed.folder, self._feed.last(), last.batch)
        if self._table.is_due(query, batch):
            done = batch_of(query, batch, self._reduced(frame))
            store_batch(self._table, done, self._dead_letters, self._feed)
            rows, rejected = done.changes.num_rows, done.rejects.num_rows
            self._on_batch(BatchReport(batch, rows, rejected, time.monotonic() - began))

    def _reduced(self, frame: DataFrame) -> pa.Table:
        """The reduced rows of a batch: Spark's tasks reduce, one process makes the commit."""
        from pyspark.sql.pandas.types import from_arrow_schema

        buckets, schemas = self._table.buckets_wanted, self._options.schemas
        parse = partial(reduce_batches, buckets=buckets, schemas=schemas)
        return frame.mapInArrow(parse, from_arrow_schema(ROWS)).toArrow()

    def _begin(self, session: SparkSession | None) -> Files:
        """The checkpoint, whose query owns dead letters and change feed. Raises PipelineError."""
        checkpoint = files_in(self._options.checkpoint, session)
        self._query = query_id(checkpoint)
        if self._options.dead_letters is not None:
            self._dead_letters = DeadLetters(files_in(self._options.dead_letters, session))
            self._dead_letters.claim(self._query)
        if self._feed is not None:
            self._feed.claim(self._query)
        self._checkpoint = checkpoint
        return checkpoint


def store_batch(
    table: StateTable, batch: Batch, dead_letters: DeadLetters | None, feed: ChangeFeed | None
) -> None:
    """Store a batch that is due: dead letters and changes first, for a batch that the table has is
    not stored again."""
    if dead_letters is not None:
        dead_letters.write(batch.number, batch.rejects)
    if feed is not None:
        feed.add(batch.query, batch.number, changes_of(table.pieces(), batch))
    table.commit(batch)


def query_id(checkpoint: Files) -> str:
    """The id of the query that has this checkpoint. Raises PipelineError."""
    text = checkpoint.read("metadata")
    if text is None:
        raise PipelineError("bad_option", f"{checkpoint} is not a checkpoint")
    found: str = json.loads(text)["id"]
    return found
