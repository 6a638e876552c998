"""A node on a simulated network and a virtual clock, with queues and workers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.client.settings import SimulatedSettings
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.jobs.queue import Queue
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.jobs.worker.worker import Worker
from millpond.node.node import Node
from millpond.transports.io.interface import Session
from millpond.transports.io.memory import Network

URL = "tcp://pond:1"
TIMEOUT_S = 7200.0
BEGAN_AT = 1_763_683_200.0


class JobSetup:
    """A node with its network; `ended` has the results of all attempts of all workers."""

    def __init__(self, node: Node, network: Network) -> None:
        self.node = node
        self.network = network
        self.ended: list[AttemptResult] = []

    def dialer(self, source: str) -> Any:
        async def dial(tasks: TaskGroup, host: str, port: int, session: Session) -> None:
            await self.network.connect(tasks, host, session, source=source)

        return dial

    def queue(self, name: str = "mail", **options: Any) -> Queue:
        options = {"wall": self.wall} | options
        rng = options.pop("rng", Random(2))
        return Queue(
            URL,
            name,
            settings=SimulatedSettings(dialer=self.dialer("producer"), rng=rng),
            **options,
        )

    def worker(self, work: Any, *queues: str, source: str = "worker", **options: Any) -> Worker:
        options = {"wall": self.wall, "on_end": self.ended.append} | options
        rng, now = options.pop("rng", Random(3)), options.pop("now", None)
        return Worker(
            URL,
            work,
            queues=queues,
            settings=SimulatedSettings(dialer=self.dialer(source), rng=rng, now=now),
            **options,
        )

    @asynccontextmanager
    async def working(self, work: Any, *queues: str, **options: Any) -> AsyncIterator[Worker]:
        """A worker that runs beside the block, and drains at its end."""
        async with anyio.create_task_group() as tasks:
            async with self.worker(work, *queues, **options) as worker:
                ran = anyio.Event()

                async def run() -> None:
                    await worker.run()
                    ran.set()

                tasks.start_soon(run)
                yield worker
                worker.drain()
                await ran.wait()

    async def until(self, fact: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until `fact` holds."""
        with anyio.fail_after(timeout_s):
            delay_s = 0.01
            while not fact():
                await anyio.sleep(delay_s)
                delay_s = min(1.05 * delay_s, 2.0)

    @asynccontextmanager
    async def observed(self, channel: str) -> AsyncIterator[Channel]:
        """A channel, of an observer that takes nothing."""
        dialer = self.dialer("observer")
        async with connect(
            URL, channel, role="consumer", window=0, settings=SimulatedSettings(dialer=dialer)
        ) as observed:
            yield observed

    async def kept(self, channel: str = "jobs/mail") -> list[bytes]:
        """The messages of a channel."""
        async with self.observed(channel) as observed:
            return [await observed.get(each) for each in await observed.list()]

    async def dead(self) -> list[bytes]:
        """The dead letters of the queue."""
        return await self.kept("jobs/mail!dead")

    @property
    def outcomes(self) -> list[str]:
        return [each.what for each in self.ended]

    def wall(self) -> float:
        return self.node.clock.now()


@asynccontextmanager
async def job_setup(**settings: Any) -> AsyncIterator[JobSetup]:
    network = Network(Random(1), latency_s=0.001)
    config = Config(p2p=OFF, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, **settings)
    clock = Clock(monotonic=anyio.current_time, wall=lambda: BEGAN_AT)
    async with Node(config, rng=Random(1), clock=clock) as node:
        node.listen_in(network, "pond")
        yield JobSetup(node, network)
