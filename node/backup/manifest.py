"""The manifest of a backup: its files with their sizes and SHA-256, and the node that it is of.

It is written last. Until the backup is verified it is `manifest.json.unfinished`; a folder without
`manifest.json` holds no backup.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path, PurePosixPath

import msgspec

from millpond.actors.errors import MillpondError
from millpond.node.atomic_files import replace, sync_folder

NAME, UNFINISHED = "manifest.json", "manifest.json.unfinished"
DATA = "data"
"""The folder of the files in a backup: the data folder of the node."""
FORMAT, WITHOUT_COLD_FORMAT = 1, 2
"""The second one is of backups without the cold records of their node."""
READ_BYTES = 2**20


class BadBackup(MillpondError):
    """A folder without a backup, an unfinished one, or a damaged one; the text tells which."""


class BackupFile(msgspec.Struct, frozen=True):
    """A file: its path within the data folder, with slashes; its size in bytes."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup. `made_at` is its moment, in seconds since 1970. `identity` is the peer id of the
    node, `folder` its data folder on `host`. `messages`, `channels` and `streams` are the counts of
    the node at that moment; `damages` the damage that it knew of, and what the check has found.
    `outside` has files of its configuration that are not in the data folder, nor in the backup.
    `nonce` is that of the command which asked for it. `cold_records` of streams, with `cold_bytes`,
    were left out: they are in the replica of the node alone. `check` is the SHA-256 of all else."""

    format: int = FORMAT
    version: str
    nonce: str
    made_at: float
    host: str
    folder: str
    identity: str
    messages: int
    channels: int
    streams: int
    damages: list[str] = []
    outside: list[str] = []
    files: list[BackupFile] = []
    cold_records: int | msgspec.UnsetType = msgspec.UNSET
    cold_bytes: int | msgspec.UnsetType = msgspec.UNSET
    check: str = ""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.files)


class _Begun(msgspec.Struct):
    """The manifest of a backup that was only begun."""

    nonce: str


def begin(folder: Path, nonce: str) -> None:
    """Mark a folder as one that is being written to. Raises OSError."""
    replace(folder / UNFINISHED, msgspec.json.encode(_Begun(nonce)) + b"\n")


def nonce_of(folder: Path) -> str | None:
    """The nonce of the unfinished backup in a folder; None: there is none. Raises OSError."""
    try:
        return msgspec.json.decode((folder / UNFINISHED).read_bytes(), type=_Begun).nonce
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def write_unfinished(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a backup that is not verified yet. Raises OSError."""
    replace(folder / UNFINISHED, _encoded(manifest))


def finish(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a backup that was verified: it counts from now on. Raises OSError."""
    replace(folder / NAME, _encoded(manifest))
    (folder / UNFINISHED).unlink(missing_ok=True)
    sync_folder(folder)


def read_manifest(folder: Path, *, unfinished: bool = False) -> Manifest:
    """The manifest of the backup in a folder. Raises BadBackup, OSError."""
    path = folder / (UNFINISHED if unfinished else NAME)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        if (folder / UNFINISHED).exists():
            raise BadBackup(f"the backup in {folder} was not finished") from None
        raise BadBackup(f"there is no backup in {folder}: it has no {NAME}") from None
    except msgspec.MsgspecError as exc:
        raise BadBackup(f"{path} is damaged: {exc}") from exc
    if found.format not in (FORMAT, WITHOUT_COLD_FORMAT):
        raise BadBackup(f"{path}: format {found.format}; a later version has written it")
    if found.check != _check(found):
        raise BadBackup(f"{path} is damaged: its check is not that of what it says")
    for each in found.files:
        if not is_inside(each.path):
            raise BadBackup(f"{path}: {each.path!r} is no path within a data folder")
    return found


def is_inside(path: str) -> bool:
    """True for a path that cannot lead out of the folder that it is in."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def digest_of(path: Path) -> tuple[int, str]:
    """The size and the SHA-256 of a file. Raises OSError."""
    size, digest = 0, sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            size += len(data)
            digest.update(data)
    return size, digest.hexdigest()


def _check(manifest: Manifest) -> str:
    return sha256(msgspec.json.encode(msgspec.structs.replace(manifest, check=""))).hexdigest()


def _encoded(manifest: Manifest) -> bytes:
    whole = msgspec.structs.replace(manifest, check=_check(manifest))
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
