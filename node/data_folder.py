"""The data folder of a node: its lock, and the store in it, run by the event loop.

Commands use the folder of a stopped node through the same lock: `OfflineStore` runs the store
without a loop, `CopyOnOpenDisk` reads the files and leaves them exactly as they are.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, TypeVar

import anyio.lowlevel

from millpond.actors.errors import MillpondError
from millpond.actors.messages import Durability
from millpond.actors.state.checkpoint_store import FOLDER as STATES
from millpond.actors.store.catalog_recovery import DAMAGED, JOURNAL, PARTITIONS
from millpond.actors.store.changes import Change, Chunk, LogSnapshot, Snapshot
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.partitions.file_pool import BESIDE
from millpond.actors.store.repair.quarantine import Damage
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.workers import SteppedWorker, StoreWorker, WorkerTask, WorkerThread
from millpond.node.clock_file import CONFIRMATION, READING, stored_reading

log = logging.getLogger(__name__)

REPLICA_POSITION = "replica.json"
"""The file with the position of the replica that the folder has, or had."""
STORE_FOLDERS = (JOURNAL, PARTITIONS, DAMAGED)
RESTORING = "restore.unfinished"
"""The file that a folder has while a backup is restored into it."""
BEGUN_FILES = ("lock", READING, f"{READING}.new", CONFIRMATION, f"{CATALOG}.new")
"""The files that a first start of an earlier version made before the catalog."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def was_used(folder: Path) -> bool | None:
    """True: a node ran on this folder, whatever is left of its store. False: nothing was ever
    stored in it. None: nothing but the store can tell.

    A node stores its time once its store is open. Earlier versions did so before: a first start of
    one that was interrupted leaves the clock file and empty folders, and nothing else.
    """
    states = folder / STATES
    if states.is_dir() and any(states.iterdir()):
        return True
    if not (folder / READING).exists():
        return None
    return not _is_begun_only(folder)


def has_no_secrets(folder: Path) -> bool:
    """True: no node ran on this folder, and there are no keys in it."""
    names = (*STORE_FOLDERS, CATALOG, READING, STATES, "identity.key", "local.key", "prekeys")
    return not any((folder / name).exists() for name in (*names, "peers.db"))


def _is_begun_only(folder: Path) -> bool:
    """True: a first start was interrupted before there was a catalog. No listener was open: the
    identity, which a node makes before, is not there."""
    for path in folder.iterdir():
        if path.name in STORE_FOLDERS and path.is_dir() and not any(path.iterdir()):
            continue
        if path.name not in BEGUN_FILES:
            return False
    reading = stored_reading(folder)
    return reading is not None and not reading.ids_at and not reading.ids_until


class FolderInUse(MillpondError):
    """Another node runs on this data folder; `holder` names its process."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(folder, holder)
        self.folder = folder
        self.holder = holder

    def __str__(self) -> str:
        how = "stop that node, or choose another --data"
        return f"{self.folder} is in use by {self.holder}: {how}"


class StopTimedOut(MillpondError):
    """The disk did not answer within `stop_timeout_s`, so the store is not closed.

    Acknowledged data is as safe as in a crash. `folder` stays locked until the disk answers, or
    the process ends.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, seconds)
        self.folder = folder
        self.seconds = seconds

    def __str__(self) -> str:
        what = "what was acknowledged is as safe as in a crash"
        return f"the disk of {self.folder} did not answer within {self.seconds:g} s; {what}"


class FolderLock:
    """The lock of a data folder, held while a node, or a command that reads it, is at work.

    Two things are locked: the folder itself, which nobody can delete and create again below a node,
    and its file `lock`, which names the holder. File systems that lock no folders (NFS) have the
    file alone.
    """

    def __init__(self, folder: Path, *, is_restoring: bool = False) -> None:
        """Make the folder if there is none, and lock it. Raises FolderInUse, OSError: also for a
        folder into which a backup was not restored to the end, unless that is done now."""
        _require_utf8(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fds: list[int] = []
        try:
            self._lock_folder(folder)
            self._lock_file(folder)
            if not is_restoring and (folder / RESTORING).exists():
                reason = (
                    "a restoration did not end: repeat `millpond restore`, or remove the folder"
                )
                raise OSError(errno.EBUSY, reason, folder)
        except BaseException:
            self.release()
            raise

    def _lock_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fds.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(folder, _holder_of_folder(fd)) from None
        except OSError as exc:
            if exc.errno not in _NO_FOLDER_LOCKS:
                raise

    def _lock_file(self, folder: Path) -> None:
        path = folder / "lock"
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._fds.append(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(folder, _holder(fd)) from None
            if _is_file(fd, path):
                break
            os.close(self._fds.pop())  # deleted since it was opened: its lock keeps nobody out
        # As long as the one before, so that it needs no space: a node starts on a full disk too.
        os.pwrite(fd, f"{os.getpid():<15}\n".encode(), 0)

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


_NO_FOLDER_LOCKS = {
    *(errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
}
"""Errors of a file system on which a folder cannot be locked."""


def _is_file(fd: int, path: Path) -> bool:
    """True if the open file is the one at this path now."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _require_utf8(folder: Path) -> None:
    """The node prints the name of its folder and sends it to clients, always as UTF-8."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        reason = "its name is not UTF-8; rename it, or choose another --data"
        raise OSError(errno.EILSEQ, reason, folder) from None


def _holder(fd: int) -> str:
    """The holder of the lock, as text.

    The file may have the number of a process that was killed, until its successor writes its own;
    so the system has to confirm it.
    """
    written = os.pread(fd, 32, 0).strip()
    if written.isdigit() and int(written) in _lockers(os.fstat(fd).st_ino):
        return f"process {int(written)}"
    return "another process"


def _holder_of_folder(fd: int) -> str:
    """The holder of the folder's own lock, as text; the file that names it may be deleted."""
    pids = _lockers(os.fstat(fd).st_ino)
    return f"process {pids.pop()}" if len(pids) == 1 else "another process"


def _lockers(inode: int) -> set[int]:
    """The processes that hold a flock on a file of this number; none if the system hides them."""
    try:
        lines = Path("/proc/locks").read_bytes().splitlines()
    except OSError:  # no Linux, or a sandbox
        return set()
    fields = (line.split() for line in lines)
    locks = (each for each in fields if len(each) == 8 and each[1] == b"FLOCK")
    here = (each for each in locks if each[5].rpartition(b":")[2] == b"%d" % inode)
    return {int(each[4]) for each in here if each[4].isdigit() and each[4] != b"0"}


Post = Callable[[Callable[[], None]], object]
"""Has a callback called by the loop."""


def _posts() -> tuple[Post, Post]:
    """For the running loop, asyncio's or trio's: from its own thread, and from any."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        token: Any = anyio.lowlevel.current_token().native_token  # trio's, which is optional
        return token.run_sync_soon, token.run_sync_soon
    return loop.call_soon, loop.call_soon_threadsafe


async def finish_in_thread(work: Callable[[], None], seconds: float) -> bool:
    """Do what waits for the disk. False: it still does after so long, and goes on alone.

    The thread does not keep the process from ending. Raises what `work` raises; what it raises
    later is in the log.
    """
    done = anyio.Event()
    errors: list[Exception] = []
    is_left = False
    post = _posts()[1]

    def run() -> None:
        try:
            work()
        except Exception as exc:  # any error is the caller's, who may have left
            errors.append(exc)
            if is_left:
                log.exception("data folder not closed in order")
        with suppress(RuntimeError):  # the loop has ended meanwhile
            post(done.set)

    Thread(target=run, name="millpond-close", daemon=True).start()
    with anyio.move_on_after(seconds, shield=True):
        await done.wait()
    is_left = True
    if errors:
        raise errors[0]
    return done.is_set()


class LoopRuntime:
    """The running loop, asyncio's or trio's, as the store sees it."""

    def __init__(self, now: Callable[[], float], rng: Random) -> None:
        self.now = now
        self._rng = rng
        self.soon, self._post = _posts()

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        return WorkerThread(name, work, self._post)

    def salt(self) -> int:
        return self._rng.getrandbits(32)


class OfflineRuntime:
    """The runtime of a store without a loop and threads: `settle` runs everything that waits."""

    def __init__(self, rng: Random, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self._rng = rng
        self._soon: deque[Callable[[], None]] = deque()
        self._workers: list[SteppedWorker[Any, Any]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        worker = SteppedWorker(work)
        self._workers.append(worker)
        return worker

    def salt(self) -> int:
        return self._rng.getrandbits(32)

    def settle(self) -> None:
        """Do all that waits to be done, in the order in which it came up."""
        while self._step():
            pass

    def _step(self) -> bool:
        if self._soon:
            self._soon.popleft()()
            return True
        return any(worker.step() for worker in self._workers)


class OfflineStore:
    """The store of a node that is stopped, used step by step. `now`: seconds since 1970."""

    def __init__(
        self, folder: Path, rng: Random | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._runtime = OfflineRuntime(rng or Random(), now)
        self._store = DurableStore(
            folder, OsDisk(), StoreSettings(), self._runtime, lambda name: Durability.DISK
        )

    @property
    def reason(self) -> str:
        """The reason for which nothing can be written."""
        return self._store.health.reason

    @property
    def stored_lsn(self) -> int:
        """The number of the last record that is stored."""
        return self._store.stored_lsn

    def open(self) -> None:
        """Recover what there is. Raises Damaged, UnknownVersion, OSError, sqlite3.Error."""
        self._store.open(was_used=was_used(self._store.folder))

    def load(self, name: bytes) -> Snapshot | Fault:
        """The stored messages of a channel."""
        snapshot = self._store.load(name)
        if not isinstance(snapshot, Deferred):
            return snapshot
        return self._finished(snapshot) or Fault.UNREADABLE

    @property
    def damages(self) -> list[Damage]:
        """All that is known to be damaged."""
        return self._store.damages

    def logs(self) -> list[bytes]:
        """The logs that hold something."""
        return sorted(self._store.logs())

    def log_snapshot(self, name: bytes) -> LogSnapshot | Fault:
        """The bounds and metadata of a log."""
        snapshot = self._store.log_snapshot(name)
        if not isinstance(snapshot, Deferred):
            return snapshot
        return self._finished(snapshot) or Fault.UNREADABLE

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Fault:
        """Chunks of a log, as they are stored."""
        chunks = self._store.read(name, seek)
        if not isinstance(chunks, Deferred):
            return chunks
        found = self._finished(chunks)
        return Fault.UNREADABLE if found is None else found

    def vacate_journal(self) -> bool:
        """Have everything in the journal written elsewhere, and remove the segments that are there
        now: nothing of what was removed or replaced is in the journal after this.

        False: the disk fails, and some are left.
        """
        store, journal = self._store, self._store.folder / JOURNAL
        before = set(store.disk.names(journal))
        for step in (store.complete_segment, store.vacate, store.complete_segment):
            step()
            self._runtime.settle()
        return before.isdisjoint(store.disk.names(journal))

    def write(self, name: bytes, changes: Sequence[Change]) -> Fault | None:
        """Keep changes; on the disk when this returns None."""
        commit = self._store.write(name, changes)
        if commit is None:
            return None
        fault = self._finished(commit)
        return fault if commit.is_done else Fault.NOT_STORED

    def write_all(self, writes: Iterable[tuple[bytes, Sequence[Change]]]) -> Fault | None:
        """Keep the changes of several names, in order and with one sync; on the disk when this
        returns None. Changes of a damaged name are left out: it stays damaged."""
        faults: list[Fault] = []

        def done(name: bytes, fault: Fault | None) -> None:
            is_damaged = any(each.name in (name, None) for each in self._store.damages)
            if fault is not None and not is_damaged:
                faults.append(fault)

        for name, changes in writes:
            commit = self._store.write(name, changes)
            if commit is not None:
                commit.when_done(partial(done, name))
        self._runtime.settle()
        return faults[0] if faults else None

    def close(self) -> None:
        self._store.close()

    def _finished(self, pending: Deferred[Result]) -> Result | None:
        """None: it cannot be finished, because the disk fails."""
        self._runtime.settle()
        found: list[Result] = []
        pending.when_done(found.append)
        return found[0] if found else None


@contextmanager
def offline_store(folder: Path) -> Iterator[OfflineStore]:
    """The store in a folder that no node uses. Raises FolderInUse, and what `open` raises."""
    lock = FolderLock(folder)
    try:
        store = OfflineStore(folder)
        store.open()
        try:
            yield store
        finally:
            store.close()
    finally:
        lock.release()


class CopyOnOpenDisk(OsDisk):
    """Opens copies of SQLite files, made in `scratch`: to open a file may change it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def connect(self, path: Path) -> sqlite3.Connection:
        for end in ("", *BESIDE):
            copy, original = self._scratch / f"copy{end}", path.with_name(path.name + end)
            copy.unlink(missing_ok=True)
            if original.exists() and end != "-shm":
                shutil.copyfile(original, copy)
        return super().connect(self._scratch / "copy")


class UnchangingDisk(CopyOnOpenDisk):
    """Opens SQLite files where they are and writes nothing to them; those that were not closed, or
    are to be written to, as copies. For folders that nobody writes to."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._written: set[Path] = set()

    def copy_next(self, path: Path) -> None:
        """Open a copy from now on: a connection to this file has to write."""
        self._written.add(path)

    def connect(self, path: Path) -> sqlite3.Connection:
        if path in self._written or path.with_name(path.name + BESIDE[0]).exists():
            return super().connect(path)
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
