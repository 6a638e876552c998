"""Which format a table has: what its folder shows, else what is asked for."""

from __future__ import annotations

from pathlib import Path

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.delta_table import LOG, DeltaState
from millpond.pipeline.state.summary import StateTable, Summary
from millpond.pipeline.state.table import POINTER, Table

FORMATS = ("parquet", "delta")


def table_in(folder: Path, asked: str | None = None) -> Table | DeltaState:
    """The table of a folder, which need not be there. Raises PipelineError."""
    has = {"parquet": (folder / POINTER).exists(), "delta": (folder / LOG).exists()}
    found = next((name for name in FORMATS if has[name]), None)
    if asked is not None and found not in (None, asked):
        raise PipelineError("bad_table", f"{folder} is a table in {found}, not in {asked}")
    return DeltaState(folder) if (found or asked) == "delta" else Table(folder)


def existing(folder: Path) -> tuple[StateTable, Summary]:
    """A table that is there. Raises PipelineError."""
    table = table_in(folder)
    summary = table.summary()
    if summary is None:
        raise PipelineError("no_table", f"there is no table in {folder}")
    return table, summary
