"""The rows that a damaged partition file still has: every one with the right checksum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import assert_never

import msgspec

from millpond.actors.store.changes import Chunk, PartitionKind, Snapshot, StoredMessage
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.message_attributes import MessageAttributes
from millpond.actors.store.partitions.metadata import (
    FileHeader,
    PartitionMetadata,
    PropertyCount,
    RowSums,
    property_count,
)
from millpond.actors.store.partitions.queue_tables import attempts_crc
from millpond.actors.store.partitions.sqlite import SEEDED_FORMAT, seed_of, version_of
from millpond.actors.store.queue_memtable import snapshot_of
from millpond.actors.store.repair.damaged_logs import log_of
from millpond.actors.store.repair.misplaced_pages import KnownRows, known_rows, unique_part
from millpond.actors.store.repair.sqlite_pages import BadRow, Decode, FoundRow, read_rows
from millpond.actors.store.repair.sqlite_wal import PAGE_BYTES
from millpond.actors.store.repair.stored_rows import (
    MESSAGE_COLUMNS,
    NOTE_COLUMNS,
    AckRow,
    DueRow,
    ForeignRow,
    KeyRow,
    MessageRow,
    NoteRow,
    StoredRow,
    SubscriberRow,
    UniqueRow,
    columns_of,
    decode_row,
)
from millpond.actors.store.subscribers import SubscriberTable

OnPage = Callable[[int, int], None]
"""Called with the number of the pages of a file that were read, and with that of all."""


class SalvagedQueue(msgspec.Struct):
    """A queue. `lost` are ids whose message is not what was written; `lost_count` is how many
    messages are lost, of most of which no id is known (None: it cannot be told)."""

    snapshot: Snapshot
    lost: list[int]
    lost_count: int | None = None
    has_older: bool = False
    """True: some rows are older than the header, which hides as many that are lost."""
    is_delivery_known: bool = True
    """False: subscribers, acks, attempts and attributes may not be those that were written last."""


class SalvagedLog(msgspec.Struct):
    """A log: chunks ascend, and have no sequence in common; `header` is None if it cannot be
    read. `lost_metadata` is the number of properties that are missing, or are not what was
    written, at least; unless `is_metadata_known`, nothing tells whether there were more."""

    chunks: list[Chunk]
    metadata: dict[bytes, bytes]
    header: FileHeader | None
    lost_metadata: int = 0
    is_metadata_known: bool = True


def has_removed(metadata: PartitionMetadata, rows: Collection[StoredMessage]) -> bool:
    """True: among the rows of a queue's file are some that were removed from it: an older copy of a
    page is back. They hide as many that are lost."""
    size = sum(len(row.data) for row in rows)
    is_other = len(rows) == metadata.messages and size != metadata.bytes
    return len(rows) > metadata.messages or is_other


class SalvagedFile:
    """The good rows of a file and its write-ahead log. A header of another partition than `name` is
    not the file's: its page was written to the wrong place. Nor are rows whose CRCs are from the
    seeds of other files (`decode`), or those on pages of which `misplaced` has rows."""

    def __init__(
        self,
        file: bytes,
        wal: bytes,
        name: bytes,
        decode: Decode[StoredRow] = decode_row,
        misplaced: KnownRows | None = None,
        on_page: OnPage | None = None,
    ) -> None:
        self.header: FileHeader | None = None
        self.foreign_names: set[bytes] = set()
        """Those in headers of other partitions."""
        self.unique_parts: set[Hashable] = set()
        """Of all rows, those parts that no other partition has."""
        self._name = name
        self._messages: dict[int, MessageRow] = {}
        self._keys: dict[int, KeyRow] = {}
        self._subscribers: dict[int, SubscriberRow] = {}
        self._acks: set[AckRow] = set()
        self._dues: dict[int, DueRow] = {}
        self._uniques: dict[int, UniqueRow] = {}
        self._chunks: dict[int, Chunk] = {}
        self._older_chunks: dict[int, Chunk] = {}
        self._notes: dict[bytes, NoteRow] = {}
        self._bad: set[tuple[int, int]] = set()
        """Numbers of rows that are not what was written, with their columns."""
        self._tables = file[:4096]
        self._read(file, wal, decode, misplaced, on_page)

    def _read(
        self,
        file: bytes,
        wal: bytes,
        decode: Decode[StoredRow],
        misplaced: KnownRows | None,
        on_page: OnPage | None,
    ) -> None:
        bad: list[BadRow] = []
        older: dict[tuple[int, int], StoredRow] = {}
        rows: Iterable[FoundRow[StoredRow]] = read_rows(file, wal, decode, bad)
        if on_page is not None:
            rows = _reported(rows, (len(file) + len(wal)) // PAGE_BYTES, on_page)
        left_out: set[int] = set()
        if misplaced is not None:
            rows = list(rows)
            left_out = misplaced.pages(rows)
        for found in rows:
            row = found.row
            if found.page in left_out:
                continue
            if found.is_current:
                self._add(row)
            elif isinstance(row, Chunk):
                self._older_chunks[row.first] = row
            elif found.rowid is not None:
                older[found.rowid, columns_of(row)] = row
        for each in bad:
            # A page that is there and not readable is taken from its older copy.
            if (each.rowid, each.columns) in older:
                self._add(older[each.rowid, each.columns])
            elif each.page not in left_out:
                self._bad.add((each.rowid, each.columns))

    def _add(self, row: StoredRow) -> None:
        part = unique_part(row)
        if part is not None:
            self.unique_parts.add(part)
        match row:
            case FileHeader():
                if row.name in (None, self._name):
                    self.header = max(self.header or row, row, key=_age)
                elif row.name is not None:
                    self.foreign_names.add(row.name)
            case MessageRow():
                self._messages[row.message.id] = row
            case KeyRow():
                self._keys[row.key] = row
            case SubscriberRow():
                self._subscribers[row.subscriber.number] = row
            case AckRow():
                self._acks.add(row)
            case DueRow():
                self._dues[row.message_id] = row
            case UniqueRow():
                self._uniques[row.message_id] = row
            case Chunk():
                self._chunks[row.first] = row
            case NoteRow():
                self._notes[row.name] = row
            case ForeignRow():
                pass
            case _:
                assert_never(row)

    @property
    def is_foreign(self) -> bool:
        """True: all headers are those of other partitions."""
        return bool(self.foreign_names) and self.header is None

    @property
    def is_as_counted(self) -> bool:
        """True: the rows are as many, and as large, as the header says."""
        header = self.header
        if header is None:
            return False
        match header.kind:
            case PartitionKind.QUEUE:
                rows = self._messages_until(header.last_id)
                keys = len(self._keys) + len(self._subscribers)
                size = sum(len(row.message.data) for row in rows)
                is_counted = (len(rows), size, keys) == (
                    header.messages,
                    header.bytes,
                    header.keys,
                )
                return is_counted and header.row_sums in (None, self._row_sums(header.last_id))
            case PartitionKind.LOG:
                found = self.log()
                records = sum(chunk.count for chunk in found.chunks)
                size = sum(chunk.size for chunk in found.chunks)
                is_counted = (records, size) == (header.messages, header.bytes)
                return is_counted and not found.lost_metadata
            case _:
                assert_never(header.kind)

    def _messages_until(self, last_id: int | None) -> list[MessageRow]:
        """Messages up to this id; None: all."""
        rows = self._messages.values()
        return [row for row in rows if last_id is None or row.message.id <= last_id]

    def _row_sums(self, last_id: int) -> RowSums:
        """The sums of all rows of a queue, as its header has them."""
        messages = self._messages_until(last_id)
        rows = [*(row.crc for row in messages), *(row.crc for row in self._keys.values())]
        lesser = [attempts_crc(row.message.id, row.attempts) for row in messages]
        lesser += (row.crc for row in self._subscribers.values())
        lesser += (row.crc for row in self._acks)
        lesser += (row.crc for row in self._dues.values())
        lesser += (row.crc for row in self._uniques.values())
        return RowSums().plus(rows=sum(rows), delivery=sum(lesser))

    @property
    def is_empty(self) -> bool:
        """True: nothing of a log was found."""
        return self.header is None and not self._chunks and not self._notes

    @property
    def kind(self) -> PartitionKind | None:
        """The kind of the partition; None if nothing tells it."""
        if self.header is not None:
            return self.header.kind
        if self._chunks or self._notes or b"CREATE TABLE chunks" in self._tables:
            return PartitionKind.LOG
        has_rows = self._messages or self._keys or self._subscribers
        if has_rows or b"CREATE TABLE messages" in self._tables:
            return PartitionKind.QUEUE
        return None

    def queue(self, last_id: int | None = None) -> SalvagedQueue:
        """The content of a queue's file. `last_id`: the highest one in it, if its header cannot be
        read or is an older one."""
        header = self.header
        last_id = last_id if header is None else max(header.last_id, last_id or 0)
        # Anything above was never acknowledged, or the journal has it.
        rows: dict[int, StoredMessage] = {}
        attempts: dict[int, int] = {}
        for row in self._messages_until(last_id):
            rows[row.message.id] = row.message
            if row.attempts:
                attempts[row.message.id] = row.attempts
        lost = sorted(
            number
            for number, columns in self._bad
            if columns == MESSAGE_COLUMNS and number not in rows
        )
        mode = None if header is None else header.mode
        count = None
        if header is not None and not has_removed(header.metadata, rows.values()):
            count = max(header.messages - len(rows), len(lost))
        expected = None if header is None else header.row_sums
        sums = self._row_sums(header.last_id) if header is not None else RowSums()
        # Where rows are missing, the sum tells no more than the count of those does.
        has_older = count == 0 and expected is not None and sums.rows != expected.rows
        is_delivery_known = expected is not None and sums.delivery == expected.delivery
        subscribers = self._subscriber_table()
        keys = {row.key: row.left for row in self._keys.values()}
        snapshot = snapshot_of(rows, keys, attempts, mode, subscribers, self._attributes())
        return SalvagedQueue(
            snapshot, lost, None if has_older else count, has_older, is_delivery_known
        )

    def _subscriber_table(self) -> SubscriberTable | None:
        table = SubscriberTable()
        for number, (subscriber, floor, _) in self._subscribers.items():
            table.by_number[number], table.floors[number] = subscriber, floor
        for message_id, number, _ in self._acks:
            table.acked.setdefault(number, set()).add(message_id)
        return table or None

    def _attributes(self) -> MessageAttributes:
        return MessageAttributes(
            {row.message_id: row.due for row in self._dues.values()},
            {row.message_id: row.name for row in self._uniques.values()},
        )

    def log(self, tail: int | None = None, *, is_header_old: bool = False) -> SalvagedLog:
        """The content of a log's file. `tail`: its end, if its header cannot be read or is an older
        one (`is_header_old`)."""
        # Anything above was never acknowledged, or the journal has it.
        header = self.header
        tail = tail if header is None else max(header.tail, tail or 0)
        chunks = [
            chunk for first, chunk in sorted(self._chunks.items()) if tail is None or first < tail
        ]
        chunks = _without_overlaps(chunks)
        chunks = list(_completed(chunks, self._older_chunks))
        lost_metadata = sum(columns == NOTE_COLUMNS for _, columns in self._bad)
        expected = None if header is None or is_header_old else header.properties
        if expected is not None:
            lost_metadata = max(lost_metadata, self._missing_metadata(expected))
        notes = {row.name: row.value for row in self._notes.values()}
        return SalvagedLog(chunks, notes, header, lost_metadata, expected is not None)

    def _missing_metadata(self, expected: PropertyCount) -> int:
        """The number of properties that are not what the header counts; at least one if they are
        others than those."""
        found = property_count(row.crc for row in self._notes.values())
        return max(expected.count - found.count, int(found != expected))


def read_partition(
    path: Path,
    disk: Disk,
    name: bytes,
    path_of: Callable[[bytes], Path] | None = None,
    other_seeds: AbstractSet[int] = frozenset(),
    on_page: OnPage | None = None,
) -> SalvagedFile:
    """The good rows in a partition's file, which may be missing. Of another partition than `name`
    none counts: they are for clients of that one alone. Those whose CRC is from one of
    `other_seeds` are known to be of another file, and do not count as damaged ones of this one.
    `on_page` is called while a file is read, but not for one of an earlier version. Raises OSError.
    """
    file, log = _contents(path, disk)
    seed = seed_of(name)
    if _is_seeded(file, log, seed):
        seeds = other_seeds - {seed} | {0}
        decode = partial(decode_row, seed=seed, other_seeds=seeds)
        return SalvagedFile(file, log, name, decode, on_page=on_page)
    return _read_without_seed(file, log, disk, name, path_of)


def _reported(
    rows: Iterable[FoundRow[StoredRow]], pages: int, on_page: OnPage
) -> Iterator[FoundRow[StoredRow]]:
    """The rows, which report the pages that they come from."""
    page = 0
    for row in rows:
        if row.page != page:
            page = row.page
            on_page(page, max(page, pages))
        yield row


def _is_seeded(file: bytes, log: bytes, seed: int) -> bool:
    """True: the CRCs of rows are from the seed of the file. A row of it proves that; where there is
    none, the version that the first page tells is believed."""
    rows = read_rows(file, log, partial(decode_row, seed=seed))
    if any(not isinstance(each.row, FileHeader) for each in rows):
        return True
    return version_of(file) >= SEEDED_FORMAT


def _read_without_seed(
    file: bytes,
    log: bytes,
    disk: Disk,
    name: bytes,
    path_of: Callable[[bytes], Path] | None,
) -> SalvagedFile:
    """Of a file of an earlier version, whose rows do not tell their file.

    A file or a log that says only that it is another's counts for nothing, unless its own header is
    in the log and something proves that the file is this one's. Where there is the header of
    another one, pages of rows that are in the file of that one, at `path_of` its name, do not
    count. Raises OSError.
    """
    of_file, of_log = SalvagedFile(file, b"", name), SalvagedFile(b"", log, name)
    if of_log.is_foreign:
        log = b""
    foreign_names = of_file.foreign_names | of_log.foreign_names
    theirs = None if path_of is None else _rows_of(foreign_names, name, path_of, disk)
    if of_file.is_foreign and not _is_own(of_file, of_log, SalvagedFile(file, log, name), theirs):
        file = b""
    if foreign_names and theirs is not None:
        found = SalvagedFile(file, log, name, misplaced=theirs.without_common)
        return found if found.is_as_counted else SalvagedFile(file, log, name, misplaced=theirs)
    return SalvagedFile(file, log, name)


def _contents(path: Path, disk: Disk) -> tuple[bytes, bytes]:
    """A file and its write-ahead log; empty: it is missing."""
    file, log = (disk.read(each) if disk.has(each) else b"" for each in (path, log_of(path)))
    return file, log


def _rows_of(
    names: Iterable[bytes], own: bytes, path_of: Callable[[bytes], Path], disk: Disk
) -> KnownRows | None:
    """The rows in the files of other partitions; None: one of them cannot tell, because it is not
    there, or has pages of this one."""
    unique: set[Hashable] = set()
    common: set[Hashable] = set()
    for name in names:
        file, log = _contents(path_of(name), disk)
        decode = partial(decode_row, seed=seed_of(name) if version_of(file) >= SEEDED_FORMAT else 0)
        parts = SalvagedFile(file, b"", name, decode), SalvagedFile(b"", log, name, decode)
        is_known = parts[0].header is not None and not parts[1].is_foreign
        if not is_known or any(own in part.foreign_names for part in parts):
            return None
        known = known_rows(read_rows(file, log, decode))
        unique |= known.unique
        common |= known.common
    return KnownRows(frozenset(unique), frozenset(common))


def _is_own(
    of_file: SalvagedFile, of_log: SalvagedFile, both: SalvagedFile, theirs: KnownRows | None
) -> bool:
    """True: a file with the header of another partition is that of this one all the same, whose
    newer header is in its log. Pages in the log have rows that are in the file as well, or all is
    there that the header counts, and none of it is the other's."""
    if of_log.header is None:
        return False
    if of_file.unique_parts & of_log.unique_parts:
        return True
    return both.is_as_counted and theirs is not None and not theirs.unique & both.unique_parts


def _age(header: FileHeader) -> tuple[int, int]:
    return header.frozen_at, header.applied


def _without_overlaps(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Chunks that have no sequence in common; where two have, the later one by id is kept: the
    other one is of a log that was deleted."""
    kept: list[Chunk] = []
    for chunk in chunks:
        while kept and kept[-1].end > chunk.first and kept[-1].last_id < chunk.last_id:
            kept.pop()
        if not kept or kept[-1].end <= chunk.first:
            kept.append(chunk)
    return kept


def _completed(chunks: list[Chunk], older: dict[int, Chunk]) -> Iterator[Chunk]:
    """Chunks, and in the holes between them older copies of what was there.

    A copy is one of this log, and not of one that was deleted before it, if its ids lie between
    those around it.
    """
    for before, behind in pairwise(chunks):
        yield before
        while before.end < behind.first:
            found = older.get(before.end)
            if found is None or found.end > behind.first:
                break
            if not before.last_id < found.first_id <= found.last_id < behind.first_id:
                break
            yield found
            before = found
    yield from chunks[-1:]
