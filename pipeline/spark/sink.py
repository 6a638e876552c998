"""`df.write.format("millpond")` and `writeStream`: Spark's side of the sink, and no more."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import SinkOptions
from millpond.pipeline.spark.write_task import Staged, Stager, abandon, publish

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class StagedRows(WriterCommitMessage):
    """What a task left in the node."""

    staged: list[Staged]


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame, all of it or nothing in each stream. The writer travels to the tasks, and
    with it its name: the one that was given, or one of its own. Where the number of a batch is
    given as well, there are more to come of this writer."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = options.writer or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = self._options.batch or 0
        return StagedRows(Stager(self._options, self._writer, batch).stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._options, messages, once=self._options.batch is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abandon(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query once: the query's id and the batch's number name it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context and context.getLocalProperty(QUERY_ID)
        batch = context and context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise PipelineError("no_query", "Spark does not say which query and batch this is")
        return StagedRows(Stager(self._options, query, int(batch)).stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _publish(self._options, messages, once=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abandon(self._options, messages)


def _publish(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, once: bool
) -> None:
    outcomes = publish(options, _staged(messages), once=once)
    for stream, outcome in outcomes.items():
        if outcome == "duplicate":
            log.warning("written before, and not again: stream=%s", stream)


def _abandon(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    try:
        abandon(options, _staged(messages))
    except PipelineError as error:
        log.warning("parts left behind, for a day: %s", error)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [part for each in messages if isinstance(each, StagedRows) for part in each.staged]
