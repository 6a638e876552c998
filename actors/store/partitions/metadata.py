"""Partition metadata: a row of the catalog, and the one row of a file's own table `meta`.

The catalog keeps the same of all partitions, so that most need not be opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from math import inf

import msgspec

from millpond.actors.messages import Mode
from millpond.actors.store.changes import LogSnapshot, PartitionKind, Position
from millpond.actors.store.partitions.sqlite import (
    SUM_MASK,
    SUMS_FORMAT,
    Damaged,
    crc_of,
    signed,
    unsigned,
)

MetadataValues = tuple[bytes, int, int, int, int, int, int, float, int, int | None, int]

METADATA_COLUMNS = (
    "name, kind, applied, frozen_at, messages, bytes, keys, deadline, last_id, mode, tail"
)
METADATA_SCHEMA = """
    name BLOB{unique},
    kind INTEGER NOT NULL,
    applied INTEGER NOT NULL,
    frozen_at INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    keys INTEGER NOT NULL,
    deadline REAL NOT NULL,
    last_id INTEGER NOT NULL,
    mode INTEGER,
    tail INTEGER NOT NULL"""

_SCHEMA = f"""
CREATE TABLE meta ({METADATA_SCHEMA.format(unique="")},
    trim_point INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    end_seq INTEGER NOT NULL,
    end_timestamp INTEGER NOT NULL,
    crc INTEGER NOT NULL{{more}}
);
"""
_SUM_COLUMNS = {
    PartitionKind.QUEUE: ("rows_sum", "delivery_sum"),
    PartitionKind.LOG: ("properties", "properties_sum"),
}


def _schema(kind: PartitionKind) -> str:
    return _SCHEMA.format(more="".join(f",\n    {each} INTEGER" for each in _SUM_COLUMNS[kind]))


QUEUE_SCHEMA, LOG_SCHEMA = _schema(PartitionKind.QUEUE), _schema(PartitionKind.LOG)
_COLUMNS = f"{METADATA_COLUMNS}, trim_point, end_ms, end_seq, end_timestamp, crc"
COLUMN_COUNT = 16
"""Without those of sums."""


class PartitionMetadata(msgspec.Struct, frozen=True):
    """A partition without its content. `applied`: every change up to this lsn is in the file, or
    in the rewrite with the lsn `frozen_at`; rewrites with a lower one are out of date.

    A queue has `messages` with `bytes` of data, `keys` whose message is gone, nothing that expires
    before `deadline`, and never had an id above `last_id`. A log has chunks with so many records
    (`messages`) and bytes; its next record is number `tail`. Of its records, repairs lost or
    skipped as many as `keys` says: their chunks have no data.
    """

    name: bytes
    kind: PartitionKind
    applied: int
    messages: int = 0
    bytes: int = 0
    keys: int = 0
    deadline: float = inf
    last_id: int = 0
    mode: Mode | None = None
    tail: int = 0
    frozen_at: int = 0


class PropertyCount(msgspec.Struct, frozen=True):
    """The number of properties of a log, and the sum of the CRCs of their rows, in 32 bits: it
    tells that a row is an older one."""

    count: int = 0
    crc_sum: int = 0

    def plus(self, crc: int) -> PropertyCount:
        """With one more, whose row has this CRC."""
        return PropertyCount(self.count + 1, self.crc_sum + crc & SUM_MASK)

    def minus(self, crc: int) -> PropertyCount:
        """Without one of these, whose row has this CRC."""
        return PropertyCount(self.count - 1, self.crc_sum - crc & SUM_MASK)


def property_count(crcs: Iterable[int]) -> PropertyCount:
    """The count of properties whose rows have these CRCs."""
    counted = PropertyCount()
    for crc in crcs:
        counted = counted.plus(crc)
    return counted


class RowSums(msgspec.Struct, frozen=True):
    """The sums of the CRCs of a queue's rows, in 32 bits: they tell that a row is an older one.

    `rows` are messages and keys. `delivery` is what is known of their delivery: subscribers, acks,
    due times, unique names, and the attempts of messages. Messages are lost by an older page of the
    former; by one of the latter they come again.
    """

    rows: int = 0
    delivery: int = 0

    def plus(self, *, rows: int = 0, delivery: int = 0) -> RowSums:
        """With these CRCs more; negative ones are removed."""
        return RowSums(self.rows + rows & SUM_MASK, self.delivery + delivery & SUM_MASK)


class FileHeader(msgspec.Struct):
    """The metadata while it changes, and the end of a log. An unused file has no name.

    `properties` are those of a log, `row_sums` those of a queue. None: an earlier version wrote the
    file. The CRCs of rows are from `seed`, which is not in the header: `seed_of` its name.
    """

    name: bytes | None
    kind: PartitionKind
    applied: int = 0
    frozen_at: int = 0
    messages: int = 0
    bytes: int = 0
    keys: int = 0
    deadline: float = inf
    last_id: int = 0
    mode: Mode | None = None
    tail: int = 0
    trim_point: int = 0
    end_id: Position = Position(0, 0)
    end_timestamp: int = 0
    properties: PropertyCount | None = None
    row_sums: RowSums | None = None
    seed: int = 0

    @property
    def metadata(self) -> PartitionMetadata:
        return PartitionMetadata(
            self.name or b"",
            self.kind,
            self.applied,
            self.messages,
            self.bytes,
            self.keys,
            self.deadline,
            self.last_id,
            self.mode,
            self.tail,
            self.frozen_at,
        )

    @property
    def log_snapshot(self) -> LogSnapshot:
        """The metadata of a log, without its notes."""
        return LogSnapshot(
            trim_point=self.trim_point,
            tail=self.tail,
            last_id=self.end_id,
            last_timestamp=self.end_timestamp,
            bytes=self.bytes,
        )


def metadata_values(metadata: PartitionMetadata) -> MetadataValues:
    """The columns of metadata."""
    return (
        metadata.name,
        int(metadata.kind),
        metadata.applied,
        metadata.frozen_at,
        metadata.messages,
        metadata.bytes,
        metadata.keys,
        float(metadata.deadline),
        metadata.last_id,
        None if metadata.mode is None else int(metadata.mode),
        signed(metadata.tail),
    )


def metadata_of(values: MetadataValues) -> PartitionMetadata:
    """The metadata of columns whose CRC was right."""
    name, kind, applied, frozen_at, messages, size, keys, deadline, last_id, mode, tail = values
    return PartitionMetadata(
        name,
        PartitionKind(kind),
        applied,
        messages,
        size,
        keys,
        deadline,
        last_id,
        None if mode is None else Mode(mode),
        unsigned(tail),
        frozen_at,
    )


def make_sum_columns(connection: sqlite3.Connection, kind: PartitionKind) -> None:
    """Within a transaction, make the file one whose header has sums of CRCs."""
    for column in _SUM_COLUMNS[kind]:
        connection.execute(f"ALTER TABLE meta ADD COLUMN {column} INTEGER")
    connection.execute(f"PRAGMA user_version = {SUMS_FORMAT}")


def sums_of(header: FileHeader) -> tuple[int, ...]:
    """The columns of sums; none in the file of an earlier version."""
    if header.properties is not None:
        return header.properties.count, header.properties.crc_sum
    sums = header.row_sums
    return () if sums is None else (sums.rows, sums.delivery)


def write_header(connection: sqlite3.Connection, header: FileHeader) -> None:
    """Put the row in the place of the one that is there."""
    values: tuple[object, ...] = (
        header.name,
        *metadata_values(header.metadata)[1:],
        signed(header.trim_point),
        signed(header.end_id.ms),
        signed(header.end_id.seq),
        signed(header.end_timestamp),
    )
    columns, more = _COLUMNS, sums_of(header)
    if more:
        columns = ", ".join((columns, *_SUM_COLUMNS[header.kind]))
    marks = ", ".join("?" * (COLUMN_COUNT + 1 + len(more)))
    connection.execute(
        f"INSERT OR REPLACE INTO meta (rowid, {columns}) VALUES ({marks})",
        (1, *values, crc_of((*values, *more)), *more),
    )


def read_header(connection: sqlite3.Connection) -> FileHeader:
    """The row that is there. Raises Damaged."""
    found = connection.execute("SELECT * FROM meta").fetchall()
    if len(found) != 1:
        raise Damaged(f"{len(found)} rows in meta, where there is one")
    *values, crc = found[0][:COLUMN_COUNT]
    sums: list[int] = [] if None in found[0][COLUMN_COUNT:] else list(found[0][COLUMN_COUNT:])
    if crc != crc_of((*values, *sums)):
        raise Damaged("what the file says of itself is not what was written (crc)")
    name, *rest, trim_point, end_ms, end_seq, end_timestamp = values
    kind, applied, frozen_at, messages, size, keys, deadline, last_id, mode, tail = rest
    return FileHeader(
        name,
        PartitionKind(kind),
        applied,
        frozen_at,
        messages,
        size,
        keys,
        deadline,
        last_id,
        None if mode is None else Mode(mode),
        unsigned(tail),
        unsigned(trim_point),
        Position(unsigned(end_ms), unsigned(end_seq)),
        unsigned(end_timestamp),
        PropertyCount(*sums) if sums and kind == PartitionKind.LOG else None,
        RowSums(*sums) if sums and kind == PartitionKind.QUEUE else None,
    )
