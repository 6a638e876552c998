"""Iceberg tables by the package pyiceberg: in a folder with a catalog of its own, or in a catalog.

A folder has its catalog in SQLite (`catalog.db`). `iceberg://CATALOG/NAMESPACE.TABLE` is a table of
a catalog in the configuration of the package, such as a REST catalog with files in S3. A commit is
one step of the catalog, which refuses it when another commit came first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.location import ICEBERG, Location, store_error
from millpond.pipeline.state.table import At, no_version, table_in_use

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

CATALOG_FILE = "catalog.db"
QUERY, BATCH = "millpond.query", "millpond.batch"
"""Properties of the table and, of each commit, of its snapshot: the query, and its last batch."""
_PROPERTIES = {
    "commit.retry.num-retries": "0",  # a batch whose commit was refused may be in the table
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}


def is_iceberg(location: Location) -> bool:
    """Whether a location is in a catalog, or a folder that has one."""
    if isinstance(location, Path):
        return (location / CATALOG_FILE).exists()
    return location.startswith(ICEBERG)


class IcebergTable:
    """A table of Arrow rows, which may not exist yet. `name`: in the catalog of a folder."""

    def __init__(self, folder: Location, name: str) -> None:
        if not isinstance(folder, Path) and not folder.startswith(ICEBERG):
            hint = "an Iceberg table in a store is one of a catalog, which has a name"
            raise BadOption(f"{folder}: not {ICEBERG}CATALOG/NAMESPACE.TABLE", hint)
        self.folder = folder
        self._name = name
        self._catalog: Catalog | None = None

    def open(self) -> Table | None:
        """The table as it is now; None if there is none. Raises PipelineError."""
        if isinstance(self.folder, Path) and not is_iceberg(self.folder):
            return None
        with iceberg_errors(self.folder):
            from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

            try:
                return self._connected().load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def create(
        self, schema: pa.Schema, partitioned_by: str | None, properties: Mapping[str, str]
    ) -> Table:
        """Create the table. Raises PipelineError."""
        with iceberg_errors(self.folder):
            catalog = self._connected()
            catalog.create_namespace_if_not_exists(self._identifier[:-1])
            location = str(self.folder) if isinstance(self.folder, Path) else None
            own = {**_PROPERTIES, **properties}
            with catalog.create_table_transaction(
                self._identifier, schema, location, properties=own
            ) as creating:
                if partitioned_by is not None:
                    with creating.update_spec() as spec:
                        spec.add_identity(partitioned_by)
            return catalog.load_table(self._identifier)

    @property
    def _identifier(self) -> tuple[str, ...]:
        if isinstance(self.folder, Path):
            return ("millpond", self._name)
        return tuple(self.folder.removeprefix(ICEBERG).partition("/")[2].split("."))

    def _connected(self) -> Catalog:
        if self._catalog is None:
            self._catalog = _catalog_of(self.folder)
        return self._catalog


def _catalog_of(location: Location) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        text = f"an Iceberg table needs the package pyiceberg: {error}"
        raise PipelineError("no_iceberg", text, "pip install '.[iceberg]'") from None
    if isinstance(location, Path):
        from sqlalchemy.engine import URL

        location.mkdir(parents=True, exist_ok=True)
        url = URL.create("sqlite", database=str(location / CATALOG_FILE))
        files = "millpond.pipeline.state.iceberg_files.SyncedFiles"
        place = {"uri": url.render_as_string(), "warehouse": str(location), "py-io-impl": files}
        return SqlCatalog("millpond", **place)
    return load_catalog(location.removeprefix(ICEBERG).partition("/")[0])


@contextmanager
def iceberg_errors(folder: Location) -> Iterator[None]:
    """Raise PipelineError for errors of the package in the block, which have no common class."""
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        raise store_error(folder, error) from None
    except Exception as error:  # the border to a package whose errors have no common class
        text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if type(error).__name__ == "CommitFailedException":
            raise table_in_use(f"another job wrote to {folder}: {text}", _RESTART) from None
        raise PipelineError("bad_table", f"{folder}: {text}") from None


_RESTART = "a restart continues"


def last_batch(table: Table | None) -> int:
    """The last batch in a table; -1 before the first.

    The nearest snapshot of ours says it, so that a table which was rolled back lacks batches. When
    none of ours is left, the table says it.
    """
    if table is None:
        return -1
    for snapshot in line_of(table):
        found = snapshot.summary and snapshot.summary.get(BATCH)
        if found:
            return int(found)
    return int(table.properties.get(BATCH, -1))


def owner(table: Table | None) -> str | None:
    """The query that created a table."""
    return None if table is None else table.properties.get(QUERY)


def line_of(table: Table) -> Iterator[Snapshot]:
    """The snapshots of a table that are kept, the current one first."""
    found = table.current_snapshot()
    while found is not None:
        yield found
        parent = found.parent_snapshot_id
        found = None if parent is None else table.snapshot_by_id(parent)


def snapshot_at(table: Table, folder: Location, at: At) -> int:
    """The id of the snapshot with this number or of this time. Raises PipelineError."""
    for snapshot in line_of(table):
        if isinstance(at, int):
            if snapshot.sequence_number == at:
                return snapshot.snapshot_id
        elif snapshot.timestamp_ms <= at.timestamp() * 1000:
            return snapshot.snapshot_id
    raise no_version(folder, at)


def commit(
    table: Table,
    query: str,
    batch: int,
    old: Sequence[DataFile],
    new: Iterable[tuple[int | None, pa.Table]],
    properties: Mapping[str, str] | None = None,
) -> None:
    """Replace files by new ones in one snapshot: rows, each with their partition, if any.

    `batch`: the last batch that the table has then. `properties`: further ones of the table.
    """
    marks = {QUERY: query, BATCH: str(batch)}
    with table.transaction() as changing:
        changing.set_properties({**marks, **(properties or {})})
        replacing = _replacement(changing, table.io, marks)
        for file in old:
            replacing.delete_data_file(file)
        for file in _written(changing.table_metadata, table.io, new):
            replacing.append_data_file(file)
        replacing.commit()


def _replacement(changing: Transaction, files: FileIO, marks: dict[str, str]) -> Any:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Replacement(_OverwriteFiles):
        """The package's snapshot, without lists of nothing but deletions by earlier ones."""

        def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
            return [
                each
                for each in manifests
                if each.added_snapshot_id in (None, self._snapshot_id)
                or each.has_added_files()
                or each.has_existing_files()
            ]

    return Replacement(Operation.OVERWRITE, changing, files, uuid4(), marks, "main")


def _written(
    metadata: TableMetadata, files: FileIO, new: Iterable[tuple[int | None, pa.Table]]
) -> Iterator[DataFile]:
    """Write a file for each table of rows."""
    from pyiceberg.io.pyarrow import write_file
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
    from pyiceberg.table import WriteTask

    schema, spec, numbers = metadata.schema(), metadata.spec(), itertools.count()

    def task(value: int | None, rows: pa.Table) -> WriteTask:
        key = None
        if value is not None:
            key = PartitionKey([PartitionFieldValue(spec.fields[0], value)], spec, schema)
        batches = rows.combine_chunks().to_batches()
        return WriteTask(uuid4(), next(numbers), schema, batches, partition_key=key)

    for value, rows in new:  # one at a time: a file is in memory while it is written
        if rows.num_rows:
            yield from write_file(files, metadata, iter([task(value, rows)]))


def drop_versions(table: Table, folder: Location, kept: int) -> int:
    """Remove versions before the last `kept`, and files that only those have; their number.

    In a folder, which is locked, also files that no version has: a killed job leaves them.
    """
    line = list(line_of(table))
    stay = {each.snapshot_id for each in line[:kept]}
    old = [each for each in table.snapshots() if each.snapshot_id not in stay]
    if not old and not isinstance(folder, Path):
        return 0
    before = set(itertools.chain.from_iterable(_files_of(table, each) for each in old))
    if old:
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
        table.refresh()
    if isinstance(folder, Path):
        names = itertools.chain((folder / "data").rglob("*"), (folder / "metadata").rglob("*"))
        before = {str(each) for each in names if each.is_file()}
    log = (each.metadata_file for each in table.metadata.metadata_log)
    used = {table.metadata_location, *log}
    for each in table.snapshots():
        used |= _files_of(table, each)
    for name in before - used:
        table.io.delete(name)
    return len(before - used)


def _files_of(table: Table, snapshot: Snapshot) -> set[str]:
    """The files of a snapshot, also those of its lists."""
    found = {snapshot.manifest_list}
    for manifest in snapshot.manifests(table.io):
        found.add(manifest.manifest_path)
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        found |= {each.data_file.file_path for each in entries}
    return found
