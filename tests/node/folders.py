"""Data folders of stopped nodes, made without a node, and ways to damage them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from millpond.actors.ids import EPOCH_MS
from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import Change, ModeSet, Origin, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.store.settings import StoreSettings
from millpond.node.data_folder import FolderLock, OfflineRuntime

SMALL = StoreSettings(
    segment_bytes=32 * 1024, journal_bytes_max=64 * 1024, rewrite_bytes_max=1024, settle_s=0.0
)
"""A journal so small that messages soon go to the files of their channels."""
TTL_S = 3_000_000_000
"""So long that the deadline agrees with it: a node shortens one that does not."""
FIRST_ID = (1_763_683_200_000 - EPOCH_MS) << 22
LATER_S = 4_000_000_000.0


def row(number: int, data: bytes | None = None, *, origin: Origin | None = None) -> StoredMessage:
    """Message `number` of a channel, which does not expire while tests run."""
    data = b"message %d " % number + 100 * b"." if data is None else data
    return StoredMessage(FIRST_ID + number, number, TTL_S, LATER_S, data, origin=origin)


def rows(count: int, first: int = 0) -> list[Change]:
    changes: list[Change] = [ModeSet(Mode.PAIR)]
    return [*changes, *(row(first + number) for number in range(count))]


@contextmanager
def stopped(folder: Path, settings: StoreSettings = SMALL) -> Iterator[Stopped]:
    """The store in a folder, for as long as the block lasts."""
    lock = FolderLock(folder)
    store = Stopped(folder, settings)
    yield store
    store.close()
    lock.release()


class Stopped:
    """Writes what it is told, and settles at once."""

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self._runtime = OfflineRuntime(Random(1))
        self._store = DurableStore(
            folder, OsDisk(), settings, self._runtime, lambda name: Durability.DISK
        )
        self.found = self._store.open()

    def write(self, name: bytes, changes: list[Change], at_once: int = 10) -> None:
        for start in range(0, len(changes), at_once):
            self._store.write(name, changes[start : start + at_once])
            self._runtime.settle()

    def close(self) -> None:
        self._store.close()


def partition_of(folder: Path, name: bytes) -> Path:
    return folder / "partitions" / file_name(name)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").iterdir())


def flip(path: Path, data: bytes) -> None:
    """Change one byte in the midst of every place where `data` is."""
    content = bytearray(path.read_bytes())
    at = content.find(data)
    assert at >= 0, f"{data!r} is not in {path}"
    while at >= 0:
        content[at + len(data) // 2] ^= 0x01
        at = content.find(data, at + 1)
    path.write_bytes(content)


def empty_wal(path: Path) -> None:
    """Have SQLite put everything into the file itself."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
