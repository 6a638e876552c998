"""An export shows nothing before it is as durable as promised, like every other answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond import Config, Node, connect
from millpond.actors.channels.channel import Channel as ChannelCell
from millpond.actors.messages import Batch, Credit
from millpond.actors.store.filesystem import File, OsDisk, OsFile

EXPORT = 2
BOX = b"box"


class StallingDisk(OsDisk):
    """Its journal's syncs wait while it `stalls`."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.works.set()

    def create(self, path: Path, size: int) -> OsFile:
        return StallingFile(super().create(path, size), self.works)  # type: ignore[return-value]


class StallingFile:
    def __init__(self, file: File, works: threading.Event) -> None:
        self._file = file
        self._works = works

    def write(self, data: bytes, offset: int) -> None:
        self._file.write(data, offset)

    def sync(self) -> None:
        assert self._works.wait(10), "the test forgot the disk"
        self._file.sync()

    def close(self) -> None:
        self._file.close()


async def until(is_so: Callable[[], bool]) -> None:
    for number in range(1000):
        if is_so():
            return
        await anyio.sleep(0.001 * min(number, 10))
    raise AssertionError("it never came about")


def messages(node: Node) -> int:
    """The messages of the channel, durable or not."""
    channel = node.scheduler.view(BOX)
    return channel.info.messages if isinstance(channel, ChannelCell) else 0


async def exported(asking: Any) -> tuple[list[bytes], bool]:
    with anyio.fail_after(60):
        answer = await asking.admin(EXPORT, {"channel": BOX})
    return [each["data"] for each in answer["messages"]], answer["more"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_what_the_disk_does_not_have_yet_is_not_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, crashes: bool
) -> None:
    """Nor after a crash of the channel: it is rebuilt with what is on its way to the disk."""
    caplog.set_level(logging.CRITICAL)
    disk = StallingDisk()
    config = Config(
        data=str(tmp_path),
        p2p="127.0.0.1:0",
        ws="off",
        s3p="off",
        rustlog="off",
        http="off",
        drain_timeout_s=0.5,
    )
    async with Node(config, disk=disk) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with (
            connect(url, channel=BOX, role="producer") as producer,
            connect(url, channel=BOX, role="consumer", window=0) as asking,
        ):
            await producer.put(b"kept")
            disk.works.clear()
            try:
                answers = [producer.put_nowait(data) for data in (b"2", b"3")]
                await until(lambda: messages(node) == 3)
                if crashes:
                    # No cell ever sends another one a Credit.
                    node.scheduler.submit(BOX, Batch(None, [Credit(1)]), node.clock.now())
                    assert node.scheduler.view(BOX) is None
                    await until(lambda: messages(node) == 3)
                assert await exported(asking) == ([b"kept"], False)
            finally:
                disk.works.set()
            for each in answers:
                await each
            assert await exported(asking) == ([b"kept", b"2", b"3"], False)
