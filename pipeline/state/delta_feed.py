"""A change feed as a Delta table: a commit for each batch, with the batch's number in each row.

A commit has a Delta transaction of the query and the batch number. A batch that runs again replaces
its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.pipeline.state.change_feed import (
    BATCHES_KEPT,
    FEED,
    check_kept,
    check_owner,
    with_batch,
)
from millpond.pipeline.state.changes import CHANGES, ORDER
from millpond.pipeline.state.delta_log import start_log, sync_commits, take_back
from millpond.pipeline.state.delta_table import (
    delta_errors,
    last_batch,
    open_delta,
    owner,
    remove_old_files,
)
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.table import MAINTAIN_EVERY

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FIRST = "first"
"""The Delta transaction whose version is the number of the first batch that is kept."""


class DeltaFeed:
    """A change feed as a Delta table, which may not exist yet.

    `kept`: batches to keep.
    """

    def __init__(self, folder: Location, kept: int = BATCHES_KEPT) -> None:
        self.folder = folder
        self._kept = kept

    def claim(self, query: str) -> None:
        """Make the feed this query's. Raises PipelineError if it is another's."""
        take_back(self.folder)
        table = open_delta(self.folder)
        check_owner(self.folder, None if table is None else owner(table), query)

    def add(self, query: str, batch: int, changes: pa.Table) -> None:
        """Commit the changes of a batch. Raises PipelineError."""
        from deltalake import CommitProperties, Transaction, write_deltalake

        table = open_delta(self.folder) or self._create(query)
        rows = with_batch(batch, changes)
        marks = [Transaction(query, batch)]
        if table.transaction_version(_FIRST) is None:
            marks.append(Transaction(_FIRST, batch))
        done = CommitProperties(app_transactions=marks)
        with delta_errors(self.folder):
            if batch <= last_batch(table):
                same = f"batch = {batch}"
                write_deltalake(
                    table, rows, mode="overwrite", predicate=same, commit_properties=done
                )
            else:
                write_deltalake(table, rows, mode="append", commit_properties=done)
            sync_commits(self.folder, table.version())
            if batch % MAINTAIN_EVERY == MAINTAIN_EVERY - 1:
                self._maintain(table, batch - self._kept + 1)

    def _maintain(self, table: DeltaTable, first: int) -> None:
        """Remove the batches before `first`, and merge files."""
        from deltalake import CommitProperties, Transaction

        if first > int(table.transaction_version(_FIRST) or 0):
            done = CommitProperties(app_transactions=[Transaction(_FIRST, first)])
            table.delete(f"batch < {first}", commit_properties=done)
        table.optimize.compact()
        sync_commits(self.folder, table.version())
        remove_old_files(table, self.folder, MAINTAIN_EVERY)

    def last(self) -> int | None:
        """The last batch; None before the first."""
        table = open_delta(self.folder)
        found = -1 if table is None else last_batch(table)
        return None if found < 0 else found

    def batches(self, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The batches after one that have changes. Raises PipelineError."""
        import pyarrow.dataset as ds

        table = open_delta(self.folder)
        if table is None:
            return
        check_kept(self.folder, table.transaction_version(_FIRST), after)
        with delta_errors(self.folder):
            rows = table.to_pyarrow_dataset(as_large_types=True)
            numbers = {
                number
                for piece in rows.to_batches(columns=["batch"], filter=ds.field("batch") > after)
                for number in piece.column("batch").unique().to_pylist()
            }
            for number in sorted(numbers):
                found = rows.to_table(columns=CHANGES.names, filter=ds.field("batch") == number)
                yield number, found.cast(CHANGES).sort_by(ORDER)

    def _create(self, query: str) -> DeltaTable:
        from deltalake import DeltaTable

        start_log(self.folder)
        with delta_errors(self.folder):
            return DeltaTable.create(self.folder, FEED, description=query)
