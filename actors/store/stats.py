"""Statistics of the store on disk: counts since the start, and how long writes take."""

from __future__ import annotations

import msgspec

from millpond.actors.histogram import AMOUNTS, SECONDS, Histogram


class StoreStats(msgspec.Struct):
    """Counts since the start, and sizes now.

    Since the start: `groups` written, `syncs` of the disk, `flushes` of partitions to their files,
    `carries` (partitions rewritten in the journal). Now: `segments` of the journal with
    `journal_bytes`, partition `files`, `damaged` partitions, and all known
    `damages`, also those that no partition is known of.

    The scrub has read `scrub_bytes` and made `scrub_passes` since the start, the last one ended at
    `scrubbed_at` (seconds since 1970, 0: none); `scrub_progress` is the part of this pass, 0 to 1.
    """

    groups: int = 0
    syncs: int = 0
    flushes: int = 0
    carries: int = 0
    segments: int = 0
    journal_bytes: int = 0
    files: int = 0
    damaged: int = 0
    damages: int = 0
    scrub_bytes: int = 0
    scrub_passes: int = 0
    scrub_progress: float = 0.0
    scrubbed_at: float = 0.0


class JournalStats:
    """Latencies and sizes of the journal's writes. The writer's thread adds to them; readers in
    other threads see one number after the other.

    `commit_s`: a group from its write to the end of its sync, if it needed one and did not fail;
    `sync_s`: a sync alone. `records`: the number of records written together.
    """

    __slots__ = ("began_at", "bytes", "commit_s", "records", "sync_s")

    def __init__(self) -> None:
        self.commit_s = Histogram(SECONDS)
        self.sync_s = Histogram(SECONDS)
        self.records = Histogram(AMOUNTS)
        self.bytes = 0
        self.began_at = 0.0
        """The time at which the write in progress began; 0: there is none."""

    def written(self, records: int, size: int, now: float) -> None:
        """The records of this write are in the file, and synced if they had to be."""
        self.commit_s.add(now - self.began_at)
        self.records.add(records)
        self.bytes += size

    def busy_s(self, now: float) -> float:
        """The age in seconds of the write in progress (0: none); shows a disk that hangs."""
        began_at = self.began_at
        return max(now - began_at, 0.0) if began_at else 0.0
