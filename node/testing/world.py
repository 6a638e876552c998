"""A world for tests: nodes, the network between them, their clocks and disks, in one process."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from itertools import combinations
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from node.testing.disk.simulated import SimulatedDisk
from node.testing.failures import Failures
from node.testing.links import Links
from node.testing.pace import Pace, pace_of_loop
from node.testing.sim_node import Kept, SimNode
from node.testing.threadless import without_threads
from node.testing.world_clock import WorldClock

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
PATIENCE_S = 20.0
SETTLES_S = 3600.0


class World:
    """`async with World(seed) as world`; at the end its nodes are ended, without goodbye.

    `seed`: chance in nodes, clients, network and disks depends on it alone; keys and nonces come
    from the system, and trio decides itself in which order tasks run.
    `folder`: where data folders are made; None: a temporary one. `patience_s`: a test that takes
    longer, in real time, has failed.
    """

    tasks: TaskGroup
    clock: WorldClock
    links: Links

    def __init__(
        self, seed: int = 1, *, folder: Path | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self.seed = seed
        self.nodes: dict[str, SimNode] = {}
        self.failures = Failures()
        self._folder = folder
        self._patience_s = patience_s
        self._draws: dict[str, int] = {}
        self._pace: Pace
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._pace = pace_of_loop()
        self.clock = WorldClock(self._pace)
        self.links = Links(self.seed)
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="millpond-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stack.enter_context(self.failures.listening())
        self._stack.enter_context(without_threads())
        self.tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self.tasks.start_soon(self._pace.run)
        self.tasks.start_soon(self.failures.watch, self._patience_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End everything; raises what failed in the background and was not raised yet."""
        with anyio.CancelScope(shield=True):
            for node in self.nodes.values():
                await node.crash()
        self.tasks.cancel_scope.cancel()
        is_handled = await self._stack.__aexit__(kind, exc, trace)
        if exc is None or is_handled:
            self.failures.check()
        return is_handled

    def rng(self, purpose: str) -> Random:
        """A source of chance for one purpose; asked again for the same, the next one."""
        count = self._draws[purpose] = self._draws.get(purpose, 0) + 1
        return Random(f"{self.seed} {purpose} {count}")

    # Nodes.

    async def node(self, name: str, *, kept: Kept = "simulated", **settings: Any) -> SimNode:
        """Make a node and start it. `settings` are those of `node.Config`.

        `name` is its host name: lower case letters, digits and hyphens. Raises ValueError.
        """
        if not NAME.fullmatch(name) or name in self.nodes:
            raise ValueError(f"{name!r} is taken, or no host name")
        assert self._folder is not None
        node = SimNode(self, name, self._folder / name, kept, settings)
        await node.start()
        self.nodes[name] = node
        return node

    def link(self, *nodes: SimNode, dials: bool = True, relays: Sequence[SimNode] = ()) -> None:
        """Have nodes know one another, as if cards had been exchanged. All of them run.

        Without `dials` they have no addresses of one another; `relays` keep mail for them.
        """
        for a, b in combinations(nodes, 2):
            a.knows(b, dials=dials, relays=relays)
            b.knows(a, dials=dials, relays=relays)

    def disk(self, name: str) -> SimulatedDisk:
        """The simulated disk of a node. LookupError when it has none."""
        disk = self.nodes[name].disk
        if disk is None:
            raise LookupError(f"{name!r} is not on a simulated disk")
        return disk

    # The network. Names are those of nodes and of programs (`who`).

    def partition(self, a: str, b: str | None = None) -> None:
        """Hold everything between two names, or between one and all others, until `heal`."""
        if b is None:
            self.links.cut_off(a)
        else:
            self.links.partition(a, b)

    def heal(self, a: str, b: str | None = None) -> None:
        """End the partition: what was held goes on."""
        if b is None:
            self.links.rejoin(a)
        else:
            self.links.heal(a, b)

    def reset(self, a: str, b: str | None = None) -> None:
        """Break the connections between two names, or all of one, at both ends."""
        self.links.reset(a, b)

    def stall(self, name: str) -> None:
        """Let a name read nothing more: who writes to it has to wait in the end."""
        self.links.stall(name)

    def unstall(self, name: str) -> None:
        """Let it read again."""
        self.links.unstall(name)

    def latency(self, seconds: float, a: str | None = None, b: str | None = None) -> None:
        """How long bytes take, between two names or everywhere."""
        self.links.set_latency(seconds, a, b)

    def split(self, on: bool = True) -> None:
        """Whether what is written arrives in pieces, cut anywhere."""
        self.links.set_split(on)

    # The test.

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a handler or a worker in the background until the world ends.

        What it raises interrupts the test and is raised there.
        """
        self.tasks.start_soon(self.failures.run, work, *args)

    def guard(self) -> AbstractContextManager[None]:
        """`with world.guard()`: what fails in the background interrupts the block and is raised.

        The plugin puts it around each test that has a world.
        """
        return self.failures.guard()

    def expect(self, *kinds: type[BaseException]) -> None:
        """Errors of these kinds, in the background, are no failures of the test."""
        self.failures.expect(*kinds)

    async def idle(self) -> None:
        """Wait until nothing can happen any more unless time passes; none does meanwhile."""
        await self._pace.idle()

    async def settled(self) -> None:
        """Wait until nothing happens any more unless time passes: no bytes are under way, no cell
        or thread is at work. Time passes only as bytes need it. Raises what failed meanwhile.
        """
        give_up_at = self.clock.elapsed() + SETTLES_S
        while True:
            await self._pace.idle()
            self.failures.check()
            arrivals = self.links.arrivals
            if self.links.latency_s:
                await anyio.sleep(self.links.latency_s)
                await self._pace.idle()
            if arrivals == self.links.arrivals:
                self.failures.check()
                return
            if self.clock.elapsed() > give_up_at:
                raise TimeoutError("there is always something under way")
