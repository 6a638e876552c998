"""Group commit: changes on their way to the disk, in the open group and in those being written.

A lone write goes to the disk at the end of its pass of the event loop. A group of several stays
open as long as each pass brings more, a few passes at most: clients that are answered together ask
again together, and one sync for all of them is worth more than a pass. While the disk is busy with
one group the next ones collect and go together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    DeadlineSet,
    MessageRemoved,
    StoredMessage,
    is_unawaited,
)
from millpond.actors.store.index import IndexEntry, Memtable, copy_of, fold
from millpond.actors.store.journal.change_codec import encode
from millpond.actors.store.journal.format import Rewrite, encode_record
from millpond.actors.store.journal.writer import CommitGroup
from millpond.actors.store.message_attributes import DueAt
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)
from millpond.actors.store.workers import StoreWorker

PASSES_MAX = 4
"""Measured: 50 clients fall into two groups that wait for each other when a group is one pass."""

HELD_BACK_MAX = 50_000
"""The changes held back while the journal fails; failed deliveries above this are dropped."""


class GroupCommit:
    """The open group, which collects writes, and the groups that the journal's writer has.

    `call_soon` calls back at the end of the loop's pass. `epoch` counts the journal's failures
    since the start. `is_broken`: it cannot be written just now, and the open group waits.
    """

    def __init__(
        self, salt: int, lsn: int, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._salt = salt
        self._lsn = self._lsn_recorded = lsn
        self._call_soon = call_soon
        self._open: CommitGroup | None = None
        self._in_flight: deque[CommitGroup] = deque()
        self._is_sealing = False
        self._passes = self._seen = 0
        self.epoch = 0
        self.is_broken = False
        self._is_ending = False

    def start(
        self, worker: StoreWorker[CommitGroup], takes_quickly: Callable[[CommitGroup], bool]
    ) -> None:
        """Begin with the journal's worker thread; before anything else. While the journal has
        nothing in hand, `takes_quickly` tells whether it writes a group without a sync."""
        self._worker = worker
        self._takes_quickly = takes_quickly

    @property
    def is_overfull(self) -> bool:
        """True: the journal fails, and much is held back already."""
        group = self._open
        return self.is_broken and group is not None and len(group.writes) >= HELD_BACK_MAX

    def write(
        self,
        entry: IndexEntry,
        changes: Sequence[Change],
        rewrite: Rewrite = Rewrite.NONE,
        as_of: int = 0,
    ) -> CommitGroup:
        """Number a record of these changes, and put it into the open group."""
        body = encode(changes)
        group = self._open or self._begin()
        self._lsn = self._lsn_recorded = lsn = self._lsn + 1
        record = encode_record(self._salt, lsn, entry.kind, entry.name, body, rewrite, as_of)
        group.records.append(record)
        group.last_lsn = group.names[entry.name] = lsn
        if not rewrite:  # which changes nothing
            group.writes.append((entry, lsn, changes))
            entry.in_flight += 1
        return group

    def rewrite(self, entry: IndexEntry, memtable: Memtable, kind: Rewrite) -> int:
        """Write a memtable again, with the writes on their way; gives the lsn of the record.

        Else those would be changes to the rewrite, and might be in an earlier segment, which is
        removed before it. Everything before the record is in it, so the segments that are left
        always tell the end of a history. It fails if one of those writes does.

        The file that REST goes with has everything but the record. It gets a number that no record
        has, and so proves that the journal went on from there.
        """
        if entry.in_flight:
            memtable = copy_of(memtable, entry.kind)
            for changes in self.unstored(entry):
                fold(memtable, changes)
        if kind is Rewrite.REST:
            self.skip_lsn()
        group = self.write(entry, [*memtable.changes()], kind, self._lsn)
        group.needs_sync = True
        return group.last_lsn

    def _begin(self) -> CommitGroup:
        """Open a group, which is sealed when the pass is over."""
        group = self._open = CommitGroup(self.epoch, self._lsn_recorded)
        if not self._is_sealing:
            self._is_sealing = True
            self._call_soon(self.seal)
        return group

    def sync(self) -> None:
        """Have everything written so far synced, with what else this pass of the loop writes."""
        group = self._open or self._begin()
        group.needs_sync = True

    def begin_segment(self) -> None:
        """Have the open segment completed, and the next one begun."""
        group = self._open or self._begin()
        group.needs_sync = group.begins_segment = True

    def skip_lsn(self) -> int:
        """A number that no record has."""
        self._lsn += 1
        return self._lsn

    def when_stored(self, callback: Callable[[int | None], None]) -> None:
        """Call with the segment of the open group once it is stored, with None if it is not."""
        assert self._open is not None, "something was just written"
        self._open.callbacks.append(callback)

    def seal(self) -> None:
        """A pass of the loop is over: what it wrote goes to the disk together."""
        group = self._open
        if group is not None:
            seen, self._seen = self._seen, len(group.records)
            self._passes += 1
            if self._passes <= PASSES_MAX and self._seen > max(1, seen):
                # This pass added to a group of several, so the next one may as well.
                self._call_soon(self.seal)
                return
        self._passes = self._seen = 0
        self._is_sealing = False
        if group is not None and not self.is_broken:
            self._open = None
            is_quick = not (group.needs_sync or self._in_flight or self._is_ending)
            is_quick = is_quick and self._takes_quickly(group)
            self._in_flight.append(group)
            self._worker.submit(group, quick=is_quick)

    def end(self) -> None:
        """Nothing more is written: what was written goes to the disk, in the worker's thread, which
        may wait for it."""
        self._is_ending = True
        while self._open is not None and not self.is_broken:
            self.seal()

    def take_stored(self, group: CommitGroup, epoch: int) -> bool:
        """True: the writer stored the group; it was in `epoch` when it had done so. The store
        applies it at once: until then it is among those that `unstored` looks through.

        A group of an earlier epoch has failed already, with the one that ended it.
        """
        if not group.epoch == self.epoch == epoch:
            return False
        first = self._in_flight.popleft()
        assert first is group, "groups are stored in order"
        return True

    def unstored(self, entry: IndexEntry) -> Iterator[Sequence[Change]]:
        """The writes of a partition that are not stored yet, oldest first."""
        found: list[Sequence[Sequence[Change]]] = []
        left = entry.in_flight
        groups = [] if self._open is None else [self._open]
        groups += reversed(self._in_flight)
        for group in groups:
            if left <= 0:
                break
            found.append(group.writes_of(entry))
            left -= len(found[-1])
        for some in reversed(found):
            yield from some

    def fail(self, epoch: int) -> list[CommitGroup]:
        """Give all groups on their way, which are lost, and hold back what comes until `resume`.

        Changes held back before stay, unless a caller waits for them: the disk may fail for long,
        and much may have come.
        """
        failed = [*self._in_flight]
        self._in_flight.clear()
        group = self._open
        if group is not None and self.is_broken and not group.callbacks:
            group.epoch = epoch
        elif group is not None:
            failed.append(group)
            self._open = None
        self.epoch = epoch
        self.is_broken = True
        return failed

    def resume(self) -> None:
        """The journal is written again: what was held back goes to it."""
        self.is_broken = False
        if self._open is not None and not self._is_sealing:
            self._is_sealing = True
            self._call_soon(self.seal)


class UnackedWrites:
    """The writes of one failure of the journal, oldest first, parted into valid and lost changes.

    A write that a caller waits for is refused as a whole, and what came after it in its partition
    was done upon it. But a change to a message that was stored before is valid all the same: the
    consumer that acked it was heard, and hears nothing of a disk.
    """

    def __init__(self) -> None:
        self._ids: dict[IndexEntry, set[int]] = {}
        self._subscribers: dict[IndexEntry, set[int]] = {}

    @property
    def affected(self) -> list[IndexEntry]:
        """The partitions that lost something."""
        return list(self._ids)

    def split(
        self, entry: IndexEntry, changes: Sequence[Change]
    ) -> tuple[Sequence[Change], Sequence[Change]]:
        """The valid and the lost changes of one write."""
        is_awaited = not all(map(is_unawaited, changes))
        if not is_awaited and entry not in self._ids:
            return changes, ()
        valid = [] if is_awaited else [each for each in changes if self._is_valid(entry, each)]
        lost = (
            changes if is_awaited else [each for each in changes if not self._is_valid(entry, each)]
        )
        ids = self._ids.setdefault(entry, set())
        ids.update(each.id for each in lost if isinstance(each, StoredMessage))
        subscribers = self._subscribers.setdefault(entry, set())
        subscribers.update(
            each.number
            for each in lost
            if isinstance(each, Subscriber | SubscriberTouched | SubscriberRemoved)
        )
        return valid, lost

    def _is_valid(self, entry: IndexEntry, change: Change) -> bool:
        match change:
            case MessageRemoved(id=id_) | AttemptsSet(id=id_) | DeadlineSet(id=id_) | DueAt(id=id_):
                return id_ not in self._ids[entry]
            case Acked(number=number, id=id_) | AckedUpTo(number=number, id=id_):
                # The number may be another identity's when the channel is built anew.
                return number not in self._subscribers[entry] and id_ not in self._ids[entry]
            case _:
                return False
