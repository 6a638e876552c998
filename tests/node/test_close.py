"""The end of a node in this process, on a disk that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import pytest

from millpond import Node, connect
from millpond.actors.store.filesystem import OsDisk, OsFile
from millpond.errors import FolderInUse, StopTimedOut
from millpond.node.config import OFF, Config
from millpond.node.data_folder import FolderLock

pytestmark = pytest.mark.crash

STOP_S = 0.5
LIMIT_S = 20.0


class HungFile(OsFile):
    """A file whose syncs wait until the disk answers."""

    __slots__ = ("answers",)
    answers: Event

    def sync(self) -> None:
        self.answers.wait()
        super().sync()


class HungDisk(OsDisk):
    """The disk of this machine, that answers while `answers` is set."""

    def __init__(self) -> None:
        self.answers = Event()
        self.answers.set()

    def create(self, path: Path, size: int) -> OsFile:
        found = super().create(path, size)
        file = HungFile(found._fd)
        file.answers = self.answers
        return file


@pytest.fixture
def disk() -> Iterator[HungDisk]:
    found = HungDisk()
    yield found
    found.answers.set()


def config(folder: Path, **settings: Any) -> Config:
    off = dict.fromkeys(("ws", "s3p", "rustlog", "http"), OFF)
    return Config(
        data=str(folder),
        p2p="127.0.0.1:0",
        drain_timeout_s=0.2,
        **{"stop_timeout_s": STOP_S, **off, **settings},
    )


async def unlocked(folder: Path) -> None:
    """Wait until no node holds the folder."""
    while True:
        try:
            FolderLock(folder).release()
        except FolderInUse:
            await anyio.sleep(0.01)
        else:
            return


async def test_a_stop_has_a_deadline_and_loses_nothing(tmp_path: Path, disk: HungDisk) -> None:
    """The loop goes on meanwhile. The folder is locked until the disk has answered; all that was
    acknowledged is there then, and what was not may be."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(STOP_S / 20)
            ticks += 1

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            node = Node(config(tmp_path), disk=disk)
            await node.__aenter__()
            address = f"tcp://{node.listeners['p2p']}"
            async with connect(address, channel="box") as box:
                kept = await box.put(b"kept")
                disk.answers.clear()
                put = box.put_nowait(b"slow")
                await box.ping()
                assert not put.done
            tasks.start_soon(tick)
            with pytest.raises(StopTimedOut, match=r"did not answer within 0.5 s") as caught:
                await node.__aexit__(None, None, None)
            assert (caught.value.folder, caught.value.seconds) == (tmp_path, STOP_S)
            assert ticks >= 3
            with pytest.raises(FolderInUse):
                await Node(config(tmp_path)).__aenter__()
            disk.answers.set()
            await unlocked(tmp_path)
            async with Node(config(tmp_path)) as node:
                address = f"tcp://{node.listeners['p2p']}"
                async with connect(address, channel="box") as box:
                    assert (await box.list())[0] == kept.id
            tasks.cancel_scope.cancel()


async def test_a_disk_that_answers_late_is_waited_for(tmp_path: Path, disk: HungDisk) -> None:
    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            async with Node(config(tmp_path, stop_timeout_s=LIMIT_S), disk=disk) as node:
                address = f"tcp://{node.listeners['p2p']}"
                async with connect(address, channel="box") as box:
                    kept = await box.put(b"kept")
                    disk.answers.clear()
                    box.put_nowait(b"slow")
                    await box.ping()

                async def answer() -> None:
                    await anyio.sleep(0.5)
                    disk.answers.set()

                tasks.start_soon(answer)
            async with Node(config(tmp_path)) as node:
                address = f"tcp://{node.listeners['p2p']}"
                async with connect(address, channel="box") as box:
                    assert (await box.list())[0] == kept.id


async def test_an_error_of_the_program_is_not_hidden(tmp_path: Path, disk: HungDisk) -> None:
    """It is the context of the error of the stop."""
    with anyio.fail_after(LIMIT_S), pytest.raises(StopTimedOut) as caught:
        async with Node(config(tmp_path), disk=disk) as node:
            address = f"tcp://{node.listeners['p2p']}"
            async with connect(address, channel="box") as box:
                disk.answers.clear()
                box.put_nowait(b"slow")
                await box.ping()
            raise ValueError("of the program")
    assert isinstance(caught.value.__context__, ValueError)
