"""CPU time that an open page of the console costs a node with many channels, queues and streams.

    python -m tests.bench.console [--channels 100000] [--queues 2000] [--streams 10000]
        [--seconds 20] [--folder DIR]

The node runs in this process, on disk; Chromium and what drives it run in others. Each page is
open for a window, and windows without a page stand between them: the cost of a page is what its
window takes more than those beside it. Times are CPU times, so other work adds little.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import process_time

import anyio
from anyio.lowlevel import checkpoint

from millpond import Config, Node
from millpond.actors.messages import Attach, Batch, Mode, Put, Role
from millpond.actors.streams.messages import Create
from millpond.actors.streams.names import stream_cell
from tests.actors.recording_port import RecordingPort
from tests.browser.chromium import browser, find
from tests.ports import free_port

TTL_S = 86_400
FAR_S = 1e6
PAGES = ("", "jobs", "queue/jobs%2f7", "channels", "streams")
SETTLED_S = 5.0
"""A page is open for so long before its window: what it asks for once is not counted."""


async def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of an open console.")
    parser.add_argument("--channels", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--drive")
    args = parser.parse_args()
    if args.drive:
        await drive(args.drive)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        off = dict.fromkeys(("ws", "s3p", "rustlog", "p2p"), "off")
        config = Config(
            data=folder,
            http=f"127.0.0.1:{free_port()}",
            node_messages_max=args.channels + args.queues + 1,
            passivate_after_s=FAR_S,
            **off,
        )
        async with Node(config) as node:
            await fill(node, args.channels, args.queues, args.streams)
            await measure(node, args.seconds)


async def fill(node: Node, channels: int, queues: int, streams: int) -> None:
    """Make channels and queues with a message each, and empty streams."""
    names = [(b"chat/%d" % number, Mode.PAIR) for number in range(channels)]
    names += [(b"jobs/%d" % number, Mode.QUEUE) for number in range(queues)]
    for number, (name, mode) in enumerate(names):
        now = node.clock.now()
        port = RecordingPort(number + 1, received_at=now + FAR_S)
        attach = Attach(role=Role.PRODUCER, push=False, mode=mode)
        node.scheduler.submit(name, Batch(port, [attach, Put(1, TTL_S, b"x" * 20)]), now)
        if number % 200 == 0:
            await checkpoint()
    for number in range(streams):
        now = node.clock.now()
        port = RecordingPort(len(names) + number + 1, received_at=now + FAR_S)
        node.scheduler.submit(stream_cell(b"log/%d" % number), Batch(port, [Create(1)]), now)
        if number % 200 == 0:
            await checkpoint()
    await anyio.sleep(10)
    print(f"{len(node.scheduler.cells)} cells", flush=True)


async def measure(node: Node, seconds: float) -> None:
    """Windows with a page, and windows without one between them."""
    root = f"http://{node.listeners['http']}/millpond/#/"
    with driver(root) as show:
        idle = await window(seconds)
        for path in PAGES:
            await anyio.to_thread.run_sync(partial(show, path))
            await anyio.sleep(SETTLED_S)
            taken = await window(seconds)
            await anyio.to_thread.run_sync(partial(show, None))
            after = await window(seconds)
            more = taken - (idle + after) / 2
            told = f"{path or 'overview':16} {taken:.2f} s, without {idle:.2f} and {after:.2f} s"
            print(f"{told}: {100 * more / seconds:.2f} % of a core", flush=True)
            idle = after


async def window(seconds: float) -> float:
    """The CPU time of this process in so many seconds."""
    began = process_time()
    await anyio.sleep(seconds)
    return process_time() - began


@contextmanager
def driver(root: str) -> Iterator[Callable[[str | None], None]]:
    """Another process with a browser; gives a function that shows a page, or none."""
    command = [sys.executable, "-m", "tests.bench.console", "--drive", root]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def show(path: str | None) -> None:
            stdin.write(f"{'-' if path is None else path}\n")
            stdin.flush()
            assert stdout.readline() == "shown\n"

        yield show
        stdin.close()


async def drive(root: str) -> None:
    """Show the pages that are named on the standard input."""
    program = find()
    assert program is not None, "there is no Chromium here (set CHROMIUM to one)"
    with tempfile.TemporaryDirectory() as folder:
        async with browser(program, Path(folder)) as chromium:
            tab = await chromium.tab()
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                path = line.strip()
                await tab.open("about:blank" if path == "-" else root + path)
                if path != "-":
                    await tab.until("document.body.dataset.state === 'open'")
                print("shown", flush=True)
            await tab.close()


if __name__ == "__main__":
    anyio.run(main)
