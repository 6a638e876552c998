"""The format of a table: that of its folder, or the requested one for a new table.

A change feed has the format of its table.
"""

from __future__ import annotations

from pathlib import Path

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.change_feed import ChangeFeed
from millpond.pipeline.state.delta_feed import DeltaFeed
from millpond.pipeline.state.delta_table import LOG, DeltaState
from millpond.pipeline.state.summary import StateTable, Summary
from millpond.pipeline.state.table import POINTER, At, Table

FORMATS = ("parquet", "delta")


def table_in(
    folder: Path, requested: str | None = None, at: At | None = None
) -> Table | DeltaState:
    """The table of a folder, which may not exist yet; `at`: a version to read.

    Raises PipelineError.
    """
    has = {"parquet": (folder / POINTER).exists(), "delta": (folder / LOG).exists()}
    found = next((name for name in FORMATS if has[name]), None)
    if requested is not None and found not in (None, requested):
        raise PipelineError("bad_table", f"{folder} is a table in {found}, not in {requested}")
    return DeltaState(folder, at) if (found or requested) == "delta" else Table(folder, at)


def existing(folder: Path, at: At | None = None) -> tuple[StateTable, Summary]:
    """An existing table, or a kept version of it, and its summary. Raises PipelineError."""
    table = table_in(folder, at=at)
    summary = table.summary()
    if summary is None:
        raise PipelineError("no_table", f"no table in {folder}")
    return table, summary


def existing_feed(folder: Path) -> ChangeFeed | DeltaFeed:
    """An existing change feed. Raises PipelineError."""
    feed = DeltaFeed(folder) if (folder / LOG).exists() else ChangeFeed(folder)
    if feed.last() is None:
        raise PipelineError("no_table", f"no change feed in {folder}")
    return feed
