"""A world for tests: nodes with their network, clocks and disks in one process."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from millpond.actors.channels.context import ChannelInfo
from millpond.node.environment import Environment, use_environment
from millpond.node.error_groups import single_errors
from millpond.node.testing.disk.simulated import SimulatedDisk
from millpond.node.testing.failures import Failures, Guard
from millpond.node.testing.inline_threads import counted_threads
from millpond.node.testing.log_capture import capture_loop_errors
from millpond.node.testing.network import Links
from millpond.node.testing.ordered_set import ordered_cancellation
from millpond.node.testing.sim_node import SimNode, Storage, WorldContext
from millpond.node.testing.stalls import STALL_S, StallWatch
from millpond.node.testing.time.virtual_time import LoopTime, time_of_loop
from millpond.node.testing.time.world_clock import WorldClock
from millpond.node.testing.trace import Trace

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
TIMEOUT_S = 20.0
SETTLE_S = 3600.0


class World:
    """A world: `async with World(seed) as world`. At the end its nodes are killed.

    `seed` decides all chance in nodes, clients, network and disks, also keys and nonces; trio
    chooses the order of tasks by itself. `folder` holds the data folders (None: a temporary one).
    A test fails that takes longer than `timeout_s` of real time, or that nothing moves for
    `stall_s` of virtual time, unless it sleeps or has a time limit of its own. Without `threads`,
    `anyio.to_thread.run_sync` of programs and handlers runs at once in the loop, as that of nodes
    always does. `trace`: keep a trace of events.
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
        timeout_s: float = TIMEOUT_S,
        stall_s: float = STALL_S,
        threads: bool = True,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.nodes: dict[str, SimNode] = {}
        self.failures = Failures()
        self._folder = folder
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._has_threads = threads
        self._is_traced = trace
        self._draws: dict[str, int] = {}
        self._time: LoopTime
        self._guard: Guard
        self._handlers: TaskGroup
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            self._stack = stack.pop_all()
        return self

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Enter in reverse order of the end: handlers end first, then nodes, then their network."""
        stack.enter_context(ordered_cancellation())
        threads = stack.enter_context(counted_threads(are_wanted=self._has_threads))
        self._time = time_of_loop(threads)
        self.clock = WorldClock(self._time)
        self.links = Links(self.seed)
        if self._folder is None:
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        self.trace = Trace(self.clock.elapsed, hide=str(self._folder))
        if self._is_traced:
            self.links.trace = self.trace
            stack.enter_context(self.trace.captured())
        stack.enter_context(self.failures.captured())
        stack.enter_context(capture_loop_errors(self.failures.add))
        stack.enter_context(use_environment(self._environment()))
        stack.enter_context(self.failures.limit_time(self._timeout_s))
        self._guard = stack.enter_context(self.failures.guard())
        stalls = StallWatch(self.failures, self._stall_s, self._time.time, self._channels)
        stack.enter_context(self._time.watched(stalls.look))
        stack.enter_context(single_errors())
        self.tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self.tasks.cancel_scope.cancel)
        self.tasks.start_soon(self._time.run)
        stack.push_async_callback(self._end_nodes)
        self._handlers = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self._handlers.cancel_scope.cancel)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End everything. Raises the failures of background tasks that were not raised yet."""
        self._guard.is_active = True
        self._guard.has_failed = isinstance(exc, Exception) and not self.failures.errors
        return await self._stack.__aexit__(kind, exc, trace)

    async def _end_nodes(self) -> None:
        with anyio.CancelScope(shield=True):
            for node in self.nodes.values():
                await node.crash()

    def _channels(self) -> Iterator[tuple[str, ChannelInfo]]:
        """The channels that nodes have in memory."""
        for name, node in self.nodes.items():
            if node.is_running:
                for info in node.node.channels():
                    yield name, info

    def rng(self, purpose: str) -> Random:
        """A new random generator for a purpose, another one with each call."""
        count = self._draws[purpose] = self._draws.get(purpose, 0) + 1
        return Random(f"{self.seed} {purpose} {count}")

    def entropy(self, purpose: str) -> Callable[[int], bytes]:
        """A source of bytes for keys and nonces."""
        return self.rng(f"entropy of {purpose}").randbytes

    def _environment(self) -> Environment:
        """The environment of programs that pass no generator and no clock."""
        return Environment(
            rng=lambda: self.rng("program"),
            entropy=self.entropy("programs"),
            monotonic=self.clock.elapsed,
            wall=self.clock.now,
            name=lambda: "program",
        )

    # Nodes.

    async def node(
        self, name: str, *, storage: Storage = "simulated", **settings: object
    ) -> SimNode:
        """Create a node and start it. `settings` are those of `Config`.

        `name` is its host name: lower case letters, digits and hyphens. Raises ValueError.
        """
        if not NAME.fullmatch(name) or name in self.nodes:
            raise ValueError(f"{name!r} is taken, or is no host name")
        assert self._folder is not None
        context = WorldContext(
            self.tasks,
            self.clock,
            self.links,
            self.failures,
            self.rng,
            self.entropy,
            self.idle,
        )
        node = SimNode(context, name, self._folder / name, storage, settings)
        await node.start()
        self.nodes[name] = node
        return node

    def link(self, *nodes: SimNode, dials: bool = True, relays: Sequence[SimNode] = ()) -> None:
        """Make nodes peers of one another, as if contact cards had been exchanged. All of them run.

        Without `dials` they have no addresses of one another; `relays` store messages for them.
        """
        for a, b in combinations(nodes, 2):
            a.add_peer(b, dials=dials, relays=relays)
            b.add_peer(a, dials=dials, relays=relays)

    def disk(self, name: str) -> SimulatedDisk:
        """The simulated disk of a node. Raises LookupError if it has none."""
        disk = self.nodes[name].disk
        if disk is None:
            raise LookupError(f"{name!r} is not on a simulated disk")
        return disk

    # The network. Names are those of nodes and of client programs (`who`).

    def partition(self, a: str, b: str | None = None) -> None:
        """Hold back all bytes between two names, or between one and all others, until `heal`.

        A connection across a partition is dialled until the client's timeout.
        """
        self.links.partition(a, b)

    def heal(self, a: str, b: str | None = None) -> None:
        """End the partition of the same names: bytes that were held back go on."""
        self.links.heal(a, b)

    def refuse(self, name: str, source: str | None = None, *, on: bool = True) -> None:
        """Refuse new connections to a node, from one name or from all; existing ones go on.

        `on=False` ends that.
        """
        self.links.refuse(name, source, on=on)

    def reset(self, a: str, b: str | None = None) -> None:
        """Break the connections between two names, or all of one, at both ends."""
        self.links.reset(a, b)

    def stall(self, name: str) -> None:
        """Stop all reading of a name: writers to it have to wait in the end."""
        self.links.stall(name)

    def unstall(self, name: str) -> None:
        """Resume reading of a name."""
        self.links.unstall(name)

    def latency(self, seconds: float, a: str | None = None, b: str | None = None) -> None:
        """Set the delay of bytes between two names, between one and all others, or everywhere.

        The last call for a link counts.
        """
        self.links.set_latency(seconds, a, b)

    def split(self, on: bool = True) -> None:
        """Cut written bytes into pieces at random places."""
        self.links.set_split(on)

    # The test.

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a handler or a worker in the background until the world ends.

        An exception of it interrupts the test and is raised there.
        """
        self._handlers.start_soon(self.failures.run, work, *args)

    def guard(self) -> AbstractContextManager[object]:
        """A block that failures in the background interrupt, and out of which they are raised.

        The plugin puts it around each test with a world.
        """
        return self.failures.guard()

    def expect(self, *kinds: type[BaseException]) -> None:
        """Ignore background errors of these kinds."""
        self.failures.expect(*kinds)

    async def idle(self) -> None:
        """Wait until nothing can happen without the passing of time; no time passes meanwhile."""
        await self._time.idle()

    async def settled(self) -> None:
        """Wait until no bytes are under way and no cell or thread is at work.

        Time passes only as far as bytes need it. Raises failures of background tasks.
        """
        give_up_at = self.clock.elapsed() + SETTLE_S
        while True:
            await self._time.idle()
            self.failures.check()
            due = self.links.next_due()
            if due == inf:
                return
            if self.clock.elapsed() > give_up_at:
                raise TimeoutError("bytes are always under way")
            await anyio.sleep_until(due)
