"""A table of state in a folder: versions, each a list of files, and a pointer to the current one.

    _current                 the name of a version
    _versions/00000012.json  query, batch, buckets, files of each bucket, resets
    data/0003-....parquet    changes of a bucket
    _lock                    held by the writer

A version and its files are complete before the pointer names it, and the pointer is replaced in one
step: a reader sees a whole version, also after a kill.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.bucket import STORED, Floors, merge_files, read_bucket
from millpond.pipeline.state.location import Location
from millpond.pipeline.state.summary import Summary

POINTER = "_current"
BUCKETS = 16
VERSIONS_KEPT = 2
At = int | datetime
"""The number of a version, or a time."""


class Reset(msgspec.Struct, frozen=True):
    """The offset of the last reset in a partition."""

    topic: str
    partition: int
    offset: int


class Version(msgspec.Struct, frozen=True):
    """A version of the table, written by `query` after `batch`; `rejected` counts all batches.

    `committed`: seconds since 1970, 0 where a version before this field does not say.
    """

    number: int = 0
    query: str = ""
    batch: int = -1
    buckets: int = BUCKETS
    files: dict[int, list[str]] = {}
    resets: list[Reset] = []
    events: int = 0
    rejected: int = 0
    committed: float = 0.0

    @property
    def floors(self) -> Floors:
        """The offsets of the last resets by partition."""
        return {(each.topic, each.partition): each.offset for each in self.resets}


class Table:
    """A Parquet table of state in a folder, which may not exist yet.

    `at`: a kept version to read, or the last one of a time, instead of the current one.
    """

    def __init__(self, folder: Path, at: At | None = None) -> None:
        self.folder = folder
        self._at = at

    def current(self) -> Version | None:
        """The version to read; None before the first write. Raises PipelineError."""
        if not (self.folder / POINTER).exists():
            return None
        try:
            name = (self.folder / POINTER).read_text("utf-8").strip()
            if isinstance(self._at, datetime):
                return self._version_at(self._at, name)
            if self._at is not None:
                name = self._name_at(self._at, name)
            return _decode((self.folder / "_versions" / name).read_bytes())
        except (OSError, ValueError) as error:
            raise PipelineError("bad_table", f"{self.folder} is not a table: {error}") from None

    def _name_at(self, number: int, current: str) -> str:
        """The file name of a kept version. Files behind the pointer are no versions yet."""
        name = f"{number:08}.json"
        if number > int(Path(current).stem) or not (self.folder / "_versions" / name).exists():
            raise no_version(self.folder, number)
        return name

    def _version_at(self, at: datetime, current: str) -> Version:
        """The last kept version that was committed at a time or before it."""
        kept = sorted((self.folder / "_versions").glob("*.json"), reverse=True)
        for file in kept:
            version = _decode(file.read_bytes()) if file.name <= current else None
            if version is not None and version.committed <= at.timestamp():
                return version
        raise no_version(self.folder, at)

    def summary(self) -> Summary | None:
        """The summary; None before the first write. Raises PipelineError."""
        found = self.current()
        if found is None:
            return None
        return Summary("parquet", found.number, found.batch, found.rejected)

    def buckets(self) -> Iterator[pa.Table]:
        """The entities, bucket by bucket."""
        version = self.current() or Version()
        for bucket in sorted(version.files):
            yield read_bucket(self.folder, version.files[bucket], version.floors)

    def read(self) -> pa.Table:
        """All entities, in memory."""
        found = list(self.buckets())
        return pa.concat_tables(found) if found else STORED.empty_table()

    def prepare(self) -> None:
        """Create the folders of the table."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "_versions").mkdir(exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One job writes at a time. Raises PipelineError."""
        with locked(self.folder):
            self.prepare()
            yield

    def commit(self, version: Version) -> None:
        """Make this version the current one, on the disk."""
        for files in version.files.values():
            for name in files[-1:]:
                sync(self.folder / "data" / name)
        sync(self.folder / "data")
        name = f"{version.number:08}.json"
        write_whole(self.folder / "_versions" / name, msgspec.json.encode(version))
        write_whole(self.folder / POINTER, name.encode())

    def compact(self) -> int:
        """Merge the files of each bucket; the number of files less. The caller holds the lock."""
        before = self.current()
        if before is None:
            return 0
        files = {
            bucket: names
            if len(names) < 2
            else merge_files(self.folder, bucket, names, before.floors)
            for bucket, names in before.files.items()
        }
        many = sum(map(len, before.files.values())) - len(files)
        if many:
            self.commit(msgspec.structs.replace(before, number=before.number + 1, files=files))
        return many

    def vacuum(self, kept: int = VERSIONS_KEPT) -> int:
        """Remove old versions and their files; the number of files. The caller holds the lock."""
        versions = sorted((self.folder / "_versions").glob("*.json"))
        current = self.current()
        number = -1 if current is None else current.number
        alive = [each for each in versions if number - kept < int(each.stem) <= number]
        named = {
            name
            for each in alive
            for files in _decode(each.read_bytes()).files.values()
            for name in files
        }
        for each in versions:
            if each not in alive:
                each.unlink()
        old = [each for each in (self.folder / "data").iterdir() if each.name not in named]
        for each in old:
            each.unlink()
        return len(old)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for one job. Raises PipelineError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "_lock").open("w")
    except OSError as error:
        raise PipelineError("bad_option", f"table {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"another job writes to {folder}"
            raise PipelineError("table_in_use", text, "wait for its end") from None
        yield


def foreign(folder: Location) -> PipelineError:
    """The error of a query whose table belongs to another query."""
    text = f"{folder} was written by another query, with another checkpoint"
    return PipelineError("other_query", text, "use its checkpoint, or a new folder")


def behind(folder: Location, last: int, batch: int) -> PipelineError:
    """The error of a query whose table lacks some of its batches."""
    has = "nothing" if last < 0 else f"batch {last} as its last"
    text = f"the checkpoint continues with batch {batch}, but the table {folder} has {has}"
    return PipelineError("table_behind", text, "use its table, or also a new checkpoint")


def no_version(folder: Location, at: At) -> PipelineError:
    """The error of a version that a table does not have, or no longer."""
    which = at if isinstance(at, int) else f"as old as {at.isoformat()}"
    text = f"{folder} has no version {which}"
    return PipelineError("no_version", text, "`show` tells the last one; old ones are removed")


_decode = msgspec.json.Decoder(Version).decode


def write_whole(target: Path, data: bytes) -> None:
    """Replace a file in one step by one that is on the disk."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
