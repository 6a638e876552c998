"""Tables of state in any format: their interface, errors, and the lock of a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.location import Location

MAINTAIN_EVERY = 50
"""Batches between two times that small files are merged and old versions removed."""
At = int | datetime
"""The number of a version, or a time."""


@dataclass(frozen=True)
class Summary:
    """The format, version and last batch of a table."""

    format: str
    version: int
    batch: int


class StateTable(Protocol):
    """A table of state, which may not exist yet."""

    @property
    def folder(self) -> Location:
        """The place of the table."""

    @property
    def buckets_wanted(self) -> int:
        """The number of buckets into which the reduction sorts changes. Raises PipelineError."""

    def lock(self) -> AbstractContextManager[None]:
        """Lock the table for one job, in a folder. Raises PipelineError."""

    def summary(self) -> Summary | None:
        """The summary; None before the first write. Raises PipelineError."""

    def pieces(self) -> Iterator[pa.Table]:
        """The entities, piece by piece."""

    def read(self) -> pa.Table:
        """All entities, in memory."""

    def is_due(self, query: str, batch: int) -> bool:
        """True if the table does not have the batch yet. Raises PipelineError."""

    def commit(self, batch: Batch) -> None:
        """Make a batch that is due a version of the table. Raises PipelineError."""

    def compact(self) -> int:
        """Merge files; the number of merged files. The caller holds the lock."""

    def vacuum(self, kept: int) -> int:
        """Remove files of old versions; their number. The caller holds the lock."""


def check_due(folder: Location, owner: str | None, last: int, query: str, batch: int) -> bool:
    """True for a batch that a table lacks. Raises PipelineError.

    `owner`: the query of the table, None before its first write. `last`: its last batch, or -1.
    """
    if owner not in (None, query):
        text = f"{folder} was written by another query, with another checkpoint"
        raise PipelineError("other_query", text, "use its checkpoint, or a new folder")
    if batch > last + 1:
        has = "nothing" if last < 0 else f"batch {last} as its last"
        text = f"the checkpoint continues with batch {batch}, but the table {folder} has {has}"
        raise PipelineError("table_behind", text, "use its table, or also a new checkpoint")
    return batch > last


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one job. Raises PipelineError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "_lock").open("w")
    except OSError as error:
        raise PipelineError("bad_option", f"table {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise table_in_use(f"another job writes to {folder}", "wait for its end") from None
        yield


def table_in_use(text: str, hint: str) -> PipelineError:
    """The error of a table that another job writes to."""
    return PipelineError("table_in_use", text, hint)


def no_version(folder: Location, at: At) -> PipelineError:
    """The error of a version that a table does not have, or no longer."""
    which = at if isinstance(at, int) else f"as old as {at.isoformat()}"
    text = f"{folder} has no version {which}"
    return PipelineError("no_version", text, "`show` tells the last one; old ones are removed")
