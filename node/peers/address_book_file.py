"""The file of the address book: read when it changed, written as a whole under a lock."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from millpond.node.atomic_files import OTHERS_WRITE, read_private, replace

BYTES_MAX = 64 * 2**20
LOCK_WAIT_S = 5.0
LOCK_STEP_S = 0.02

Stamp = tuple[int, int, int, int]


class BookBusy(Exception):
    """Another process has held the lock of the address book for seconds."""


class AddressBookFile:
    """A small file that several processes change: the node, and the commands of its owner."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp | None:
        """A value that changes with every change of the file; None while there is no file."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  # a third of the time of Path.stat
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def read(self) -> str:
        """The text, empty if there is no file.

        Raises UnsafeFile when other users may write the file: they could add a peer. Raises OSError
        and UnicodeError.
        """
        try:
            data = read_private(self.path, BYTES_MAX, refused=OTHERS_WRITE)
        except FileNotFoundError:
            return ""
        return data.decode("utf-8")

    def write(self, text: str) -> None:
        """Replace the file; it is on disk when this returns. After an OSError the old one stays."""
        replace(self.path, text.encode("utf-8"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock against writers in other processes and threads. Raises BookBusy after 5 s."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)  # releases the lock

    def _lock(self, fd: int) -> None:
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                if time.monotonic() > give_up_at:
                    raise BookBusy(f"{self.path}: another process has it locked") from exc
                time.sleep(LOCK_STEP_S)
            else:
                return


class InMemoryFile:
    """The stand-in for the file of an address book that is only in memory."""

    def __init__(self) -> None:
        self._lock = Lock()

    def stamp(self) -> None:
        """None: nothing else changes it."""

    def read(self) -> str:
        """The text of an empty book."""
        return ""

    def write(self, text: str) -> None:
        """Nothing is written."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock against other threads."""
        with self._lock:
            yield
