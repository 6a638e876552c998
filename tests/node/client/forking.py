"""Programs that fork with open clients: `python forking.py PROGRAM URL S3P_ADDRESS`.

Each prints what its children saw, and ends with an error where one of them hangs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread

from millpond import connect, connect_s3p, connect_streams, sync
from millpond.errors import ClientClosed, ClientForked
from millpond.jobs import Queue

HANGS_S = 20


def in_child(call: Callable[[], str]) -> str:
    """The result of the call in a child of `fork`, or the name of its error."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANGS_S)
        try:
            text = call()
        except BaseException as error:
            text = type(error).__name__
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    return text if os.waitpid(pid, 0)[1] == 0 else "hung"


def blocking(url: str, s3p_address: str) -> None:
    """A client of a module, opened before the fork: each process has a connection of its own."""
    channel = sync.connect(url, "notes").open()
    streams, queue = sync.connect_streams(url).open(), sync.Queue(url, "mail").open()
    s3p = sync.connect_s3p(s3p_address).open()
    channel.put(b"of the parent")
    orders = streams.stream("orders")
    orders.create()
    s3p.append("orders", b"of the parent")

    def put() -> str:
        channel.put(b"of a child")
        return str(len(channel.list()))

    print("put", in_child(put), in_child(put))
    print("streams", in_child(lambda: str(streams.stream("orders").info().tail)))
    print("s3p", in_child(lambda: str(len(s3p.read("orders")))))
    print("queue", in_child(lambda: str(queue.counts().workers)))
    print("stream", in_child(lambda: str(orders.info())))
    print("next", in_child(lambda: str(in_child(put))))
    print("close", in_child(lambda: str(channel.close())))
    print("parent", len(channel.list()), len(s3p.read("orders")), orders.info().tail)
    for client in (channel, streams, queue, s3p):
        client.close()
    print("closed", in_child(put))


def with_block(url: str, _: str) -> None:
    """The child leaves the block of the parent."""
    pid = None
    with sync.connect(url, "notes") as channel:
        channel.put(b"x")
        pid = os.fork()
        if pid == 0:
            signal.alarm(HANGS_S)
            channel.put(b"y")
    if pid == 0:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    with channel:
        print(len(channel.list()))


def processes(url: str, _: str) -> None:
    """multiprocessing with the start method fork: the children end as they are."""
    channel = sync.connect(url, "notes").open()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=channel.put, args=(b"x",)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS_S)
    print([worker.exitcode for worker in workers], len(channel.list()))


def asynchronous(url: str, s3p_address: str) -> None:
    """Async clients raise at once in the child, until they are opened in a loop of it."""

    async def main() -> None:
        channel, streams, s3p = (
            connect(url, "notes"),
            connect_streams(url),
            connect_s3p(s3p_address),
        )
        queue = Queue(url, "mail")
        for client in (channel, streams, s3p, queue):
            await client.open()
        await channel.put(b"of the parent")
        await streams.stream("orders").create()

        async def use() -> str:
            seen = []
            calls = (
                channel.put(b"x"),
                channel.receive(),
                channel.admin(1, {}),
                channel.credit(1),
                streams.stream("orders").info(),
                s3p.create("s"),
                s3p.read("s", block_ms=1000),
                queue.counts(),
            )
            for call in calls:
                try:
                    await call
                except ClientForked as error:
                    assert isinstance(error, ClientClosed)
                    seen.append("raises")
            return f"{len(seen)} of {len(calls)} raise"

        async def reopen() -> str:
            for client in (channel, streams, s3p, queue):
                await client.open()
            await channel.put(b"of a child")
            await s3p.append("orders", b"of a child")
            text = f"{len(await channel.list())} {(await streams.stream('orders').info()).tail}"
            for client in (channel, streams, s3p, queue):
                await client.close()
            return text

        async def close() -> str:
            for client in (channel, streams, s3p, queue):
                await client.close()
            return "closed"

        for name, program in (("use", use), ("reopen", reopen), ("close", close)):
            for backend in ("asyncio", "trio"):
                print(name, backend, in_child(lambda: anyio.run(program, backend=backend)))  # noqa: B023
        print("parent", len(await channel.list()), (await s3p.read("orders"))[0].data)

    asyncio.run(main())


def handshake(_: str, __: str) -> None:
    """The other end of a connection whose handshake was under way sees its end, though a child of
    that moment lives on."""

    async def main(server: socket.socket) -> None:
        channel = connect(f"tcp://127.0.0.1:{server.getsockname()[1]}", "c")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.open)
            accepted, _ = await anyio.to_thread.run_sync(server.accept)
            accepted.settimeout(HANGS_S)
            await anyio.to_thread.run_sync(accepted.recv, 100)
            child = os.fork()
            if child == 0:
                signal.alarm(2 * HANGS_S)
                signal.pause()
            tasks.cancel_scope.cancel()
        try:
            rest = accepted.recv(100)
        except ConnectionResetError:
            rest = b""
        except TimeoutError:
            rest = b"nothing"
        print("rest", rest)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222  it is killed

    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(main(server))


PROGRAMS = {
    "handshake": handshake,
    "blocking": blocking,
    "with_block": with_block,
    "processes": processes,
    "asynchronous": asynchronous,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
