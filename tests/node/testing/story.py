"""One story with some of everything, told for a seed; `python -m tests.node.testing.story SEED`
prints its trace."""

from __future__ import annotations

import math
import sys

import anyio

from millpond import ConnectionLost, connect
from millpond.actors.errors import OutcomeUnknown
from millpond.jobs import Job, Queue, Retry, Worker
from millpond.node.client.settings import SimulatedSettings
from millpond.node.outbox.messages import PeerOperation
from millpond.testing import SimNode, World, virtual

JOBS = 12
CROWD = 12
MESSAGES = 4
RECORDS = 30


async def trace_of(seed: int) -> str:
    """Tell it in a world of its own."""
    async with World(seed, trace=True, threads=False, timeout_s=math.inf) as world:
        with world.guard():
            await _story(world)
        return str(world.trace)


async def _story(world: World) -> None:
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    world.latency(0.02)
    world.split()
    for name in ("worker-1", "worker-2"):
        world.start(_work, world, alice, name)
    world.start(_append, alice)
    # The queue says nothing of chance and clocks: it has them from the world.
    async with Queue(
        alice.url, "mail", settings=SimulatedSettings(dialer=alice.dialer("clerk"))
    ) as queue:
        for number in range(JOBS):
            handle = await queue.put({"number": number}, wait=True)
            if number < MESSAGES:
                await alice.send(bob, "post", b"letter %d" % number)
                await _chat(bob, f"line {number}")
            await _disturb(world, alice, number)
            await world.clock.sleep(1)
            world.trace.note(f"{await handle.result(600)}")
    for _ in range(MESSAGES):
        world.trace.note(f"bob reads {(await bob.read('post')).data!r}")
    await _crowd(alice)
    await world.clock.sleep(60)
    async with alice.streams(who="reader") as streams:
        world.trace.note(f"the stream ends at {(await streams.stream('log').info()).tail}")
    await bob.stop()
    await alice.stop()


async def _disturb(world: World, alice: SimNode, number: int) -> None:
    match number:
        case 3:
            world.partition("alice", "bob")
        case 5:
            await alice.restart(power=True)
        case 7:
            world.heal("alice", "bob")
            world.reset("bob")
        case 9:
            world.reset("alice")


async def _work(world: World, node: SimNode, name: str) -> None:
    def handler(payload: dict[str, int], job: Job) -> str:
        """Not async: a thread's work, in a world with threads."""
        job.progress(job.attempt)
        if payload["number"] % 5 == job.attempt:
            raise Retry(2)
        return f"{name} did {payload['number']} at {world.clock.elapsed():.6f}"

    options = {"queues": ["mail"], "concurrency": 2, "settings": node.settings(name)}
    async with Worker(node.url, handler, **options) as worker:
        await worker.run()


async def _append(node: SimNode) -> None:
    async with node.streams(who="writer") as streams:
        stream = streams.stream("log")
        await stream.create()
        for number in range(RECORDS):
            try:
                await stream.append(b"record %d" % number)
            except (OutcomeUnknown, ConnectionLost):
                await anyio.sleep(1)
            await anyio.sleep(0.7)


async def _chat(node: SimNode, text: str) -> None:
    async with connect(
        node.url, "desk", settings=SimulatedSettings(dialer=node.dialer("page"))
    ) as channel:
        await channel.peers(PeerOperation.CHAT_SEND, {"peer": "alice", "text": text})


async def _crowd(node: SimNode) -> None:
    """Many subscribers that connect, and are cancelled together."""

    async def come(number: int) -> None:
        async with connect(
            node.url,
            "crowd",
            settings=SimulatedSettings(dialer=node.dialer(f"subscriber-{number}")),
            mode="fanout",
        ):
            await anyio.sleep_forever()

    async with anyio.create_task_group() as subscribers:
        for number in range(CROWD):
            subscribers.start_soon(come, number)
        await anyio.sleep(1)
        subscribers.cancel_scope.cancel()


def main() -> None:
    """Print the trace, without a line end at its end."""
    library, options = virtual("asyncio")
    trace = anyio.run(trace_of, int(sys.argv[1]), backend=library, backend_options=options)
    sys.stdout.write(trace)


if __name__ == "__main__":
    main()
