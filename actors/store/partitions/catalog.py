"""DIR/catalog.sqlite3: the metadata of all partitions, and numbers of the node's own.

Before a partition file changes, its row is marked dirty: for as long as it is, the file itself is
the authority.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.partitions.file_pool import FilePool, remove_beside
from millpond.actors.store.partitions.metadata import (
    METADATA_COLUMNS,
    METADATA_SCHEMA,
    PartitionMetadata,
    metadata_of,
    metadata_values,
)
from millpond.actors.store.partitions.sqlite import (
    Damaged,
    UnknownFormat,
    crc_of,
    damage_named,
    make_file,
    prepare,
    quick_check,
    transaction,
)

CATALOG = "catalogue.sqlite3"
"""Its name in the data folder."""
APPLICATION = int.from_bytes(b"MlpC")
CACHE_KIB = 2048

SCHEMA = f"""
CREATE TABLE partitions ({METADATA_SCHEMA.format(unique=" PRIMARY KEY")},
    is_dirty INTEGER NOT NULL DEFAULT 0,
    crc INTEGER NOT NULL
);
CREATE INDEX partitions_dirty ON partitions (name) WHERE is_dirty;
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL);
"""

_MARKS = ", ".join("?" * 12)
_INSERT = f"INTO partitions ({METADATA_COLUMNS}, crc) VALUES ({_MARKS})"
_INSERT_FACT = "INSERT OR REPLACE INTO facts (name, value, crc) VALUES (?, ?, ?)"


MISSING = "the file is missing: the catalog lists it"
UNLISTED = "the catalog does not list this file: an old copy is back, or the catalog is old"


class Listed(msgspec.Struct, frozen=True):
    """The row of a partition. `is_dirty`: its file may have changed after that."""

    metadata: PartitionMetadata
    is_dirty: bool


def check_listed(row: Listed | None, found: PartitionMetadata | None) -> None:
    """Compare a row with what the file says of itself (None: there is none). Raises Damaged."""
    if row is None:
        if found is not None:
            raise Damaged(UNLISTED)
        return
    listed = row.metadata
    if found is None:
        # A dirty row without any change is that of a file which was not made yet.
        if listed.applied or not row.is_dirty:
            raise Damaged(MISSING)
    elif row.is_dirty:
        if found.applied < listed.applied or found.frozen_at < listed.frozen_at:
            raise Damaged(_other(listed, found))
    elif found != listed:
        raise Damaged(_other(listed, found))


def _other(listed: PartitionMetadata, found: PartitionMetadata) -> str:
    age = "an older copy" if found.frozen_at < listed.frozen_at else "another"
    return (
        f"the file is {age}: it has changes up to {found.applied} of flush {found.frozen_at}, "
        f"and the catalog lists {listed.applied} of {listed.frozen_at}"
    )


class Catalog:
    """Methods raise Damaged, and sqlite3.Error for what may pass."""

    __slots__ = ("_connection",)

    def __init__(self, path: Path, disk: Disk) -> None:
        """Open the file, or make an empty one. Raises Damaged, sqlite3.Error and OSError."""
        if not disk.has(path):
            remove_beside(path, disk)
            disk.install(path, _template())
        self._connection = disk.connect(path)
        try:
            with damage_named():
                prepare(self._connection, APPLICATION, CACHE_KIB)
            # Better to know now: it can be rebuilt.
            self.partitions()
            self.facts()
        except BaseException:
            self._connection.close()
            raise

    def partitions(self) -> dict[bytes, PartitionMetadata]:
        """All partitions; what is said of dirty ones may be old."""
        found: dict[bytes, PartitionMetadata] = {}
        with damage_named():
            query = f"SELECT {METADATA_COLUMNS}, crc FROM partitions"
            for *values, crc in self._connection.execute(query):
                if crc_of(tuple(values)) != crc:
                    raise Damaged(f"the row of {values[0]!r} is not what was written (crc)")
                name, *rest = values
                found[name] = metadata_of((name, *rest))
        return found

    def row(self, name: bytes) -> Listed | None:
        """The row of one partition; None: the catalog does not list it."""
        with damage_named():
            query = f"SELECT {METADATA_COLUMNS}, is_dirty, crc FROM partitions WHERE name = ?"
            found = self._connection.execute(query, (name,)).fetchone()
        if found is None:
            return None
        *values, is_dirty, crc = found
        if crc_of(tuple(values)) != crc:
            raise Damaged(f"the row of {name!r} is not what was written (crc)")
        return Listed(metadata_of((name, *values[1:])), bool(is_dirty))

    def dirty(self) -> set[bytes]:
        """Names of partitions whose file may have changed after their row."""
        with damage_named():
            query = "SELECT name FROM partitions WHERE is_dirty"
            return {name for (name,) in self._connection.execute(query)}

    def mark(self, names: Iterable[tuple[bytes, PartitionKind]]) -> None:
        """These are about to change: durable once this returns."""
        rows = [_encode(PartitionMetadata(name, kind, applied=0)) for name, kind in names]
        if rows:
            with damage_named(), transaction(self._connection):
                self._connection.executemany(f"INSERT OR IGNORE {_INSERT}", rows)
                self._connection.executemany(
                    "UPDATE partitions SET is_dirty = 1 WHERE name = ?",
                    [(row[0],) for row in rows],
                )

    def retire(self, names: Iterable[bytes]) -> None:
        """The files of these are empty and about to be removed: they may be missing from now
        on."""
        rows = [(name, self.row(name)) for name in names]
        empty = [
            PartitionMetadata(name, listed.metadata.kind, applied=0)
            for name, listed in rows
            if listed is not None
        ]
        if empty:
            with damage_named(), transaction(self._connection):
                self._connection.executemany(f"INSERT OR REPLACE {_INSERT}", map(_encode, empty))
                self._connection.executemany(
                    "UPDATE partitions SET is_dirty = 1 WHERE name = ?",
                    [(each.name,) for each in empty],
                )

    def record(
        self,
        partitions: Iterable[PartitionMetadata],
        removed: Iterable[bytes],
        facts: Mapping[str, int],
    ) -> None:
        """All at once: rows as their files are now, not dirty any more; some gone; facts."""
        with damage_named(), transaction(self._connection):
            self._connection.executemany(f"INSERT OR REPLACE {_INSERT}", map(_encode, partitions))
            self._connection.executemany(
                "DELETE FROM partitions WHERE name = ?", ((name,) for name in removed)
            )
            self._connection.executemany(
                _INSERT_FACT,
                ((name, value, crc_of((name.encode(), value))) for name, value in facts.items()),
            )

    def facts(self) -> dict[str, int]:
        """The node's own numbers, by name."""
        found: dict[str, int] = {}
        with damage_named():
            for name, value, crc in self._connection.execute("SELECT name, value, crc FROM facts"):
                if crc_of((name, value)) != crc:
                    raise Damaged(f"the fact {name!r} is not what was written (crc)")
                found[name.decode()] = value
        return found

    def verify(self) -> list[str]:
        """Look at everything; texts of what is wrong, none if all is well."""
        try:
            with damage_named():
                wrong = quick_check(self._connection)
            self.partitions()
            self.facts()
        except Damaged as exc:
            return [str(exc)]
        return wrong

    def close(self) -> None:
        """Give the file up."""
        self._connection.close()


def rebuild(path: Path, pool: FilePool, disk: Disk) -> tuple[Catalog, list[tuple[Path, str]]]:
    """A new catalog at `path`, without facts, from what the partition files say of themselves.

    The second: files that say nothing, and why. The catalog is there complete or not at all.
    """
    rows = []
    unreadable: list[tuple[Path, str]] = []
    for each in pool.paths():
        try:
            partition = pool.look(each)
        except UnknownFormat:
            raise
        except (Damaged, sqlite3.Error, OSError) as exc:
            unreadable.append((each, str(exc)))
            continue
        # One without a name was made and never used: it holds nothing.
        if partition.is_named:
            rows.append(_encode(partition.metadata))
        partition.close()
    data = make_file(SCHEMA, APPLICATION, lambda new: new.executemany(f"INSERT {_INSERT}", rows))
    if disk.has(path):
        disk.unlink(path)
        disk.sync_folder(path.parent)
    remove_beside(path, disk)
    disk.install(path, data)
    return Catalog(path, disk), unreadable


@cache
def _template() -> bytes:
    return make_file(SCHEMA, APPLICATION, lambda new: None)


def _encode(metadata: PartitionMetadata) -> tuple[object, ...]:
    values = metadata_values(metadata)
    return (*values, crc_of(values))
