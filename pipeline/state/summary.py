"""The interface of tables in any format, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millpond.pipeline.state.location import Location


@dataclass(frozen=True)
class Summary:
    """The format, version and last batch of a table. `rejected`: rejected records, if known."""

    format: str
    version: int
    batch: int
    rejected: int | None = None


class StateTable(Protocol):
    """A table of state."""

    @property
    def folder(self) -> Location:
        """The place of the table."""

    def lock(self) -> AbstractContextManager[None]:
        """Lock the table for one job. Raises PipelineError."""

    def summary(self) -> Summary | None:
        """The summary; None before the first write. Raises PipelineError."""

    def buckets(self) -> Iterator[pa.Table]:
        """The entities, piece by piece."""

    def read(self) -> pa.Table:
        """All entities, in memory."""

    def compact(self) -> int:
        """Merge files; the number of merged files. The caller holds the lock."""

    def vacuum(self, kept: int) -> int:
        """Remove files of old versions; their number. The caller holds the lock."""
