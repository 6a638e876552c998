"""A partition: the SQLite file of one queue or log, open.

Everything happens in transactions. The rest of an interrupted flush is never seen: it is removed
before the file is read.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import assert_never

import msgspec

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    ColdChunk,
    ColdReference,
    LogSnapshot,
    PartitionKind,
    Snapshot,
)
from millpond.actors.store.interface import Seek
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions import log_tables as log_tables
from millpond.actors.store.partitions import queue_tables as queue_tables
from millpond.actors.store.partitions.flush_batches import Flush
from millpond.actors.store.partitions.metadata import (
    LOG_SCHEMA,
    QUEUE_SCHEMA,
    FileHeader,
    PartitionMetadata,
    PropertyCount,
    RowSums,
    read_header,
    write_header,
)
from millpond.actors.store.partitions.sqlite import (
    COLD_FORMAT,
    FORMAT,
    SEEDED_FORMAT,
    damage_named,
    integrity_check,
    make_file,
    prepare,
    seed_of,
    transaction,
    with_wal,
    without_wal,
)
from millpond.actors.store.partitions.sqlite import Damaged as Damaged
from millpond.actors.store.queue_memtable import QueueMemtable

log = logging.getLogger(__name__)

APPLICATION = int.from_bytes(b"MlpP")
CACHE_KIB = 64
"""Of each open file: there are hundreds."""
CACHE_FLUSH_KIB = 4096
"""While one is flushed: keys go to pages at random, and with too few each is written many times."""

FREE_PAGES = 64
"""So many unused pages, or a quarter of the file if that is more, are not worth giving back."""
CHECKPOINT_BYTES = 2**20
"""After a flush as large as this the write-ahead log is emptied, else SQLite does it in time."""
_PAGES_A_STEP, _STEPS = 1024, 16


class ScrubPoint(msgspec.Struct, frozen=True):
    """The point in a large file that a scrub has come to: behind the message id, or at the
    sequence, `after`. In `version` of the file there were so many `rows` and bytes before it, whose
    CRCs add up to `sums`."""

    version: tuple[int, int]
    after: int
    rows: int = 0
    size: int = 0
    sums: RowSums = RowSums()


class Partition:
    """One open file. After an error of SQLite, close it and open it again.

    Methods raise Damaged, and sqlite3.Error for what may pass.
    """

    __slots__ = ("_connection", "_header", "_is_torn", "_name", "_version", "is_named")

    def __init__(
        self, connection: sqlite3.Connection, name: bytes | None, kind: PartitionKind | None
    ) -> None:
        """Read what the file says of itself. Without `name` and `kind` it tells them.

        A file that was never used takes the name, and has it (`is_named`) after the first `apply`.
        Raises Damaged if the file is that of another; the connection stays the caller's then.
        """
        self._connection = connection
        self._name = name
        with damage_named():
            self._version = prepare(connection, APPLICATION, CACHE_KIB)
            self._header = self._read()
        # Only now the caller can tell whether this is an older copy, of which nothing is discarded.
        self._is_torn = True
        found = self._header
        if name is not None and name != found.name:
            raise Damaged(f"the file of {found.name!r} in the place of {name!r}")
        if kind is not None and kind is not found.kind:
            raise Damaged(f"a {found.kind.name.lower()} in the place of a {kind.name.lower()}")

    @property
    def metadata(self) -> PartitionMetadata:
        """As of the last `apply`."""
        return self._header.metadata

    def apply(
        self, memtable: QueueMemtable | LogMemtable, applied: int, frozen_at: int = 0
    ) -> PartitionMetadata:
        """Bring in a memtable: every change up to `applied` is in the file then. Applying the same
        memtable again changes nothing. Gives space back when much of the file is unused."""
        with damage_named():
            self._reload()
            header = msgspec.structs.replace(self._header)
            self._connection.execute(f"PRAGMA cache_size = -{CACHE_FLUSH_KIB}")
            self._is_torn = True
            with transaction(self._connection):
                flush = Flush(self._connection, header)
                if isinstance(memtable, QueueMemtable):
                    queue_tables.apply(flush, memtable)
                else:
                    log_tables.apply(flush, memtable)
                header.applied = max(header.applied, applied)
                header.frozen_at = max(header.frozen_at, frozen_at)
                write_header(self._connection, header)
            self._header, self._is_torn, self.is_named = header, False, True
            self._give_back(flush.total)
            self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        return header.metadata

    def load(self) -> Snapshot:
        """All of a queue."""
        with damage_named():
            self._reload()
            return queue_tables.load(self._connection, self._header)

    def log_snapshot(self) -> LogSnapshot:
        """A log without its records."""
        with damage_named():
            self._reload()
            return log_tables.log_snapshot(self._connection, self._header)

    def read(self, seek: Seek) -> list[Chunk]:
        """Chunks of a log."""
        with damage_named():
            self._reload()
            return log_tables.read(self._connection, self._header, seek)

    def local_bytes(self) -> log_tables.LocalBytes:
        """The bytes of a log in the file, and in the replica alone."""
        with damage_named():
            self._reload()
            return log_tables.local_bytes(self._connection)

    def oldest_local(self, bytes_max: int, count_max: int) -> list[Chunk]:
        """The oldest chunks of a log that are in the file; none if an earlier version made it."""
        with damage_named():
            self._reload()
            if self._version < SEEDED_FORMAT:
                return []
            return log_tables.oldest_local(self._connection, self._header, bytes_max, count_max)

    def make_cold(self, moved: Sequence[tuple[Chunk, ColdReference]]) -> int:
        """Put references in the place of the data of chunks, all at once; gives the bytes that
        went."""
        with damage_named():
            self._reload()
            self._is_torn = True
            with transaction(self._connection):
                gone = log_tables.make_cold(self._connection, self._header, moved)
            self._is_torn = False
            if gone:
                self._version = COLD_FORMAT
                self._give_back(gone)
        return gone

    def next_cold(self, sequence: int) -> ColdReference | None:
        """The reference of the first cold chunk from a sequence on."""
        with damage_named():
            self._reload()
            return log_tables.next_cold(self._connection, self._header, sequence)

    def cold_objects(self) -> dict[tuple[int, int], int]:
        """The objects of the replica that a log needs, by epoch and number, with the bytes that it
        needs of each."""
        with damage_named():
            self._reload()
            if self._version < COLD_FORMAT or self._header.kind is not PartitionKind.LOG:
                return {}
            return log_tables.cold_objects(self._connection)

    def cold_count(self) -> log_tables.ColdCount:
        """The records and bytes of a log that are in the replica alone."""
        with damage_named():
            self._reload()
            if self._version < COLD_FORMAT or self._header.kind is not PartitionKind.LOG:
                return log_tables.ColdCount(0, 0)
            return log_tables.cold_count(self._connection)

    def make_local(self, read: Callable[[bytes, ColdChunk], bytes], bytes_max: int) -> int:
        """Put data that was in the replica alone into the file, about so many bytes; 0: all is in
        it. `read` gives the data of a chunk of the log that it is called with."""
        with damage_named():
            self._reload()
            self._is_torn = True
            with transaction(self._connection):
                size = log_tables.make_local(
                    self._connection,
                    self._header,
                    partial(read, self._header.name or b""),
                    bytes_max,
                )
            self._is_torn = False
            return size

    def scrub(self, point: ScrubPoint | None, bytes_max: int) -> tuple[int, ScrubPoint | None]:
        """Read a slice of a large file. Gives the bytes read, and where to go on (None: nowhere).
        Raises Damaged."""
        with damage_named():
            self._reload()
            header = self._header
            if header.kind is PartitionKind.LOG:
                return self._scrub_log(0 if point is None else point.after, bytes_max)
            version = header.applied, header.frozen_at
            if point is None:
                point = ScrubPoint(version, 0)
            after, rows, size, some = queue_tables.check_rows(
                self._connection, header, point.after, bytes_max
            )
            sums = point.sums.plus(rows=some.rows, delivery=some.delivery)
            found = ScrubPoint(point.version, after, point.rows + rows, point.size + size, sums)
            if rows:
                return size, found
            others = queue_tables.check_keys(self._connection, header)
            if point.version == version:
                sums = sums.plus(rows=others.rows, delivery=others.delivery)
                queue_tables.check_counts(header, found.rows, found.size, sums)
            return size, None

    def _scrub_log(self, at: int, bytes_max: int) -> tuple[int, ScrubPoint | None]:
        if not at:
            log_tables.log_snapshot(self._connection, self._header)
        seek = Seek(SeekBy.SEQUENCE, at, bytes_max=bytes_max)
        chunks = log_tables.read(self._connection, self._header, seek)
        size = sum(len(chunk.data) for chunk in chunks)
        if not chunks or chunks[-1].end >= self._header.tail:
            return size, None
        return size, ScrubPoint((0, 0), chunks[-1].end)

    def verify(self) -> list[str]:
        """Look at everything; texts of what is wrong, none if all is well."""
        wrong: list[str] = []
        try:
            with damage_named():
                self._reload()
                wrong += integrity_check(self._connection)
                if self._header.kind is PartitionKind.QUEUE:
                    wrong.extend(queue_tables.verify(self._connection, self._header))
                else:
                    wrong.extend(log_tables.verify(self._connection, self._header))
        except Damaged as exc:
            wrong.append(str(exc))
        return wrong

    def close(self) -> None:
        """Give the file up."""
        self._connection.close()

    def _reload(self) -> None:
        """Before the first use, and after a flush that failed, and may even so have come to its
        end: see what is there, and discard what a flush left that did not."""
        if self._is_torn:
            header = self._read()
            if header.kind is PartitionKind.QUEUE:
                queue_tables.discard_unfinished(self._connection, header)
            else:
                log_tables.discard_unfinished(self._connection, header)
            self._header, self._is_torn = header, False

    def _read(self) -> FileHeader:
        header = read_header(self._connection)
        self.is_named = header.name is not None
        if not self.is_named:
            header.name = self._name
        if header.name is not None and self._version >= SEEDED_FORMAT:
            header.seed = seed_of(header.name)
        return header

    def _give_back(self, written: int) -> None:
        try:
            is_shorter = self._vacuum()
            if is_shorter or written >= CHECKPOINT_BYTES:
                self._checkpoint()
        except sqlite3.OperationalError as exc:
            # The data is stored. Its space is given back another time.
            log.warning("no space given back: partition=%r error=%s", self._header.name, exc)

    def _checkpoint(self) -> None:
        """Empty the write-ahead log. A reader beside, which a snapshot is, is not waited for."""
        (wait_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _vacuum(self) -> bool:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        if free <= max(FREE_PAGES, pages // 4):
            return False
        for _ in range(min(-(-free // _PAGES_A_STEP), _STEPS)):
            # `execute` would give back one page: this pragma wants to be stepped through.
            self._connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_A_STEP})")
        return True


def build_file(
    name: bytes,
    kind: PartitionKind,
    memtable: QueueMemtable | LogMemtable,
    applied: int,
    frozen_at: int,
) -> tuple[bytes, PartitionMetadata]:
    """A new file that has `memtable` in it already: one write, where a transaction takes four."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(without_wal(empty_file(kind)))
        metadata = Partition(connection, name, kind).apply(memtable, applied, frozen_at)
        return with_wal(connection.serialize()), metadata
    finally:
        connection.close()


@cache
def empty_file(kind: PartitionKind) -> bytes:
    """An empty partition, as a file."""
    header = FileHeader(None, kind)
    match kind:
        case PartitionKind.QUEUE:
            schema = QUEUE_SCHEMA + queue_tables.SCHEMA
            header.row_sums = RowSums()
        case PartitionKind.LOG:
            schema = LOG_SCHEMA + log_tables.SCHEMA
            header.properties = PropertyCount()
        case _:
            assert_never(kind)
    return make_file(
        schema, APPLICATION, lambda connection: write_header(connection, header), FORMAT
    )
