"""A change feed as an Iceberg table: a snapshot for each batch, with its number in each row.

A batch that runs again replaces its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.change_feed import (
    BATCHES_KEPT,
    FEED,
    check_kept,
    check_owner,
    with_batch,
)
from millpond.pipeline.state.changes import CHANGES, ORDER
from millpond.pipeline.state.iceberg_catalog import (
    BATCH,
    QUERY,
    IcebergTable,
    commit,
    drop_versions,
    iceberg_errors,
    last_batch,
    owner,
)
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.table import MAINTAIN_EVERY

if TYPE_CHECKING:
    from pyiceberg.table import Table

_FIRST = "millpond.first"
"""The property of the table with the first batch that is kept."""


class IcebergFeed:
    """A change feed as an Iceberg table, which may not exist yet.

    `kept`: batches to keep.
    """

    def __init__(self, folder: Location, kept: int = BATCHES_KEPT) -> None:
        self._place = IcebergTable(folder, "changes")
        self._kept = kept

    @property
    def folder(self) -> Location:
        """The place of the feed."""
        return self._place.folder

    def claim(self, query: str) -> None:
        """Make the feed this query's. Raises PipelineError if it is another's."""
        check_owner(self.folder, owner(self._place.open()), query)

    def add(self, query: str, batch: int, changes: pa.Table) -> None:
        """Commit the changes of a batch, or replace them. Raises PipelineError."""
        marks = {QUERY: query, BATCH: "-1", _FIRST: str(batch)}
        table = self._place.open() or self._place.create(FEED, None, marks)
        with iceberg_errors(self.folder):
            last = last_batch(table)
            rows = with_batch(batch, changes)
            if batch > last:
                commit(table, query, batch, [], [(None, rows)])
            else:
                self._replace(table, last, pc.field("batch") != batch, batch, batch, rows)
            if batch % MAINTAIN_EVERY == MAINTAIN_EVERY - 1:
                self._maintain(table, batch)

    def _maintain(self, table: Table, last: int) -> None:
        """Merge the files of the last batches, and remove the batches before those to keep."""
        start = last - MAINTAIN_EVERY + 1
        self._replace(table, last, pc.field("batch") >= 0, start, last)
        first = last - self._kept + 1
        if first > int(table.properties[_FIRST]):
            marks = {_FIRST: str(first)}
            self._replace(table, last, pc.field("batch") >= first, 0, first - 1, properties=marks)
        drop_versions(table, self.folder, MAINTAIN_EVERY)

    def _replace(
        self,
        table: Table,
        last: int,
        stays: Any,
        start: int,
        end: int,
        rows: pa.Table | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Replace the files with rows of these batches: the rows that stay, and more rows."""
        within = f"batch >= {start} and batch <= {end}"
        files = [each.file for each in table.scan(within).plan_files()]
        found = [FEED.empty_table() if rows is None else rows]
        found += [_rows_of(table, each.file_path).filter(stays) for each in files]
        new = pa.concat_tables(found)
        commit(table, str(owner(table)), last, files, [(None, new)], properties)
        table.refresh()

    def last(self) -> int | None:
        """The last batch; None before the first."""
        found = last_batch(self._place.open())
        return None if found < 0 else found

    def batches(self, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """The batches after one that have changes. Raises PipelineError."""
        table = self._place.open()
        if table is None:
            return
        check_kept(self.folder, int(table.properties[_FIRST]), after)
        with iceberg_errors(self.folder):
            later = table.scan(f"batch > {after}", selected_fields=("batch",)).to_arrow()
            for number in sorted(later.column("batch").unique().to_pylist()):
                rows = table.scan(f"batch = {number}").to_arrow()
                yield number, rows.select(CHANGES.names).cast(CHANGES).sort_by(ORDER)


def _rows_of(table: Table, path: str) -> pa.Table:
    """The rows of one file."""
    import pyarrow.parquet as pq

    with table.io.new_input(path).open() as file:
        return pq.read_table(file).select(FEED.names).cast(FEED)
