"""The task of a read: it reads a range of a stream, and checks that no record is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millpond.pipeline.client.columns import Columns, Numbers
from millpond.pipeline.client.http_client import NodeClient, NoSuchStream
from millpond.pipeline.errors import DataLost, PipelineError
from millpond.pipeline.spark.arrow import ArrowBuilder, batches
from millpond.pipeline.spark.direct import read_direct
from millpond.pipeline.spark.planning import Range

log = logging.getLogger(__name__)


def read_range(range_: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range. Raises PipelineError."""
    client = NodeClient(range_.nodes, range_.location.node)
    builder = ArrowBuilder(range_.topic, range_.partition, range_.with_headers)
    try:
        yield from batches(builder, _checked(client, range_), range_.fetch_rows, range_.fetch_bytes)
    finally:
        client.close()


def _checked(client: NodeClient, range_: Range) -> Iterator[Columns]:
    expected = range_.start
    is_gap_fine = range_.is_fresh
    try:
        for columns in _records(client, range_):
            columns = _before(columns, range_.end)
            for first, behind in _gaps(expected, columns.sequences):
                if not is_gap_fine:
                    _check_missing(client, range_, first, behind)
                is_gap_fine = False
            if len(columns.sequences):
                expected, is_gap_fine = int(columns.sequences[-1]) + 1, False
                yield without_commands(columns)
    except NoSuchStream:
        _lost(range_, expected, range_.end)
        return
    if expected < range_.end and not is_gap_fine:
        _check_missing(client, range_, expected, range_.end)
    if range_.identity is not None and not client.is_unused:
        _check_identity(client, range_)  # a file has that of its records


def _records(client: NodeClient, range_: Range) -> Iterator[Columns]:
    """The records from the file of a snapshot, as far as that goes, and then from the node."""
    start = range_.start
    if range_.direct is not None:
        for columns in read_direct(range_.direct, start, range_.end):
            start = int(columns.sequences[-1]) + 1
            yield columns
    if start < range_.end:
        yield from client.read(range_.location.stream, start, range_.end)


def _before(columns: Columns, end: int) -> Columns:
    """The columns up to the end of the range: a node does not count what it skips."""
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


def _check_missing(client: NodeClient, range_: Range, first: int, behind: int) -> None:
    """Missing records were trimmed, or the server does not send them. Raises PipelineError."""
    try:
        if client.earliest(range_.location.stream) <= first < client.tail(range_.location.stream):
            text = f"{client.address} does not send {_description(range_, first, behind)}"
            if range_.is_strict:
                hint = "the option failOnDataLoss=false skips them"
                raise PipelineError("unreadable", text, hint)
            log.warning("%s", text)
            return
    except NoSuchStream:
        pass
    _lost(range_, first, behind)


def _check_identity(client: NodeClient, range_: Range) -> None:
    """A stream that is the expected one after it was read, was it all the time."""
    stream = range_.location.stream
    found = [each.identity for each in client.tails({"topics": [stream]}) if each.name == stream]
    if found != [range_.identity]:
        _lost(range_, range_.start, range_.end)


def _lost(range_: Range, first: int, behind: int) -> None:
    if range_.is_strict:
        text = f"{_description(range_, first, behind)} were trimmed before they were read"
        raise DataLost(f"{text}, or the stream was deleted")
    log.warning("records lost: %s", _description(range_, first, behind))


def _description(range_: Range, first: int, behind: int) -> str:
    return f"records {first} to {behind - 1} of {range_.topic!r} {range_.partition}"


def without_commands(columns: Columns) -> Columns:
    """The records without fences and trim commands, whose only header has no name."""
    rows = columns.headers
    if rows is None or not any(row and not row[0][0] for row in rows):
        return columns
    kept = [i for i, row in enumerate(rows) if not (row and not row[0][0])]
    return columns.chosen(kept)
