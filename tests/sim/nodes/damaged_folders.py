"""Worlds in which a node finds its folder damaged: each cell refuses, or has all it acknowledged.

The node stops, or is killed, some of its files are damaged, and it starts again. After a kill the
newest segment is left alone: its end cannot be told from a torn tail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import anyio

from millpond.actors.store.repair.quarantine import read_reports
from millpond.errors import HandshakeRefused, StorageFailed
from millpond.node.testing.disk.damage import DamageKind
from millpond.testing import SimNode, World
from tests.sim.nodes.livelock import reading_loop

CHANNELS = ("orders", "mail", "news", "chat")
STREAMS = ("audit", "clicks")
ROUNDS_MAX = 3
COUNT_MAX = 12
SIZE_MAX = 3000
SETTLED_S = 10.0
"""After this time messages go to files."""


@dataclass
class Folder:
    """All that was acknowledged, was damaged, and is refused since."""

    seed: int
    messages: dict[str, dict[int, bytes]] = field(default_factory=dict)
    records: dict[str, list[bytes]] = field(default_factory=dict)
    damages: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    """Cells of which a write was refused: it is perhaps kept all the same."""
    last_id: int = 0


def live(seed: int, folder: Path) -> Folder:
    """A world of a seed, from beginning to end. Raises AssertionError for a wrong answer."""
    found = Folder(seed)
    anyio.run(_live, found, folder, backend_options={"loop_factory": reading_loop})
    return found


async def _live(found: Folder, folder: Path) -> None:
    rng = Random(f"damaged {found.seed}")
    segment = rng.choice((2**14, 2**15))
    async with World(found.seed, folder=folder, threads=False, timeout_s=120) as world:
        node = await world.node("pond", segment_bytes=segment, journal_bytes_max=2 * segment)
        await _create(node)
        for _ in range(rng.randint(2, 4)):
            for _ in range(rng.randint(1, ROUNDS_MAX)):
                await _fill(node, found, rng)
                await world.clock.sleep(rng.choice((0.1, SETTLED_S)))
            is_stopped = rng.random() < 0.6
            await (node.stop() if is_stopped else node.crash())
            if rng.random() < 0.6:
                _damage(world, found, rng, is_stopped=is_stopped)
            world.disk("pond").keep_copies()
            await node.start()
            await _check(node, found)
            reports = read_reports(folder / "pond" / "damaged", world.disk("pond"))
            assert not found.refused or reports, "what is refused is reported"
            assert found.damages or not reports, reports


async def _create(node: SimNode) -> None:
    async with node.streams() as streams:
        for name in STREAMS:
            await streams.stream(name).create()


async def _fill(node: SimNode, found: Folder, rng: Random) -> None:
    """Messages and records for some of what is served."""
    for name in rng.sample(CHANNELS, 2):
        await _unless_refused(found, found.doubtful, name, _put, node, found, name, rng)
    for name in rng.sample(STREAMS, 1):
        await _unless_refused(found, found.doubtful, name, _append, node, found, name, rng)


async def _unless_refused(
    found: Folder, refused: set[str], name: str, work: Callable[..., Awaitable[None]], *args: object
) -> None:
    try:
        await work(*args)
    except (StorageFailed, HandshakeRefused) as error:
        assert isinstance(error, StorageFailed) or "storage failed" in str(error), error
        assert found.damages, f"{name} is refused on a sound disk"
        refused.add(name)


async def _put(node: SimNode, found: Folder, name: str, rng: Random) -> None:
    messages = found.messages.setdefault(name, {})
    async with node.connect(name) as channel:
        for _ in range(rng.randint(1, COUNT_MAX)):
            data = rng.randbytes(rng.randint(1, SIZE_MAX))
            receipt = await channel.put(data, ttl=100_000)
            assert receipt.id > found.last_id, "an id comes again"
            found.last_id = receipt.id
            messages[receipt.id] = data


async def _append(node: SimNode, found: Folder, name: str, rng: Random) -> None:
    records = found.records.setdefault(name, [])
    async with node.streams() as streams:
        for _ in range(rng.randint(1, COUNT_MAX)):
            data = rng.randbytes(rng.randint(1, SIZE_MAX))
            await streams.stream(name).append(data)
            records.append(data)


def _damage(world: World, found: Folder, rng: Random, *, is_stopped: bool) -> None:
    disk = world.disk("pond")
    kind = rng.choice(list(DamageKind))
    paths = disk.copies() if kind is DamageKind.STALE else disk.paths()
    newest = max((each for each in paths if each.suffix == ".journal"), default=None)
    paths = [each for each in paths if is_stopped or each != newest]
    if paths:
        path = rng.choice(paths)
        if disk.damage(kind.value, path):
            found.damages.append(f"{kind.value} {path.name}")


async def _check(node: SimNode, found: Folder) -> None:
    """Every cell gives all of what it acknowledged, or refuses."""
    for names, check in ((CHANNELS, _check_channel), (STREAMS, _check_stream)):
        for name in names:
            if name in found.refused or name not in found.doubtful:
                await _unless_refused(found, found.refused, name, check, node, found, name)


async def _check_channel(node: SimNode, found: Folder, name: str) -> None:
    messages = found.messages.get(name, {})
    async with node.connect(name) as channel:
        ids = list(await channel.list(limit=1000))
        assert ids == sorted(messages), f"{name} has {len(ids)} of {len(messages)} messages"
        for message_id, data in messages.items():
            assert await channel.get(message_id) == data


async def _check_stream(node: SimNode, found: Folder, name: str) -> None:
    records = found.records.get(name, [])
    async with node.streams() as streams:
        stream = streams.stream(name)
        bodies: list[bytes] = []
        while len(bodies) < len(records):
            some = await stream.read(len(bodies))
            assert some, f"{name} has {len(bodies)} of {len(records)} records"
            bodies += (each.data for each in some)
        assert bodies == records
        assert (await stream.info()).tail == len(records)
