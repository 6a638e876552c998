"""A simulated disk in memory: it can fail, be full, hang, lose unsynced data, and damage files.

It holds the node's journal. SQLite files are real, and a COMMIT counts as durable. Keys, the
address book and other files of the data folder are real files, and do not fail.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random
from urllib.parse import quote

from millpond.node.testing.disk.damage import DIVERTED, DamageKind, damaged, unit_of
from millpond.node.testing.disk.faults import SPACE_CALLS, DiskCall, DiskFault, Faults
from millpond.node.testing.disk.file_bytes import SECTOR_BYTES, FileBytes
from millpond.node.testing.disk.sqlite import SimulatedConnection

SUFFIXES = (".journal", ".copy")
"""The ends of the names of simulated files with data of the store."""
NAMES_REAL = (".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".sqlite3-journal")


class SimulatedFile:
    """An open file, unusable after its machine or process has ended.

    A subclass may add faults in `enter`.
    """

    def __init__(self, disk: SimulatedDisk, pages: FileBytes) -> None:
        self._disk = disk
        self._pages = pages
        self._boot = disk.boots

    def write(self, data: bytes, offset: int) -> None:
        error = self.enter(DiskCall.WRITE)
        if error is not None:
            data = data[: self._disk.rng.randint(0, len(data))]
        if data:
            self._disk.place(self._pages, data, offset)
        if error is not None:
            raise error

    def sync(self) -> None:
        error = self.enter(DiskCall.SYNC)
        if error is None:
            if not self._disk.lies:
                self._pages.sync()
            return
        if isinstance(error, Exception):
            # The system marks the pages as clean, whether they are on the disk or not.
            self._pages.settle(self._disk.rng)
        raise error

    def close(self) -> None: ...

    def enter(self, call: DiskCall) -> BaseException | None:
        """Count a call, and return the exception that it has to raise; see `Faults.enter`."""
        if self._boot != self._disk.boots:
            raise DiskFault(errno.EBADF, "the node that opened this file was ended")
        return self._disk.faults.enter(call)


class SimulatedDisk:
    """A disk (`actors.store.filesystem.Disk`) with faults that tests set.

    `folder` is real, and holds removed SQLite files that a power failure may bring back.
    `garbage`: the probability that a sector that did not reach the disk has random bytes.
    `lies`: a sync claims success and does nothing.
    """

    def __init__(self, rng: Random, folder: Path, *, garbage: float = 0.0) -> None:
        self.rng = rng
        self.faults = Faults()
        self.garbage = garbage
        self.lies = False
        self.boots = 0
        self.is_hanging = False
        self.on_resume: Callable[[], None] = lambda: None
        self._removed_folder = folder
        self._files: dict[Path, FileBytes] = {}
        self._names: dict[Path, FileBytes] = {}
        """The names on the disk; `_files` has those that the system shows."""
        self._removed: dict[Path, Path] = {}
        self._connections: list[SimulatedConnection] = []
        self._diverted: deque[DamageKind] = deque()
        """The writes that will be lost or go elsewhere."""
        self._copies: dict[Path, bytes] = {}

    # Faults, set by tests.

    def fail_next(self, call: str, times: float = 1, number: int = errno.EIO) -> None:
        """Have the next `times` calls of a kind fail: `write`, `fdatasync`, `read`, `open`,
        `create`, `unlink`, `sql commit` and the others of `faults.Call`. ValueError for no kind."""
        self.faults.add(frozenset({DiskCall(call)}), number, times)

    def fill(self) -> None:
        """Fill the disk until `heal`: writes fail, reads go on."""
        self.faults.add(SPACE_CALLS, errno.ENOSPC, inf)

    def fail(self, number: int = errno.EIO) -> None:
        """Break the disk until `heal`: every call fails."""
        self.faults.add(frozenset(DiskCall), number, inf)

    def heal(self) -> None:
        """End all faults."""
        self.faults.heal()

    def hang(self) -> None:
        """Hang: calls of the node's threads do not return until `resume`; other code goes on."""
        self.is_hanging = True

    def resume(self) -> None:
        """Let hanging calls return."""
        self.is_hanging = False
        self.on_resume()

    def divert(self, kind: str, times: int = 1) -> None:
        """Acknowledge the next `times` writes to the journal that are no `fail_next`, and lose
        them (`lost write`) or write them elsewhere (`misdirected write`). The system's memory
        shows what was meant until the node has ended. ValueError for no such kind."""
        if DamageKind(kind) not in DIVERTED:
            raise ValueError(f"a {kind} does not happen to a write")
        self._diverted.extend([DamageKind(kind)] * times)

    def keep_copies(self) -> None:
        """Copy all files, for `damage`. The node must have ended."""
        self._copies.update((path, self._content(path)) for path in self.paths())

    def paths(self) -> list[Path]:
        """The files with data of the store: its catalog, partitions and journal."""
        homes = {path.parent.parent for path in self._files if _is_segment(path)}
        found = {path for home in homes for path in home.rglob("*.sqlite3")}
        return sorted(found | {path for path in self._files if path.suffix in SUFFIXES})

    def copies(self) -> list[Path]:
        """The files of which there is a copy, also those that are removed since."""
        return sorted(self._copies)

    def changed(self) -> list[Path]:
        """The files that are there and are not as their copies."""
        there = [path for path in self.paths() if path in self._copies]
        return [path for path in there if self._content(path) != self._copies[path]]

    def damage(self, kind: str, path: Path) -> bool:
        """Change a file without a word. The node must have ended; False: the bytes are the same.

        `missing`, `stale` (as `keep_copies` found it), `stale page` (one page that was written
        since), `bit flip`, `truncated`, `zeroed`, `lost write` (some pages as the copy has them),
        `misdirected write` (some pages are those of another place or file). ValueError for no such
        kind.
        """
        there = self.paths()
        data = self._content(path) if path in there else b""
        source = self._content(self.rng.choice([path, *there])) if path in there else b""
        found = damaged(
            DamageKind(kind), data, self._copies.get(path), source, self.rng, unit_of(path.name)
        )
        if found == (data if path in there else b""):
            return False
        self._replace(path, found)
        return True

    def lose_power(self) -> None:
        """Let chance decide which data without a sync is kept. The node must have ended."""
        self.end_process()
        for path in self._touched():
            if self.rng.random() < 0.5:
                self._sync_name(path)
        for path, copy in self._removed.items():
            if self.rng.random() < 0.5 and not path.exists():
                copy.rename(path)
        self._removed.clear()
        self._files = dict(self._names)
        for pages in self._files.values():
            pages.power_off(self.rng, self.garbage)

    def end_process(self) -> None:
        """End the process that used the disk; its writes stay in the system's memory."""
        self.boots += 1
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._diverted.clear()
        for pages in self._files.values():
            if pages.is_diverted:
                pages.evict()

    def place(self, pages: FileBytes, data: bytes, offset: int) -> None:
        """Write into a file, unless this write is to be lost or to go elsewhere."""
        match self._diverted.popleft() if self._diverted else None:
            case None:
                pages.write(data, offset)
                pages.places.append((offset, len(data)))
            case DamageKind.LOST_WRITE:
                pages.lose(data, offset)
            case _:
                pages.lose(data, offset)
                self._misplace(data, pages, *self._wrong_place(pages, len(data)))

    def _misplace(self, data: bytes, meant: FileBytes, pages: FileBytes, offset: int) -> None:
        """Let a write that was meant for one file go to a place of this or another one."""
        pages.receive(data, offset)

    def _wrong_place(self, pages: FileBytes, size: int) -> tuple[FileBytes, int]:
        """A sector of a segment, or the place of an earlier write to this file: of one of the same
        size, if there is any."""
        segments = [each for path, each in self._files.items() if _is_segment(path)]
        places = [at for at, length in pages.places if length == size] or [
            at for at, _ in pages.places
        ]
        if places and self.rng.random() < 0.5:
            return pages, self.rng.choice(places)
        other = self.rng.choice([pages, *segments])
        last = max(0, len(other.cache) // SECTOR_BYTES - 1)
        return other, SECTOR_BYTES * self.rng.randint(0, last)

    # Disk: called by the store.

    def create(self, path: Path, size: int) -> SimulatedFile:
        error = self.faults.enter(DiskCall.CREATE)
        if isinstance(error, Exception):
            raise error
        if path in self._files:
            raise FileExistsError(path)
        _require(path.parent)
        pages = self._files[path] = FileBytes()
        if error is not None:
            raise error
        pages.write(b"", size)
        return self._file(pages)

    def open(self, path: Path) -> SimulatedFile:
        self._check(DiskCall.OPEN)
        return self._file(self._pages(path))

    def read(self, path: Path) -> bytes:
        self._check(DiskCall.READ)
        return path.read_bytes() if _is_real(path) else bytes(self._pages(path).cache)

    def install(self, path: Path, data: bytes) -> None:
        error = self.faults.enter(DiskCall.INSTALL)
        _require(path.parent)
        if error is not None:
            # The file has its new content only if all of the work was done.
            self._files[path.with_name(path.name + ".new")] = FileBytes()
            if self.rng.random() < 0.7:
                raise error
        self._install(path, data)
        if error is not None:
            raise error

    def has(self, path: Path) -> bool:
        return path in self._files or path.exists()

    def weight(self, path: Path) -> int:
        return len(self.read(path))

    def names(self, folder: Path) -> list[str]:
        self._check(DiskCall.NAMES)
        names = {path.name for path in self._files if path.parent == folder}
        if folder.is_dir():
            names.update(each.name for each in folder.iterdir())
        return sorted(names)

    def make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        error = self.faults.enter(DiskCall.MAKE_FOLDER)
        if error is None or self.rng.random() < 0.5:
            path.mkdir(parents=True)
        if error is not None:
            raise error

    def unlink(self, path: Path) -> None:
        error = self.faults.enter(DiskCall.UNLINK)
        if error is None or self.rng.random() < 0.5:
            self._unlink(path)
        if error is not None:
            raise error

    def sync_folder(self, path: Path) -> None:
        self._check(DiskCall.SYNC_FOLDER)
        _require(path)
        self._sync_names(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        self._check(DiskCall.CONNECT)
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            isolation_level=None,
            factory=SimulatedConnection,
            timeout=0.0,
        )
        connection.faults, connection.rng = self.faults, self.rng
        self._connections = [each for each in self._connections if each.is_open]
        self._connections.append(connection)
        return connection

    def _check(self, call: DiskCall) -> None:
        error = self.faults.enter(call)
        if error is not None:
            raise error

    def _install(self, path: Path, data: bytes) -> None:
        self._files.pop(path.with_name(path.name + ".new"), None)
        if _is_real(path):
            path.write_bytes(data)
        else:
            pages = self._files[path] = FileBytes()
            pages.write(data, 0)
            pages.sync()
        self._sync_names(path.parent)

    def _unlink(self, path: Path) -> None:
        self._files.pop(path, None)
        if _is_real(path) and path.exists():
            self._removed_folder.mkdir(exist_ok=True)
            copy = self._removed_folder / f"{self.faults.calls[DiskCall.UNLINK]}-{path.name}"
            self._removed[path] = path.rename(copy)

    def _content(self, path: Path) -> bytes:
        return path.read_bytes() if _is_real(path) else bytes(self._files[path].disk)

    def _replace(self, path: Path, data: bytes | None) -> None:
        """Have a file with these bytes, or none."""
        if _is_real(path):
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            if data is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        elif data is None:
            self._files.pop(path, None)
            self._names.pop(path, None)
        else:
            self._files[path] = self._names[path] = FileBytes(data)

    def _file(self, pages: FileBytes) -> SimulatedFile:
        return SimulatedFile(self, pages)

    def _pages(self, path: Path) -> FileBytes:
        pages = self._files.get(path)
        if pages is None:
            raise FileNotFoundError(path)
        return pages

    def _touched(self) -> list[Path]:
        """Names that a power failure may lose or bring back."""
        paths = {**self._names, **self._files}
        return [path for path in paths if self._names.get(path) is not self._files.get(path)]

    def _sync_names(self, folder: Path) -> None:
        for path in self._touched():
            if path.parent == folder:
                self._sync_name(path)
        for path in [each for each in self._removed if each.parent == folder]:
            del self._removed[path]

    def _sync_name(self, path: Path) -> None:
        if path in self._files:
            self._names[path] = self._files[path]
        else:
            del self._names[path]


def _is_real(path: Path) -> bool:
    """The file is one of SQLite."""
    return path.name.endswith(NAMES_REAL)


def _is_segment(path: Path) -> bool:
    return path.suffix == ".journal"


def _require(folder: Path) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
