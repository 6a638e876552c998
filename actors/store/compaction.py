"""Journal compaction: reclaims the oldest segment by moving elsewhere what it is still needed for.

Most partitions have little in the journal: it is rewritten at the journal's end, with one sync for
all of them. Partitions that have much are flushed: settled messages go to the partition's file in
one transaction, young ones are rewritten. Compaction goes in slices of partitions, so that the
event loop is never held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

from millpond.actors.ids import EPOCH_MS
from millpond.actors.store.group_commit import GroupCommit
from millpond.actors.store.index import IndexEntry, Memtable, fold, may_overlap, new_memtable
from millpond.actors.store.interface import Fault
from millpond.actors.store.journal.format import Rewrite
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.files import FileJob, FlushJob, PartitionFiles
from millpond.actors.store.queue_memtable import QueueMemtable
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.workers import StoreWorker

log = logging.getLogger(__name__)

SLICE_ENTRIES = 64
SLICE_BYTES = 2 * 2**20
REWRITE_FRACTION = 4
"""Of a segment that is reclaimed, at most a quarter is rewritten; the rest goes to files."""
LARGE_FACTOR = 3
"""A journal so many times its budget completes its open segment, for what waits for that."""
ALL_IDS = 2**63


class CompactionEntry:
    """One partition in a slice: `flushed` goes to its file, `rewritten` to the journal again."""

    __slots__ = (
        "as_of",
        "entry",
        "fault",
        "flushed",
        "frozen",
        "frozen_at",
        "rewritten",
        "rewritten_segment",
        "segment",
    )

    def __init__(self, entry: IndexEntry, frozen: Memtable, segment: int) -> None:
        self.entry = entry
        self.frozen = frozen
        self.segment = segment
        self.as_of = entry.lsn
        self.frozen_at = 0
        self.rewritten_segment = 0
        self.flushed: Memtable | None = None
        self.rewritten: Memtable = frozen
        self.fault: Fault | None = None

    @property
    def rewrite(self) -> Rewrite:
        """The kind of the record that rewrites the partition."""
        if self.flushed is not None:
            return Rewrite.REST
        return Rewrite.MENDED if may_overlap(self.frozen) else Rewrite.WHOLE

    def flush_job(self) -> FlushJob:
        """The write to the partition's file. A partition that has nothing else begins with a
        mode."""
        assert self.flushed is not None
        entry = self.entry
        is_last = not self.rewritten and not entry.messages and not entry.keys
        content = self.flushed, self.as_of, self.frozen_at
        return FlushJob(entry.name, entry.kind, *content, is_last)


class Compactor:
    """The segments of the journal, the partitions that need each, and the slice under way.

    `mark_damaged` is called with a partition whose file is not what was written, `forget_if_idle`
    with one that a slice is done with.
    """

    def __init__(
        self,
        settings: StoreSettings,
        groups: GroupCommit,
        files: PartitionFiles,
        now: Callable[[], float],
        *,
        mark_damaged: Callable[[IndexEntry], None],
        forget_if_idle: Callable[[IndexEntry], None],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._files = files
        self._now = now
        self._mark_damaged = mark_damaged
        self._forget_if_idle = forget_if_idle
        self._segments: dict[int, int] = {}
        """The bytes used of each segment, oldest first."""
        self.journal_bytes = 0
        """The size of all segments in bytes."""
        self._current = 0
        """The segment that is written to."""
        self._first_kept = 0
        """Segments from this one on stay: the one that is written to, or else the newest, which the
        next one is chained to, and which proves how far the journal went."""
        self._damaged: dict[IndexEntry, None] = {}
        self._stored_lsn = 0
        self._synced_lsn = 0
        """Everything up to here counts, and is on the disk."""
        self._sync_asked_lsn = 0
        self._free_since: dict[int, tuple[int, int]] = {}
        """The segments that no partition needs, oldest first: the lsn that was stored when that was
        found, and the segment of the last rewrite before."""
        self._free_bytes = 0
        self._rewritten_to = 0
        self._ended_early = 0
        """The last segment that was asked to be completed before it is full."""
        self._has_news = True
        """True: a segment may have become free, or a slice failed, since the last step."""
        self._is_dropping = False
        self._has_not_dropped = False
        self._drop_at = -inf
        self._pins: dict[int, dict[IndexEntry, None]] = {}
        """The partitions whose memtable needs a segment."""
        self._eager: dict[IndexEntry, None] = {}
        self._slice: list[CompactionEntry] | None = None
        self._reclaiming = 0
        self._rewrite_bytes_left = settings.segment_bytes // REWRITE_FRACTION
        self._retry_at = -inf
        self._must_flush_again = False
        self._paused: Callable[[], None] | None = None
        self._is_paused = False
        self._kept_to = 0
        """Segments up to this one stay until a snapshot has them."""
        self.flushes = 0
        self.rewrites = 0

    def start(
        self, worker: StoreWorker[FileJob], segments: Mapping[int, int], current: int, lsn: int
    ) -> None:
        """Begin with the segments that recovery found. `worker` reads and writes files."""
        self._worker = worker
        self._segments.update(segments)
        self.journal_bytes = sum(segments.values())
        self._current = current
        # One without a header was never used, and proves nothing.
        self._first_kept = max((each for each, size in segments.items() if size), default=current)
        self._stored_lsn = self._synced_lsn = lsn

    def segment_written(self, number: int, size: int) -> None:
        """The journal writes to this segment, of which `size` bytes are used."""
        self.journal_bytes += size - self._segments.get(number, 0)
        self._segments[number] = size
        if number != self._current or number != self._first_kept:
            self._current = self._first_kept = number
            self._has_news = True

    def advance(self, stored_lsn: int, synced_lsn: int) -> bool:
        """The journal stored and synced records up to these. True: there may be a reason for a
        `step`. Most commits are none: what would be is seen here without a look at each segment."""
        self._stored_lsn, self._synced_lsn = stored_lsn, synced_lsn
        settings, free = self._settings, self._free_since
        return bool(
            self._has_news
            or free
            or self._eager
            or self._must_flush_again
            or self.journal_bytes > settings.journal_bytes_max
            or len(self._segments) > settings.segments_max
        )

    @property
    def current_segment(self) -> int:
        """The segment that is written to."""
        return self._current

    @property
    def segment_count(self) -> int:
        """The number of segments on the disk."""
        return len(self._segments)

    @property
    def is_congested(self) -> bool:
        """True: writers are faster than the files and should wait, unless the files cannot be
        written at all."""
        settings = self._settings
        bytes_max = settings.slow_factor * settings.journal_bytes_max
        return (
            self.journal_bytes > bytes_max  # rarely: the rest looks at each segment
            and self._is_above(bytes_max)
            and not self._must_flush_again
        )

    @property
    def is_full(self) -> bool:
        """True: the journal is so far above its budget that it must not grow."""
        return self._is_above(self._settings.stall_factor * self._settings.journal_bytes_max)

    def _is_above(self, bytes_max: int) -> bool:
        # The segment that is written to cannot be reclaimed, however large it is, nor the newest.
        for number in self._segments:
            if number not in self._free_since:
                return number < self._first_kept and self._reclaimable_bytes > bytes_max
        return False

    @property
    def _reclaimable_bytes(self) -> int:
        """The size of all segments that are needed, without what damaged partitions need: no flush
        makes that smaller, and writing it again and again would not either."""
        damaged = sum(
            memtable.size
            for entry in self._damaged
            for memtable in (entry.frozen, entry.memtable)
            if memtable is not None
        )
        return self.journal_bytes - self._free_bytes - damaged

    @property
    def _has_too_many(self) -> bool:
        """True: more segments are needed than there should be. Those that damaged partitions alone
        need do not count: no flush makes them fewer."""
        count = len(self._segments) - len(self._free_since)
        if self._damaged and count > self._settings.segments_max:
            count -= sum(pins.keys() <= self._damaged.keys() for pins in self._pins.values())
        return count > self._settings.segments_max

    def exempt(self, entry: IndexEntry) -> None:
        """The partition is damaged: its memtable stays in the journal until it is repaired."""
        self._damaged[entry] = None

    @property
    def needs_retry(self) -> bool:
        """True: something failed, and `step` has to be called even if nothing else happens."""
        return self._must_flush_again or self._has_not_dropped

    def pin(self, entry: IndexEntry) -> None:
        """The partition's memtable needs its oldest segment."""
        self._pins.setdefault(entry.oldest_segment, {})[entry] = None

    def _unpin(self, entry: IndexEntry, segment: int) -> None:
        pins = self._pins.get(segment)
        if pins is not None:
            pins.pop(entry, None)
            if not pins:
                del self._pins[segment]
                self._has_news = True

    def unpin(self, entry: IndexEntry) -> None:
        """The partition's memtable came to nothing. A frozen one may need the same segment."""
        segment = entry.oldest_segment
        if not any(each.entry is entry and each.segment == segment for each in self._slice or ()):
            self._unpin(entry, segment)

    def evacuate(self, number: int) -> None:
        """A segment cannot be read any more: what needs it goes elsewhere while it is in memory."""
        self._eager.update(self._pins.get(number, {}))

    def evacuate_all(self) -> None:
        """Everything that a segment holds goes elsewhere."""
        for pins in self._pins.values():
            self._eager.update(pins)

    def prefer(self, entry: IndexEntry) -> None:
        """The partition's file holds much that is gone: flush it before the journal is full."""
        self._eager[entry] = None

    def pause(self, paused: Callable[[], None]) -> None:
        """Begin no slice until `resume`, and call back once none is under way: the files and the
        journal stay as they are, but for what is written to its end."""
        self._is_paused, self._paused = True, paused
        self._tell_paused()

    def resume(self) -> None:
        """Go on."""
        self._is_paused, self._paused = False, None
        self._has_news = True

    def keep_segments(self, number: int) -> None:
        """Keep the segments up to this one, whether they are needed or not; 0: none. While the
        journal fails they go all the same."""
        self._kept_to = number
        self._has_news = True

    def _tell_paused(self) -> None:
        if self._paused is not None and self._slice is None:
            paused, self._paused = self._paused, None
            paused()

    def step(self) -> None:
        """Drop unneeded segments; begin the next slice if there is a reason to."""
        self._has_news = False
        self._drop_segments()
        self._tell_paused()
        if self._now() < self._retry_at:
            return
        if self._must_flush_again:
            self._must_flush_again = False
            self._flush()
        elif self._slice is None and not self._is_paused:
            self._begin(self._choose())

    def _begin(self, entries: list[CompactionEntry]) -> None:
        if not entries:
            return
        self._slice = entries
        is_rewriting = False
        for each in entries:
            if each.rewritten or each.flushed is None:
                each.frozen_at = self._groups.rewrite(each.entry, each.rewritten, each.rewrite)
                if each.flushed is not None:
                    each.as_of = each.frozen_at - 1
                self.rewrites += 1
                is_rewriting = True
            else:
                each.frozen_at = self._groups.skip_lsn()
        if not is_rewriting and max(each.as_of for each in entries) > self._synced_lsn:
            # Changes in a file must be in the journal too, also after a power failure: a file that
            # knows more than the journal proves that the journal lost something.
            self._groups.sync()
            is_rewriting = True
        if is_rewriting:
            self._groups.when_stored(self._rewrite_done)
        else:
            self._flush()

    def make_space(self) -> None:
        """The journal failed: the disk may be full, and needs what can be dropped."""
        self._drop_segments()

    def _drop_segments(self) -> None:
        """Drop the oldest segment, if no partition needs it and its successors are on the disk.

        A segment whose content was rewritten stays until the one with the rewrite is complete. If
        the end of an open segment is damaged and the node is killed, that cannot be told from what
        was never written. That one is completed early where the journal is far above its budget
        with the segments that wait for it. While the journal fails they go all the same: on a full
        disk the next segment may need their space.
        """
        for number in self._segments:
            if number >= self._first_kept or number in self._pins:
                break
            if number not in self._free_since:
                self._free_since[number] = (self._stored_lsn, self._rewritten_to)
                self._free_bytes += self._segments[number]
        oldest = next(iter(self._free_since), None)
        if oldest is None or self._is_dropping or self._now() < self._drop_at:
            return
        if oldest <= self._kept_to and not self._groups.is_broken:
            return
        stored_lsn, rewritten_to = self._free_since[oldest]
        if rewritten_to == self._current and not self._groups.is_broken:
            is_large = self.journal_bytes > LARGE_FACTOR * self._settings.journal_bytes_max
            if is_large and self._ended_early != self._current:
                self._ended_early = self._current
                self._groups.begin_segment()
            return
        if stored_lsn <= self._synced_lsn:
            self._is_dropping, self._has_not_dropped = True, False
            drop = partial(self._files.drop_segment, oldest)
            self._worker.submit(FileJob(drop, partial(self._dropped, oldest)))
        elif self._sync_asked_lsn < stored_lsn:
            self._sync_asked_lsn = self._stored_lsn
            self._groups.sync()

    def _dropped(self, number: int, result: object) -> None:
        self._is_dropping = False
        if isinstance(result, Fault):
            self._has_not_dropped = True
            self._drop_at = self._now() + self._settings.retry_s
            self._wake_worker()
        else:
            size = self._segments.pop(number)
            self.journal_bytes -= size
            self._free_bytes -= size
            del self._free_since[number]
            self._drop_segments()

    def _wake_worker(self) -> None:
        """Have the worker compute anew how long it may sleep."""
        self._worker.submit(FileJob(lambda: None))

    def _choose(self) -> list[CompactionEntry]:
        """Freeze the partitions of the next slice."""
        settings = self._settings
        is_full = self._reclaimable_bytes > settings.journal_bytes_max
        if is_full or self._has_too_many:
            needed = (number for number in self._segments if number not in self._free_since)
            oldest = next(needed, self._current)
            candidates = list(self._pins.get(oldest, ())) if oldest < self._current else []
            if oldest != self._reclaiming:
                self._reclaiming = oldest
                self._rewrite_bytes_left = settings.segment_bytes // REWRITE_FRACTION
        else:
            candidates = list(self._eager)
            self._rewrite_bytes_left = settings.segment_bytes // REWRITE_FRACTION
        chosen: list[CompactionEntry] = []
        size = 0
        for entry in candidates:
            self._eager.pop(entry, None)
            if entry.memtable is None:
                continue
            chosen.append(self._freeze(entry))
            size += chosen[-1].frozen.size
            if len(chosen) == SLICE_ENTRIES or size > SLICE_BYTES:
                break
        return chosen

    def _freeze(self, entry: IndexEntry) -> CompactionEntry:
        assert entry.memtable is not None and entry.frozen is None, "one slice at a time"
        frozen = CompactionEntry(entry, entry.memtable, entry.oldest_segment)
        entry.frozen, entry.memtable = entry.memtable, None
        if entry.fault is None and self._needs_flush(entry, frozen.frozen):
            flushed, rewritten = self._split(frozen.frozen)
            if flushed:
                frozen.flushed, frozen.rewritten = flushed, rewritten
        self._rewrite_bytes_left -= frozen.rewritten.size
        return frozen

    def _needs_flush(self, entry: IndexEntry, memtable: Memtable) -> bool:
        """True: the memtable is large, or much of the file is gone, or too much was rewritten."""
        rewrite_max = min(self._settings.rewrite_bytes_max, self._rewrite_bytes_left)
        match memtable:
            case QueueMemtable():
                is_empty = entry.has_file and not entry.messages and not entry.keys
                size = memtable.size - memtable.lesser_size
                is_large = max(size, memtable.removed_bytes) > rewrite_max
                return is_empty or is_large or memtable.lesser_size > self._rewrite_bytes_left
            case LogMemtable():
                is_trimmed = entry.has_file and (memtable.trim_point > 0 or memtable.is_fresh)
                return is_trimmed or memtable.size > rewrite_max

    def _split(self, memtable: Memtable) -> tuple[Memtable, Memtable]:
        """The part to flush and the part to rewrite. Young messages may soon be gone, and keys
        soon will be: they are rewritten if that is not much, and the file does not have them."""
        match memtable:
            case QueueMemtable():
                settled_ms = int((self._now() - self._settings.settle_s) * 1000) - EPOCH_MS
                keys_stay = memtable.lesser_size <= self._rewrite_bytes_left
                flushed, rewritten = memtable.split(max(settled_ms, 0) << 22, keys_stay=keys_stay)
                if memtable.may_overlap or rewritten.size > self._rewrite_bytes_left:
                    flushed, rewritten = memtable.split(ALL_IDS, keys_stay=False)
                return flushed, rewritten
            case LogMemtable():
                return memtable.split(0)

    # A slice is rewritten, then flushed, then thawed.

    def _rewrite_done(self, segment: int | None) -> None:
        assert self._slice is not None
        if segment is None:
            entries, self._slice = self._slice, None
            self._has_news = True
            for each in entries:
                self._thaw(each, is_done=False)
            return
        for each in self._slice:
            each.rewritten_segment = segment
        self._rewritten_to = segment
        self._flush()

    def _flush(self) -> None:
        """Have the files of a slice written."""
        assert self._slice is not None
        entries = [each for each in self._slice if each.flushed]
        if not entries:
            self._finish()
            return
        names = [(each.entry.name, each.entry.kind) for each in entries]
        worker, files = self._worker, self._files
        worker.submit(FileJob(partial(files.mark, names)))
        for each in entries:
            flush = partial(files.apply, each.flush_job())
            worker.submit(FileJob(flush, partial(self._flushed, each)))
            each.entry.has_file = True  # from here on there may be one
        worker.submit(FileJob(files.record, self._recorded))

    def _flushed(self, each: CompactionEntry, result: bool | Fault) -> None:
        """`result`: whether there is a file now, or the fault."""
        if isinstance(result, Fault):
            each.fault = result
        else:
            each.fault = None
            each.entry.has_file = result
            self.flushes += 1

    def _recorded(self, result: object) -> None:
        """If the catalog could not be written, its rows are still dirty: the files count."""
        if isinstance(result, Fault):
            log.warning("catalog not written: fault=%s", result.name)
        self._finish()

    def _finish(self) -> None:
        """Thaw what is done. A failed entry stays frozen: its file may have it or not."""
        assert self._slice is not None
        entries, self._slice = self._slice, None
        failed = [each for each in entries if each.fault is Fault.UNREADABLE]
        for each in entries:
            if each.fault is Fault.DAMAGED:
                self._mark_damaged(each.entry)
            if each.fault is not Fault.UNREADABLE:
                self._thaw(each, is_done=each.fault is None)
        if failed:
            self._slice = failed
            self._must_flush_again = True
            self._retry_at = self._now() + self._settings.retry_s
            self._wake_worker()
        else:
            self.step()

    def _thaw(self, done: CompactionEntry, *, is_done: bool) -> None:
        """Put the rewritten part and the changes since the freeze together again."""
        entry, newer, newer_oldest = done.entry, done.entry.memtable, done.entry.oldest_segment
        self._unpin(entry, done.segment)
        if newer is not None:
            self._unpin(entry, newer_oldest)
        memtable = new_memtable(entry.kind, is_oldest=not entry.has_file)
        if isinstance(memtable, QueueMemtable):
            memtable.may_overlap = may_overlap(done.frozen) and entry.has_file
        fold(memtable, done.rewritten.changes() if is_done else done.frozen.changes())
        oldest = (done.rewritten_segment or self._current) if is_done else done.segment
        if newer is not None:
            oldest = min(oldest, newer_oldest) if memtable else newer_oldest
            fold(memtable, newer.changes())
        entry.frozen = None
        entry.memtable = memtable if memtable else None
        entry.oldest_segment = oldest
        if memtable:
            self.pin(entry)
        self._forget_if_idle(entry)
