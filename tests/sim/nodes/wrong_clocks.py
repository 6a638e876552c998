"""Worlds of a node whose clock is wrong, whose machine sleeps, and whose operator confirms clocks.

Every message is put with a time to live, and is there until that is over by the node's trusted
time, and not longer. One that is put during a jump lives as long, whether the jump is confirmed or
withdrawn. Trusted time never steps back, unless an operator says so at a start; then deadlines that
are too late are corrected, once, whatever starts again. No id comes again, whatever the durability
of its channel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

import anyio

from millpond.node import clock_file
from millpond.node.clock import STEP_S_MIN
from millpond.node.config import ChannelRule
from millpond.testing import SimNode, World
from tests.sim.nodes.livelock import CountingLoop

NAME = "pond"
LASTING = "disk"
CHANNELS = (LASTING, "os", "memory")
RULES = tuple(ChannelRule.parse(f"{each}=pair,durability={each}") for each in CHANNELS)
LOOKED_S = 31.0
"""A node looks at its wall clock within this time."""
STORED_S = 30.0
"""Trusted time is stored that often: after a loss of power it is all that is known."""
CORRECTED_S = 61.0
"""So much longer than its ttl a message may live after its deadline was corrected."""
STABLE_S = 5.0
"""Corrections are on the disk after this, whatever happens then."""
EXACT_S = 2.0
"""A start takes so long at most, and corrects deadlines at some time of it."""
TTLS = (100, 1000, 10_000, 200_000)
WRONG_S = (-100_000.0, -7200.0, -200.0, 0.0, 0.0, 0.0, 200.0, 7200.0, 100_000.0)
PAUSES_S = (0.0, 1.0, 40.0, 700.0, 5000.0)
SLEEPS_S = (1.0, 200.0, 5000.0, 150_000.0)
EVENTS = ("set", "sleep", "confirm", "crash", "power", "stop", "stop and confirm", "put", "put")


@dataclass
class Message:
    """A message that was accepted: by trusted time it ends between `low` and `high`. `limit` is
    where its deadline was corrected, and `high` once that is on the disk."""

    ttl: int
    low: float
    high: float
    limit: float = inf


@dataclass
class Pond:
    """A node with its messages, and the counts of what happened."""

    seed: int
    world: World
    node: SimNode
    rng: Random
    messages: dict[int, Message] = field(default_factory=dict)
    last_id: int = 0
    latest: float = 0.0
    """The highest trusted time that was seen, or stored before a loss of power."""
    set_back_at: float = inf
    """The time of the world of the last start that set trusted time back; infinity: what was
    corrected then is on the disk."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def trusted(self) -> float:
        return self.node.node.clock.now()

    @property
    def wall(self) -> float:
        return self.world.clock.wall(NAME)

    def forget_limits(self) -> None:
        self.set_back_at = inf
        for message in self.messages.values():
            message.limit = inf


def live(seed: int, folder: Path) -> Counter[str]:
    """A world of a seed, from beginning to end, and what happened in it. Raises AssertionError for
    a broken promise."""
    counts: Counter[str] = Counter()
    anyio.run(_live, seed, folder, counts, backend_options={"loop_factory": CountingLoop})
    return counts


async def _live(seed: int, folder: Path, counts: Counter[str]) -> None:
    rng = Random(f"clocks {seed}")
    confirm_s = rng.choice((5.0, 600.0))
    async with World(seed, folder=folder, threads=False, timeout_s=120) as world:
        node = await world.node(NAME, channels=RULES, clock_confirm_s=confirm_s)
        pond = Pond(seed, world, node, rng, counts=counts)
        for _ in range(rng.randint(5, 25)):
            await _put(pond)
            event = rng.choice(EVENTS)
            counts[event] += 1
            await _happens(pond, event)
            _check_time(pond)
            await _put(pond)
            await world.clock.sleep(rng.choice(PAUSES_S))
            _check_time(pond)
            if rng.random() < 0.5:  # else nobody uses the channel
                await _check_messages(pond)
        await _check_messages(pond)


async def _happens(pond: Pond, event: str) -> None:
    node, rng = pond.node, pond.rng
    match event:
        case "set":
            pond.world.clock.skew(NAME, rng.choice(WRONG_S))
            _limit(pond)
        case "sleep":
            await _sleep(pond, rng.choice(SLEEPS_S))
        case "confirm":
            await _confirm(pond)
        case "crash" | "power":
            _settle(pond)
            await node.crash(power=event == "power")
            pond.forget_limits()
            if event == "power":
                pond.latest -= STORED_S
            await _start(pond)
        case "stop":
            await node.stop()
            await _start(pond)
        case "stop and confirm":
            await node.stop()
            await _start(pond, is_confirmed=True)
        case _:
            pass


async def _sleep(pond: Pond, seconds: float) -> None:
    """The machine sleeps; trusted time follows as far as the wall clock is ahead of it."""
    clock, before = pond.node.node.clock, pond.trusted
    ahead_s = pond.wall - before
    pond.world.clock.suspend(NAME, seconds)
    await pond.world.clock.sleep(LOOKED_S)
    moved_s = pond.trusted - before - LOOKED_S
    assert moved_s >= min(seconds, seconds + ahead_s) - STEP_S_MIN, f"slept {seconds}: {moved_s}"
    assert clock.behind_s == 0 or moved_s <= seconds + STEP_S_MIN


async def _confirm(pond: Pond) -> None:
    """An operator confirms the clock of a node that runs: trusted time is not behind it then."""
    clock_file.confirm(pond.node.folder, pond.wall)
    await pond.world.clock.sleep(LOOKED_S)
    assert pond.trusted >= pond.wall - STEP_S_MIN
    assert pond.node.node.clock_status().jump_s == 0


async def _start(pond: Pond, *, is_confirmed: bool = False) -> None:
    """Start, perhaps later and with another clock; an operator may confirm that."""
    world, rng = pond.world, pond.rng
    if rng.random() < 0.5:
        world.clock.skew(NAME, rng.choice(WRONG_S))
    await world.clock.sleep(rng.choice(PAUSES_S))
    if is_confirmed:
        clock_file.confirm(pond.node.folder, pond.wall)
    await pond.node.start()
    if is_confirmed:
        assert abs(pond.trusted - pond.wall) < STEP_S_MIN
        pond.latest = pond.trusted
        pond.set_back_at = world.clock.now()
        for message in pond.messages.values():
            message.limit = pond.trusted + message.ttl + CORRECTED_S
    _limit(pond)


def _limit(pond: Pond) -> None:
    """No deadline is later than that of a message that is put now: it may be corrected."""
    latest = max(pond.trusted, pond.wall)
    for message in pond.messages.values():
        message.low = min(message.low, latest + message.ttl)


def _settle(pond: Pond) -> None:
    """Deadlines that were corrected a while ago are so for good."""
    if pond.world.clock.now() - pond.set_back_at >= STABLE_S:
        for message in pond.messages.values():
            pond.counts["corrected"] += message.limit < message.high
            message.high = min(message.high, message.limit)
        pond.forget_limits()


def _check_time(pond: Pond) -> None:
    _limit(pond)
    _settle(pond)
    now = pond.trusted
    for message in pond.messages.values():
        if now >= message.low - EXACT_S:
            message.low = -inf  # it may be gone, also where the time is set back after this
    assert now >= pond.latest - 0.001, f"trusted time steps back by {pond.latest - now}"
    pond.latest = now


async def _put(pond: Pond) -> None:
    """No clock stops a PUT, and its id is above all others."""
    for name in pond.rng.sample(CHANNELS, 2):
        ttl = pond.rng.choice(TTLS)
        async with pond.node.connect(name) as channel:
            now, jump_s = pond.trusted, pond.node.node.clock.jump.seconds
            receipt = await channel.put(b"x", ttl=ttl)
        assert receipt.id > pond.last_id, f"{receipt.id} comes after {pond.last_id}"
        pond.last_id = receipt.id
        if name == LASTING:
            deadline = now + ttl + jump_s
            pond.messages[receipt.id] = Message(ttl, deadline, deadline)


async def _check_messages(pond: Pond) -> None:
    async with pond.node.connect(LASTING) as channel:
        there = {*await channel.list(limit=1000)}
    now = pond.trusted
    for id, message in pond.messages.items():
        assert id in there or now >= message.low - EXACT_S, f"{id} is gone before its time"
        assert id not in there or now <= message.high + STEP_S_MIN, f"{id} is there behind its time"
    pond.counts["expired"] += len(pond.messages) - len(there)
    pond.messages = {id: each for id, each in pond.messages.items() if id in there}
