"""The format of a table: that of its folder, or the requested one for a new table.

A change feed has the format of its table.
"""

from __future__ import annotations

from pathlib import Path

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.change_feed import BATCHES_KEPT, ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_log import has_log
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.summary import StateTable, Summary
from millpond.pipeline.state.table import POINTER, At, Table

FORMATS = ("delta", "parquet")
Feed = ChangeFeed | DeltaFeed


def table_in(
    folder: Location, requested: str | None = None, at: At | None = None
) -> Table | DeltaState:
    """The table of a location, which may not exist yet; `at`: a version to read.

    Raises PipelineError.
    """
    if not isinstance(folder, Path):
        if requested == "parquet":
            raise BadOption(f"{folder}: a table in an object store is in delta, not in parquet")
        return DeltaState(folder, at)
    has = {"parquet": (folder / POINTER).exists(), "delta": has_log(folder)}
    found = next((name for name in FORMATS if has[name]), None)
    if requested is not None and found not in (None, requested):
        raise PipelineError("bad_table", f"{folder} is a table in {found}, not in {requested}")
    is_delta = (found or requested or FORMATS[0]) == "delta"
    return DeltaState(folder, at) if is_delta else Table(folder, at)


def existing(folder: Location, at: At | None = None) -> tuple[StateTable, Summary]:
    """An existing table, or a kept version of it, and its summary. Raises PipelineError."""
    table = table_in(folder, at=at)
    summary = table.summary()
    if summary is None:
        raise PipelineError("no_table", f"no table in {folder}")
    return table, summary


def feed_of(
    table: Table | DeltaState, location: Location | None, kept: int = BATCHES_KEPT
) -> Feed | None:
    """The change feed of a table, which may not exist yet. Raises PipelineError."""
    if location is None:
        return None
    if isinstance(table, DeltaState):
        return DeltaFeed(location, kept)
    if isinstance(location, Path):
        return ChangeFeed(location, kept)
    raise BadOption(f"{location}: the table is in parquet, so its change feed is a folder")


def existing_feed(location: Location) -> Feed:
    """An existing change feed. Raises PipelineError."""
    feed: Feed
    if isinstance(location, Path) and not has_log(location):
        feed = ChangeFeed(location)
    else:
        feed = DeltaFeed(location)
    if feed.last() is None:
        raise PipelineError("no_table", f"no change feed in {location}")
    return feed
