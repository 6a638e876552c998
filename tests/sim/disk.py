"""The toolkit's disk, for a store whose machine stops at the k-th call.

It stands still at the call it is told to crash at, and sees to it that the store never syncs again
what failed to sync, and uses no file that it closed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from millpond.node.testing.disk.faults import DiskCall
from millpond.node.testing.disk.file_bytes import FileBytes
from millpond.node.testing.disk.simulated import SimulatedDisk, SimulatedFile
from tests.sim.faults import Crashed, StoreFaults


class SimFile(SimulatedFile):
    """An open file. After a crash it is of no use to anybody."""

    def __init__(self, disk: SimulatedDisk, pages: FileBytes) -> None:
        super().__init__(disk, pages)
        self._is_open = True
        self._has_failed = False

    def sync(self) -> None:
        assert not self._has_failed, "a sync that failed is never tried again"
        try:
            super().sync()
        except BaseException:
            self._has_failed = True
            raise

    def close(self) -> None:
        self._is_open = False

    def enter(self, call: DiskCall) -> BaseException | None:
        if self._boot != self._disk.boots:
            raise Crashed
        assert self._is_open, "the file is closed"
        return super().enter(call)


class SimDisk(SimulatedDisk):
    """Everything lies below `folder`, which exists and is real; the tests' own is best."""

    faults: StoreFaults

    def __init__(self, rng: Random, folder: Path, *, garbage: float = 0.0) -> None:
        super().__init__(rng, folder / "removed", garbage=garbage)
        self.faults = StoreFaults()

    def has(self, path: Path) -> bool:
        self.faults.enter(None)
        return super().has(path)

    def end_process(self) -> None:
        super().end_process()
        self.faults.restart()

    def size(self, suffix: str) -> int:
        """Bytes of the files whose name ends like this."""
        return sum(len(each.cache) for path, each in self._files.items() if path.suffix == suffix)

    def newest(self, suffix: str) -> Path | None:
        """The last of the files whose name ends like this."""
        return max((path for path in self._files if path.suffix == suffix), default=None)

    def _file(self, pages: FileBytes) -> SimFile:
        return SimFile(self, pages)
