"""Folders of a benchmark's own: beside the data of the machine's node, and removed afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
NODE_FILES = ("catalogue.sqlite3", "journal", "partitions")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class FolderHoldsNode(Exception):
    """The folder is a node's data folder: nothing of ours belongs there."""


@contextmanager
def scratch_folder(below: Path) -> Iterator[Path]:
    """A new folder below another, gone at the end. Raises HoldsNode, and OSError."""
    found = [name for name in NODE_FILES if (below / name).exists()]
    if found:
        raise FolderHoldsNode(f"{below} holds a node's data ({', '.join(found)})")
    with ending_like_ctrl_c():
        folder = Path(tempfile.mkdtemp(prefix="millpond-bench-", dir=below))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def default_folder() -> Path:
    """On the disk that `serve` uses unless it is told another: that is the one to be measured."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    place = Path(home).absolute()
    while not place.is_dir():
        place = place.parent
    return place


def file_system(folder: Path) -> str | None:
    """The type of the file system that holds a folder, by Linux's account; None elsewhere."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return None
    folder, kind, depth = folder.resolve(), None, 0
    for line in mounts.read_text("utf-8", "surrogateescape").splitlines():
        _, place, found, *_ = line.split(" ")
        at = Path(place.replace("\\040", " "))
        if folder.is_relative_to(at) and len(at.parts) >= depth:
            kind, depth = found, len(at.parts)
    return kind


@contextmanager
def ending_like_ctrl_c() -> Iterator[None]:
    """These signals unwind the process, too: otherwise what was started or made would stay."""
    before = [
        (number, signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT)))
        for number in STOP_SIGNALS
    ]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
