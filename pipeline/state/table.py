"""A table of state in a folder: versions, each a list of files, and a pointer to the current one.

    _current                 the name of a version
    _versions/00000012.json  query, batch, buckets, files of each bucket, resets
    data/0003-....parquet    changes of a bucket
    _lock                    held by the one who writes

A version is there with all its files before the pointer names it, and the pointer is replaced in
one step: a reader sees a whole version, whoever is killed when.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.bucket import STORED, Floors, merge_files, read_bucket
from millpond.pipeline.state.summary import Summary

POINTER = "_current"
BUCKETS = 16
VERSIONS_KEPT = 2


class Reset(msgspec.Struct, frozen=True):
    """A partition, and the offset of its last reset."""

    topic: str
    partition: int
    offset: int


class Version(msgspec.Struct, frozen=True):
    """A state of the table. `query` wrote it, and `batch` was its last; `rejected` counts all."""

    number: int = 0
    query: str = ""
    batch: int = -1
    buckets: int = BUCKETS
    files: dict[int, list[str]] = {}
    resets: list[Reset] = []
    events: int = 0
    rejected: int = 0

    @property
    def floors(self) -> Floors:
        """Where what counts begins, by partition."""
        return {(each.topic, each.partition): each.offset for each in self.resets}


class Table:
    """In a folder, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self) -> Version | None:
        """The version that counts; None: nothing was ever written. Raises PipelineError."""
        if not (self.folder / POINTER).exists():
            return None
        try:
            name = (self.folder / POINTER).read_text("utf-8").strip()
            return _decode((self.folder / "_versions" / name).read_bytes())
        except (OSError, ValueError) as error:
            raise PipelineError("bad_table", f"{self.folder} is no table: {error}") from None

    def summary(self) -> Summary | None:
        """What there is; None: nothing was ever written. Raises PipelineError."""
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
        """All of it, in memory."""
        found = list(self.buckets())
        return pa.concat_tables(found) if found else STORED.empty_table()

    def prepare(self) -> None:
        """Folders for who is about to write."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "_versions").mkdir(exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One job writes at a time. Raises PipelineError."""
        with locked(self.folder):
            self.prepare()
            yield

    def commit(self, version: Version) -> None:
        """This version counts from now on, and is on the disk."""
        for files in version.files.values():
            for name in files[-1:]:
                sync(self.folder / "data" / name)
        sync(self.folder / "data")
        name = f"{version.number:08}.json"
        write_whole(self.folder / "_versions" / name, msgspec.json.encode(version))
        write_whole(self.folder / POINTER, name.encode())

    def compact(self) -> int:
        """Make one file of each bucket's; how many there were too many. Lock it before."""
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
        """Remove old versions, and files that no kept one has; how many files. Lock it before."""
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
    """One job writes into a folder at a time. Raises PipelineError."""
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
            raise PipelineError("table_in_use", text, "let it end first") from None
        yield


def foreign(folder: Path) -> PipelineError:
    """Why a query may not add to a table."""
    text = f"{folder} was written by another query, with another checkpoint"
    return PipelineError("other_query", text, "give its checkpoint, or a new folder")


def behind(folder: Path, last: int, batch: int) -> PipelineError:
    """Why a query may not go on with a table that lacks batches of it."""
    has = "nothing" if last < 0 else f"batch {last} as its last"
    text = f"the checkpoint goes on with batch {batch}, and the table {folder} has {has}"
    return PipelineError("table_behind", text, "give its table, or a new checkpoint as well")


_decode = msgspec.json.Decoder(Version).decode


def write_whole(target: Path, data: bytes) -> None:
    """Replace a file by one that is on the disk, in one step."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """A file, or what a folder names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
