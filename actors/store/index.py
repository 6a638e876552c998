"""The index of a durable store: one entry for each partition, kept while the node runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, assert_never

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    LogDeleted,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    PartitionKind,
    StoredMessage,
)
from millpond.actors.store.interface import Fault, PartitionUsage, Usage
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)

Memtable = QueueMemtable | LogMemtable


def new_memtable(kind: PartitionKind, *, is_oldest: bool) -> Memtable:
    """An empty memtable."""
    match kind:
        case PartitionKind.QUEUE:
            return QueueMemtable(is_oldest=is_oldest)
        case PartitionKind.LOG:
            return LogMemtable(is_oldest=is_oldest)
        case _:
            assert_never(kind)


def fold(memtable: Memtable, changes: Iterable[Change]) -> None:
    """Take changes into a memtable of their kind."""
    memtable.fold(changes)  # type: ignore[arg-type]  # a partition has changes of one kind only


def may_overlap(memtable: Memtable | None) -> bool:
    """True: the file or an older memtable may have the same messages as this one."""
    return isinstance(memtable, QueueMemtable) and memtable.may_overlap


def copy_of(memtable: Memtable, kind: PartitionKind) -> Memtable:
    """A memtable with the same content, over the same file or older memtable."""
    copy = new_memtable(kind, is_oldest=memtable.is_oldest)
    if isinstance(copy, QueueMemtable):
        copy.may_overlap = may_overlap(memtable)
    fold(copy, memtable.changes())
    return copy


class IndexEntry:
    """A partition by name.

    `memtable` is what the journal has and the file has not; while compaction moves it, it is
    `frozen` and a new memtable collects changes. `oldest_segment` is the first segment that the
    memtable needs.
    """

    __slots__ = (
        "bytes",
        "durability",
        "fault",
        "frozen",
        "has_file",
        "in_flight",
        "keys",
        "kind",
        "lsn",
        "memtable",
        "messages",
        "mode",
        "name",
        "oldest_segment",
        "tail",
        "unapplied",
    )

    def __init__(self, name: bytes, kind: PartitionKind, durability: Durability) -> None:
        self.name = name
        self.kind = kind
        self.durability = durability
        self.memtable: Memtable | None = None
        self.frozen: Memtable | None = None
        self.has_file = False
        self.oldest_segment = 0
        self.in_flight = 0
        """Writes that are not folded in yet."""
        self.lsn = 0
        """The last one that was folded in."""
        self.unapplied: tuple[object, LogMemtable] | None = None
        """The writes that are not folded in yet, as of when a reader last asked for them."""
        self.fault: Fault | None = None
        self.messages = 0
        self.bytes = 0
        self.keys = 0
        """Keys whose message is removed, and subscribers."""
        self.mode: Mode | None = None
        self.tail: int | None = None
        """The sequence behind the last stored record of a log; None: not known since the start."""

    @property
    def stored_tail(self) -> int | None:
        """The tail of a log that has no writes on their way; None otherwise."""
        return None if self.in_flight or self.fault is not None else self.tail

    @property
    def is_idle(self) -> bool:
        """True: nothing is stored, and nothing is known that a restart would not know."""
        return (
            self.memtable is None
            and self.frozen is None
            and not self.has_file
            and not self.in_flight
            and self.fault is None
            and not self.messages
            and not self.keys
        )

    def fold(self, lsn: int, changes: Sequence[Change], segment: int) -> None:
        """Changes are as durable as they will be: they are in `segment`."""
        memtable = self.memtable
        if memtable is None:
            is_oldest = not self.has_file and self.frozen is None
            memtable = self.memtable = new_memtable(self.kind, is_oldest=is_oldest)
            self.oldest_segment = segment
        if not memtable.fold(changes):  # type: ignore[arg-type]  # they are of this kind only
            self.memtable = None
        if isinstance(memtable, LogMemtable):
            if memtable.chunks:
                self.tail = memtable.chunks[-1].end
            elif memtable.is_fresh or memtable.is_oldest:
                self.tail = 0
        self.lsn = lsn

    def usage(self) -> PartitionUsage:
        return PartitionUsage(self.messages, self.bytes, self.messages + self.keys, self.mode)


class Counted(Protocol):
    """A partition whose usage is counted."""

    kind: PartitionKind
    messages: int
    bytes: int
    keys: int
    mode: Mode | None


def count_usage(entry: Counted, changes: Sequence[Change], usage: Usage, sign: int) -> bool:
    """Count the usage of changes for an entry and the node (`sign` 1), or take it back (-1).

    True: one of them is waited for.
    """
    if entry.kind is PartitionKind.LOG:
        size = 0
        for change in changes:
            if type(change) is Chunk:
                size += len(change.data)
            elif type(change) is LogTrimmed or type(change) is LogDeleted:
                size -= change.size
        size *= sign
        entry.bytes += size
        usage.log_bytes += size
        return True
    is_awaited = False
    messages = added = keys = 0
    for change in changes:
        match change:
            case StoredMessage():
                is_awaited = True
                messages += 1
                added += len(change.data)
            case MessageRemoved():
                messages -= 1
                added -= change.size
                keys += change.left is not None
            case KeyExpired():
                keys -= change.was_left
            case ModeSet():
                entry.mode = change.mode
            case KeyRetained() | Subscriber():
                keys += 1
            case SubscriberRemoved():
                keys -= 1
            case AttemptsSet() | DeadlineSet() | DueAt() | UniqueKey():
                pass
            case SubscriberTouched() | Acked() | AckedUpTo():
                pass
            case Chunk() | LogTrimmed() | MetadataSet() | LogDeleted():
                raise AssertionError("a queue does not take changes of a log")
            case _:
                assert_never(change)
    messages, added, keys = messages * sign, added * sign, keys * sign
    entry.messages += messages
    entry.bytes += added
    entry.keys += keys
    usage.messages += messages
    usage.bytes += added
    usage.keys += keys
    return is_awaited
