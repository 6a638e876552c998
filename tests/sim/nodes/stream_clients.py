"""Writers and followers of streams, over any of the protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256

import anyio

from millpond.actors.errors import (
    OutcomeUnknown,
    RequestError,
    SequenceMismatch,
    StorageFailed,
    UnknownStream,
)
from millpond.actors.messages import Durability
from millpond.actors.streams.messages import Headers
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.settings import SimulatedSettings
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import NewRecord, Record
from millpond.node.client.streams.streams import Streams
from tests.sim.nodes.client_events import Appended, Appending, Read
from tests.sim.nodes.events import Trouble
from tests.sim.nodes.plan import StreamPlan
from tests.sim.nodes.simulation import Simulation

AGAIN_S = 0.5
FOREVER_S = 1e6
LOST = (OutcomeUnknown, ConnectionLost, ChannelClosed, TimeoutError, OSError)
Append = Callable[[list[bytes]], Awaitable[tuple[int, ...]]]
STAMPS = (None, 1, 1234, 2**53)
"""Milliseconds since 1970: a client that counts from its own start, and one whose clock is off."""
TRIMS = b"\x7f\xff"
"""The first bytes of trims: they are beyond every tail."""


@asynccontextmanager
async def streams_of(sim: Simulation, node: str, who: str) -> AsyncIterator[Streams]:
    """The streams of a node that is there sooner or later."""
    sim_node = sim.node(node)
    clock = sim.world.clock
    async with connect_streams(
        sim_node.url,
        wait_s=FOREVER_S,
        settings=SimulatedSettings(
            dialer=sim_node.dialer(who),
            rng=sim.world.rng(who),
            now=clock.elapsed,
            entropy=sim.world.entropy(who),
        ),
    ) as streams:
        yield streams


class Writer:
    """A producer of a stream. An append with an unknown outcome is not repeated."""

    def __init__(self, sim: Simulation, plan: StreamPlan, number: int) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"a-{plan.name}-{number}"
        self._rng = sim.rng(self._who)

    async def run(self) -> None:
        """All of its appends."""
        plan, sim = self._plan, self._sim
        async with sim.finishing(self._who):
            async with streams_of(sim, plan.node, self._who) as streams:
                await self._create(streams)
                number = 0
                while number < plan.appends:
                    count = self._rng.randint(1, plan.batch)
                    await self._append(streams, number, count)
                    number += count
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))

    async def _create(self, streams: Streams) -> None:
        while True:
            try:
                stream = streams.stream(self._plan.name)
                await stream.create(age_s=self._plan.age_s, exist_ok=True)
            except (RequestError, *LOST):
                await anyio.sleep(AGAIN_S)
            else:
                return

    async def _append(self, streams: Streams, number: int, count: int) -> None:
        sim, plan = self._sim, self._plan
        size = self._rng.choice((0, 0, 200, 3000))
        bodies = [
            f"{plan.name}/{self._who}/{each}/".encode() + b"y" * size
            for each in range(number, number + count)
        ]
        if plan.ends and self._rng.random() < plan.ends:
            # Both are unlike those of all other appends.
            bodies += [_trim_of(self._who, number), f"{self._who}/{number}".encode()]
        sim.record(Appending(sim.now, self._who, plan.name, tuple(bodies)))
        while True:
            try:
                position = await self._once(streams, bodies)
            except StorageFailed:
                await anyio.sleep(AGAIN_S)
            except UnknownStream:
                await self._create(streams)
            except (RequestError, *LOST):
                await anyio.sleep(AGAIN_S)
                return
            else:
                told = (plan.name, plan.protocol, tuple(bodies), position)
                sim.record(Appended(sim.now, self._who, *told))
                return

    async def _once(self, streams: Streams, bodies: list[bytes]) -> tuple[int, ...]:
        plan, node = self._plan, self._sim.node(self._plan.node)
        match plan.protocol:
            case "stream":
                records = self._new_records(bodies)
                return ((await streams.stream(plan.name).append(records)).first,)
            case "s3p":
                async with node.s3p(who=self._who) as s3p:
                    return tuple(await s3p.append(plan.name, bodies))
            case "rustlog":
                async with node.rustlog(who=self._who) as rustlog:
                    return (await rustlog.produce(plan.name, bodies),)

    def _new_records(self, bodies: list[bytes]) -> list[NewRecord]:
        """The records of an append, with timestamps and as commands where the plan says so."""
        headers: list[Headers] = [[] for _ in bodies]
        if len(bodies) > 2 and is_trim(bodies[-2]):
            headers[-2:] = [[(b"", b"trim")], [(b"", b"fence")]]
        stamp = self._rng.choice(STAMPS) if self._plan.is_stamped else None
        return [NewRecord(body, pairs, stamp) for body, pairs in zip(bodies, headers, strict=True)]


def _trim_of(who: str, number: int) -> bytes:
    """A trim beyond every tail, that no other append has."""
    return TRIMS + sha256(f"{who}/{number}".encode()).digest()[:6]


def is_trim(body: bytes) -> bool:
    """True: this is the body of a trim."""
    return len(body) == 8 and body.startswith(TRIMS)


async def follow(sim: Simulation, plan: StreamPlan, number: int) -> None:
    """Read a stream from its beginning, and go on, until cancelled. A read that came in behind a
    change that the disk did not take is refused as that is (docs/internals/storage.md)."""
    who = f"r-{plan.name}-{number}"
    position = 0
    async with streams_of(sim, plan.node, who) as streams:
        while True:
            try:
                stream = streams.stream(plan.name)
                # The check of generations judges gaps.
                on_gap = _pass_gap if plan.ends else None
                async for page in stream.follow_pages(position, on_gap=on_gap):
                    _tell(sim, who, plan, page, is_all=False)
                    position = page[-1].sequence + 1 if page else position
            except UnknownStream:
                await anyio.sleep(AGAIN_S)
            except StorageFailed:
                if not any(isinstance(e, Trouble) and e.node == plan.node for e in sim.seen):
                    raise
                await anyio.sleep(AGAIN_S)
            except SequenceMismatch:
                if plan.durability is Durability.DISK:
                    raise
                await anyio.sleep(AGAIN_S)


def _pass_gap(first: int, end: int) -> None:
    pass


async def read_all(sim: Simulation, plan: StreamPlan) -> None:
    """Record all that is in the stream at the end."""
    async with streams_of(sim, plan.node, "judge") as streams:
        try:
            records = [each async for each in streams.stream(plan.name).records()]
        except UnknownStream:
            records = []
        _tell(sim, "judge", plan, records, is_all=True)


def _tell(
    sim: Simulation, who: str, plan: StreamPlan, records: list[Record], *, is_all: bool
) -> None:
    seen = tuple((each.sequence, (each.id.ms, each.id.seq), each.data) for each in records)
    sim.record(Read(sim.now, who, plan.name, seen, is_all))
