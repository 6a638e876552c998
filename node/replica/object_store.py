"""Object stores: create if absent, get, list, remove; nothing else is asked of one.

A folder (`file:///path`) is ours, because what is stored has to be synced; all others (`s3://`,
`gs://`, `az://`) are those of the package obstore, with the credentials of its environment
variables. Methods block, are called in worker threads, and raise ObjectStoreAway and
ObjectStoreRefuses besides what they name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from millpond.node.atomic_files import sync_folder, write_new
from millpond.node.credentials import hide_credentials
from millpond.node.replica.errors import (
    BadAddress,
    NoObject,
    ObjectExists,
    ObjectStoreAway,
    ObjectStoreRefuses,
)
from millpond.node.replica.objects import FORMAT

FOLDER_SCHEME = "file"
SCHEMES = (FOLDER_SCHEME, "s3", "s3a", "gs", "az", "abfs", "abfss")
TIMEOUT = "30s"
RETRIES = 3
READ_BYTES = 2**20
DELETED_AT_ONCE = 500
DRAFT = ".new"
"""The end of the names of files that become objects of a folder when they are whole."""


class Listed(NamedTuple):
    """An object of a list: its name, its length, and when it was made, in seconds since 1970."""

    name: str
    size: int
    made_at: float


class ObjectStore(Protocol):
    """The objects below one prefix, by names with slashes."""

    def create(self, name: str, data: bytes) -> None:
        """Make an object, which is durable on return. Raises ObjectExists, also for what an attempt
        of our own made whose answer was lost."""

    def put_file(self, name: str, path: Path) -> None:
        """Make an object of a file, or make it again of the same content."""

    def get(self, name: str) -> bytes:
        """Raises NoObject."""

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        """Write an object to a new file, piece by piece. Raises NoObject; OSError is an error of
        that file alone."""

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        """The objects whose names begin so, behind the name `after`, by name."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there count as removed."""

    def remove_drafts(self, before: float) -> int:
        """Remove what attempts left that a kill ended, begun before a moment in seconds since 1970;
        gives their count."""


def open_object_store(url: str) -> ObjectStore:
    """The object store at an address. Raises BadAddress."""
    shown = hide_credentials(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may have a password
        text = "its host has characters that no host has, or a bracket alone"
        raise BadAddress(f"{shown}: {text}") from None
    if parts.username or parts.password or "@" in parts.netloc or parts.query:
        raise BadAddress("credentials are not part of an address: the environment has them")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise BadAddress(f"{shown}: the address of a replica begins with one of {known}")
    if parts.scheme == FOLDER_SCHEME:
        if parts.netloc or not parts.path.startswith("/"):
            raise BadAddress(f"{shown}: the address of a folder is file:///path")
        return FolderObjects(Path(unquote(parts.path)))
    if not parts.netloc:
        raise BadAddress(f"{shown}: it names no bucket")
    return CloudObjects(url)


class FolderObjects:
    """Objects as files in a folder, perhaps one of another machine. A file that is there is whole:
    it is written beside, synced, and linked, which fails if there is one. Once `format` was seen, a
    folder without it is away: a mount point with nothing mounted, on the disk of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_replica = False
        """`format` was seen."""

    def create(self, name: str, data: bytes) -> None:
        path = self._folder / name
        with _told():
            self._make_parents(path)
            try:
                write_new(path, data, f".{token_hex(8)}{DRAFT}")
            except FileExistsError:
                raise ObjectExists(name) from None
        self._is_replica |= name == FORMAT

    def put_file(self, name: str, path: Path) -> None:
        target = self._folder / name
        with _told():
            if target.exists() and target.stat().st_size == path.stat().st_size:
                os.utime(target)  # else it might be removed as one that no manifest names
                return
            self._make_parents(target)
            draft = target.with_name(f".{token_hex(8)}{DRAFT}")
            try:
                with path.open("rb") as read, draft.open("xb") as write:
                    while data := read.read(READ_BYTES):
                        write.write(data)
                    write.flush()
                    os.fsync(write.fileno())
                draft.replace(target)
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(target.parent)

    def get(self, name: str) -> bytes:
        with _told():
            try:
                data = (self._folder / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise NoObject(f"{name} is not there") from None
        self._is_replica |= name == FORMAT
        return data

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        with _told():
            try:
                read = (self._folder / name).open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise NoObject(f"{name} is not there") from None
        with read, path.open("xb") as write:
            while True:
                with _told():
                    data = read.read(READ_BYTES)
                if not data:
                    break
                write.write(data)
                wrote(data)
            write.flush()
            os.fsync(write.fileno())

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        with _told():
            return sorted(self._listed(prefix, after))

    def _listed(self, prefix: str, after: str) -> Iterator[Listed]:
        for folder, _, files in os.walk(self._folder / prefix, onerror=_unlisted):
            for file in files:
                path = Path(folder) / file
                name = path.relative_to(self._folder).as_posix()
                if file.startswith(".") or name <= after:
                    continue
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield Listed(name, found.st_size, found.st_mtime)

    def remove(self, names: Iterable[str]) -> None:
        with _told():
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def remove_drafts(self, before: float) -> int:
        count = 0
        with _told():
            for folder, _, files in os.walk(self._folder):  # others' folders may be closed to us
                for file in files:
                    path = Path(folder) / file
                    if not (file.startswith(".") and file.endswith(DRAFT)):
                        continue
                    with suppress(FileNotFoundError):
                        if path.stat().st_mtime < before:
                            path.unlink()
                            count += 1
        return count

    def _make_parents(self, path: Path) -> None:
        if path.parent.is_dir():
            return
        if self._is_replica and not (self._folder / FORMAT).is_file():
            raise ObjectStoreAway(f"{self._folder} has no replica any more; is it mounted?")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in path.parents:
            sync_folder(each)
            if each == self._folder.parent:
                return


def _unlisted(error: OSError) -> None:
    """A folder that is not there has no objects; one that cannot be read may have some."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the system as those of an object store."""
    try:
        yield
    except PermissionError as exc:
        raise ObjectStoreRefuses(f"{exc.filename}: {exc.strerror}") from exc
    except OSError as exc:
        raise ObjectStoreAway(f"{exc.filename or 'the folder'}: {exc.strerror}") from exc


class CloudObjects:
    """Objects in a bucket, by the package obstore (extra `replica`)."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as exc:
            text = "the package obstore is missing: pip install 'millpond[replica]'"
            raise BadAddress(f"{url}: {text}") from exc
        self._obstore: Any = obstore
        self._errors = obstore.exceptions
        try:
            self._store: Any = from_url(
                url,
                client_options={
                    "timeout": TIMEOUT,
                    "connect_timeout": "10s",
                    "allow_http": _allows_http(os.environ),
                },
                retry_config={"max_retries": RETRIES},
            )
        except (self._errors.BaseError, ValueError) as exc:
            raise BadAddress(f"{url}: {_first_line(exc)}") from exc

    def create(self, name: str, data: bytes) -> None:
        with self._told(name):
            self._obstore.put(self._store, name, data, mode="create")

    def put_file(self, name: str, path: Path) -> None:
        with self._told(name):
            self._obstore.put(self._store, name, path)

    def get(self, name: str) -> bytes:
        with self._told(name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        with self._told(name):
            pieces = iter(self._obstore.get(self._store, name).stream(min_chunk_size=READ_BYTES))
        with path.open("xb") as write:
            while True:
                with self._told(name):
                    piece = next(pieces, None)
                if piece is None:
                    break
                data = bytes(piece)
                write.write(data)
                wrote(data)
            write.flush()
            os.fsync(write.fileno())

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        found: list[Listed] = []
        with self._told(prefix):
            for page in self._obstore.list(self._store, prefix, offset=after or None):
                for each in page:
                    made_at = each["last_modified"].timestamp()
                    found.append(Listed(each["path"], each["size"], made_at))
        return sorted(found)

    def remove(self, names: Iterable[str]) -> None:
        left = list(names)
        while left:
            some, left = left[:DELETED_AT_ONCE], left[DELETED_AT_ONCE:]
            with suppress(NoObject), self._told(some[0]):
                self._obstore.delete(self._store, some)

    def remove_drafts(self, before: float) -> int:
        return 0  # parts of an upload that was given up: a rule of the bucket removes them

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.AlreadyExistsError:
            raise ObjectExists(name) from None
        except FileNotFoundError as exc:
            if "NoSuchBucket" in str(exc):
                raise ObjectStoreRefuses(f"there is no such bucket: {_first_line(exc)}") from exc
            raise NoObject(f"{name} is not there") from None
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as exc:
            raise ObjectStoreRefuses(_first_line(exc)) from exc
        except errors.BaseError as exc:
            raise ObjectStoreAway(_first_line(exc)) from exc


def _allows_http(environment: Mapping[str, str]) -> bool:
    """The variable as obstore reads it by itself, unless it is given other options."""
    return environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")


def _first_line(error: BaseException) -> str:
    """The first line of the package's error; the others are for its own developers."""
    return str(error).strip().partition("\n")[0]
