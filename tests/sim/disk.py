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

GROUP = b"ROUP"


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
        self._misplaced: list[tuple[FileBytes, int, bytes]] = []

    def has(self, path: Path) -> bool:
        self.faults.enter(None)
        return super().has(path)

    def _misplace(self, data: bytes, meant: FileBytes, pages: FileBytes, offset: int) -> None:
        over = bytes(pages.cache[offset : offset + len(data)])
        is_place = any(offset == at for at, _ in pages.places)
        if pages is meant and is_place and _are_groups(data, over):
            self._misplaced.append((pages, offset, data))
        super()._misplace(data, meant, pages, offset)

    def shows_misplaced(self) -> bool:
        """True: in a segment stands a group in the place of an earlier one. The node must have
        ended."""
        files = self._files.values()
        return any(
            pages in files and pages.cache[offset : offset + len(data)] == data
            for pages, offset, data in self._misplaced
        )

    def end_process(self) -> None:
        super().end_process()
        self.faults.restart()

    def size(self, suffix: str) -> int:
        """Bytes of the files whose name ends like this."""
        return sum(len(each.cache) for path, each in self._files.items() if path.suffix == suffix)

    def newest(self, suffix: str) -> Path | None:
        """The last of the files whose name ends like this, and that has anything in it."""
        files = (path for path in self._files if path.suffix == suffix)
        return next((path for path in sorted(files, reverse=True) if self._is_used(path)), None)

    def _is_used(self, path: Path) -> bool:
        data = self._files[path].cache
        return data.count(0) < len(data)

    def _file(self, pages: FileBytes) -> SimFile:
        return SimFile(self, pages)


def _are_groups(*written: bytes) -> bool:
    """True: these were written as groups of the journal."""
    return all(each.startswith(GROUP) for each in written)
