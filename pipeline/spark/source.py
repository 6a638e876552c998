"""The source of Spark: `spark.read.format("millpond")` and `readStream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millpond.pipeline.errors import BadOption
from millpond.pipeline.options import SourceOptions, sink_options, source_options
from millpond.pipeline.spark.offsets import from_nested, to_nested
from millpond.pipeline.spark.planning import EVERYTHING, Bounds, Range, StreamPlan, batch_ranges
from millpond.pipeline.spark.read_task import read_range
from millpond.pipeline.spark.sink import BatchWriter, StreamWriter
from millpond.pipeline.spark.write_task import check_columns


def spark_schema(*, with_headers: bool) -> t.StructType:
    """The columns of Spark's Kafka source, built by hand: workers have no JVM to parse text."""
    fields = [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("timestampType", t.IntegerType()),
    ]
    if with_headers:
        header = t.StructType(
            [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
        )
        fields.append(t.StructField("headers", t.ArrayType(header)))
    return t.StructType(fields)


@dataclass
class RangePartition(InputPartition):
    """A range as the partition of a task."""

    range: Range


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a partition; Spark makes an empty one of an empty list."""
    return read_range(partition.range) if isinstance(partition, RangePartition) else iter(())


class MillpondSource(DataSource):
    """The format `millpond`."""

    @classmethod
    def name(cls) -> str:
        return "millpond"

    def schema(self) -> t.StructType:
        given = {name.lower(): value for name, value in self.options.items()}
        return spark_schema(with_headers=given.get("includeheaders", "").lower() == "true")

    def reader(self, schema: t.StructType) -> DataSourceReader:
        options = source_options(self.options, is_streaming=False)
        return PushdownReader(options) if options.pushes_down else BatchReader(options)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        return StreamReader(source_options(self.options, is_streaming=True))

    def writer(self, schema: t.StructType, overwrite: bool) -> DataSourceWriter:
        options = sink_options(self.options)
        check_columns(schema.fieldNames(), options.topic)
        if overwrite:
            raise BadOption("mode: a stream is appended to", 'mode("append")')
        return BatchWriter(options)

    def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = sink_options(self.options)
        check_columns(schema.fieldNames(), options.topic)
        if overwrite:
            hint = 'outputMode("append"); or "update", by foreachBatch with writerId and batchId'
            raise BadOption("outputMode: a stream is appended to", hint)
        if options.writer is not None:
            text = "writerId: the checkpoint of a streaming query identifies the writer"
            raise BadOption(text)
        return StreamWriter(options)


class BatchReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = EVERYTHING

    def partitions(self) -> list[RangePartition]:
        return [RangePartition(each) for each in batch_ranges(self._options, self._bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class PushdownReader(BatchReader):
    """The reader of a batch query with filter push-down, which Spark refuses unless enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            bounds = bounds_of(each)
            if bounds is None:
                yield each
            else:
                self._bounds = self._bounds.narrowed(bounds)


def bounds_of(filter_: Filter) -> Bounds | None:
    """The bounds of a filter; None if Spark has to filter by itself."""
    column = getattr(filter_, "attribute", ())
    value = getattr(filter_, "value", None)
    match column, filter_:
        case ("topic",), EqualTo() if isinstance(value, str):
            return Bounds(topics=frozenset((value,)))
        case ("topic",), In():
            return Bounds(topics=frozenset(value or ()))
        case ("partition",), EqualTo() if isinstance(value, int):
            return Bounds(partitions=frozenset((value,)))
        case ("partition",), In():
            return Bounds(partitions=frozenset(value or ()))
        case ("offset",), _ if isinstance(value, int):
            return _of_offset(filter_, value)
        case _:
            return None


def _of_offset(filter_: Filter, value: int) -> Bounds | None:
    match filter_:
        case EqualTo():
            return Bounds(offset_min=value, offset_end=value + 1)
        case GreaterThan():
            return Bounds(offset_min=value + 1)
        case GreaterThanOrEqual():
            return Bounds(offset_min=value)
        case LessThan():
            return Bounds(offset_end=value)
        case LessThanOrEqual():
            return Bounds(offset_end=value + 1)
        case _:
            return None


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query: one long process plans, others `read` their partition."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._kept: StreamPlan | None = None

    @property
    def _plan(self) -> StreamPlan:
        """The plan, made on first use, because sockets cannot be sent to other processes."""
        if self._kept is None:
            self._kept = StreamPlan(self._options)
        return self._kept

    def initialOffset(self) -> dict[str, Any]:
        return to_nested(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_nested(self._plan.latest(from_nested(start), rows_max))

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_nested(self._plan.reached())

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        return [
            RangePartition(each) for each in self._plan.ranges(from_nested(start), from_nested(end))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this late or never."""

    def stop(self) -> None:
        """Do nothing: sockets are closed with the process."""
