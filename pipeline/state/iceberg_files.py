"""Files of an Iceberg table in a folder, which are on the disk before a commit names them.

The package pyiceberg syncs nothing; the catalog in SQLite syncs itself.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from millpond.pipeline.state.disk import sync


class SyncedFiles(PyArrowFileIO):
    """The package's access to files, with files that are synced when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        """A stream of a new file, whose folders are made."""
        path = Path(self._path)
        _make_folder(path.parent)
        return _SyncedStream(io.FileIO(path, "wb" if overwrite else "xb"))


class _SyncedStream(io.BufferedWriter):
    def close(self) -> None:
        """Close the file, after its bytes and its name are on the disk."""
        if not self.closed:
            path = Path(str(self.raw.name))  # type: ignore[attr-defined]
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                super().close()
            sync(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
