"""The format of a table: that of its place, or the requested one for a new table.

A change feed has the format of its table, or is a stream of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.change_feed import BATCHES_KEPT, ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_log import has_log
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.iceberg_catalog import is_iceberg
from millpond.pipeline.state.iceberg_feed import IcebergFeed
from millpond.pipeline.state.iceberg_table import BUCKETS, IcebergState
from millpond.pipeline.state.location import STREAM, Location
from millpond.pipeline.state.parquet_layout import is_old_feed, is_old_table
from millpond.pipeline.state.stream_feed import StreamFeed
from millpond.pipeline.state.table import At, StateTable, Summary

FORMATS = ("delta", "iceberg")


def table_in(
    folder: Location,
    requested: str | None = None,
    at: At | None = None,
    *,
    kept: int | None = None,
    buckets: int = BUCKETS,
) -> StateTable:
    """The table of a location, which may not exist yet; `at`: a version to read.

    `kept`: versions to keep. `buckets`: of a new Iceberg table. Raises PipelineError.
    """
    if is_stream(folder):
        raise BadOption(f"{folder}: a stream is no table", "see `millpond stream --help`")
    if isinstance(folder, Path) and is_old_table(folder) and not has_log(folder):
        text = f"{folder} is a table in the Parquet layout of earlier versions"
        raise PipelineError("old_table", text, "see `millpond pipeline convert --help`")
    if _format_of(folder, requested) == "iceberg":
        return IcebergState(folder, at, kept, buckets)
    return DeltaState(folder, at, kept)


def is_stream(location: Location) -> bool:
    """Whether it is a stream of a node."""
    return isinstance(location, str) and location.startswith(STREAM)


def _format_of(folder: Location, requested: str | None) -> str:
    found = "iceberg" if is_iceberg(folder) else None
    if isinstance(folder, Path) and has_log(folder):
        found = "delta"
    if requested is not None and found not in (None, requested):
        raise BadOption(f"{folder} is in {found}, not in {requested}")
    return found or requested or FORMATS[0]


def existing(folder: Location, at: At | None = None) -> tuple[StateTable, Summary]:
    """An existing table, or a kept version of it, and its summary. Raises PipelineError."""
    table = table_in(folder, at=at)
    summary = table.summary()
    if summary is None:
        raise PipelineError("no_table", f"no table in {folder}")
    return table, summary


def feed_in(
    location: Location, requested: str | None = None, kept: int = BATCHES_KEPT
) -> ChangeFeed:
    """The change feed of a location, which may not exist yet. Raises PipelineError."""
    if is_stream(location):
        raise BadOption(f"{location}: its changes are events", "read the stream")
    if isinstance(location, Path) and is_old_feed(location):
        text = f"{location} is a change feed in the Parquet layout of earlier versions"
        raise PipelineError("old_table", text, "use a new folder")
    is_in_iceberg = _format_of(location, requested) == "iceberg"
    return IcebergFeed(location, kept) if is_in_iceberg else DeltaFeed(location, kept)


def feed_of(
    table: StateTable, location: Location, kept: int = BATCHES_KEPT, *, source: Mapping[str, str]
) -> ChangeFeed:
    """The change feed of a table, which may not exist yet. Raises PipelineError.

    `source`: the options of the job's source, on whose node a stream is.
    """
    if is_stream(location):
        return StreamFeed(str(location), source)
    return feed_in(location, "iceberg" if isinstance(table, IcebergState) else "delta", kept)


def existing_feed(location: Location) -> ChangeFeed:
    """An existing change feed. Raises PipelineError."""
    feed = feed_in(location)
    if feed.last() is None:
        raise PipelineError("no_table", f"no change feed in {location}")
    return feed
