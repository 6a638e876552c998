"""What writing the journal costs, and how it is going just now."""

from __future__ import annotations

from millpond.actors.histogram import AMOUNTS, SECONDS, Histogram


class JournalStats:
    """Entered by the writer, in its thread; whoever looks sees one number after the other.

    `commit_s`: a group from its write to the end of its sync, if it needed one, as long as that did
    not fail; `sync_s`: a sync alone. `records`: changes of cells that went together.
    """

    __slots__ = ("_began_at", "bytes", "commit_s", "records", "sync_s")

    def __init__(self) -> None:
        self.commit_s = Histogram(SECONDS)
        self.sync_s = Histogram(SECONDS)
        self.records = Histogram(AMOUNTS)
        self.bytes = 0
        self._began_at = 0.0

    def begin(self, now: float) -> None:
        """The writer is at work."""
        self._began_at = now

    def end(self) -> None:
        """It is not any more, however that went."""
        self._began_at = 0.0

    def kept(self, records: int, size: int, now: float) -> None:
        """What began is written, and synced if it had to be."""
        self.commit_s.add(now - self._began_at)
        self.records.add(records)
        self.bytes += size

    def busy_s(self, now: float) -> float:
        """For how long the writer is at work already; a disk that hangs shows here."""
        began_at = self._began_at
        return max(now - began_at, 0.0) if began_at else 0.0
