"""What a table is, whatever its format: what commands need to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Summary:
    """A table's format, its version, and the last batch in it. `rejected`: since the beginning,
    where that is known."""

    format: str
    version: int
    batch: int
    rejected: int | None = None


class StateTable(Protocol):
    """A table in a folder."""

    folder: Path

    def lock(self) -> AbstractContextManager[None]:
        """One job writes at a time. Raises PipelineError."""

    def summary(self) -> Summary | None:
        """What there is; None: nothing was ever written. Raises PipelineError."""

    def buckets(self) -> Iterator[pa.Table]:
        """The entities, piece by piece."""

    def read(self) -> pa.Table:
        """All of it, in memory."""

    def compact(self) -> int:
        """Make few files of many; how many there were. Lock it before."""

    def vacuum(self, kept: int) -> int:
        """Remove what only old versions have; how many files. Lock it before."""
