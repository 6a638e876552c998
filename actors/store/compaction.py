"""Rounds reclaim the journal: what its oldest segment is still needed for goes elsewhere.

The little that most partitions have is carried, that is written again at the journal's end, all of
it with one sync. Who has much is flushed: settled messages go to the partition's file in one
transaction, young ones are carried. A round goes in slices, so that the loop is never held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Protocol

from millpond.actors.ids import EPOCH_MS
from millpond.actors.store.index import IndexEntry, Memtable, fold, new_memtable
from millpond.actors.store.interface import Fault
from millpond.actors.store.jobs import FileJob
from millpond.actors.store.journal.format import Rewrite
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.files import FlushJob, PartitionFiles
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.workers import StoreWorker

log = logging.getLogger(__name__)

SLICE_ENTRIES = 64
SLICE_BYTES = 2 * 2**20
REWRITE_FRACTION = 4
"""Of a segment that is reclaimed, at most a quarter is carried; the rest goes to files."""
ALL_IDS = 2**63


class Journaling(Protocol):
    """What rounds need of the store."""

    def carry(self, entry: IndexEntry, layer: Memtable, as_of: int, carry: Rewrite) -> int:
        """Write a layer again, as it is at the lsn `as_of`; gives the lsn of the carry."""

    def stamp(self) -> int:
        """A new lsn that no record has."""

    def sync(self) -> None:
        """Have everything synced that counts now."""

    def after_group(self, kept: Callable[[int | None], None]) -> None:
        """Call with the segment of the open group once it is kept, with None if it is not."""

    def damaged(self, entry: IndexEntry) -> None:
        """Its file is not what was written: serve it no more."""

    def settled(self, entry: IndexEntry) -> None:
        """A round is done with it."""


class CompactionEntry:
    """One entry in a slice. `moved` goes to the file, `stays` is carried."""

    __slots__ = (
        "as_of",
        "carried_to",
        "entry",
        "fault",
        "frozen",
        "frozen_at",
        "moved",
        "segment",
        "stays",
    )

    def __init__(self, entry: IndexEntry, frozen: Memtable, segment: int) -> None:
        self.entry = entry
        self.frozen = frozen
        self.segment = segment
        self.as_of = entry.lsn
        self.frozen_at = 0
        self.carried_to = 0
        self.moved: Memtable | None = None
        self.stays: Memtable = frozen
        self.fault: Fault | None = None

    def flushing(self) -> FlushJob:
        """What is to be written to the file. An entry that has nothing else begins with a mode."""
        assert self.moved is not None
        entry = self.entry
        is_last = not self.stays and not entry.messages and not entry.keys
        content = self.moved, self.as_of, self.frozen_at
        return FlushJob(entry.name, entry.kind, *content, is_last)


class Compactor:
    """Which entry needs which segment, and the round that is under way."""

    def __init__(
        self,
        settings: StoreSettings,
        journaling: Journaling,
        library: PartitionFiles,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._journaling = journaling
        self._library = library
        self._now = now
        self.segments: dict[int, int] = {}
        """The bytes used of each segment there is, oldest first."""
        self.current = 0
        """The segment that is written to."""
        self.kept_lsn = 0
        self.synced_lsn = 0
        """Everything up to here counts, and is on the disk."""
        self._sync_asked_lsn = 0
        self._free_since: dict[int, int] = {}
        self._is_dropping = False
        self._has_not_dropped = False
        self._drop_at = -inf
        self._holders: dict[int, dict[IndexEntry, None]] = {}
        self._eager: dict[IndexEntry, None] = {}
        self._slice: list[CompactionEntry] | None = None
        self._reclaiming = 0
        self._carry_left = settings.segment_bytes // REWRITE_FRACTION
        self._retry_at = -inf
        self.needs_retry = False
        self.flushes = 0
        self.carries = 0

    def start(self, lane: StoreWorker[FileJob]) -> None:
        """The lane that files are read and written in; before anything else."""
        self._lane = lane

    @property
    def journal_bytes(self) -> int:
        return sum(self.segments.values())

    @property
    def is_congested(self) -> bool:
        """Writers are faster than the files; they should wait, unless the files cannot be written
        at all."""
        return self._is_above(self._settings.slow_factor) and not self.needs_retry

    @property
    def is_behind(self) -> bool:
        """The journal is so far above its budget that it must not grow."""
        return self._is_above(self._settings.stall_factor)

    def _is_above(self, factor: int) -> bool:
        # What is written to cannot be reclaimed, however large it is.
        oldest = next(iter(self.segments), self.current)
        return oldest < self.current and (
            self.journal_bytes > factor * self._settings.journal_bytes_max
        )

    @property
    def must_try_again(self) -> bool:
        """Something failed, and `step` is to be called even if nothing else happens."""
        return self.needs_retry or self._has_not_dropped

    def hold(self, entry: IndexEntry) -> None:
        """The entry's layer needs its oldest segment."""
        self._holders.setdefault(entry.oldest, {})[entry] = None

    def release(self, entry: IndexEntry, segment: int) -> None:
        """It needs that segment no more."""
        holders = self._holders.get(segment)
        if holders is not None:
            holders.pop(entry, None)
            if not holders:
                del self._holders[segment]

    def let_go(self, entry: IndexEntry) -> None:
        """Its layer came to nothing. What is frozen of it may need the same segment."""
        moves = self._slice or ()
        if not any(move.entry is entry and move.segment == entry.oldest for move in moves):
            self.release(entry, entry.oldest)

    def urge(self, entry: IndexEntry) -> None:
        """Its file holds much that is gone: do not wait until the journal is full."""
        self._eager[entry] = None

    def step(self) -> None:
        """Drop what nobody needs; begin the next slice if there is a reason to."""
        self._drop_segments()
        if self._now() < self._retry_at:
            return
        if self.needs_retry:
            self.needs_retry = False
            self._flush()
        elif self._slice is None:
            self._begin(self._choose())

    def _begin(self, moves: list[CompactionEntry]) -> None:
        if not moves:
            return
        self._slice = moves
        is_carrying = False
        for move in moves:
            if move.stays or move.moved is None:
                carry = Rewrite.WHOLE if move.moved is None else Rewrite.REST
                move.frozen_at = self._journaling.carry(move.entry, move.stays, move.as_of, carry)
                self.carries += 1
                is_carrying = True
            else:
                move.frozen_at = self._journaling.stamp()
        if is_carrying:
            self._journaling.after_group(self._carried)
        else:
            self._flush()

    def _drop_segments(self) -> None:
        """The oldest one, if nobody needs it, and what made it needless is on the disk."""
        for number in self.segments:
            if number >= self.current or number in self._holders:
                break
            self._free_since.setdefault(number, self.kept_lsn)
        oldest = next(iter(self._free_since), None)
        if oldest is None or self._is_dropping or self._now() < self._drop_at:
            return
        if self._free_since[oldest] <= self.synced_lsn:
            self._is_dropping, self._has_not_dropped = True, False
            drop = partial(self._library.drop_segment, oldest)
            self._lane.submit(FileJob(drop, partial(self._dropped, oldest)))
        elif self._sync_asked_lsn < self._free_since[oldest]:
            self._sync_asked_lsn = self.kept_lsn
            self._journaling.sync()

    def _dropped(self, number: int, result: object) -> None:
        self._is_dropping = False
        if isinstance(result, Fault):
            self._has_not_dropped = True
            self._drop_at = self._now() + self._settings.retry_s
            self._lane.submit(
                FileJob(lambda: None)
            )  # the lane looks again at how long it may sleep
        else:
            del self.segments[number], self._free_since[number]
            self._drop_segments()

    def _choose(self) -> list[CompactionEntry]:
        """Freeze the entries of the next slice."""
        settings = self._settings
        is_full = self.journal_bytes > settings.journal_bytes_max
        if is_full or len(self.segments) > settings.segments_max:
            oldest = next(iter(self.segments))
            candidates = list(self._holders.get(oldest, ())) if oldest < self.current else []
            if oldest != self._reclaiming:
                self._reclaiming = oldest
                self._carry_left = settings.segment_bytes // REWRITE_FRACTION
        else:
            candidates = list(self._eager)
            self._carry_left = settings.segment_bytes // REWRITE_FRACTION
        moves: list[CompactionEntry] = []
        size = 0
        for entry in candidates:
            self._eager.pop(entry, None)
            if entry.layer is None:
                continue
            moves.append(self._freeze(entry))
            size += moves[-1].frozen.size
            if len(moves) == SLICE_ENTRIES or size > SLICE_BYTES:
                break
        return moves

    def _freeze(self, entry: IndexEntry) -> CompactionEntry:
        assert entry.layer is not None and entry.frozen is None, "one slice at a time"
        move = CompactionEntry(entry, entry.layer, entry.oldest)
        entry.frozen, entry.layer = entry.layer, None
        if entry.fault is None and self._is_worth_a_file(entry, move.frozen):
            moved, stays = self._split(move.frozen)
            if moved:
                move.moved, move.stays = moved, stays
        self._carry_left -= move.stays.size
        return move

    def _is_worth_a_file(self, entry: IndexEntry, layer: Memtable) -> bool:
        """Large, or much of its file is gone, or too much is carried already."""
        carry_max = min(self._settings.carry_bytes_max, self._carry_left)
        match layer:
            case QueueMemtable():
                is_empty = entry.has_file and not entry.messages and not entry.keys
                is_large = max(layer.size - layer.lesser_size, layer.gone_bytes) > carry_max
                return is_empty or is_large or layer.lesser_size > self._carry_left
            case LogMemtable():
                is_trimmed = entry.has_file and (layer.trim_point > 0 or layer.is_fresh)
                return is_trimmed or layer.size > carry_max

    def _split(self, layer: Memtable) -> tuple[Memtable, Memtable]:
        """What is young may soon be gone, and keys soon will be: they stay if that is not much."""
        match layer:
            case QueueMemtable():
                settled_ms = int((self._now() - self._settings.settle_s) * 1000) - EPOCH_MS
                keys_stay = layer.lesser_size <= self._carry_left
                moved, stays = layer.split(max(settled_ms, 0) << 22, keys_stay=keys_stay)
                if stays.size > self._carry_left:
                    moved, stays = layer.split(ALL_IDS, keys_stay=False)
                return moved, stays
            case LogMemtable():
                return layer.split(0)

    # A slice: carried, then flushed, then thawed.

    def _carried(self, segment: int | None) -> None:
        assert self._slice is not None
        if segment is None:
            moves, self._slice = self._slice, None
            for move in moves:
                self._thaw(move, is_moved=False)
            return
        for move in self._slice:
            move.carried_to = segment
        self._flush()

    def _flush(self) -> None:
        """Have the files of a slice written."""
        assert self._slice is not None
        moves = [move for move in self._slice if move.moved]
        if not moves:
            self._finish()
            return
        names = [(move.entry.name, move.entry.kind) for move in moves]
        lane, library = self._lane, self._library
        lane.submit(FileJob(partial(library.mark, names)))
        for move in moves:
            lane.submit(
                FileJob(partial(library.apply, move.flushing()), partial(self._applied, move))
            )
            move.entry.has_file = True  # from here on there may be one
        lane.submit(FileJob(library.record, self._recorded))

    def _applied(self, move: CompactionEntry, result: bool | Fault) -> None:
        """`result`: is there a file now, or why not."""
        if isinstance(result, Fault):
            move.fault = result
        else:
            move.fault = None
            move.entry.has_file = result
            self.flushes += 1

    def _recorded(self, result: object) -> None:
        """If the catalogue could not be written, it still says that the files know better."""
        if isinstance(result, Fault):
            log.warning("catalogue not written: fault=%s", result.name)
        self._finish()

    def _finish(self) -> None:
        """Thaw what is done. What failed stays frozen: it may be in its file, nobody knows."""
        assert self._slice is not None
        moves, self._slice = self._slice, None
        failed = [move for move in moves if move.fault is Fault.UNREADABLE]
        for move in moves:
            if move.fault is Fault.DAMAGED:
                self._journaling.damaged(move.entry)
            if move.fault is not Fault.UNREADABLE:
                self._thaw(move, is_moved=move.fault is None)
        if failed:
            self._slice = failed
            self.needs_retry = True
            self._retry_at = self._now() + self._settings.retry_s
            self._lane.submit(
                FileJob(lambda: None)
            )  # the lane looks again at how long it may sleep
        else:
            self.step()

    def _thaw(self, move: CompactionEntry, *, is_moved: bool) -> None:
        """Put what stays and what came meanwhile together again."""
        entry, newer, newer_oldest = move.entry, move.entry.layer, move.entry.oldest
        self.release(entry, move.segment)
        if newer is not None:
            self.release(entry, newer_oldest)
        layer = new_memtable(entry.kind, is_base=not entry.has_file)
        if isinstance(layer, QueueMemtable) and isinstance(move.frozen, QueueMemtable):
            layer.is_doubtful = move.frozen.is_doubtful and entry.has_file
        fold(layer, move.stays.changes() if is_moved else move.frozen.changes())
        oldest = (move.carried_to or self.current) if is_moved else move.segment
        if newer is not None:
            oldest = min(oldest, newer_oldest) if layer else newer_oldest
            fold(layer, newer.changes())
        entry.frozen = None
        entry.layer = layer if layer else None
        entry.oldest = oldest
        if layer:
            self.hold(entry)
        self._journaling.settled(entry)
