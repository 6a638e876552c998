"""A disk that takes as long as a test wants."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from millpond.actors.store.filesystem import File, OsDisk, OsFile

PATIENCE_S = 60.0


class GatedDisk(OsDisk):
    """The disk of this machine; nothing is synced while the `gate` is shut, and a sync fails while
    it `is_broken`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False

    def create(self, path: Path, size: int) -> OsFile:
        return _GatedFile(super().create(path, size), self)  # type: ignore[return-value]


class _GatedFile:
    def __init__(self, file: File, disk: GatedDisk) -> None:
        self._disk = disk
        self._sync = file.sync
        self.write = file.write
        self.close = file.close

    def sync(self) -> None:
        assert self._disk.gate.wait(PATIENCE_S), "the test forgot the gate"
        if self._disk.is_broken:
            raise OSError(errno.EIO, "the disk is broken")
        self._sync()
