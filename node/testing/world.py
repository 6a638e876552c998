"""A world for tests: nodes, the network between them, their clocks and disks, in one process."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from millpond.node.environment import Environment, use_environment
from millpond.node.error_groups import single_errors
from millpond.node.testing.disk.simulated import SimulatedDisk
from millpond.node.testing.failures import Failures, Guard
from millpond.node.testing.inline_threads import counted_threads
from millpond.node.testing.network import Links
from millpond.node.testing.ordered_set import ordered_cancellation
from millpond.node.testing.sim_node import SimNode, Storage
from millpond.node.testing.time.virtual_time import LoopTime, time_of_loop
from millpond.node.testing.time.world_clock import WorldClock
from millpond.node.testing.trace import Trace
from millpond.node.testing.unheard import capture_loop_errors

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
PATIENCE_S = 20.0
SETTLES_S = 3600.0


class World:
    """`async with World(seed) as world`; at the end its nodes are ended, without goodbye.

    `seed`: chance in nodes, clients, network and disks depends on it alone, keys and nonces too;
    trio decides itself in which order tasks run.
    `folder`: where data folders are made; None: a temporary one. `patience_s`: a test that takes
    longer, in real time, has failed. `threads`: without, `anyio.to_thread.run_sync` of programs
    and handlers is done at once, as nodes have it always. `trace`: keep one of what happens.
    """

    tasks: TaskGroup
    clock: WorldClock
    links: Links
    trace: Trace

    def __init__(
        self,
        seed: int = 1,
        *,
        folder: Path | None = None,
        patience_s: float = PATIENCE_S,
        threads: bool = True,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.nodes: dict[str, SimNode] = {}
        self.failures = Failures()
        self._folder = folder
        self._patience_s = patience_s
        self._has_threads = threads
        self._is_traced = trace
        self._draws: dict[str, int] = {}
        self._pace: LoopTime
        self._guard: Guard
        self._handlers: TaskGroup
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            self._stack = stack.pop_all()
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        """What is entered first ends last: handlers, then nodes, then what they live on."""
        stack.enter_context(ordered_cancellation())
        threads = stack.enter_context(counted_threads(are_wanted=self._has_threads))
        self._pace = time_of_loop(threads)
        self.clock = WorldClock(self._pace)
        self.links = Links(self.seed)
        if self._folder is None:
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        self.trace = Trace(self.clock.elapsed, hide=str(self._folder))
        if self._is_traced:
            self.links.trace = self.trace
            stack.enter_context(self.trace.listening())
        stack.enter_context(self.failures.listening())
        stack.enter_context(capture_loop_errors(self.failures.add))
        stack.enter_context(use_environment(self._outside()))
        stack.enter_context(self.failures.patience(self._patience_s))
        self._guard = stack.enter_context(self.failures.guard())
        stack.enter_context(single_errors())
        self.tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self.tasks.cancel_scope.cancel)
        self.tasks.start_soon(self._pace.run)
        stack.push_async_callback(self._end_nodes)
        self._handlers = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self._handlers.cancel_scope.cancel)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End everything; raises what failed in the background and was not raised yet."""
        self._guard.is_active = True
        self._guard.has_failed = isinstance(exc, Exception) and not self.failures.errors
        return await self._stack.__aexit__(kind, exc, trace)

    async def _end_nodes(self) -> None:
        with anyio.CancelScope(shield=True):
            for node in self.nodes.values():
                await node.crash()

    def rng(self, purpose: str) -> Random:
        """A source of chance for one purpose; asked again for the same, the next one."""
        count = self._draws[purpose] = self._draws.get(purpose, 0) + 1
        return Random(f"{self.seed} {purpose} {count}")

    def entropy(self, purpose: str) -> Callable[[int], bytes]:
        """The same, of bytes for keys and nonces."""
        return self.rng(f"entropy of {purpose}").randbytes

    def _outside(self) -> Environment:
        """Of programs that say nothing of chance and time."""
        return Environment(
            rng=lambda: self.rng("program"),
            entropy=self.entropy("programs"),
            monotonic=self.clock.elapsed,
            wall=self.clock.now,
            name=lambda: "program",
        )

    # Nodes.

    async def node(self, name: str, *, kept: Storage = "simulated", **settings: Any) -> SimNode:
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
        """Hold everything between two names, or between one and all others, until `heal`.

        Who dials across it waits, as long as it has the patience for.
        """
        self.links.partition(a, b)

    def heal(self, a: str, b: str | None = None) -> None:
        """End what `partition` with the same names began: what was held goes on."""
        self.links.heal(a, b)

    def refuse(self, name: str, source: str | None = None, *, on: bool = True) -> None:
        """Whether a node refuses new connections, all of them or those from one name. Those that
        it has go on."""
        self.links.refuse(name, source, on=on)

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
        """How long bytes take: between two names, between one and all others, or everywhere. What
        was said last of a link counts."""
        self.links.set_latency(seconds, a, b)

    def split(self, on: bool = True) -> None:
        """Whether what is written arrives in pieces, cut anywhere."""
        self.links.set_split(on)

    # The test.

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a handler or a worker in the background until the world ends.

        What it raises interrupts the test and is raised there.
        """
        self._handlers.start_soon(self.failures.run, work, *args)

    def guard(self) -> AbstractContextManager[object]:
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
            due = self.links.next_due()
            if due == inf:
                return
            if self.clock.elapsed() > give_up_at:
                raise TimeoutError("there is always something under way")
            await anyio.sleep_until(due)
