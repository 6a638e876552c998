"""A table of state as an Iceberg table, written by the package pyiceberg.

The rows of a bucket, a partition, are one file. The package has no deletions by key, so a batch
writes the buckets anew in which it changes something. It is one snapshot, whose properties are the
query and the batch number: so the table itself recognizes a batch that Spark runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.entities import COLUMNS, STORED, alive, latest
from millpond.pipeline.state.iceberg_catalog import (
    BATCH,
    QUERY,
    IcebergTable,
    commit,
    drop_versions,
    iceberg_errors,
    last_batch,
    owner,
    snapshot_at,
)
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.table import At, Summary, check_due, locked

if TYPE_CHECKING:
    from pyiceberg.table import DataScan, Table

BUCKETS = 16
VERSIONS_KEPT = 10
_BUCKETS = "millpond.buckets"
ROWS = pa.schema([pa.field("bucket", pa.int32()), *STORED])


class IcebergState:
    """An Iceberg table of state, which may not exist yet.

    `at`: a kept version to read, instead of the current one. `kept`: versions to keep, which are
    ten if it does not say. `buckets`: of a new table.
    """

    def __init__(
        self,
        folder: Location,
        at: At | None = None,
        kept: int | None = None,
        buckets: int = BUCKETS,
    ) -> None:
        self._place = IcebergTable(folder, "state")
        self._at = at
        self._kept = VERSIONS_KEPT if kept is None else kept
        self._buckets = buckets

    @property
    def folder(self) -> Location:
        """The place of the table."""
        return self._place.folder

    @property
    def buckets_wanted(self) -> int:
        """The buckets of the table, or those of a new one."""
        table = self._place.open()
        return self._buckets if table is None else int(table.properties[_BUCKETS])

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the table for one job, in a folder. Raises PipelineError."""
        with locked(self.folder) if isinstance(self.folder, Path) else nullcontext():
            yield

    def summary(self) -> Summary | None:
        """The summary; None before the first write. Raises PipelineError."""
        table = self._place.open()
        if table is None:
            return None
        return Summary("iceberg", table.last_sequence_number, last_batch(table))

    def pieces(self) -> Iterator[pa.Table]:
        """The entities, bucket by bucket."""
        table = self._place.open()
        if table is not None:
            with iceberg_errors(self.folder):
                scan = self._scan(table)
                for bucket in sorted({each.file.partition[0] for each in scan.plan_files()}):
                    yield _bucket_in(scan, bucket)

    def read(self) -> pa.Table:
        """All entities, in memory."""
        return pa.concat_tables([STORED.empty_table(), *self.pieces()])

    def is_due(self, query: str, batch: int) -> bool:
        """True if the table does not have the batch yet. Raises PipelineError."""
        table = self._place.open()
        return check_due(self.folder, owner(table), last_batch(table), query, batch)

    def commit(self, batch: Batch) -> None:
        """Commit a batch, also one that changes nothing. Raises PipelineError."""
        table = self._place.open() or self._create(batch)
        with iceberg_errors(self.folder):
            scan = table.scan()
            files = [each.file for each in scan.plan_files()]
            there = {each.partition[0] for each in files}
            touched = set(batch.changes.column("bucket").unique().to_pylist())
            if batch.floors:
                touched |= there
            old = [each for each in files if each.partition[0] in touched]
            new = _merged(scan, batch, sorted(touched), there)
            commit(table, batch.query, batch.number, old, new)
            if batch.number % self._kept == self._kept - 1:
                drop_versions(table, self.folder, self._kept)

    def compact(self) -> int:
        """Nothing to merge: a bucket has one file."""
        return 0

    def vacuum(self, kept: int) -> int:
        """Remove files of old versions; their number. The caller holds the lock."""
        table = self._place.open()
        with iceberg_errors(self.folder):
            return 0 if table is None else drop_versions(table, self.folder, kept)

    def _create(self, batch: Batch) -> Table:
        marks = {QUERY: batch.query, BATCH: "-1", _BUCKETS: str(self._buckets)}
        return self._place.create(ROWS, "bucket", marks)

    def _scan(self, table: Table) -> DataScan:
        if self._at is None:
            return table.scan()
        return table.scan(snapshot_id=snapshot_at(table, self.folder, self._at))


def _bucket_in(scan: DataScan, bucket: int) -> pa.Table:
    return scan.filter(f"bucket = {bucket}").to_arrow().select(COLUMNS).cast(STORED)


def _merged(
    scan: DataScan, batch: Batch, touched: Iterable[int], there: set[int]
) -> Iterator[tuple[int, pa.Table]]:
    """The touched buckets after a batch."""
    for bucket in touched:
        new = batch.changes.filter(pc.equal(batch.changes.column("bucket"), bucket)).select(COLUMNS)
        tables = [_bucket_in(scan, bucket), new] if bucket in there else [new]
        rows = alive(latest(pa.concat_tables(tables)), batch.floors)
        blank = pc.cast(pa.repeat(bucket, rows.num_rows), pa.int32())
        yield bucket, rows.add_column(0, ROWS.field("bucket"), blank)
