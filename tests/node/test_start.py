"""A start that does not succeed leaves the data folder as free as it was."""

from __future__ import annotations

import errno
import sqlite3
import threading
from pathlib import Path

import pytest

from millpond import Node
from millpond.actors.store.filesystem import OsDisk
from millpond.node.config import Config

ENDS_S = 5.0


class FailingDisk(OsDisk):
    """Cannot list the journal's folder, or open any SQLite file."""

    def __init__(self, call: str) -> None:
        self._call = call

    def names(self, folder: Path) -> list[str]:
        if self._call == "names" and folder.name == "journal":
            raise OSError(errno.EIO, "the disk is broken")
        return super().names(folder)

    def connect(self, path: Path) -> sqlite3.Connection:
        if self._call == "connect":
            raise sqlite3.OperationalError("disk I/O error")
        return super().connect(path)


def worker_threads() -> list[str]:
    """Those that do not end; one that has said its last may take a moment."""
    found = [each for each in threading.enumerate() if each.name.startswith("millpond")]
    for each in found:
        each.join(ENDS_S)
    return [each.name for each in found if each.is_alive()]


def config(folder: Path) -> Config:
    return Config(
        data=str(folder), p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off"
    )


@pytest.mark.parametrize("call", ["names", "connect"])
async def test_a_start_that_fails_frees_the_folder_and_ends_its_threads(
    tmp_path: Path, call: str
) -> None:
    with pytest.raises((OSError, sqlite3.Error)):
        async with Node(config(tmp_path), disk=FailingDisk(call)):
            raise AssertionError("must not get here")
    assert worker_threads() == []
    async with Node(config(tmp_path)) as node:
        assert node.listeners
    assert worker_threads() == []
