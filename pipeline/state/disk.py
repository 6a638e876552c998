"""Writes that are on the disk when they return."""

from __future__ import annotations

import os
from pathlib import Path


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
