"""Groups of records on their way to the disk: the open one, and those that the writer has.

A lone write goes to the disk at the end of its pass of the loop. A group of several stays open as
long as each pass brings more, a few passes at most: clients that are answered together ask again
together, and one sync for all of them is worth more than a pass. While the disk is busy with one
group the next ones gather and go together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from millpond.actors.store.changes import Change
from millpond.actors.store.index import IndexEntry
from millpond.actors.store.journal.change_codec import encode
from millpond.actors.store.journal.format import GROUP_SIZE, Rewrite, encode_record
from millpond.actors.store.journal.writer import CommitGroup
from millpond.actors.store.workers import StoreWorker

PASSES_MAX = 4
"""Measured: 50 clients fall into two groups that wait for each other when a group is one pass."""

HELD_BACK_MAX = 50_000
"""So many changes are held back while the journal fails; beyond, failed deliveries are not."""


class GroupCommit:
    """`soon` calls back at the end of the loop's pass. While `is_broken`, the open group waits."""

    def __init__(self, salt: int, lsn: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self._salt = salt
        self._lsn = self._lsn_recorded = lsn
        self._soon = soon
        self._open: CommitGroup | None = None
        self._in_flight: deque[CommitGroup] = deque()
        self._is_sealing = False
        self._passes = self._seen = 0
        self._epoch = 0
        self.is_broken = False
        self.room_bytes = 0
        """What the segment that is written to takes before the next one has to be made."""

    def start(self, lane: StoreWorker[CommitGroup]) -> None:
        """The lane of the journal's writer; before anything else."""
        self._lane = lane

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_crowded(self) -> bool:
        """Is much held back already?"""
        group = self._open
        return self.is_broken and group is not None and len(group.writes) >= HELD_BACK_MAX

    def write(self, entry: IndexEntry, changes: Sequence[Change]) -> CommitGroup:
        """Put changes into the open group."""
        group = self.add(entry, encode(changes))
        group.writes.append((entry, group.last_lsn, changes))
        entry.in_flight += 1
        return group

    def add(
        self, entry: IndexEntry, body: bytes, carry: Rewrite = Rewrite.NONE, as_of: int = 0
    ) -> CommitGroup:
        """Give a record its number and put it into the open group."""
        self._lsn = self._lsn_recorded = lsn = self._lsn + 1
        group = self._open
        if group is None:
            group = self._open = CommitGroup(self._epoch, lsn)
            self._seal_soon()
        if not group.records:
            group.first_lsn = lsn
        record = encode_record(self._salt, lsn, entry.kind, entry.name, body, carry, as_of)
        group.records.append(record)
        group.last_lsn = lsn
        return group

    def sync(self) -> None:
        """Have everything written so far synced, with what else this pass of the loop writes."""
        if self._open is None:
            self._open = CommitGroup(self._epoch, self._lsn + 1)
            self._open.last_lsn = self._lsn_recorded
            self._seal_soon()
        self._open.needs_sync = True

    def stamp(self) -> int:
        """A number that no record has."""
        self._lsn += 1
        return self._lsn

    def after(self, kept: Callable[[int | None], None]) -> None:
        """Call with the segment of the open group once it is kept, with None if it is not."""
        assert self._open is not None, "something was just written"
        self._open.kept.append(kept)

    def seal(self) -> None:
        """A pass of the loop is over: what it wrote goes to the disk together."""
        group = self._open
        if group is not None and self._grows(group):
            self._soon(self.seal)
            return
        self._passes = self._seen = 0
        self._is_sealing = False
        if group is not None and not self.is_broken:
            self._open = None
            is_quick = not group.needs_sync and not self._in_flight and self._has_room(group)
            self._in_flight.append(group)
            self._lane.submit(group, quick=is_quick)

    def _grows(self, group: CommitGroup) -> bool:
        """Did this pass of the loop add to what several write? Then the next one may as well."""
        seen, self._seen = self._seen, len(group.records)
        self._passes += 1
        return self._passes <= PASSES_MAX and self._seen > max(1, seen)

    def _has_room(self, group: CommitGroup) -> bool:
        # To make a segment means to sync the one before it, which may take long.
        return GROUP_SIZE + sum(map(len, group.records)) <= self.room_bytes

    def _seal_soon(self) -> None:
        if not self._is_sealing:
            self._is_sealing = True
            self._soon(self.seal)

    def kept(self, groups: list[CommitGroup], epoch: int) -> Iterator[CommitGroup]:
        """Those of `groups` that the writer kept; it was in `epoch` when it had done so.

        Those of an earlier epoch have failed already, with the group that ended it.
        """
        for group in groups:
            if group.epoch == self._epoch == epoch:
                first = self._in_flight.popleft()
                assert first is group, "groups are kept in order"
                yield group

    def waiting(self, entry: IndexEntry) -> Iterator[Sequence[Change]]:
        """What was written of an entry and is not kept yet, oldest first."""
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

    def break_off(self, epoch: int) -> list[CommitGroup]:
        """Nothing on its way is kept: give it all, and hold back what comes until `mend`.

        What was held back before stays, unless somebody waits for it: the disk may fail for long,
        and much may have come.
        """
        failed = [*self._in_flight]
        self._in_flight.clear()
        group = self._open
        if group is not None and self.is_broken and not group.kept:
            group.epoch = epoch
        elif group is not None:
            failed.append(group)
            self._open = None
        self._epoch = epoch
        self.is_broken = True
        return failed

    def mend(self) -> None:
        """The journal is written again: what was held back goes to it."""
        self.is_broken = False
        if self._open is not None:
            self._seal_soon()
