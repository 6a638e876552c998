"""Change feeds in any format: the changes of a table, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.changes import CHANGES
from millpond.pipeline.state.location import Location

BATCHES_KEPT = 10_000
FEED = pa.schema([pa.field("batch", pa.int64()), *CHANGES])


class ChangeFeed(Protocol):
    """A change feed, which may not exist yet."""

    @property
    def folder(self) -> Location:
        """The place of the feed."""

    def claim(self, query: str) -> None:
        """Make the feed this query's. Raises PipelineError if it is another's."""

    def add(self, query: str, batch: int, changes: pa.Table) -> None:
        """Commit the changes of a batch, or replace them. Raises PipelineError."""

    def last(self) -> int | None:
        """The last batch; None before the first."""

    def batches(self, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The batches after one that have changes. Raises PipelineError."""


def with_batch(batch: int, changes: pa.Table) -> pa.Table:
    """The rows of a feed for the changes of a batch."""
    return changes.add_column(0, FEED.field("batch"), pa.repeat(batch, changes.num_rows))


def check_owner(folder: Location, owner: str | None, query: str) -> None:
    """Raise PipelineError for a feed of another query; None: of a feed that is not there yet."""
    if owner not in (None, query):
        text = f"{folder} has the changes of another query, with another checkpoint"
        raise PipelineError("other_query", text, "use a new folder")


def check_gap(folder: Location, last: int | None, table_last: int) -> None:
    """Raise PipelineError for a feed that lacks batches which the table has."""
    if last is not None and last < table_last:
        text = f"{folder} has batch {last} as its last, but the table has batch {table_last}"
        raise PipelineError("feed_behind", text, "some batches ran without it: use a new folder")


def check_kept(folder: Location, first: int | None, after: int) -> None:
    """Raise PipelineError if batches behind `after` are removed; -1 takes the first there is."""
    if first is not None and 0 <= after < first - 1:
        text = f"{folder} has no batches {after + 1} to {first - 1}: its first is {first}"
        raise PipelineError("feed_trimmed", text, "begin with the table as it is now")
