"""Snapshots: the store as it was at one moment, to be copied while the node goes on.

A snapshot is taken between two slices of compaction, right after the journal began a segment. It
consists of all segments before that one, which are complete, of the catalog, and of the partition
files. These three are what a clean stop at that moment would have left. Files change afterwards:
before the first flush of each, its old content is kept, a small one in memory, a larger one by a
read transaction of SQLite, beside which the flush goes on. Copies are made in another thread, which
may take its time.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from millpond.actors.store.filesystem import Disk
from millpond.actors.store.journal.segments import Segment
from millpond.actors.store.partitions.file_pool import BESIDE

SMALL_BYTES_MAX = 256 * 1024
"""Files up to this size are kept in memory, if there is space."""
MEMORY_BYTES_MAX = 64 * 2**20
HELD_MAX = 512
"""The files that are kept at the same time: each has up to three descriptors."""
PAGES_A_STEP = 512


class SnapshotLost(Exception):
    """The snapshot is given up; the text is the reason. Nothing of the store is harmed."""


class KeptFile:
    """A partition file as it was. `content` has its bytes, or `connection` a read transaction;
    neither: SQLite cannot read the file, and its bytes are copied as they are."""

    def __init__(
        self,
        path: Path,
        content: bytes | None = None,
        connection: sqlite3.Connection | None = None,
    ) -> None:
        self.path = path
        self.content = content
        self._connection = connection

    def copy_to(self, target: Path, proceed: Callable[[int], None]) -> None:
        """Write the file to `target`, which is not synced. `proceed` is called now and then, with
        the bytes written since. Raises sqlite3.Error, OSError, and what `proceed` raises."""
        if self.content is not None:
            target.write_bytes(self.content)
            proceed(len(self.content))
            return
        if self._connection is not None:
            try:
                self._copy_pages(self._connection, target, proceed)
                return
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                target.unlink(missing_ok=True)
        for end in ("", *BESIDE[:1]):
            source = self.path.with_name(self.path.name + end)
            if source.exists():
                with (
                    source.open("rb") as read,
                    target.with_name(target.name + end).open("wb") as to,
                ):
                    while data := read.read(2**20):
                        to.write(data)
                        proceed(len(data))

    def _copy_pages(
        self, connection: sqlite3.Connection, target: Path, proceed: Callable[[int], None]
    ) -> None:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        before = 0

        def tell(status: int, remaining: int, total: int) -> None:
            nonlocal before
            done = total - remaining
            proceed((done - before) * page_bytes)
            before = done

        copy = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
        try:
            # A copy that is not whole is of no use: it is synced once, when it is.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            connection.backup(copy, pages=PAGES_A_STEP, progress=tell)
        finally:
            copy.close()

    def close(self) -> None:
        """Let the file go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


class FilesSnapshot:
    """The partition files at the moment of the snapshot. `keep` and `lose` are for the thread that
    writes them, `take` for the one that copies."""

    def __init__(self, paths: Iterable[Path], disk: Disk) -> None:
        self._disk = disk
        self._waiting = dict.fromkeys(paths)
        self.count = len(self._waiting)
        self._kept: deque[KeptFile] = deque()
        self._memory_bytes = 0
        self._lock = Lock()
        self._reason: str | None = None

    def keep(self, path: Path) -> None:
        """Keep what a file has, if it is part of the snapshot: it is about to change, or to go."""
        with self._lock:
            if path not in self._waiting:
                return
            del self._waiting[path]
            if len(self._kept) >= HELD_MAX:
                self._lose(f"more than {HELD_MAX} files changed before they could be copied")
                return
            try:
                self._kept.append(self._kept_file(path))
            except (sqlite3.Error, OSError) as exc:
                self._lose(f"{path.name}: {exc}")

    def take(self, bytes_max: int | None = None) -> KeptFile | None:
        """The next file to copy, which the caller closes: first of those that are kept. With
        `bytes_max`, only one that is kept in memory. None: there is none. Raises SnapshotLost, and
        sqlite3.Error or OSError for a file that cannot be read."""
        with self._lock:
            self._check()
            if self._kept and (bytes_max is None or self._kept[0].content is not None):
                found = self._kept.popleft()
                self._memory_bytes -= len(found.content or b"")
                return found
            if bytes_max is not None or not self._waiting:
                return None
            path = next(iter(self._waiting))
            found = self._kept_file(path)
            self._memory_bytes -= len(found.content or b"")
            del self._waiting[path]
            return found

    def check(self) -> None:
        """Raises SnapshotLost."""
        with self._lock:
            self._check()

    def lose(self, reason: str) -> None:
        """Give the snapshot up: what is kept goes."""
        with self._lock:
            self._lose(reason)

    def _check(self) -> None:
        if self._reason is not None:
            raise SnapshotLost(self._reason)

    def _lose(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
        self._waiting.clear()
        while self._kept:
            self._kept.pop().close()
        self._memory_bytes = 0

    def _kept_file(self, path: Path) -> KeptFile:
        try:
            connection = self._disk.connect(path)
            try:
                connection.execute("BEGIN")
                # Not before a statement reads is it decided what the transaction sees.
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
                size = pages * page_bytes
                if size > min(SMALL_BYTES_MAX, MEMORY_BYTES_MAX - self._memory_bytes):
                    return KeptFile(path, connection=connection)
                content = connection.serialize()
            except BaseException:
                connection.close()
                raise
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return KeptFile(path)
        connection.close()
        self._memory_bytes += len(content)
        return KeptFile(path, content)


class StoreSnapshot(msgspec.Struct, frozen=True):
    """The store at one moment, with all records up to `lsn`: the complete segments of its journal,
    the numbers of those that the catalog lists beyond them, the bytes of the catalog, and the
    partition files."""

    lsn: int
    segments: list[Segment]
    later: list[int]
    catalog: bytes
    files: FilesSnapshot
