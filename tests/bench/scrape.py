"""CPU time of one scrape of `/metrics`, with many channels, and the longest turn of the event loop.

    python -m tests.bench.scrape [--channels 100000] [--kind pair|queue|fanout|rest] [--profile]

The channels have one message each; those of the kind `rest` have left memory, those of `fanout`
have a subscriber. Times are those of the thread, so other work on the machine adds little.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
from contextlib import nullcontext
from time import thread_time

from millpond.actors.messages import Attach, Batch, Detach, Mode, Put, Role
from millpond.node.node import Node
from tests.actors.recording_port import RecordingPort
from tests.node.http_services import http_services
from tests.transports.http.client import Client

SCRAPES = 3
TTL_S = 3600
FAR_S = 1e6
"""Nothing is silent for so long: no heartbeats while a scrape is measured."""
MODES = {"pair": Mode.PAIR, "queue": Mode.QUEUE, "fanout": Mode.FANOUT, "rest": Mode.PAIR}


async def measure(channels: int, kind: str, profile: cProfile.Profile | None) -> None:
    """Fill a node and scrape it."""
    passivate_after_s = 0.5 if kind == "rest" else TTL_S
    settings = {"channel_messages_max": channels, "node_messages_max": channels + 1}
    async with http_services(passivate_after_s=passivate_after_s, **settings) as found:
        running, _, application = found
        await fill(running.node, channels, kind)
        for _ in range(SCRAPES):
            gc.collect()
            turns = LongestTurn()
            watch = asyncio.create_task(turns.run())
            began_s = thread_time()
            with profile or nullcontext():
                got = await Client(application).request("GET", "/metrics")
            took_s = thread_time() - began_s
            watch.cancel()
            assert got.status == 200, got.body
            print(f"{kind} {channels}: {took_s:.3f} s of CPU, longest turn {turns.ms:.1f} ms")


class LongestTurn:
    """The longest time between two turns of a task that always waits for the next one."""

    def __init__(self) -> None:
        self.ms = 0.0

    async def run(self) -> None:
        last_s = thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = thread_time()
            self.ms, last_s = max(self.ms, (now_s - last_s) * 1000), now_s


async def fill(node: Node, channels: int, kind: str) -> None:
    """Make the channels, in turns with other work."""
    for number in range(channels):
        name, now = b"%b/%d" % (kind.encode(), number), node.clock.now()
        port = RecordingPort(number + 1, received_at=now + FAR_S)
        attach = Attach(role=Role.PRODUCER, push=False, mode=MODES[kind])
        node.scheduler.submit(name, Batch(port, [attach, Put(1, TTL_S, b"x" * 20)]), now)
        if kind == "rest":
            node.scheduler.submit(name, Batch(port, [Detach()]), now)
        if kind == "fanout":
            consumer = RecordingPort(channels + number + 1, received_at=now + FAR_S)
            node.scheduler.submit(name, Batch(consumer, [Attach(role=Role.CONSUMER)]), now)
        if number % 500 == 0:
            await asyncio.sleep(0)
    cells = node.scheduler.cells
    for _ in range(600):
        if kind != "rest" or all(each.behaviour is None for each in cells.values()):
            break
        await asyncio.sleep(0.1)
    loaded = sum(each.behaviour is not None for each in cells.values())
    print(f"{len(cells)} cells, {loaded} of them in memory")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels", type=int, default=100_000)
    parser.add_argument("--kind", choices=MODES, default="pair")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    asyncio.run(measure(args.channels, args.kind, profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
