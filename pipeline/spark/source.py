"""The source of Spark: `spark.read.format("millpond")` and `readStream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millpond.pipeline.errors import BadOption
from millpond.pipeline.options import SourceOptions, is_view, sink_options, source_options
from millpond.pipeline.spark.offsets import from_nested, identities_of, to_nested
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
        self._check_schema(schema)
        return PushdownReader(options) if options.pushes_down else BatchReader(options)

    def _check_schema(self, schema: t.StructType) -> None:
        """Raise BadOption for other columns than the source has, which Spark lets pass."""
        own = self.schema()
        if [(each.name, each.dataType) for each in schema] != [
            (each.name, each.dataType) for each in own
        ]:
            names = ", ".join(own.fieldNames())
            raise BadOption(f"columns: the source has {names}", "name no schema, or no columns")

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        self._check_schema(schema)
        return StreamReader(source_options(self.options, is_streaming=True))

    def writer(self, schema: t.StructType, overwrite: bool) -> DataSourceWriter:
        options = sink_options(self.options)
        check_columns(schema.fieldNames(), options.topic, is_view=is_view(self.options))
        if overwrite:
            raise BadOption("mode: a stream is appended to", 'mode("append")')
        return BatchWriter(options)

    def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = sink_options(self.options)
        check_columns(schema.fieldNames(), options.topic, is_view=is_view(self.options))
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
            bounds = bounds_of(each) or times_of(each)
            if bounds is not None:
                self._bounds = self._bounds.narrowed(bounds)
            if bounds is None or bounds.has_times:  # which are milliseconds for a node
                yield each


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


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def times_of(filter_: Filter) -> Bounds | None:
    """The bounds of a filter on the timestamp."""
    value = getattr(filter_, "value", None)
    if getattr(filter_, "attribute", ()) != ("timestamp",) or not isinstance(value, datetime):
        return None
    if value.tzinfo is None or value < EPOCH:
        return None
    us = (value - EPOCH) // timedelta(microseconds=1)
    from_here, behind = -(-us // 1000), us // 1000 + 1
    match filter_:
        case EqualTo():
            return Bounds(time_min=from_here, time_end=behind)
        case GreaterThan():
            return Bounds(time_min=behind)
        case GreaterThanOrEqual():
            return Bounds(time_min=from_here)
        case LessThan():
            return Bounds(time_end=from_here)
        case LessThanOrEqual():
            return Bounds(time_end=behind)
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
        return self._plan.begin()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        if rows_max is not None:
            return ReadMaxRows(rows_max)
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark has one limit at a time; a limit of bytes beside that of rows is an option."""
        match limit:
            case ReadMaxRows(max_rows=rows_max):
                return self._plan.advance(start, rows_max, self._options.bytes_max)
            case ReadMaxBytes(max_bytes=bytes_max):
                return self._plan.advance(start, None, bytes_max)
            case _:
                return self._plan.advance(start, None, None)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_nested(self._plan.reached())

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        ranges = self._plan.ranges(
            from_nested(start), from_nested(end), identities_of(start), identities_of(end)
        )
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this late or never."""

    def stop(self) -> None:
        """Do nothing: sockets are closed with the process."""
