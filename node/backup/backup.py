"""One backup of a running node: what its thread does, file by file.

The order matters. The secrets of sealed messages are copied before the moment of the snapshot: a
message that was read after that is unread in the copy, and can be read again. The manifest is last,
after everything is synced.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event

import msgspec

from millpond.actors.errors import MillpondError
from millpond.actors.store.catalog_recovery import DAMAGED
from millpond.actors.store.changes import ColdChunk
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.partitions.log_tables import ColdCount
from millpond.actors.store.partitions.partition import Partition
from millpond.actors.store.partitions.sqlite import COLD_FORMAT, Damaged, version_of
from millpond.actors.store.snapshot import StoreSnapshot
from millpond.actors.store.snapshot_copy import SnapshotCopy
from millpond.node.atomic_files import sync_folder
from millpond.node.backup import manifest as manifests
from millpond.node.backup.manifest import (
    DATA,
    FORMAT,
    NAME,
    UNFINISHED,
    WITHOUT_COLD_FORMAT,
    BackupFile,
    Manifest,
    digest_of,
)
from millpond.node.clock_file import READING

IDENTITY_FILES = (
    *("identity.key", "successions", "peers.db", "local.key", "delivery-tokens"),
    *("own-tls.key", "own-tls.crt"),
)
IDENTITY_FOLDERS = ("prekeys", "known-prekeys")
"""The identity by which peers know the node, and the files that only it can read."""
OTHER_FILES = ("peers.toml", "access.conf", "data.key", "web-sessions.json")
PEERS_DB = "peers.db"
SPACE_FACTOR = 1.05
COLD_STEP_BYTES = 8 * 2**20
"""So many bytes of cold records are put into a file at a time."""

ReadCold = Callable[[bytes, ColdChunk], bytes]
"""Gives the data of a cold chunk of a log by its name; raises MillpondError."""


class BackupFailed(MillpondError):
    """A backup that cannot be made, or was ended; the text is the reason."""


class BackupProgress(msgspec.Struct):
    """The counts of a backup. Sizes in bytes; `files_total` and `bytes_total` are those of the
    store when it began."""

    files: int = 0
    bytes: int = 0
    files_total: int = 0
    bytes_total: int = 0


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The node as the manifest names it, at the moment of the snapshot."""

    version: str
    made_at: float
    identity: str
    messages: int
    channels: int
    streams: int
    damages: list[str]
    outside: list[str]


class Backup:
    """A backup of `store` in the folder `to`. Methods run in worker threads, one after the other;
    `cancel` ends them from any. They raise BackupFailed, SnapshotLost, OSError and sqlite3.Error,
    after which `discard` removes what was written. `read_cold` reads what is in the replica alone;
    `without_cold`: that is left out."""

    def __init__(
        self,
        store: DurableStore,
        to: Path,
        nonce: str,
        read_cold: ReadCold | None = None,
        *,
        without_cold: bool = False,
    ) -> None:
        self.to = to
        self.progress = BackupProgress()
        self._store = store
        self._folder = store.folder
        self._nonce = nonce
        self._files: list[BackupFile] = []
        self._folders: set[Path] = set()
        self._cancelled = Event()
        self._is_ours = False
        self._copy = SnapshotCopy(
            store.folder, store.disk, to / DATA, self._wrote, self._finished_copy
        )
        self._read_cold = read_cold
        self._without_cold = without_cold
        self._cold: dict[Path, ColdCount] = {}
        """The files of streams of which records are in the replica alone."""

    def cancel(self) -> None:
        """Have the backup end soon."""
        self._cancelled.set()

    def prepare(self) -> None:
        """Make the folder, and copy what is copied before the snapshot."""
        self._check_target()
        self.to.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._is_ours = True
        self._clear()
        manifests.begin(self.to, self._nonce)
        self._check_space()
        (self.to / DATA).mkdir(mode=0o700)
        self._copy_peers_db()
        for name in (*IDENTITY_FILES, *OTHER_FILES):
            if name != PEERS_DB:
                self._copy_plain(name)
        self._copy_folders()

    def copy_segments(self, snapshot: StoreSnapshot) -> None:
        """Copy the journal."""
        self._copy.copy_segments(snapshot)

    def copy_files(self, snapshot: StoreSnapshot) -> None:
        """Copy the files of channels and streams, and what is copied after the snapshot."""
        self._copy.copy_files(snapshot)
        self._copy_folders()  # prekeys that were made meanwhile
        self._copy_plain(READING)
        self._copy_reports()
        self._copy.write_catalog(snapshot)

    def fetch_cold(self) -> None:
        """Put the records that are in the replica alone into the files of their streams. The
        snapshot has to be copied, and no snapshot for the replica may be made meanwhile: the
        objects stay as long."""
        size = sum(each.bytes for each in self._cold.values())
        if size and not self._without_cold:
            self._check_cold(size)
        for path in self._cold:
            if not self._without_cold:
                self._fetch_file(path)
            self._finished_file(path)

    def _check_cold(self, size: int) -> None:
        hint = "--without-cold leaves them out"
        if self._read_cold is None:
            raise BackupFailed(
                f"{self._cold_text()} are in the replica of the node alone, and it runs without: "
                f"serve it with that replica, or {hint}"
            )
        self.progress.bytes_total += size
        free = shutil.disk_usage(self.to).free
        if free < SPACE_FACTOR * size:
            needed = f"{size / 2**20:.0f} MiB are needed for {self._cold_text()}"
            raise BackupFailed(f"{self.to}: {needed}, and {free / 2**20:.0f} MiB are free; {hint}")

    def _cold_text(self) -> str:
        records = sum(each.records for each in self._cold.values())
        streams = len(self._cold)
        return f"{records} records of {streams} {'stream' if streams == 1 else 'streams'}"

    def _fetch_file(self, path: Path) -> None:
        assert self._read_cold is not None, "it was checked"
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                partition = Partition(connection, None, None)
                connection.execute("PRAGMA synchronous = OFF")  # it is synced once it is whole
                while size := partition.make_local(self._read_cold_chunk, COLD_STEP_BYTES):
                    self._wrote(size)
        except Damaged as exc:
            raise BackupFailed(f"cold records: {exc}; --without-cold leaves them out") from exc

    def _read_cold_chunk(self, name: bytes, chunk: ColdChunk) -> bytes:
        assert self._read_cold is not None, "it was checked"
        self._check_cancelled()
        try:
            return self._read_cold(name, chunk)
        except MillpondError as exc:
            text = f"cold records of the replica: {exc}; --without-cold leaves them out"
            raise BackupFailed(text) from exc

    def finish(self, facts: NodeFacts) -> None:
        """Write the manifest, which counts once the backup is verified."""
        for folder in sorted(self._folders | {self.to / DATA, self.to, self.to.parent}):
            self._check_cancelled()
            sync_folder(folder)
        left_out = [*self._cold.values()] if self._without_cold else []
        manifest = Manifest(
            format=WITHOUT_COLD_FORMAT if left_out else FORMAT,
            cold_records=sum(each.records for each in left_out) or msgspec.UNSET,
            cold_bytes=sum(each.bytes for each in left_out) or msgspec.UNSET,
            version=facts.version,
            nonce=self._nonce,
            made_at=facts.made_at,
            host=socket.gethostname(),
            folder=str(self._folder.absolute()),
            identity=facts.identity,
            messages=facts.messages,
            channels=facts.channels,
            streams=facts.streams,
            damages=facts.damages,
            outside=facts.outside,
            files=sorted(self._files, key=lambda each: each.path),
        )
        manifests.write_unfinished(self.to, manifest)

    def discard(self) -> None:
        """Remove what was written; nothing is raised."""
        if self._is_ours:
            with suppress(OSError):
                self._clear()
                self.to.rmdir()

    # The folder.

    def _check_target(self) -> None:
        target, folder = self.to.resolve(), self._folder.resolve()
        if target.is_relative_to(folder) or folder.is_relative_to(target):
            raise BackupFailed(f"{self.to} and the data folder {folder} are within one another")
        if not self.to.exists():
            return
        if not self.to.is_dir():
            raise BackupFailed(f"{self.to} is a file, not a folder")
        names = {path.name for path in self.to.iterdir()}
        if NAME in names:
            raise BackupFailed(f"{self.to} holds a backup; choose another folder")
        if names and not any(name.startswith(UNFINISHED) for name in names):
            raise BackupFailed(f"{self.to} is not empty; choose another folder")

    def _clear(self) -> None:
        """Remove an unfinished backup; its mark goes last."""
        shutil.rmtree(self.to / DATA, ignore_errors=True)
        for path in self.to.glob(f"{NAME}*"):
            if path.name != NAME:
                path.unlink()

    def _check_space(self) -> None:
        progress = self.progress
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.suffix in (".journal", ".sqlite3") and DAMAGED not in path.parts:
                    progress.files_total += 1
                    progress.bytes_total += path.stat().st_size
        free = shutil.disk_usage(self.to).free
        if free < SPACE_FACTOR * progress.bytes_total:
            needed = f"{progress.bytes_total / 2**20:.0f} MiB are needed"
            raise BackupFailed(f"{self.to}: {needed}, and {free / 2**20:.0f} MiB are free")

    # Files.

    def _copy_peers_db(self) -> None:
        source = self._folder / PEERS_DB
        if not source.exists():
            return
        target = self.to / DATA / PEERS_DB
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as found,
            closing(sqlite3.connect(target)) as copy,
        ):
            copy.execute("PRAGMA journal_mode = OFF")
            found.backup(copy, pages=256, progress=lambda *_: self._check_cancelled())
        self._finished_file(target)

    def _copy_folders(self) -> None:
        for name in IDENTITY_FOLDERS:
            folder = self._folder / name
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    if not path.name.endswith(".new") and not path.name.startswith("."):
                        self._copy_plain(f"{name}/{path.name}")

    def _copy_reports(self) -> None:
        folder = self._folder / DAMAGED
        (self.to / DATA / DAMAGED).mkdir(mode=0o700)
        self._folders.add(self.to / DATA / DAMAGED)
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            self._copy_plain(f"{DAMAGED}/{path.name}")

    def _copy_plain(self, name: str) -> None:
        """Copy a small file, which is replaced as a whole when it changes, if it is there."""
        target = self.to / DATA / name
        if target.exists():
            return
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return
        target.parent.mkdir(mode=0o700, exist_ok=True)
        target.write_bytes(data)
        self._wrote(len(data))
        self._finished_file(target)

    def _wrote(self, size: int) -> None:
        self.progress.bytes += size
        self._check_cancelled()

    def _finished_copy(self, path: Path) -> None:
        """A file of the store is whole, but for what is in the replica alone."""
        found = _cold_count(path)
        if found.records:
            self._cold[path] = found
        else:
            self._finished_file(path)

    def _finished_file(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o600)
            os.fsync(fd)
        finally:
            os.close(fd)
        size, digest = digest_of(path)
        self._files.append(BackupFile(path.relative_to(self.to / DATA).as_posix(), size, digest))
        self._folders.update(self._parents(path))
        self.progress.files += 1
        self._check_cancelled()

    def _parents(self, path: Path) -> Iterator[Path]:
        for parent in path.parents:
            yield parent
            if parent == self.to / DATA:
                return

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise BackupFailed("it was cancelled")


def _cold_count(path: Path) -> ColdCount:
    """The cold records that a copy needs; none of one that cannot be read, which is damaged in the
    backup as well."""
    with path.open("rb") as file:
        if version_of(file.read(100)) < COLD_FORMAT:
            return ColdCount(0, 0)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return Partition(connection, None, None).cold_count()
    except sqlite3.OperationalError:
        raise
    except (Damaged, sqlite3.DatabaseError):
        return ColdCount(0, 0)
