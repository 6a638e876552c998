"""DIR/catalog.sqlite3: the metadata of all partitions, and numbers of the node's own.

Before a partition file changes, its row is marked dirty: for as long as it is, the file itself is
the authority.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

from millpond.actors.store.catalog_copy import BYTES_MAX, CatalogCopy
from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.segments import Segment
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
    integrity_check,
    make_file,
    prepare,
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
SEGMENTS_SCHEMA = """
CREATE TABLE segments (
    number INTEGER PRIMARY KEY,
    salt INTEGER NOT NULL,
    first_lsn INTEGER NOT NULL,
    size_max INTEGER NOT NULL,
    end INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    last_lsn INTEGER NOT NULL,
    last_id INTEGER NOT NULL,
    is_noted INTEGER NOT NULL,
    names BLOB,
    crc INTEGER NOT NULL
);
CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL, crc INTEGER NOT NULL);
"""
FORMAT = 3
"""The version of the catalog: the third has the tables `segments` and `marks`. Older catalogs are
given them when they are opened."""

GENERATION, ID_MARK, LAST_ID, LAST_LSN = "generation", "id_mark", "last_id", "last_lsn"
SEGMENTS, FIRST_SEQUENCE = "segments", "first_sequence"
"""The marks: changes of the catalog so far; no message id above it was acknowledged; ids and lsns
go on after these, whatever else is known; the number of segments that are listed; logs that nothing
is known of begin there, because lost ones may have had all sequences below."""

_MARKS = ", ".join("?" * 12)
_INSERT = f"INTO partitions ({METADATA_COLUMNS}, crc) VALUES ({_MARKS})"
_INSERT_FACT = "INSERT OR REPLACE INTO facts (name, value, crc) VALUES (?, ?, ?)"
_INSERT_MARK = "INSERT OR REPLACE INTO marks (name, value, crc) VALUES (?, ?, ?)"
_SEGMENT_COLUMNS = (
    "number, salt, first_lsn, size_max, end, checksum, last_lsn, last_id, is_noted, names"
)
_INSERT_SEGMENT = (
    f"INSERT OR REPLACE INTO segments ({_SEGMENT_COLUMNS}, crc) VALUES ({', '.join('?' * 11)})"
)


MISSING = "the file is missing: the catalog lists it"
UNLISTED = "the catalog does not list this file: an old copy is back, or the catalog is old"


_encode_names = msgspec.msgpack.Encoder().encode
_decode_names = msgspec.msgpack.Decoder(dict[bytes, int]).decode


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

    __slots__ = ("_connection", "_generation", "_version")

    def __init__(self, path: Path, disk: Disk) -> None:
        """Open the file, or make an empty one. Raises Damaged, sqlite3.Error and OSError."""
        if not disk.has(path):
            remove_beside(path, disk)
            disk.install(path, _template())
        self._connection = disk.connect(path)
        try:
            with damage_named():
                self._version = prepare(self._connection, APPLICATION, CACHE_KIB, FORMAT)
            # Better to know now: it can be rebuilt. A row that an index does not have where it is
            # may be an older one, which recovery would believe.
            with damage_named():
                wrong = integrity_check(self._connection)
            if wrong:
                raise Damaged(wrong[0])
            self.partitions()
            self.facts()
            marks, listed = self.marks(), len(self.segments())
            if listed != marks.get(SEGMENTS, listed):
                raise Damaged(f"{listed} segments are listed, and there were {marks[SEGMENTS]}")
            self._generation = marks.get(GENERATION, 0)
        except BaseException:
            self._connection.close()
            raise

    def _upgrade(self) -> None:
        """Make a catalog of an older version one of this version, with its first change."""
        with transaction(self._connection):
            for statement in filter(str.strip, SEGMENTS_SCHEMA.split(";")):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._version = FORMAT

    @property
    def generation(self) -> int:
        """The number of changes so far; 0: the list of segments was never written."""
        return self._generation

    def resume(self, generation: int) -> None:
        """Go on with the generation of the catalog that this one replaces."""
        self._generation = max(self._generation, generation)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """A transaction, which raises the generation."""
        generation = self._generation + 1
        with damage_named():
            if self._version < FORMAT:
                self._upgrade()
        with damage_named(), transaction(self._connection):
            yield
            self._set_marks({GENERATION: generation})
        self._generation = generation

    def _set_marks(self, marks: Mapping[str, int]) -> None:
        self._connection.executemany(_INSERT_MARK, _encode_numbers(marks))

    def segments(self) -> dict[int, Segment]:
        """The listed segments by number, ascending."""
        found: dict[int, Segment] = {}
        if self._version < FORMAT:
            return found
        with damage_named():
            query = f"SELECT {_SEGMENT_COLUMNS}, crc FROM segments ORDER BY number"
            for *values, crc in self._connection.execute(query):
                if crc_of(tuple(values)) != crc:
                    raise Damaged(f"the row of segment {values[0]} is not what was written (crc)")
                number, salt, first_lsn, size_max, end, checksum, last_lsn, last_id = values[:8]
                is_noted, names = values[8:]
                found[number] = Segment(
                    number,
                    salt,
                    first_lsn,
                    size_max,
                    end,
                    checksum,
                    last_lsn,
                    last_id,
                    None if names is None else _decode_names(names),
                    bool(is_noted),
                )
        return found

    def marks(self) -> dict[str, int]:
        """The marks by name."""
        return self._numbers("marks") if self._version >= FORMAT else {}

    def change_segments(
        self,
        written: Iterable[Segment] = (),
        forgotten: Iterable[int] = (),
        marks: Mapping[str, int] | None = None,
    ) -> None:
        """All at once: rows of segments that begin or are complete, rows that go, marks."""
        with self._change():
            self._connection.executemany(_INSERT_SEGMENT, map(_encode_segment, written))
            self._connection.executemany(
                "DELETE FROM segments WHERE number = ?", ((number,) for number in forgotten)
            )
            (count,) = self._connection.execute("SELECT count(*) FROM segments").fetchone()
            self._set_marks({**(marks or {}), SEGMENTS: count})

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
            # The index has no checksums.
            query = "SELECT name FROM partitions NOT INDEXED WHERE is_dirty"
            return {name for (name,) in self._connection.execute(query)}

    def mark(self, names: Iterable[tuple[bytes, PartitionKind]]) -> None:
        """These are about to change: durable once this returns."""
        rows = [_encode(PartitionMetadata(name, kind, applied=0)) for name, kind in names]
        if rows:
            with self._change():
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
            with self._change():
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
        with self._change():
            self._connection.executemany(f"INSERT OR REPLACE {_INSERT}", map(_encode, partitions))
            self._connection.executemany(
                "DELETE FROM partitions WHERE name = ?", ((name,) for name in removed)
            )
            self._connection.executemany(_INSERT_FACT, _encode_numbers(facts))

    def facts(self) -> dict[str, int]:
        """The node's own numbers, by name."""
        return self._numbers("facts")

    def _numbers(self, table: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with damage_named():
            for name, value, crc in self._connection.execute(f"SELECT * FROM {table}"):
                if crc_of((name, value)) != crc:
                    raise Damaged(f"{name!r} in {table} is not what was written (crc)")
                found[name.decode()] = value
        return found

    def verify(self) -> list[str]:
        """Look at everything; texts of what is wrong, none if all is well."""
        try:
            with damage_named():
                wrong = integrity_check(self._connection)
            self.partitions()
            self.facts()
            self.segments()
            self.marks()
        except Damaged as exc:
            return [str(exc)]
        return wrong

    def copy(self, bytes_max: int = BYTES_MAX) -> CatalogCopy | None:
        """The file as it is now, with what is in its log; None: it is larger than `bytes_max`."""
        with damage_named():
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
            if pages * page_bytes > bytes_max:
                return None
            return CatalogCopy(self._generation, self._connection.serialize())

    def close(self) -> None:
        """Give the file up."""
        self._connection.close()


def rebuild(
    path: Path, pool: FilePool, disk: Disk, marks: Mapping[str, int] | None = None
) -> tuple[Catalog, list[tuple[Path, str]]]:
    """A new catalog at `path`, without facts, from what the partition files say of themselves, with
    these marks.

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
    schema = SCHEMA + SEGMENTS_SCHEMA

    def fill(new: sqlite3.Connection) -> None:
        new.executemany(f"INSERT {_INSERT}", rows)
        new.executemany(_INSERT_MARK, _encode_numbers(marks or {}))

    data = make_file(schema, APPLICATION, fill, FORMAT)
    if disk.has(path):
        disk.unlink(path)
        disk.sync_folder(path.parent)
    remove_beside(path, disk)
    disk.install(path, data)
    return Catalog(path, disk), unreadable


@cache
def _template() -> bytes:
    return make_file(SCHEMA + SEGMENTS_SCHEMA, APPLICATION, lambda new: None, FORMAT)


def _encode_numbers(numbers: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Rows of facts or marks."""
    return ((name, value, crc_of((name.encode(), value))) for name, value in numbers.items())


def _encode_segment(segment: Segment) -> tuple[object, ...]:
    names = None if segment.names is None else _encode_names(segment.names)
    values = (
        segment.number,
        segment.salt,
        segment.first_lsn,
        segment.size_max,
        segment.end,
        segment.crc,
        segment.last_lsn,
        segment.last_id,
        int(segment.is_noted),
        names,
    )
    return (*values, crc_of(values))


def _encode(metadata: PartitionMetadata) -> tuple[object, ...]:
    values = metadata_values(metadata)
    return (*values, crc_of(values))
