"""The simulation of a seed: its world, the recorded events, and the state its clients share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Self

import anyio

from millpond.node.peers.identity import Identity
from millpond.node.testing.time.asyncio_loop import VirtualLoop
from millpond.testing import SimNode, World
from tests.sim.nodes import client_events, events
from tests.sim.nodes.plan import OVERSLEEP_S, Plan
from tests.sim.nodes.wiretap import TappedLinks

TIMEOUT_S = 600.0
"""Real time: a world takes about half a second of it, on a busy machine much more."""
OVERSLEEP_CHANCE = 0.3
SEEN_MAX = 100_000
"""A world sees some thousands: so much more is an endless loop."""
MOMENT_MAX = 10_000
"""The most events at one moment of virtual time; some hundreds are usual."""


class Unending(Exception):
    """A simulation with so many events that it does not end."""


class TappedWorld(World):
    """A world whose connections are recorded."""

    def __init__(self, seed: int, folder: Path, tell: Callable[[events.Event], None]) -> None:
        super().__init__(seed, folder=folder, timeout_s=TIMEOUT_S, threads=False)
        self._tell = tell

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.links = TappedLinks(self.seed, self.clock.elapsed, self._tell)
        return self


class Simulation:
    """The simulation of one seed. `seen`: all events, in the order in which they happened.

    `unfinished`: by name, what has to end before the simulation does.
    """

    def __init__(self, seed: int, plan: Plan, folder: Path) -> None:
        self.seed = seed
        self.plan = plan
        self.seen: list[events.Event | client_events.ClientEvent] = []
        self.injected: Counter[str] = Counter()
        self.unfinished: dict[str, None] = {}
        self.skews: dict[str, float] = {}
        self.is_calm = False
        """No fault is injected any more, and consumers behave well."""
        self.world = TappedWorld(seed, folder, self.tell)
        self._awaited: dict[anyio.Event, tuple[str, type[events.Event]]] = {}
        self._identities: dict[str, Identity] = {}

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.world.clock.elapsed()

    def node(self, name: str) -> SimNode:
        """The node of this name."""
        return self.world.nodes[name]

    def rng(self, purpose: str) -> Random:
        """A random generator for one purpose."""
        return Random(f"{self.seed} stage {purpose}")

    def record(self, event: client_events.ClientEvent) -> None:
        """Record an event of a client. Raises Unending when there are too many."""
        seen = self.seen
        if len(seen) > SEEN_MAX:
            raise Unending(f"{len(seen)} events, the last of them {event}")
        if len(seen) > MOMENT_MAX and seen[-MOMENT_MAX].at == event.at:
            raise Unending(f"{MOMENT_MAX} events at one time, the last of them {event}")
        seen.append(event)

    def tell(self, event: events.Event) -> None:
        """Record an event of the world."""
        self.seen.append(event)
        if self._awaited:
            for waiting, awaited in self._awaited.items():
                if awaited == (event.node, type(event)):
                    waiting.set()

    async def told(self, node: str, kind: type[events.Event]) -> None:
        """Wait until the node has an event of this kind."""
        waiting = anyio.Event()
        self._awaited[waiting] = node, kind
        try:
            await waiting.wait()
        finally:
            del self._awaited[waiting]

    def identity(self, who: str) -> Identity:
        """The identity of a program."""
        found = self._identities.get(who)
        if found is None:
            found = self._identities[who] = Identity(sha256(f"{self.seed} {who}".encode()).digest())
        return found

    async def oversleep(self, rng: Random) -> None:
        """Let the process oversleep, by chance, while what was just sent is under way.

        Nothing is decided and unsent then: what is sent late was decided late.
        """
        if self.plan.oversleeps and not self.is_calm and rng.random() < OVERSLEEP_CHANCE:
            await self.world.idle()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop), "a simulation runs in virtual time"
            self.injected["oversleep"] += 1
            loop.oversleep(rng.uniform(0.0, OVERSLEEP_S))

    @asynccontextmanager
    async def finishing(self, what: str) -> AsyncIterator[None]:
        """The simulation waits for the block."""
        self.unfinished[what] = None
        yield
        del self.unfinished[what]
