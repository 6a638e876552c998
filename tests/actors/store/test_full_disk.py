"""A full disk: the journal goes on in the space of segments that it does not need."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import msgspec

from millpond.actors.messages import Durability
from millpond.actors.store.changes import Chunk, Position
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk, OsFile
from millpond.actors.store.settings import StoreSettings
from millpond.node.data_folder import OfflineRuntime

SEGMENTS_MAX = 3
AT = Position(1, 1)


class SmallDisk(OsDisk):
    """Space for three segments."""

    def create(self, path: Path, size: int) -> OsFile:
        if len(list(path.parent.glob("*.journal"))) >= SEGMENTS_MAX:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path, size)


class Writer:
    """A store whose writes are tried again until they are stored."""

    def __init__(self, folder: Path) -> None:
        self.now = 1e9
        self.tails: dict[bytes, int] = {}
        self._runtime = OfflineRuntime(Random(1), lambda: self.now)
        settings = msgspec.structs.replace(
            StoreSettings(), segment_bytes=2**16, journal_bytes_max=2**17
        )
        self.store = DurableStore(
            folder, SmallDisk(), settings, self._runtime, lambda name: Durability.DISK
        )
        self.store.open()

    def append(self, name: bytes, data: bytes) -> bool:
        """False: the store refuses it for a minute."""
        first = self.tails.get(name, 0)
        for _ in range(12):
            self.now += 5
            commit = self.store.write(name, [Chunk(first, 1, 1, 1, AT, AT, data)])
            self._runtime.settle()
            faults: list[object] = []
            assert commit is not None
            commit.when_done(faults.append)
            if faults == [None]:
                self.tails[name] = first + 1
                return True
            for worker in self._runtime._workers:
                worker.step(idle=True)
            self._runtime.settle()
        return False


def test_writes_go_on_where_only_unneeded_segments_fill_the_disk(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert all(writer.append(b"small/%d" % (n % 40), b"x" * 60) for n in range(400))
    assert all(writer.append(b"busy", b"y" * 900) for _ in range(1000))
    again = Writer(tmp_path)  # after a kill
    assert again.store.damages == []
    assert again.append(b"other", b"z")
