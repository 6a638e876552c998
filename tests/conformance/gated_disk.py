"""A disk that takes as long as a test wants."""

from __future__ import annotations

import threading
from pathlib import Path

from millpond.actors.store.filesystem import File, OsDisk, OsFile

PATIENCE_S = 60.0


class GatedDisk(OsDisk):
    """The disk of this machine; nothing is synced while the `gate` is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: Path, size: int) -> OsFile:
        return _GatedFile(super().create(path, size), self.gate)  # type: ignore[return-value]


class _GatedFile:
    def __init__(self, file: File, gate: threading.Event) -> None:
        self._gate = gate
        self._sync = file.sync
        self.write = file.write
        self.close = file.close

    def sync(self) -> None:
        assert self._gate.wait(PATIENCE_S), "the test forgot the gate"
        self._sync()
