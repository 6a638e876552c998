"""What a task does: read a range of a stream, and see that nothing of it is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millpond.pipeline.client.columns import Columns, Numbers
from millpond.pipeline.client.http_client import NodeClient, NoSuchStream
from millpond.pipeline.errors import DataLost
from millpond.pipeline.spark.arrow import ArrowBuilder, batches
from millpond.pipeline.spark.planning import Range

log = logging.getLogger(__name__)


def read_range(asked: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range. Raises PipelineError."""
    wire = NodeClient(asked.nodes, asked.place.node)
    gathered = ArrowBuilder(asked.topic, asked.partition, asked.with_headers)
    try:
        yield from batches(gathered, _checked(wire, asked), asked.fetch_rows, asked.fetch_bytes)
    finally:
        wire.close()


def _checked(wire: NodeClient, asked: Range) -> Iterator[Columns]:
    expected = asked.start
    is_gap_fine = asked.is_fresh
    try:
        for columns in wire.read(asked.place.stream, asked.start, asked.end):
            columns = _before(columns, asked.end)
            for first, behind in _gaps(expected, columns.sequences):
                if not is_gap_fine:
                    _judge(wire, asked, first, behind)
                is_gap_fine = False
            if len(columns.sequences):
                expected, is_gap_fine = int(columns.sequences[-1]) + 1, False
                yield without_commands(columns)
    except NoSuchStream:
        _lost(asked, expected, asked.end)
        return
    if expected < asked.end and not is_gap_fine:
        _judge(wire, asked, expected, asked.end)


def _before(columns: Columns, end: int) -> Columns:
    """Without what lies behind the range: what a node skips, it does not count."""
    if columns.sequences[-1] < end:
        return columns
    return columns.part(slice(0, int(np.searchsorted(columns.sequences, end))))


def _gaps(expected: int, sequences: Numbers) -> Iterator[tuple[int, int]]:
    if not len(sequences) or int(sequences[-1]) - expected + 1 == len(sequences):
        return
    for sequence in sequences.tolist():
        if sequence > expected:
            yield expected, sequence
        expected = sequence + 1


def _judge(wire: NodeClient, asked: Range, first: int, behind: int) -> None:
    """Records are missing: they were trimmed, or are too large for the wire, which is no loss."""
    try:
        if wire.earliest(asked.place.stream) <= first < wire.tail(asked.place.stream):
            log.warning("records too large to be read: %s", _told(asked, first, behind))
            return
    except NoSuchStream:
        pass
    _lost(asked, first, behind)


def _lost(asked: Range, first: int, behind: int) -> None:
    if asked.is_strict:
        raise DataLost(f"{_told(asked, first, behind)} were trimmed before they were read")
    log.warning("records lost: %s", _told(asked, first, behind))


def _told(asked: Range, first: int, behind: int) -> str:
    return f"records {first} to {behind - 1} of {asked.topic!r} {asked.partition}"


def without_commands(columns: Columns) -> Columns:
    """Fences and trim points are for the node; they have one header, and that has no name."""
    rows = columns.headers
    if rows is None or not any(row and not row[0][0] for row in rows):
        return columns
    kept = [i for i, row in enumerate(rows) if not (row and not row[0][0])]
    return columns.chosen(kept)
