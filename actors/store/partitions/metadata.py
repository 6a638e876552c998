"""Partition metadata: a row of the catalog, and the one row of a file's own table `meta`.

The catalog keeps the same of all partitions, so that most need not be opened.
"""

from __future__ import annotations

import sqlite3
from math import inf

import msgspec

from millpond.actors.messages import Mode
from millpond.actors.store.changes import LogSnapshot, PartitionKind, Position
from millpond.actors.store.partitions.sqlite import Damaged, crc_of, signed, unsigned

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

SCHEMA = f"""
CREATE TABLE meta ({METADATA_SCHEMA.format(unique="")},
    trim_point INTEGER NOT NULL,
    end_ms INTEGER NOT NULL,
    end_seq INTEGER NOT NULL,
    end_timestamp INTEGER NOT NULL,
    crc INTEGER NOT NULL
);
"""
_COLUMNS = f"{METADATA_COLUMNS}, trim_point, end_ms, end_seq, end_timestamp, crc"


class PartitionMetadata(msgspec.Struct, frozen=True):
    """A partition without its content. `applied`: every change up to this lsn is in the file, or
    in the rewrite with the lsn `frozen_at`; rewrites with a lower one are out of date.

    A queue has `messages` with `bytes` of data, `keys` whose message is gone, nothing that expires
    before `deadline`, and never had an id above `last_id`. A log has chunks with so many records
    (`messages`) and bytes; its next record is number `tail`.
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


class FileHeader(msgspec.Struct):
    """The metadata while it changes, and the end of a log. An unused file has no name."""

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


def write_header(connection: sqlite3.Connection, header: FileHeader) -> None:
    """Put the row in the place of the one that is there."""
    values = (
        header.name,
        *metadata_values(header.metadata)[1:],
        signed(header.trim_point),
        signed(header.end_id.ms),
        signed(header.end_id.seq),
        signed(header.end_timestamp),
    )
    marks = ", ".join("?" * (len(values) + 2))
    connection.execute(
        f"INSERT OR REPLACE INTO meta (rowid, {_COLUMNS}) VALUES ({marks})",
        (1, *values, crc_of(values)),
    )


def read_header(connection: sqlite3.Connection) -> FileHeader:
    """The row that is there. Raises Damaged."""
    found = connection.execute(f"SELECT {_COLUMNS} FROM meta").fetchall()
    if len(found) != 1:
        raise Damaged(f"{len(found)} rows in meta, where there is one")
    *values, crc = found[0]
    if crc != crc_of(tuple(values)):
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
    )
