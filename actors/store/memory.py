"""Partitions in memory: a restart of the process forgets them, a crash of a channel does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    PartitionKind,
    Snapshot,
    StoredKey,
    StoredMessage,
    kind_of,
)
from millpond.actors.store.index import fold
from millpond.actors.store.interface import Health, PartitionUsage, Seek, StoredQueue, Usage
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.message_attributes import (
    AttributeChange,
    DueAt,
    MessageAttributes,
    UniqueKey,
)
from millpond.actors.store.queue_memtable import snapshot_of
from millpond.actors.store.reads import select_chunks
from millpond.actors.store.repair.quarantine import Damage
from millpond.actors.store.subscribers import SUBSCRIBER_CHANGES, SubscriberChange, SubscriberTable


class Partition:
    """One channel's rows. Dictionaries keep the order of entry, which is the order of ids."""

    __slots__ = ("attempts", "attributes", "bytes", "keys", "mode", "rows", "subscribers")

    def __init__(self) -> None:
        self.bytes = 0
        self.rows: dict[int, StoredMessage] = {}
        self.keys: dict[int, StoredKey] = {}
        """Keys of messages that are gone; those of kept ones are in their rows."""
        self.attempts: dict[int, int] | None = None
        self.mode: Mode | None = None
        self.subscribers: SubscriberTable | None = None
        self.attributes: MessageAttributes | None = None

    def snapshot(self) -> Snapshot:
        attempts = self.attempts or {}
        return snapshot_of(
            self.rows, self.keys, attempts, self.mode, self.subscribers, self.attributes
        )

    def fold_attribute(self, change: AttributeChange) -> None:
        """A message has something besides, or has not any more."""
        attributes = MessageAttributes() if self.attributes is None else self.attributes
        attributes.fold(change, is_oldest=True)
        self.attributes = attributes or None

    @property
    def remembered(self) -> int:
        """The number of keys of removed messages, and of subscribers."""
        return len(self.keys) + (0 if self.subscribers is None else len(self.subscribers.by_number))


class MemoryStore:
    """The store without a disk. An empty partition is forgotten, so it costs nothing."""

    def __init__(self, usage: Usage | None = None) -> None:
        self.usage = Usage() if usage is None else usage
        self.health = Health()
        self.damages: list[Damage] = []
        self._partitions: dict[bytes, Partition] = {}
        self._logs: dict[bytes, LogMemtable] = {}

    def durability(self, name: bytes) -> Durability:
        return Durability.MEMORY

    def load(self, name: bytes) -> Snapshot:
        partition = self._partitions.get(name)
        return partition.snapshot() if partition is not None else Snapshot()

    def partition_usage(self, name: bytes) -> PartitionUsage:
        partition = self._partitions.get(name)
        if partition is None:
            log = self._logs.get(name)
            return PartitionUsage() if log is None else PartitionUsage(bytes=log.chunk_bytes)
        keys = len(partition.rows) + partition.remembered
        return PartitionUsage(len(partition.rows), partition.bytes, keys, partition.mode)

    def stored_queues(self) -> Iterator[StoredQueue]:
        return iter(())

    def logs(self) -> Iterator[bytes]:
        return iter(())

    def log_snapshot(self, name: bytes) -> LogSnapshot:
        log = self._logs.get(name)
        return log.apply_to(LogSnapshot()) if log is not None else LogSnapshot()

    def log_tail(self, name: bytes) -> int | None:
        """The tail of the log `name`; None: there is nothing of it."""
        log = self._logs.get(name)
        if log is None:
            return None
        return log.chunks[-1].end if log.chunks else 0

    def read(self, name: bytes, seek: Seek) -> list[Chunk]:
        log = self._logs.get(name)
        return select_chunks((log.chunks,), seek, log.trim_point) if log is not None else []

    def write(self, name: bytes, changes: Sequence[Change]) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            log = self._logs.get(name)
            if log is not None and len(changes) == 1 and type(changes[0]) is Chunk:
                log.add(changes[0])  # the append of every day, without another call
                self.usage.log_bytes += len(changes[0].data)
                return
            if log is not None or kind_of(changes[0]) is PartitionKind.LOG:
                self._write_log(name, changes)
                return
            partition = self._partitions[name] = Partition()
        rows, keys = partition.rows, partition.keys
        added = size = 0
        for change in changes:
            # The changes of every day come first, and with the fewest calls.
            if type(change) is StoredMessage:
                rows[change.id] = change
                added += 1
                size += len(change.data)
                if keys and keys.pop(change.key, None) is not None:
                    self.usage.keys -= 1  # the window of the older use is over
            elif type(change) is MessageRemoved:
                self._remove(partition, change)
            elif type(change) is ModeSet:
                partition.mode = change.mode
            else:
                self._apply(partition, change)
        if added:
            partition.bytes += size
            self.usage.messages += added
            self.usage.bytes += size
        if not rows and not partition.keys and partition.subscribers is None:
            del self._partitions[name]

    def _write_log(self, name: bytes, changes: Sequence[Change]) -> None:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = LogMemtable(is_oldest=True)
        before = log.chunk_bytes
        fold(log, changes)
        log.strip()
        self.usage.log_bytes += log.chunk_bytes - before
        if not log:
            del self._logs[name]

    def _apply(self, partition: Partition, change: Change) -> None:
        match change:
            case StoredMessage() | MessageRemoved() | ModeSet():
                raise AssertionError("handled where they arrive")
            case KeyExpired():
                if partition.keys.pop(change.key, None) is not None:
                    self.usage.keys -= 1
            case AttemptsSet():
                if partition.attempts is None:
                    partition.attempts = {}
                partition.attempts[change.id] = change.attempts
            case DeadlineSet():
                if (row := partition.rows.get(change.id)) is not None:
                    limited = msgspec.structs.replace(row, expires_at=change.expires_at)
                    partition.rows[change.id] = limited
            case KeyRetained():
                if change.key not in partition.keys:
                    self.usage.keys += 1
                partition.keys[change.key] = change.left
            case DueAt() | UniqueKey():
                partition.fold_attribute(change)
            case _ if isinstance(change, SUBSCRIBER_CHANGES):
                self._apply_subscriber(partition, change)
            case Chunk() | LogTrimmed() | MetadataSet() | LogDeleted():
                raise AssertionError("a queue does not take changes of a log")
            case _:
                assert_never(change)

    def _apply_subscriber(self, partition: Partition, change: SubscriberChange) -> None:
        before = partition.remembered
        subscribers = SubscriberTable() if partition.subscribers is None else partition.subscribers
        subscribers.fold(change, is_oldest=True)
        partition.subscribers = subscribers or None
        self.usage.keys += partition.remembered - before

    def _remove(self, partition: Partition, gone: MessageRemoved) -> None:
        row = partition.rows.pop(gone.id, None)
        if row is None:
            return
        partition.bytes -= len(row.data)
        self.usage.messages -= 1
        self.usage.bytes -= len(row.data)
        if partition.attempts is not None:
            partition.attempts.pop(gone.id, None)
        if partition.subscribers is not None:
            partition.subscribers.forget(gone.id)
            partition.subscribers = partition.subscribers or None
        if partition.attributes is not None:
            partition.attributes.forget(gone.id)
            partition.attributes = partition.attributes or None
        if gone.left is not None:
            partition.keys[gone.key] = gone.left
            self.usage.keys += 1
