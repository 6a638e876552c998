"""The format of a table: that of its folder, or the requested one for a new table.

A change feed has the format of its table.
"""

from __future__ import annotations

from pathlib import Path

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.change_feed import BATCHES_KEPT, ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_log import has_log
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.parquet_layout import is_old_feed, is_old_table
from millpond.pipeline.state.table import VERSIONS_KEPT, At, StateTable, Summary

FORMATS = ("delta",)


def table_in(folder: Location, at: At | None = None, *, kept: int = VERSIONS_KEPT) -> StateTable:
    """The table of a location, which may not exist yet; `at`: a version to read.

    Raises PipelineError.
    """
    if isinstance(folder, Path) and is_old_table(folder) and not has_log(folder):
        text = f"{folder} is a table in the Parquet layout of earlier versions"
        raise PipelineError("old_table", text, "see `millpond pipeline convert --help`")
    return DeltaState(folder, at, kept)


def existing(folder: Location, at: At | None = None) -> tuple[StateTable, Summary]:
    """An existing table, or a kept version of it, and its summary. Raises PipelineError."""
    table = table_in(folder, at)
    summary = table.summary()
    if summary is None:
        raise PipelineError("no_table", f"no table in {folder}")
    return table, summary


def feed_in(location: Location, kept: int = BATCHES_KEPT) -> ChangeFeed:
    """The change feed of a location, which may not exist yet. Raises PipelineError."""
    if isinstance(location, Path) and is_old_feed(location) and not has_log(location):
        text = f"{location} is a change feed in the Parquet layout of earlier versions"
        raise PipelineError("old_table", text, "use a new folder")
    return DeltaFeed(location, kept)


def existing_feed(location: Location) -> ChangeFeed:
    """An existing change feed. Raises PipelineError."""
    feed = feed_in(location)
    if feed.last() is None:
        raise PipelineError("no_table", f"no change feed in {location}")
    return feed
