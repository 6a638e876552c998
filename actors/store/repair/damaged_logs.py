"""Copies of files whose write-ahead log is damaged, made before SQLite opens them.

SQLite takes what is before the first damaged frame, and removes the log with all that is behind
it. A repair reads the copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millpond.actors.store.filesystem import Disk
from millpond.actors.store.repair.sqlite_wal import read_wal

WAL = "-wal"
"""The write-ahead log: transactions that SQLite has not put into the file yet."""
_KEPT = ".kept"


def kept_copy(folder: Path, path: Path) -> Path:
    """The path of the copy of a file, in the folder of the reports."""
    return folder / (path.name + _KEPT)


def log_of(path: Path) -> Path:
    """The path of the log of a file."""
    return path.with_name(path.name + WAL)


def keep_damaged_logs(paths: Iterable[Path], folder: Path, disk: Disk) -> list[Path]:
    """Copy those files that have a damaged log; gives them. Only after a crash there is a log at
    all. Raises OSError."""
    kept: list[Path] = []
    for path in paths:
        log = log_of(path)
        if disk.has(log) and read_wal(disk.read(log)).is_damaged:
            copy = kept_copy(folder, path)
            # The log first: a copy of the file says that its log is there.
            disk.install(log_of(copy), disk.read(log))
            disk.install(copy, disk.read(path))
            kept.append(path)
    return kept


def drop_copy(folder: Path, path: Path, disk: Disk) -> None:
    """Remove the copy of a file: it was repaired, or nothing is missing in it."""
    copy = kept_copy(folder, path)
    disk.unlink(copy)
    disk.unlink(log_of(copy))
