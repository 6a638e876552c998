"""A change feed in a folder: the changes of each batch as Parquet files.

    batch=00000012/0003.parquet   changes of bucket 3 by batch 12
    _query-...                    the query that the feed belongs to

A batch appears in one step, before the table has it. One that runs again replaces its folder, whose
files have the same names and rows. A batch without changes is an empty folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.changes import CHANGES, ORDER
from millpond.pipeline.state.dead_letters import claim
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.table import sync

BATCHES_KEPT = 10_000
_BATCH = "batch="
_STAGED = ".staged"


class ChangeFeed:
    """A change feed of Parquet files in a folder, which may not exist yet.

    `kept`: batches to keep.
    """

    def __init__(self, folder: Path, kept: int = BATCHES_KEPT) -> None:
        self.folder = folder
        self._kept = kept

    def claim(self, query: str) -> None:
        """Make the feed this query's. Raises PipelineError if it is another's."""
        claim(self.folder, query, "changes")

    def stage(self, bucket: int, changes: pa.Table) -> str:
        """Write the changes of a bucket to a hidden file; its name."""
        staged = self.folder / _STAGED
        staged.mkdir(parents=True, exist_ok=True)
        name = f"{bucket:04}-{uuid4().hex}.parquet"
        with (staged / name).open("wb") as file:
            pq.write_table(changes, file, compression="zstd")
        return name

    def commit(self, batch: int, names: Sequence[str]) -> None:
        """Make staged files the changes of a batch, and remove batches that are too old."""
        fresh = self.folder / f".{uuid4().hex}"
        fresh.mkdir(parents=True)
        for name in names:
            target = fresh / f"{name.partition('-')[0]}.parquet"
            (self.folder / _STAGED / name).replace(target)
            sync(target)
        sync(fresh)
        target = self._of(batch)
        if target.exists():
            self._hide(target)
        fresh.replace(target)
        sync(self.folder)
        for old in self._numbers():
            if old <= batch - self._kept:
                self._hide(self._of(old))
        for each in self.folder.glob(".*"):
            shutil.rmtree(each, ignore_errors=True)

    def last(self) -> int | None:
        """The last batch; None before the first."""
        return max(self._numbers(), default=None)

    def batches(self, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The batches after one, each with its changes. Raises PipelineError."""
        numbers = sorted(self._numbers())
        check_kept(self.folder, numbers[0] if numbers else None, after)
        for number in numbers:
            if number > after:
                yield number, self._read(number)

    def _read(self, number: int) -> pa.Table:
        folder = self._of(number)
        try:
            files = sorted(folder.glob("*.parquet"))
            tables = [pq.read_table(each, schema=CHANGES, partitioning=None) for each in files]
        except FileNotFoundError as error:
            text = f"{error.filename or folder} is missing"
            raise PipelineError(
                "bad_table", text, "the job replaced or removed it: retry"
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise PipelineError("bad_table", f"{folder} cannot be read: {error}") from None
        return pa.concat_tables([CHANGES.empty_table(), *tables]).sort_by(ORDER)

    def _numbers(self) -> list[int]:
        names = (each.name for each in self.folder.glob(f"{_BATCH}*"))
        return [int(name.removeprefix(_BATCH)) for name in names]

    def _of(self, batch: int) -> Path:
        return self.folder / f"{_BATCH}{batch:08}"

    def _hide(self, folder: Path) -> None:
        """Take a folder away from readers in one step."""
        folder.replace(self.folder / f".{uuid4().hex}")


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
