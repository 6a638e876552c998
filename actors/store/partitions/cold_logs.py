"""Logs of a data folder of which some chunks are in a replica alone, as their files tell."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from millpond.actors.store.partitions.log_tables import ColdCount
from millpond.actors.store.partitions.partition import Partition
from millpond.actors.store.partitions.sqlite import COLD_FORMAT, Damaged, version_of

COLD_FACT = "cold"
"""A fact of the catalog: the folder came without the replica that it needs."""


def cold_logs(partitions: Path) -> dict[bytes, ColdCount]:
    """The records and bytes in a replica alone, by the name of the log. Files that cannot be read
    are left out. Raises OSError."""
    found: dict[bytes, ColdCount] = {}
    for path in sorted(partitions.glob("*/*.sqlite3")):
        if _may_be_cold(path):
            try:
                with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                    partition = Partition(connection, None, None)
                    name, count = partition.metadata.name, partition.cold_count()
            except (Damaged, sqlite3.Error):
                continue
            if name is not None and count.records:
                found[name] = count
    return found


def _may_be_cold(path: Path) -> bool:
    with path.open("rb") as file:
        if version_of(file.read(100)) >= COLD_FORMAT:
            return True
    return path.with_name(f"{path.name}-wal").exists()  # which may have a later first page


def cold_text(found: dict[bytes, ColdCount]) -> str:
    """These logs in words; empty: there is none."""
    if not found:
        return ""
    records = sum(each.records for each in found.values())
    size = sum(each.bytes for each in found.values()) / 2**20
    streams = "1 stream" if len(found) == 1 else f"{len(found)} streams"
    return f"{records} records of {streams} ({size:.1f} MiB)"
