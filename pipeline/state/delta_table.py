"""A table of state as a Delta table, written by the package `deltalake`.

A batch is one commit, a MERGE, with a Delta transaction of the query and the batch number. So the
table itself recognizes a batch that Spark runs again. In an object store nothing is locked: of two
commits of one batch, or to the same files, the format refuses the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.delta_log import has_log, start_log, sync_commits, take_back
from millpond.pipeline.state.entities import COLUMNS, STORED, Floors, with_values
from millpond.pipeline.state.location import Location, store_error
from millpond.pipeline.state.reduce import IDENTITY
from millpond.pipeline.state.table import (
    MAINTAIN_EVERY,
    At,
    Summary,
    check_due,
    locked,
    no_version,
    table_in_use,
)

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

VERSIONS_KEPT = 50
_SAME = " AND ".join(f"new.`{name}` = old.`{name}`" for name in IDENTITY)


class DeltaState:
    """A Delta table of state, which may not exist yet.

    `at`: a kept version to read, instead of the current one. `kept`: versions to keep.
    """

    buckets_wanted = 1

    def __init__(self, folder: Location, at: At | None = None, kept: int | None = None) -> None:
        self.folder = folder
        self._at = at
        self._kept = VERSIONS_KEPT if kept is None else kept

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the table for one job, in a folder. Raises PipelineError."""
        with locked(self.folder) if isinstance(self.folder, Path) else nullcontext():
            take_back(self.folder)
            yield

    def summary(self) -> Summary | None:
        """The summary; None before the first write. Raises PipelineError."""
        table = self._open()
        if table is None:
            return None
        return Summary("delta", table.version(), last_batch(table))

    def pieces(self) -> Iterator[pa.Table]:
        """The entities, piece by piece."""
        table = self._open()
        if table is not None:
            with delta_errors(self.folder):
                for batch in table.to_pyarrow_dataset(as_large_types=True).to_batches():
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch]).select(COLUMNS).cast(STORED)

    def read(self) -> pa.Table:
        """All entities, in memory."""
        found = list(self.pieces())
        return pa.concat_tables(found) if found else STORED.empty_table()

    def is_due(self, query: str, batch: int) -> bool:
        """True if the table does not have the batch yet. Raises PipelineError."""
        table = self._open()
        if table is None:
            return check_due(self.folder, None, -1, query, batch)
        return check_due(self.folder, owner(table), last_batch(table), query, batch)

    def commit(self, batch: Batch) -> None:
        """Commit a batch, also one that changes nothing: so a table that lacks batches is seen."""
        from deltalake import CommitProperties, Transaction, write_deltalake

        with delta_errors(self.folder):
            table = self._open() or self._create(batch.query)
            mark = Transaction(batch.query, batch.number)
            done = CommitProperties(app_transactions=[mark])
            changes = batch.changes.select(COLUMNS)
            if table.version() == 0 and changes.num_rows:  # there is nothing to merge with
                write_deltalake(table, with_values(changes), mode="append", commit_properties=done)
            elif changes.num_rows or batch.floors:
                _merge(table, changes, batch.floors, done)
            if last_batch(table) < batch.number:  # the package commits no MERGE without a change
                nothing = STORED.empty_table()
                write_deltalake(table, nothing, mode="append", commit_properties=done)
            sync_commits(self.folder, table.version())
        if batch.number % MAINTAIN_EVERY == MAINTAIN_EVERY - 1:
            self.compact()
            self.vacuum(self._kept)

    def compact(self) -> int:
        """Merge files; the number of merged files."""
        table = self._open()
        if table is None:
            return 0
        with delta_errors(self.folder):
            removed = int(table.optimize.compact()["numFilesRemoved"])
        sync_commits(self.folder, table.version())
        return removed

    def vacuum(self, kept: int) -> int:
        """Remove files of old versions; their number. The caller holds the lock."""
        table = self._open()
        with delta_errors(self.folder):
            return 0 if table is None else remove_old_files(table, self.folder, kept)

    def _create(self, query: str) -> DeltaTable:
        from deltalake import DeltaTable

        start_log(self.folder)
        table = DeltaTable.create(self.folder, STORED, description=query)
        sync_commits(self.folder, table.version())
        return table

    def _open(self) -> DeltaTable | None:
        table = open_delta(self.folder)
        if table is not None and self._at is not None:
            self._load(table, self._at)
        return table

    def _load(self, table: DeltaTable, at: At) -> None:
        """Go back to a version whose files are all there. Raises PipelineError."""
        from deltalake.exceptions import DeltaError

        try:
            number = at if isinstance(at, int) else self._number_at(table, at)
            if number > table.version():
                raise no_version(self.folder, at)
            table.load_as_version(number)
        except DeltaError:
            raise no_version(self.folder, at) from None
        names = pa.table(table.get_add_actions()).column("path").to_pylist()
        folder = self.folder
        if isinstance(folder, Path) and not all((folder / name).exists() for name in names):
            raise no_version(self.folder, at)

    def _number_at(self, table: DeltaTable, at: datetime) -> int:
        """The number of the last version that was committed at a time or before it."""
        limit = at.timestamp() * 1000
        for commit in table.history():  # newest first
            if commit["timestamp"] <= limit:
                return int(commit["version"])
        raise no_version(self.folder, at)


def open_delta(folder: Location) -> DeltaTable | None:
    """The Delta table at a location; None if there is none. Raises PipelineError."""
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        text = f"a Delta table needs the package deltalake: {error}"
        raise PipelineError("no_delta", text, "pip install '.[spark]'") from None
    with delta_errors(folder):
        if isinstance(folder, Path):
            return DeltaTable(folder) if has_log(folder) else None
        return DeltaTable(folder) if DeltaTable.is_deltatable(folder) else None


@contextmanager
def delta_errors(folder: Location) -> Iterator[None]:
    """Raise PipelineError for errors of the package in the block."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        text, hint = f"another job wrote to {folder}: {_first_line(error)}", "a restart continues"
        raise table_in_use(text, hint) from None
    except (DeltaError, pa.ArrowException) as error:
        raise PipelineError("bad_table", f"{folder}: {_first_line(error)}") from None
    except OSError as error:
        raise store_error(folder, error) from None


def _first_line(error: Exception) -> str:
    """The cause, without the package's trace of it."""
    return str(error).partition("\n")[0]


def _merge(table: DeltaTable, changes: pa.Table, floors: Floors, done: CommitProperties) -> None:
    merging = (
        table.merge(changes, _SAME, "new", "old", commit_properties=done)
        .when_matched_delete("new.value IS NULL")
        .when_matched_update_all("new.value IS NOT NULL")
        .when_not_matched_insert_all("new.value IS NOT NULL")
    )
    for place, floor in floors.items():
        merging = merging.when_not_matched_by_source_delete(_before(*place, floor))
    merging.execute()


def owner(table: DeltaTable) -> str:
    """The query that created the table."""
    return str(table.metadata().description)


def last_batch(table: DeltaTable) -> int:
    """The last batch of the query that created the table; -1 before the first."""
    version = table.transaction_version(owner(table))
    return -1 if version is None else int(version)


def remove_old_files(table: DeltaTable, folder: Location, kept: int) -> int:
    """Remove files that only versions before the last `kept` have; their number.

    In a folder, which is locked, also files that no version has: a killed job leaves them.
    """
    version = table.version()
    old = table.vacuum(
        0,
        dry_run=False,
        enforce_retention_duration=False,
        full=isinstance(folder, Path),
        keep_versions=list(range(max(0, version - kept + 1), version + 1)),
    )
    return len(old)


def _before(topic: str, partition: int, floor: int) -> str:
    quoted = topic.replace("'", "''")
    return f"old.topic = '{quoted}' AND old.`partition` = {partition} AND old.`offset` < {floor}"
