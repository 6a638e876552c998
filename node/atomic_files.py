"""Small files that must be whole or not be there: keys, the peer book."""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeFile(Exception):
    """A file is accessible to others than its owner; the text tells how to change that."""


def read_private(path: Path, bytes_max: int, *, refused: int = OTHERS) -> bytes:
    """The bytes of a file that holds a secret or, with `refused=OTHERS_WRITE`, that is relied on.

    Raises UnsafeFile when its mode has one of the `refused` bits, when it is no regular file or
    longer than `bytes_max`; OSError of the system.
    """
    # A pipe in the file's place would be waited for without NONBLOCK.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile(f"{path}: not a file")
        if found.st_mode & refused:
            what = "read" if refused & stat.S_IRGRP else "write"
            raise UnsafeFile(f"{path}: others can {what} it; `chmod 600 {path}` first")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise UnsafeFile(f"{path}: longer than {bytes_max} bytes")
    return data


def write_new(path: Path, data: bytes, beside: str) -> None:
    """Make a file of mode 0600 that is there as a whole after this, or not at all.

    `beside` is an unused name in the same folder. Raises FileExistsError if `path` is
    there already, and leaves it as it is.
    """
    draft = path.with_name(beside)
    try:
        _write(draft, data)
        os.link(draft, path)  # unlike a rename it never replaces what is there
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Write beside, sync, rename, sync the folder; mode 0600. One writer at a time."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)  # of a writer that died; its mode may be any
    _write(draft, data)
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder: files renamed or made in it survive a crash of the machine after this."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
