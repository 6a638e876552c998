"""The rows that a damaged partition file still has: every one with the right checksum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import assert_never

import msgspec

from millpond.actors.store.changes import Chunk, PartitionKind, Snapshot, StoredKey, StoredMessage
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.message_attributes import MessageAttributes
from millpond.actors.store.partitions.metadata import FileHeader
from millpond.actors.store.queue_memtable import snapshot_of
from millpond.actors.store.repair.damaged_logs import log_of
from millpond.actors.store.repair.sqlite_pages import BadRow, FoundRow, read_rows
from millpond.actors.store.repair.stored_rows import (
    MESSAGE_COLUMNS,
    NOTE_COLUMNS,
    AckRow,
    DueRow,
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


class SalvagedQueue(msgspec.Struct):
    """A queue. `lost` are ids whose message is not what was written; `lost_count` is how many
    messages are lost, of most of which no id is known (None: it cannot be told)."""

    snapshot: Snapshot
    lost: list[int]
    lost_count: int | None = None


class SalvagedLog(msgspec.Struct):
    """A log: chunks ascend, and have no sequence in common; `header` is None if it cannot be
    read. `lost_metadata` is the number of properties that are known to be there and are not what
    was written."""

    chunks: list[Chunk]
    metadata: dict[bytes, bytes]
    header: FileHeader | None
    lost_metadata: int = 0


class SalvagedFile:
    """What is good in a file and its write-ahead log."""

    def __init__(self, file: bytes, wal: bytes) -> None:
        self.header: FileHeader | None = None
        self._messages: dict[int, MessageRow] = {}
        self._keys: dict[int, StoredKey] = {}
        self._subscribers: dict[int, SubscriberRow] = {}
        self._acks: set[AckRow] = set()
        self._attributes = MessageAttributes()
        self._chunks: dict[int, Chunk] = {}
        self._older_chunks: dict[int, Chunk] = {}
        self._notes: dict[bytes, bytes] = {}
        self._bad: set[BadRow] = set()
        self._tables = file[:4096]
        self._read(file, wal)

    def _read(self, file: bytes, wal: bytes) -> None:
        bad: list[BadRow] = []
        older: dict[BadRow, StoredRow] = {}
        rows: Iterator[FoundRow[StoredRow]] = read_rows(file, wal, decode_row, bad)
        for found in rows:
            row = found.row
            if found.is_current:
                self._add(row)
            elif isinstance(row, Chunk):
                self._older_chunks[row.first] = row
            elif found.rowid is not None:
                older[BadRow(found.rowid, columns_of(row))] = row
        for each in bad:
            # What is there and not readable is what its older copy says.
            if each in older:
                self._add(older[each])
            else:
                self._bad.add(each)

    def _add(self, row: StoredRow) -> None:
        match row:
            case FileHeader():
                self.header = max(self.header or row, row, key=_age)
            case MessageRow():
                self._messages[row.message.id] = row
            case KeyRow():
                self._keys[row.key] = row.left
            case SubscriberRow():
                self._subscribers[row.subscriber.number] = row
            case AckRow():
                self._acks.add(row)
            case DueRow():
                self._attributes.due[row.message_id] = row.due
            case UniqueRow():
                self._attributes.names[row.message_id] = row.name
            case Chunk():
                self._chunks[row.first] = row
            case NoteRow():
                self._notes[row.name] = row.value
            case _:
                assert_never(row)

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
        read."""
        header = self.header
        last_id = last_id if header is None else header.last_id
        # Anything above was never acknowledged, or the journal has it.
        rows: dict[int, StoredMessage] = {}
        attempts: dict[int, int] = {}
        for message_id, (message, tried) in self._messages.items():
            if last_id is None or message_id <= last_id:
                rows[message_id] = message
                if tried:
                    attempts[message_id] = tried
        lost = sorted(
            each.rowid
            for each in self._bad
            if each.columns == MESSAGE_COLUMNS and each.rowid not in rows
        )
        mode = None if header is None else header.mode
        count = None if header is None else max(header.messages - len(rows), len(lost))
        subscribers = self._subscriber_table()
        attributes = self._attributes
        snapshot = snapshot_of(rows, self._keys, attempts, mode, subscribers, attributes)
        return SalvagedQueue(snapshot, lost, count)

    def _subscriber_table(self) -> SubscriberTable | None:
        table = SubscriberTable()
        for number, (subscriber, floor) in self._subscribers.items():
            table.by_number[number], table.floors[number] = subscriber, floor
        for message_id, number in self._acks:
            table.acked.setdefault(number, set()).add(message_id)
        return table or None

    def log(self, tail: int | None = None) -> SalvagedLog:
        """The content of a log's file. `tail`: its end, if its header cannot be read."""
        # Anything above was never acknowledged, or the journal has it.
        header = self.header
        tail = tail if header is None else header.tail
        chunks = [
            chunk for first, chunk in sorted(self._chunks.items()) if tail is None or first < tail
        ]
        chunks = _without_overlaps(chunks)
        chunks = list(_completed(chunks, self._older_chunks))
        lost_metadata = sum(each.columns == NOTE_COLUMNS for each in self._bad)
        return SalvagedLog(chunks, self._notes, header, lost_metadata)


def read_partition(path: Path, disk: Disk, name: bytes | None = None) -> SalvagedFile:
    """What is good in the file of a partition, which may be missing. A file or a log that says that
    it is another's than `name` (None: any) counts for nothing: its messages and records are for
    clients of the other one alone. Raises OSError.
    """
    file, log = (disk.read(each) if disk.has(each) else b"" for each in (path, log_of(path)))
    if _is_foreign(SalvagedFile(file, b""), name):
        file = b""
    if log and _is_foreign(SalvagedFile(b"", log), name):
        log = b""
    return SalvagedFile(file, log)


def _is_foreign(found: SalvagedFile, name: bytes | None) -> bool:
    return name is not None and found.header is not None and found.header.name not in (None, name)


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
