"""The data folder of a command: its default, and errors that concern it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid

from millpond.actors.store.journal.format import UnknownVersion
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.partitions.sqlite import UnknownFormat
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.data_folder import FolderInUse, was_used

DATA_DEFAULT = "$XDG_DATA_HOME/millpond or ~/.local/share/millpond"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ENXIO)
"""Errors of the disk, which have no file name."""


def data_folder(environment: Mapping[str, str]) -> Path:
    """The default data folder."""
    home = environment.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    return Path(home) / "millpond"


def existing_folder(folder: Path) -> Path:
    """The folder, if it is the data folder of a node. Raises Failure."""
    if not is_data_folder(folder):
        if not folder.is_dir():
            what = "is no folder" if folder.exists() else "does not exist"
            raise Failure(f"data folder {folder} {what}", ExitCode.NOT_FOUND)
        raise Failure(f"{folder} is not the data folder of a node", ExitCode.NOT_FOUND)
    return folder


def is_data_folder(folder: Path) -> bool:
    """True for the data folder of a node. Raises Failure without permission."""
    try:
        has_store = (folder / "journal").is_dir() or (folder / CATALOG).exists()
        return has_store or was_used(folder) is not None
    except PermissionError as exc:
        raise Failure(f"data folder {folder}: no permission; run this as its owner") from exc


def check_owner(folder: Path) -> None:
    """Check that this user owns the folder: files of another user would block the node. Raises
    Failure."""
    lock = folder / "lock"
    if not folder.exists():
        return
    owner = (lock if lock.exists() else folder).stat().st_uid
    if owner != os.geteuid():
        how = "run this command as that user"
        raise Failure(f"data folder {folder}: its node runs as {_user(owner)}; {how}")


def _user(number: int) -> str:
    try:
        return getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def explain_folder(cause: BaseException, folder: Path) -> Failure | None:
    """The failure for an error that concerns a data folder; None for other errors."""
    where = f"data folder {folder}"
    match cause:
        case FolderInUse():
            return Failure(str(cause))
        case UnknownVersion() | UnknownFormat():
            return Failure(
                f"{where}: {cause}; a later version has written it: install that version"
            )
        case Damaged() | sqlite3.Error():
            return Failure(f"{where}: {cause}; check it with `millpond doctor --data {folder}`")
        case FileExistsError() | NotADirectoryError() if _concerns(cause, folder):
            return Failure(f"{where}: {cause.filename} is a file, not a folder")
        case PermissionError() if _concerns(cause, folder):
            return Failure(f"{where}: no permission for {cause.filename}; check its owner")
        case OSError() if _concerns(cause, folder) or cause.errno in DISK_ERRORS:
            return Failure(f"{where}: {cause.strerror}")
        case _:
            return None


@contextmanager
def explain_folder_errors(folder: Path) -> Generator[None]:
    """A context that turns errors of the store into failures."""
    try:
        yield
    except (UnknownVersion, Damaged, FolderInUse, sqlite3.Error, OSError) as exc:
        raise explain_folder(exc, folder) or exc from exc


def _concerns(error: OSError, folder: Path) -> bool:
    """True if an error concerns the folder, a file in it, or one of its parents."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    name = Path(error.filename).absolute()
    return name.is_relative_to(folder.absolute()) or folder.absolute().is_relative_to(name)
