"""The stage of a run: the world, its recorded events, and shared state."""

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
from tests.sim.nodes import events, notes
from tests.sim.nodes.plan import DOZE_S, Plan
from tests.sim.nodes.wiretap import TappedLinks

PATIENCE_S = 600.0
"""Of real time: a world takes about half a second of it, on a busy machine much more."""
DOZES = 0.3
SEEN_MAX = 100_000
"""A world sees some thousands: what sees so much more goes round in a circle."""
MOMENT_MAX = 10_000
"""So much is seen at one time, and some hundreds usually."""


class Unending(Exception):
    """So much happens that it will not come to an end."""


class TappedWorld(World):
    """A world whose connections are listened to."""

    def __init__(self, seed: int, folder: Path, tell: Callable[[events.Event], None]) -> None:
        super().__init__(seed, folder=folder, timeout_s=PATIENCE_S, threads=False)
        self._tell = tell

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.links = TappedLinks(self.seed, self.clock.elapsed, self._tell)
        return self


class Stage:
    """`seen`: events and notes, in the order in which they happened.

    `unfinished`: what has to come to an end before the drama does, by name.
    """

    def __init__(self, seed: int, plan: Plan, folder: Path) -> None:
        self.seed = seed
        self.plan = plan
        self.seen: list[events.Event | notes.Note] = []
        self.struck: Counter[str] = Counter()
        self.unfinished: dict[str, None] = {}
        self.skews: dict[str, float] = {}
        self.is_calm = False
        """Nothing is disturbed any more, and consumers do what they should."""
        self.world = TappedWorld(seed, folder, self.tell)
        self._awaited: dict[anyio.Event, tuple[str, type[events.Event]]] = {}
        self._identities: dict[str, Identity] = {}

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.world.clock.elapsed()

    def node(self, name: str) -> SimNode:
        """By its name."""
        return self.world.nodes[name]

    def rng(self, purpose: str) -> Random:
        """A source of chance for one purpose."""
        return Random(f"{self.seed} stage {purpose}")

    def note(self, note: notes.Note) -> None:
        """A client saw something. Unending: that was too much."""
        seen = self.seen
        if len(seen) > SEEN_MAX:
            raise Unending(f"{len(seen)} events and notes, the last of them {note}")
        if len(seen) > MOMENT_MAX and seen[-MOMENT_MAX].at == note.at:
            raise Unending(f"{MOMENT_MAX} events and notes at one time, the last of them {note}")
        seen.append(note)

    def tell(self, event: events.Event) -> None:
        """The world did something."""
        self.seen.append(event)
        if self._awaited:
            for waiting, awaited in self._awaited.items():
                if awaited == (event.node, type(event)):
                    waiting.set()

    async def told(self, node: str, kind: type[events.Event]) -> None:
        """Wait until the node tells somebody something of this kind."""
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

    async def doze(self, rng: Random) -> None:
        """Perhaps: what was just said is under way, and time passes unused.

        Nobody has decided on anything then that it has not said: what is said late was meant so.
        """
        if self.plan.naps and not self.is_calm and rng.random() < DOZES:
            await self.world.idle()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop), "a drama is in virtual time"
            self.struck["nap"] += 1
            loop.oversleep(rng.uniform(0.0, DOZE_S))

    @asynccontextmanager
    async def finishing(self, what: str) -> AsyncIterator[None]:
        """The drama waits for the block."""
        self.unfinished[what] = None
        yield
        del self.unfinished[what]
