"""A durable store in a real folder, whose worker threads step when they are told to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from millpond.actors.ids import EPOCH_MS
from millpond.actors.messages import Durability
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Change,
    Chunk,
    LogSnapshot,
    MessageRemoved,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.settings import StoreSettings
from tests.sim.loop import Clock, Loop

T = TypeVar("T")

NOW = 1_763_683_200.0
FILLER = b"filler"
FILLER_ID = 2**62
SMALL = StoreSettings(
    segment_bytes=8192, journal_bytes_max=8192, rewrite_bytes_max=0, settle_s=1.0, stall_factor=100
)
"""Everything that is settled goes to its file as soon as the journal has a few segments."""
LAZY = StoreSettings(segment_bytes=2**16)
"""Everything stays in the journal."""


def young_id(age_s: float = 0.0) -> int:
    """The id of a message put so long before `NOW`."""
    return (int((NOW - age_s) * 1000) - EPOCH_MS) << 22


class Run:
    """A store from its opening to its end. `is_patient`: writes are repeated until stored."""

    is_patient = False

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings = LAZY,
        durability: Durability = Durability.DISK,
        seed: int = 1,
        *,
        was_used: bool | None = None,
        disk: Disk | None = None,
        suffix_after: int | None = None,
    ) -> None:
        self.folder = folder
        self._fillers = 0
        self.loop = Loop(Clock(NOW), Random(seed))
        self.store = DurableStore(
            folder, disk or OsDisk(), settings, self.loop, lambda name: durability
        )
        self.found = self.store.open(was_used=was_used, suffix_after=suffix_after)

    def work(self) -> None:
        """Do all that is to be done."""
        self.loop.finish_pass()
        for _ in range(1000):
            if not self.loop.work(idle=False):
                return
        raise AssertionError("the workers never become idle")

    def finish(self, answer: T | Deferred[T | Fault]) -> T | Fault:
        """The result of the store."""
        if not isinstance(answer, Deferred):
            return answer
        results: list[T | Fault] = []
        answer.when_done(results.append)
        self.work()
        if not results:
            self.loop.work(idle=True)  # as after a second without anything else
            self.work()
        (result,) = results
        return result

    def write(self, name: bytes, *changes: Change) -> None:
        commit = self.store.write(name, changes)
        if commit is None:
            self.work()
            return
        result = self.finish(commit)
        for _ in range(5 if self.is_patient else 0):
            if result is None:
                break
            self.loop.work(idle=True)
            self.work()
            again = self.store.write(name, changes)
            assert again is not None
            result = self.finish(again)
        assert result is None

    def load(self, name: bytes) -> Snapshot:
        result = self.finish(self.store.load(name))
        assert isinstance(result, Snapshot)
        return result

    def log_snapshot(self, name: bytes) -> LogSnapshot:
        result = self.finish(self.store.log_snapshot(name))
        assert isinstance(result, LogSnapshot)
        return result

    def read(self, name: bytes, seek: Seek) -> list[Chunk]:
        result = self.finish(self.store.read(name, seek))
        assert isinstance(result, list)
        return result

    def read_all(self, name: bytes, bytes_max: int = 2**40) -> list[Chunk]:
        """As a reader does: one range after the other."""
        outline = self.log_snapshot(name)
        chunks: list[Chunk] = []
        at = outline.trim_point
        while at < outline.tail:
            some = self.read(name, Seek(SeekBy.SEQUENCE, at, bytes_max=bytes_max))
            if not some:
                break
            chunks += some
            at = some[-1].end
        return chunks

    def flush(self, passes: int = 8) -> None:
        """Fill the journal with what is gone at once, so that all else goes to its file."""
        for _ in range(passes):
            self._fillers += 1
            message_id = FILLER_ID + self._fillers
            row = StoredMessage(message_id, self._fillers, 60, NOW + 60, bytes(4000))
            self.write(FILLER, row)
            self.write(FILLER, MessageRemoved(message_id, row.key, None, 4000))

    def file(self, name: bytes) -> Path:
        return self.folder / "partitions" / file_name(name)

    def close(self) -> None:
        self.store.close()


@contextmanager
def run(
    folder: Path,
    settings: StoreSettings = LAZY,
    durability: Durability = Durability.DISK,
    *,
    disk: Disk | None = None,
) -> Iterator[Run]:
    """A run that is closed, and whose closing loses nothing."""
    opened = Run(folder, settings, durability, disk=disk)
    try:
        yield opened
    finally:
        opened.close()


def copied(folder: Path, name: str) -> Path:
    """The folder as a kill would leave it now."""
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    return copy


def catalog_removed(folder: Path) -> None:
    """Lose the catalog, and the copy of it that a clean stop leaves."""
    for path in folder.glob("catalogue.*"):
        path.unlink()
