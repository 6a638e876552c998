"""Commits of a Delta table in a folder that survive a loss of power.

The package `deltalake` syncs nothing. So commits are synced behind it, and `_synced` has the number
of the last one that is on the disk with all of its files. A later one whose entry or files are not
whole was not told to anybody, and is taken back: its batch runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from millpond.pipeline.state.disk import sync, write_whole
from millpond.pipeline.state.location import Location

LOG = "_delta_log"
MARK = "_synced"
_LAST_CHECKPOINT = "_last_checkpoint"


def start_log(folder: Location) -> None:
    """Mark the folder of a new table, none of whose commits is on the disk yet."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MARK, b"-1")


def has_log(folder: Path) -> bool:
    """Whether a folder has a Delta table."""
    return any((folder / LOG).glob("*.json"))


def sync_commits(folder: Location, version: int) -> None:
    """Sync the commits up to a version. Object stores need no sync."""
    if not isinstance(folder, Path):
        return
    log = folder / LOG
    for number in range(_synced(folder) + 1, version + 1):
        for action in _added(log / _entry(number)):
            sync(folder / unquote(action["path"]))
        sync(log / _entry(number))
    for each in (log, folder):
        sync(each)
    write_whole(folder / MARK, str(version).encode())


def take_back(folder: Location) -> int:
    """Take back commits that are not whole; their number. The caller holds the lock."""
    if not isinstance(folder, Path) or not (folder / MARK).exists():
        return 0
    log, synced = folder / LOG, _synced(folder)
    late = [each for each in sorted(log.glob("*.json")) if int(each.stem) > synced]
    first = next((i for i, each in enumerate(late) if not _is_whole(folder, each)), len(late))
    for each in reversed(late[first:]):  # those behind a torn one build upon it
        each.unlink()
    if late[first:]:
        _drop_checkpoints(log, synced)
        sync(log)
    return len(late) - first


def _drop_checkpoints(log: Path, synced: int) -> None:
    """Drop checkpoints of later versions: a log is read without them as well."""
    for each in log.glob("*.checkpoint*.parquet"):
        if int(each.name.partition(".")[0]) > synced:
            each.unlink()
    (log / _LAST_CHECKPOINT).unlink(missing_ok=True)


def _synced(folder: Path) -> int:
    try:
        return int((folder / MARK).read_text("utf-8"))
    except FileNotFoundError:
        return -1


def _entry(number: int) -> str:
    return f"{number:020}.json"


def _added(entry: Path) -> Iterator[dict[str, Any]]:
    """The files that a commit adds; none where the log has dropped its entry."""
    if entry.exists():
        for line in entry.read_text("utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                yield action["add"]


def _is_whole(folder: Path, entry: Path) -> bool:
    """Whether a commit and its files are there to the last byte."""
    try:
        if not entry.read_bytes().endswith((b"}", b"}\n")):
            return False
        return all(
            (folder / unquote(each["path"])).stat().st_size == each["size"]
            for each in _added(entry)
        )
    except (OSError, ValueError):
        return False
