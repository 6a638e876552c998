"""A disk that fails on command: a `Disk` whose files are in memory.

It loses, tears and reorders what was not synced, forgets names whose folder was not, fails the call
it is told to fail, and stands still at the call it is told to crash at. SQLite files are real ones
in a real folder, where a COMMIT counts as durable.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from random import Random
from urllib.parse import quote

from tests.sim.database import SimConnection
from tests.sim.faults import Crashed, Faults
from tests.sim.pages import Pages

NAMES_REAL = (".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".sqlite3-journal")


class SimFile:
    """An open file. After a crash it is of no use to anybody."""

    def __init__(self, disk: SimDisk, pages: Pages) -> None:
        self._disk = disk
        self._pages = pages
        self._boot = disk.boot
        self._is_open = True
        self._has_failed = False

    def write(self, data: bytes, offset: int) -> None:
        error = self._enter("write")
        if error is not None:
            data = data[: self._disk.rng.randint(0, len(data))]
        if data:
            self._pages.write(data, offset)
        if error is not None:
            raise error

    def sync(self) -> None:
        assert not self._has_failed, "a sync that failed is never tried again"
        error = self._enter("sync")
        if error is None:
            if not self._disk.lies:
                self._pages.sync()
            return
        # The system takes the pages for clean, whether they are on the disk or not.
        self._has_failed = True
        if not isinstance(error, Crashed):
            self._pages.settle(self._disk.rng, 0.0)
        raise error

    def close(self) -> None:
        self._is_open = False

    def _enter(self, call: str) -> BaseException | None:
        if self._boot != self._disk.boot:
            raise Crashed
        assert self._is_open, "the file is closed"
        return self._disk.faults.enter(call)


class SimDisk:
    """Everything lies below `folder`, which exists and is real; the tests' own is best.

    `garbage`: how likely a sector that did not reach the disk holds neither the old nor the new.
    `lies`: a sync claims success and does nothing.
    """

    def __init__(self, rng: Random, folder: Path, *, garbage: float = 0.0) -> None:
        self.rng = rng
        self.faults = Faults()
        self.garbage = garbage
        self.lies = False
        self.boot = 0
        self._grave = folder / "removed"
        self._grave.mkdir()
        self._files: dict[Path, Pages] = {}
        self._names: dict[Path, Pages] = {}
        """The names that are on the disk; `_files` has those that the system shows."""
        self._removed: dict[Path, Path] = {}
        """SQLite files that were unlinked, and may come back: by path, where they are now."""
        self._connections: list[SimConnection] = []

    # What the store asks for.

    def create(self, path: Path, size: int) -> SimFile:
        error = self.faults.enter("create")
        if error is not None and not isinstance(error, Crashed):
            raise error
        if path in self._files:
            raise FileExistsError(path)
        self._require(path.parent)
        pages = self._files[path] = Pages()
        if error is not None:
            raise error
        pages.write(b"", size)
        return SimFile(self, pages)

    def open(self, path: Path) -> SimFile:
        self._check("open")
        return SimFile(self, self._pages(path))

    def read(self, path: Path) -> bytes:
        self._check("read")
        return path.read_bytes() if is_real(path) else bytes(self._pages(path).cache)

    def install(self, path: Path, data: bytes) -> None:
        error = self.faults.enter("install")
        self._require(path.parent)
        if error is not None:
            # Whatever is left of the work is not under the file's name, unless all was done.
            self._files[path.with_name(path.name + ".new")] = Pages()
            if self.rng.random() < 0.7:
                raise error
        self._install(path, data)
        if error is not None:
            raise error

    def has(self, path: Path) -> bool:
        if self.faults.is_down:
            raise Crashed
        return path in self._files or path.exists()

    def names(self, folder: Path) -> list[str]:
        self._check("names")
        names = {path.name for path in self._files if path.parent == folder}
        if folder.is_dir():
            names.update(each.name for each in folder.iterdir())
        return sorted(names)

    def make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        error = self.faults.enter("make_folder")
        if error is None or self.rng.random() < 0.5:
            path.mkdir(parents=True)
        if error is not None:
            raise error

    def unlink(self, path: Path) -> None:
        error = self.faults.enter("unlink")
        if error is None or self.rng.random() < 0.5:
            self._files.pop(path, None)
            if is_real(path) and path.exists():
                grave = self._grave / f"{len(self._removed)}-{path.name}"
                self._removed[path] = path.rename(grave)
        if error is not None:
            raise error

    def sync_folder(self, path: Path) -> None:
        error = self.faults.enter("sync_folder")
        self._require(path)
        if error is None:
            self._sync_names(path)
        else:
            raise error

    def connect(self, path: Path) -> sqlite3.Connection:
        self._check("connect")
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            isolation_level=None,
            factory=SimConnection,
            timeout=0.0,
        )
        connection.faults, connection.rng = self.faults, self.rng
        self._connections = [each for each in self._connections if each.is_open]
        self._connections.append(connection)
        return connection

    # What happens to the machine.

    def crash(self) -> None:
        """The power fails and comes back."""
        self._cut()
        for path in self._touched():
            if self.rng.random() < 0.5:
                self._sync_name(path)
        for path, grave in self._removed.items():
            if self.rng.random() < 0.5 and not path.exists():
                grave.rename(path)
        self._removed.clear()
        self._files = dict(self._names)
        for pages in self._files.values():
            pages.power_off(self.rng, self.garbage)

    def kill(self) -> None:
        """The process ends. What it wrote is still in the system's memory, and as pending."""
        self._cut()

    def size(self, suffix: str) -> int:
        """Bytes of the files whose name ends like this."""
        return sum(len(each.cache) for path, each in self._files.items() if path.suffix == suffix)

    def _cut(self) -> None:
        self.boot += 1
        self.faults.restart()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _check(self, call: str) -> None:
        error = self.faults.enter(call)
        if error is not None:
            raise error

    def _pages(self, path: Path) -> Pages:
        pages = self._files.get(path)
        if pages is None:
            raise FileNotFoundError(path)
        return pages

    def _require(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(folder)

    def _install(self, path: Path, data: bytes) -> None:
        self._files.pop(path.with_name(path.name + ".new"), None)
        if is_real(path):
            path.write_bytes(data)
        else:
            pages = self._files[path] = Pages()
            pages.write(data, 0)
            pages.sync()
        self._sync_names(path.parent)

    def _touched(self) -> list[Path]:
        """Names that a crash may or may not have."""
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


def is_real(path: Path) -> bool:
    """Is it one of SQLite's files?"""
    return path.name.endswith(NAMES_REAL)
