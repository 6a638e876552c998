"""The sink of Spark: `df.write.format("millpond")` and `writeStream`."""

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
from millpond.pipeline.spark.write_task import StagedPart, Stager, abandon, publish

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class StagedRows(WriterCommitMessage):
    """The parts that a task has staged in the node."""

    staged: list[StagedPart]


class BatchWriter(DataSourceArrowWriter):
    """A writer of a frame: all of it or nothing in each stream.

    Its id, given or random, travels to the tasks. With a batch number, more batches of this writer
    follow.
    """

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
    """A writer of each batch of a query once, named by the query's id and the batch's number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context and context.getLocalProperty(QUERY_ID)
        batch = context and context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise PipelineError("no_query", "Spark gives no query and batch")
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
            log.warning("batch was already written: stream=%s", stream)


def _abandon(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    try:
        abandon(options, _staged(messages))
    except PipelineError as error:
        log.warning("staged parts remain for a day: %s", error)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [part for each in messages if isinstance(each, StagedRows) for part in each.staged]
