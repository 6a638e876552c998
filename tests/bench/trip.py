"""The six trips: calls, functions and files of our own code between a request and its answer.

    python -m tests.bench.trip [--rounds 15] [--list ROW]

A node with its data on disk runs on asyncio in this thread. Its clients run in a thread of their
own, over real sockets, and are not counted. `sys.setprofile` sees each call of the node's code in
its loop and in its worker threads while one request is under way. A row is the median of some
rounds on a warm connection: caches are filled, and nothing has to be opened first. A coroutine or
generator that is resumed counts as a call, because it costs as much.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import anyio
import anyio.to_thread
import msgspec

import millpond
from millpond.node.client.connect import connect
from millpond.node.config import Config
from millpond.node.jobs.job import Job
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.worker.worker import Worker
from millpond.node.node import Node

ROOT = Path(millpond.__file__).resolve().parents[1]
PACKAGES = tuple(str(ROOT / package) + "/" for package in ("actors", "transports", "node"))
BODY = b"x" * 100
WARM_ROUNDS = 8
SETTLE_S = 0.03
"""Work behind an answer, such as arming a timer again, is done within this time."""

Request = Callable[[], Awaitable[object]]


class Trip(msgspec.Struct, frozen=True):
    """The code that one request passes: calls by function, as `file:name`."""

    row: str
    calls: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def files(self) -> set[str]:
        return {function.partition(":")[0] for function in self.calls}


class Profiler:
    """A counter of calls of our own functions, in this thread and in those that start later."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] = Counter()
        self._is_on = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the calling thread and new threads, for the block."""
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._is_on and event == "call":
            self._calls[frame.f_code] += 1

    async def trip(self, row: str, request: Request) -> Trip:
        """The trip of one request, once the node is at rest again."""
        self._calls.clear()
        self._is_on = True
        await request()
        await asyncio.sleep(SETTLE_S)
        self._is_on = False
        return Trip(row, self._ours())

    def _ours(self) -> dict[str, int]:
        calls: Counter[str] = Counter()
        for code, count in self._calls.items():
            path = str(Path(code.co_filename).resolve())
            if path.startswith(PACKAGES):
                calls[f"{path.removeprefix(f'{ROOT}/')}:{code.co_qualname}"] += count
        return dict(calls)


class Clients:
    """The clients of the six trips; `addresses` are the node's listeners by name."""

    def __init__(self, addresses: dict[str, str], profiler: Profiler, rounds: int) -> None:
        self._addresses = addresses
        self._p2p = f"tcp://{addresses['p2p']}"
        self._profiler = profiler
        self._rounds = rounds
        self.trips: list[Trip] = []

    async def run(self) -> None:
        await self._put()
        await self._push()
        await self._s3p()
        await self._durable()
        await self._s2()
        await self._jobs()

    async def _measure(self, row: str, request: Request) -> None:
        for _ in range(WARM_ROUNDS):
            await request()
        await asyncio.sleep(SETTLE_S)
        trips = [await self._profiler.trip(row, request) for _ in range(self._rounds)]
        trips.sort(key=lambda trip: trip.total)
        self.trips.append(trips[len(trips) // 2])

    async def _put(self) -> None:
        async with connect(self._p2p, b"put", role="producer") as channel:
            await self._measure("P2P PUT", lambda: channel.put(BODY))

    async def _push(self) -> None:
        async with (
            connect(self._p2p, b"push", role="producer") as producer,
            connect(self._p2p, b"push", role="consumer") as consumer,
        ):

            async def request() -> None:
                await producer.put(BODY)
                message = await consumer.receive()
                await consumer.ack(message.id)

            await self._measure("P2P PUT, push, ack", request)

    async def _s3p(self) -> None:
        host, _, port = self._addresses["s3p"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        writer.write(b"*3\r\n$6\r\nCREATE\r\n$4\r\ntrip\r\n*0\r\n")
        await reader.readline()
        record = b"$%d\r\n%b\r\n" % (len(BODY), BODY)

        async def append() -> None:
            writer.write(b"*4\r\n$6\r\nAPPEND\r\n$4\r\ntrip\r\n*0\r\n*1\r\n" + record)
            size = await reader.readline()
            if not size.startswith(b"$"):
                raise ConnectionError(size)
            await reader.readline()

        await self._measure("S3P APPEND", append)
        writer.close()

    async def _http(self, row: str, create: bytes, append: bytes) -> None:
        host, _, port = self._addresses["http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def ask(data: bytes) -> None:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 20"):
                raise ConnectionError(head)
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))

        await ask(create)
        await self._measure(row, partial(ask, append))
        writer.close()

    async def _durable(self) -> None:
        head = b" /v1/stream/trip-durable HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/plain\r\n"
        await self._http(
            "Durable append over HTTP/1.1",
            b"PUT" + head + b"content-length: 0\r\n\r\n",
            b"POST" + head + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY),
        )

    async def _s2(self) -> None:
        head = (
            b" HTTP/1.1\r\nhost: [::1]\r\ns2-basin: millpond\r\ncontent-type: application/json\r\n"
        )
        body = b'{"records":[{"body":"%b"}]}' % BODY
        await self._http(
            "S2 append (JSON)",
            b"PUT /v1/streams/trip-s2%bcontent-length: 2\r\n\r\n{}" % head,
            b"POST /v1/streams/trip-s2/records%bcontent-length: %d\r\n\r\n%b"
            % (head, len(body), body),
        )

    async def _jobs(self) -> None:
        done = asyncio.Event()

        async def handler(_payload: Any, _job: Job) -> None: ...

        async with (
            Queue(self._p2p, "trip") as queue,
            Worker(self._p2p, handler, queues=["trip"], on_end=lambda _: done.set()) as worker,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(worker.run)

            async def request() -> None:
                done.clear()
                await queue.put({"to": "alice"})
                await done.wait()

            await self._measure("job put, taken, done", request)
            worker.drain()


async def measure(folder: Path, rounds: int) -> list[Trip]:
    """The six trips, in a node whose data folder this is."""
    profiler = Profiler()
    config = Config(
        data=str(folder),
        p2p="127.0.0.1:0",
        ws="off",
        s3p="127.0.0.1:0",
        rustlog="off",
        http="127.0.0.1:0",
    )
    with profiler.installed():
        async with Node(config) as node:
            clients = Clients(node.listeners, profiler, rounds)

            def run() -> None:
                sys.setprofile(None)
                asyncio.run(clients.run())

            await anyio.to_thread.run_sync(run)
    return clients.trips


def table(trips: list[Trip]) -> str:
    """The trips as a table of Markdown."""
    lines = ["| trip, socket to disk and back | calls | functions | files |", "|---|---|---|---|"]
    lines += [
        f"| {each.row} | {each.total} | {len(each.calls)} | {len(each.files)} |" for each in trips
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="of each row; the median counts: 15")
    parser.add_argument("--list", default="", metavar="ROW", help="list the functions of this row")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="millpond-trip-") as folder:
        trips = asyncio.run(measure(Path(folder), chosen.rounds))
    print(table(trips))
    for trip in trips:
        if trip.row == chosen.list:
            for function, count in sorted(trip.calls.items()):
                print(f"{count:5} {function}")


if __name__ == "__main__":
    main()
