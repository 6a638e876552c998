"""The real disk, with all open files of a node, which are closed when it is killed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from millpond.actors.store.filesystem import OsDisk, OsFile


class RealFile:
    """A file of the operating system that the disk can close."""

    __slots__ = ("_disk", "_file", "_is_open")

    def __init__(self, file: OsFile, disk: RealDisk) -> None:
        self._file = file
        self._disk = disk
        self._is_open = True

    def write(self, data: bytes, offset: int) -> None:
        self._file.write(data, offset)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disk.forget(self)
            self._file.close()


class RealDisk(OsDisk):
    """The disk of this machine, with the files that one run of a node has open."""

    def __init__(self) -> None:
        self._files: dict[RealFile, None] = {}
        self._connections: list[sqlite3.Connection] = []

    def create(self, path: Path, size: int) -> RealFile:  # type: ignore[override]  # a File, too
        return self._keep(super().create(path, size))

    def open(self, path: Path) -> RealFile:  # type: ignore[override]
        return self._keep(super().open(path))

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = super().connect(path)
        self._connections.append(connection)
        return connection

    def forget(self, file: RealFile) -> None:
        """Forget a closed file."""
        self._files.pop(file, None)

    def close_all(self) -> None:
        """Close all files and roll back transactions, as the system does when a process ends."""
        for file in list(self._files):
            file.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _keep(self, file: OsFile) -> RealFile:
        kept = RealFile(file, self)
        self._files[kept] = None
        return kept
