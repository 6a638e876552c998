"""The partition files of a folder, and the few of them that are open.

A file is named by a hash of the partition's name, never by the name itself.
"""

from __future__ import annotations

import errno
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.partitions.metadata import PartitionMetadata
from millpond.actors.store.partitions.partition import Damaged, Partition, build_file, empty_file
from millpond.actors.store.partitions.sqlite import HASH_BYTES, SEED_BYTES
from millpond.actors.store.queue_memtable import QueueMemtable

SUFFIX = ".sqlite3"
BESIDE = ("-wal", "-shm")
"""The endings of files that SQLite keeps next to a file; a new file must never find those of an old
one."""

_DIGITS = set("0123456789abcdef")


def file_name(name: bytes) -> str:
    """The path of the partition `name` within the folder: "ab/<40 hex digits>.sqlite3"."""
    digest = blake2b(name, digest_size=HASH_BYTES).hexdigest()
    return f"{digest[:2]}/{digest}{SUFFIX}"


def file_seed(path: Path) -> int:
    """The seed of the CRCs in the file of a partition, as `seed_of` its name gives it."""
    return int(path.name[: 2 * SEED_BYTES], 16)


def is_file_name(text: str) -> bool:
    """True: so a partition's file may be called, without its folder."""
    return len(text) == 40 + len(SUFFIX) and text.endswith(SUFFIX)


class FilePool:
    """At most `handles_max` files are open; the one that was not used for longest is closed first.

    Methods raise Damaged, sqlite3.Error and OSError.
    """

    __slots__ = ("_disk", "_folder", "_handles_max", "_open")

    def __init__(self, folder: Path, disk: Disk, *, handles_max: int = 256) -> None:
        self._folder = folder
        self._disk = disk
        self._handles_max = handles_max
        self._open: OrderedDict[bytes, Partition] = OrderedDict()

    def is_open(self, name: bytes) -> bool:
        """True: the file of `name` is one of those that are open."""
        return name in self._open

    def has(self, name: bytes) -> bool:
        """True: there is a file, perhaps a damaged one. Damaged ones count."""
        return name in self._open or self._disk.has(self.path(name))

    def path(self, name: bytes) -> Path:
        """The path of the file of `name`, which may not exist."""
        return self._folder / file_name(name)

    def open(self, name: bytes, kind: PartitionKind) -> Partition:
        """The partition `name`, made if there is none."""
        return self._open_partition(name, kind) or self._hold(name, kind, self._make)

    def make(
        self,
        name: bytes,
        kind: PartitionKind,
        memtable: QueueMemtable | LogMemtable,
        applied: int,
        frozen_at: int = 0,
    ) -> PartitionMetadata:
        """A new file with `memtable` in it, there complete or not at all; it is not stored open."""
        data, metadata = build_file(name, kind, memtable, applied, frozen_at)
        self._install(self.path(name), data)
        return metadata

    def existing(self, name: bytes, kind: PartitionKind) -> Partition | None:
        """The partition `name`, if there is one."""
        partition = self._open_partition(name, kind)
        if partition is None and self._disk.has(self.path(name)):
            partition = self._hold(name, kind, self._connect)
        return partition

    def look(self, path: Path) -> Partition:
        """Open the partition of a file, whatever it is; it is not pooled, so close it."""
        partition = self._connect(path, None, None)
        if partition.is_named and self.path(partition.metadata.name) != path:
            partition.close()
            raise Damaged(f"the file of {partition.metadata.name!r} in the place of another")
        return partition

    def forget(self, name: bytes) -> None:
        """Close the handle, as after an error; the next `open` begins anew."""
        partition = self._open.pop(name, None)
        if partition is not None:
            # The same error may occur again; it was reported the first time.
            with suppress(sqlite3.Error):
                partition.close()

    def remove(self, name: bytes) -> None:
        """The partition is no more; nothing happens if there is none."""
        self.forget(name)
        path = self.path(name)
        if self._disk.has(path):
            self._disk.unlink(path)
            self._disk.sync_folder(path.parent)
        remove_beside(path, self._disk)

    def paths(self) -> Iterator[Path]:
        """All partition files that are there."""
        for digits in self._disk.names(self._folder):
            if len(digits) == 2 and _DIGITS.issuperset(digits):
                for each in self._disk.names(self._folder / digits):
                    if is_file_name(each):
                        yield self._folder / digits / each

    def close(self) -> None:
        """Close what is open."""
        for name in list(self._open):
            self.forget(name)

    def _open_partition(self, name: bytes, kind: PartitionKind) -> Partition | None:
        partition = self._open.get(name)
        if partition is not None:
            if partition.metadata.kind is not kind:
                raise Damaged(f"{name!r} is no {kind.name.lower()}")
            self._open.move_to_end(name)
        return partition

    def _hold(
        self,
        name: bytes,
        kind: PartitionKind,
        way: Callable[[Path, bytes, PartitionKind], Partition],
    ) -> Partition:
        self._close_oldest(len(self._open) + 1 - self._handles_max)
        path = self.path(name)
        try:
            partition = way(path, name, kind)
        except (OSError, sqlite3.OperationalError) as exc:
            if not _is_short_of_handles(exc):
                raise
            # Others may use up the descriptors of the process: go on with fewer.
            self._close_oldest((len(self._open) + 1) // 2)
            partition = way(path, name, kind)
        self._open[name] = partition
        return partition

    def _make(self, path: Path, name: bytes, kind: PartitionKind) -> Partition:
        if not self._disk.has(path):
            self._install(path, empty_file(kind))
        return self._connect(path, name, kind)

    def _install(self, path: Path, data: bytes) -> None:
        self._disk.make_folder(path.parent)
        remove_beside(path, self._disk)
        self._disk.install(path, data)

    def _connect(self, path: Path, name: bytes | None, kind: PartitionKind | None) -> Partition:
        connection = self._disk.connect(path)
        try:
            return Partition(connection, name, kind)
        except BaseException:
            connection.close()
            raise

    def _close_oldest(self, count: int) -> None:
        for _ in range(count):
            self._open.popitem(last=False)[1].close()


def remove_beside(path: Path, disk: Disk) -> None:
    """Remove what SQLite left next to a file that is gone or is about to be made anew.

    A file that found the write-ahead log of its predecessor would take it for its own.
    """
    left = [each for each in (path.with_name(path.name + end) for end in BESIDE) if disk.has(each)]
    for each in left:
        disk.unlink(each)
    if left:
        disk.sync_folder(path.parent)


def _is_short_of_handles(exc: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(exc, OSError):
        return exc.errno in (errno.EMFILE, errno.ENFILE)
    return str(exc) == "unable to open database file"
