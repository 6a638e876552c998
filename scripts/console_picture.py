"""The picture of the console in docs/images: a node that is busy, in Chromium.

.venv/bin/python -m scripts.console_picture docs/images/console.png
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import anyio

from millpond import Config, Node, connect
from millpond.jobs import Job, Queue, Worker, task
from millpond.node.client.streams.connect import connect_streams
from tests.browser.chromium import browser, find
from tests.ports import free_port

WIDTH, HEIGHT = 1120, 760
WATCHED_S = 70.0
RNG = Random(7)


@task(queue="mail", attempts=3)
async def send(to: str, job: Job) -> None:
    """A job that takes a moment."""
    await anyio.sleep(RNG.uniform(0.1, 0.6))


async def chat(url: str) -> None:
    """Messages that are acknowledged, at a pace that varies."""
    async with connect(url, "chat/1") as one, connect(url, "chat/1") as other:
        while True:
            for _ in range(RNG.randrange(1, 12)):
                await one.put(b"hello")
                await (await other.receive()).ack()
            await anyio.sleep(0.2)


async def measure(url: str) -> None:
    """A stream that grows."""
    async with connect_streams(url) as streams:
        stream = streams.stream("weather/berlin")
        await stream.create()
        while True:
            await stream.append(json.dumps({"celsius": RNG.uniform(2, 9)}).encode())
            await anyio.sleep(0.05)


async def put_jobs(url: str) -> None:
    """A queue that a worker empties."""
    async with Queue(url, "mail") as queue:
        while True:
            await queue.put(f"user{RNG.randrange(1000)}", name="send")
            await anyio.sleep(RNG.uniform(0.02, 0.15))


async def take(path: Path, program: str) -> None:
    """Take the picture."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        await picture(path, program, folder, stack)


async def picture(path: Path, program: str, folder: Path, stack: AsyncExitStack) -> None:
    """The same with a folder for the node and the browser."""
    config = Config(
        data=str(folder / "pond"),
        http=f"127.0.0.1:{free_port()}",
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    node = await stack.enter_async_context(Node(config))
    url = f"tcp://{node.listeners['p2p']}"
    worker = await stack.enter_async_context(Worker(url, [send], name="mailer-1"))
    chromium = await stack.enter_async_context(browser(program, folder / "chromium"))
    async with anyio.create_task_group() as tasks:
        for work in (chat, measure, put_jobs):
            tasks.start_soon(work, url)
        tasks.start_soon(worker.run)
        tab = await chromium.tab()
        await tab.resize(WIDTH, HEIGHT)
        await tab.open(f"http://{node.listeners['http']}/millpond/")
        await anyio.sleep(WATCHED_S)
        await tab.picture(path)
        await tab.close()
        tasks.cancel_scope.cancel()


def main() -> int:
    """Take the picture; 1 without Chromium."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the PNG to write")
    program = find()
    if program is None:
        print("console_picture: there is no Chromium here (set CHROMIUM to one)", file=sys.stderr)
        return 1
    anyio.run(take, parser.parse_args().path, program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
