"""The verification of a backup, and its restoration into a new data folder."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from random import Random

from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from millpond.actors.store.partitions.cold_logs import COLD_FACT
from millpond.node.atomic_files import replace, sync_folder
from millpond.node.backup.backup import IDENTITY_FILES, IDENTITY_FOLDERS
from millpond.node.backup.manifest import (
    DATA,
    READ_BYTES,
    BackupFile,
    BadBackup,
    Manifest,
    digest_of,
    read_manifest,
)
from millpond.node.data_folder import RESTORING, FolderInUse, FolderLock
from millpond.node.node import INSTANCES

IGNORED = ("lost+found", "lock")
"""Names that an empty folder may have: of the root of a volume, and of a lock."""

Progress = Callable[[int], None]
"""Called with the bytes that were read since."""


class NotEmpty(BadBackup):
    """A folder that something is in already."""


class OriginalRuns(BadBackup):
    """The node of the backup runs on this machine: two nodes would have one identity."""


def verify_files(folder: Path, manifest: Manifest, progress: Progress) -> None:
    """Compare the files of a backup with its manifest, as they are on the disk. Raises BadBackup,
    which names the first that differs, and OSError."""
    for each in manifest.files:
        path = folder / DATA / each.path
        _drop_cache(path)
        try:
            size, digest = digest_of(path)
        except FileNotFoundError:
            raise BadBackup(f"the backup is damaged: {path} is missing") from None
        _compare(path, each, size, digest)
        progress(size)


def check_original(manifest: Manifest) -> None:
    """Raises OriginalRuns if the node of the backup runs on this machine."""
    folder = Path(manifest.folder)
    if manifest.host != socket.gethostname() or not (folder / "lock").exists():
        return
    try:
        FolderLock(folder).release()
    except FolderInUse as exc:
        raise OriginalRuns(
            f"the node of this backup runs on {folder} ({exc.holder}), and two nodes must not have "
            "one identity: stop it, or restore with --new-identity"
        ) from exc
    except OSError:
        pass  # of another user: it cannot be told


class Restoration:
    """A backup on its way into the data folder `target`, which is locked meanwhile.

    With `rng` the node gets a new identity, and other message ids. A folder with an interrupted
    restoration is emptied first. Raises BadBackup, FolderInUse, OSError; then what was written is
    removed.
    """

    def __init__(self, source: Path, target: Path, rng: Random | None = None) -> None:
        self.manifest = read_manifest(source)
        self._source = source
        self._target = target
        self._rng = rng

    @property
    def has_new_identity(self) -> bool:
        return self._rng is not None

    def run(self, progress: Progress, check: Callable[[], None]) -> None:
        """Restore; `check` looks at the whole folder before it counts."""
        if not self.has_new_identity:
            check_original(self.manifest)
        if self._target.resolve().is_relative_to(self._source.resolve()):
            raise NotEmpty(f"{self._target} is in the backup itself; choose another folder")
        with restored_folder(self._target):
            for each in self.manifest.files:
                if self._is_wanted(each.path):
                    self._copy(each, progress)
            if self._rng is not None:
                self._save_facts({"instance": self._rng.randrange(INSTANCES)})  # for other ids
            if self.manifest.cold_records:
                self._save_facts({COLD_FACT: 1})
            check()

    def _is_wanted(self, path: str) -> bool:
        if not self.has_new_identity:
            return True
        return path not in IDENTITY_FILES and path.partition("/")[0] not in IDENTITY_FOLDERS

    def _copy(self, file: BackupFile, progress: Progress) -> None:
        source, target = self._source / DATA / file.path, self._target / file.path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size, digest = 0, sha256()
        try:
            read = source.open("rb")
        except FileNotFoundError:
            raise BadBackup(f"the backup is damaged: {source} is missing") from None
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with read, os.fdopen(fd, "wb") as write:
            while data := read.read(READ_BYTES):
                size += len(data)
                digest.update(data)
                write.write(data)
                progress(len(data))
            write.flush()
            os.fsync(fd)
        _compare(source, file, size, digest.hexdigest())

    def _save_facts(self, facts: dict[str, int]) -> None:
        with closing(Catalog(self._target / CATALOG, OsDisk())) as catalog:
            catalog.record([], [], facts)


@contextmanager
def restored_folder(target: Path) -> Iterator[None]:
    """A new data folder, locked, to be filled in the block. It counts once the block has ended, and
    no node starts on it before; what an error leaves is removed, and so is what an interrupted
    restoration left. Raises NotEmpty, FolderInUse, OSError."""
    _check_target(target)
    was_there = target.exists()
    lock = FolderLock(target, is_restoring=True)
    try:
        _check_target(target)  # nobody came between
        replace(target / RESTORING, b"")
        _empty(target)
        yield
        _sync_folders(target)
    except BaseException:
        with suppress(OSError):
            _empty(target)
            (target / RESTORING).unlink(missing_ok=True)
            if not was_there:
                shutil.rmtree(target)
        raise
    else:
        (target / RESTORING).unlink()
        sync_folder(target)
    finally:
        lock.release()


def _check_target(target: Path) -> None:
    if not target.exists() or (target / RESTORING).exists():
        return
    if not target.is_dir():
        raise NotEmpty(f"{target} is a file, not a folder")
    if any(path.name not in IGNORED for path in target.iterdir()):
        raise NotEmpty(f"{target} is not empty: a node is restored into a new folder")


def _empty(target: Path) -> None:
    for path in target.iterdir():
        if path.name in (*IGNORED, RESTORING):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync_folders(target: Path) -> None:
    for folder in sorted({path for path in target.rglob("*") if path.is_dir()}):
        sync_folder(folder)
    sync_folder(target)
    sync_folder(target.absolute().parent)


def _compare(path: Path, file: BackupFile, size: int, digest: str) -> None:
    if (size, digest) != (file.size, file.sha256):
        raise BadBackup(f"the backup is damaged: {path} is not what was written")


def _drop_cache(path: Path) -> None:
    """Have the next read come from the disk, where the system can be told so."""
    with suppress(OSError, AttributeError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
