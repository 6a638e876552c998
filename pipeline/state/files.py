"""The files of a folder: of this machine, or of any file system that Spark has.

A checkpoint and dead letters are such folders. Files are written whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.state.disk import sync, write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.+")
_CHUNK = 2**20


class Files(Protocol):
    """The files of a folder, which may not exist yet. Each raises PipelineError."""

    def names(self, *below: str) -> list[str]:
        """The names in the folder, or in one below it; none if there is no such folder."""

    def read(self, *name: str) -> str | None:
        """The text of a file; None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file in one step."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def sync(self, *name: str) -> None:
        """Have a file on the disk that another process wrote, where that is not so by itself."""


class LocalFiles:
    """The files of a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def names(self, *below: str) -> list[str]:
        """The names in the folder, or in one below it; none if there is no such folder."""
        folder = self._folder.joinpath(*below)
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def read(self, *name: str) -> str | None:
        """The text of a file; None if there is none."""
        try:
            return self._folder.joinpath(*name).read_text("utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file in one step by one that is on the disk."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / name, data)
        except OSError as error:
            raise BadOption(f"{self._folder}: {error.strerror}") from None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)
        if self._folder.is_dir():
            sync(self._folder)

    def sync(self, *name: str) -> None:
        """Sync a file and its name to the disk."""
        file = self._folder.joinpath(*name)
        sync(file)
        sync(file.parent)


class SparkFiles:
    """The files of a folder of a file system of Spark, such as `s3a://` or `hdfs://`."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        # PySpark has no public way to the file systems of its Java.
        self._java: Any = session._jvm  # noqa: SLF001
        self._conf: Any = session._jsc.hadoopConfiguration()  # noqa: SLF001
        self._folder = folder.rstrip("/")

    def __str__(self) -> str:
        return self._folder

    def names(self, *below: str) -> list[str]:
        """The names in the folder, or in one below it; none if there is no such folder."""
        with self._errors():
            system, path = self._at(*below)
            if not system.exists(path):
                return []
            return [str(each.getPath().getName()) for each in system.listStatus(path)]

    def read(self, *name: str) -> str | None:
        """The text of a file; None if there is none."""
        with self._errors():
            system, path = self._at(*name)
            if not system.exists(path):
                return None
            stream = system.open(path)
            try:
                return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file by a whole one. A kill may leave none: its batch runs again."""
        with self._errors():
            system, path = self._at(f".{name}.part")
            stream = system.create(path, True)
            try:
                for first in range(0, len(data), _CHUNK):
                    stream.write(bytearray(data[first : first + _CHUNK]))
            finally:
                stream.close()
            _, target = self._at(name)
            system.delete(target, False)
            system.rename(path, target)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._errors():
            system, path = self._at(name)
            system.delete(path, False)

    def sync(self, *name: str) -> None:
        """Nothing: these systems keep what they have acknowledged."""

    def _at(self, *name: str) -> tuple[Any, Any]:
        path = self._java.org.apache.hadoop.fs.Path("/".join((self._folder, *name)))
        return path.getFileSystem(self._conf), path

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            text = str(error.java_exception).partition("\n")[0]
            hint = "Spark needs the jars and settings (--conf spark.hadoop...) of this file system"
            raise PipelineError("bad_store", f"{self._folder}: {text}", hint) from None


def folder_of(text: str) -> Path | str:
    """A folder of this machine, or the URL of one of Spark's."""
    return text if _URL.fullmatch(text) else Path(text).absolute()


def files_in(folder: Path | str, session: SparkSession | None) -> Files:
    """The files of a folder; a URL needs a session."""
    if isinstance(folder, Path):
        return LocalFiles(folder)
    assert session is not None
    return SparkFiles(session, folder)
