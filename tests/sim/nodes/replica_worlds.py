"""Worlds of two machines and one object store: one owns the replica, the other one stands by, and
either is killed, parted from the object store, slow, or with a wrong clock.

Every message that was acknowledged as replicated is there once, whatever took over. No owner
acknowledges a put that began after the next one had acknowledged something. No id comes again. A
restoration that runs beside all this has everything that was acknowledged before it began, or says
what is missing; a damaged object is named.

    python -m tests.sim.nodes.replica_worlds --from 0 --seeds 100
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree

import anyio

from millpond.actors.messages import Durability
from millpond.errors import MillpondError
from millpond.node.config_rules import ChannelRule
from millpond.node.replica.errors import BadReplica, ObjectStoreAway, Superseded
from millpond.node.replica.interface import SnapshotRequest
from millpond.node.replica.objects import BLOB, JOURNAL, SNAPSHOT
from millpond.node.replica.restoration import ReplicaRestoration, verify
from millpond.node.replica.shipping import Shipper
from millpond.node.replica.standby import Standby
from millpond.node.testing.sim_node import NotRunning, WorldContext
from millpond.testing import SimNode, World
from tests.actors.store.harness import Run
from tests.sim.nodes.livelock import reading_loop
from tests.sim.nodes.simulated_objects import (
    ObjectsView,
    SimulatedStore,
    in_steps,
    simulated_requests,
)
from tests.sim.seeds import play

NAMES = ("a", "b")
CHANNEL = "jobs"
TAKEOVER_S = 2.0
ACK_S = 1.5
EVENTS = (
    *("kill", "kill", "part", "part", "slow", "slow", "refuse", "throttle", "full"),
    *("standby", "snapshot", "restore", "skew", "damage"),
)
SETTLE_S = 120.0
"""So long after the last fault one of them serves."""
LOOK_S = 0.05
LAGS_MAX = (200, 2**26)
"""With the first one what waits for an object store that is away is given up: a history begins."""


@dataclass
class Ack:
    """A put that was acknowledged, by the owner of this epoch."""

    began: float
    ended: float
    epoch: int
    number: int
    id: int


@dataclass
class Machine:
    """A machine: a standby, or a node once that took over; started again after its end."""

    name: str
    view: ObjectsView
    node: SimNode
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass
class Pair:
    """Both machines, and everything that happened."""

    world: World
    store: SimulatedStore
    machines: list[Machine]
    rng: Random
    acks: list[Ack] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    numbers: int = 0

    @property
    def owners(self) -> list[Machine]:
        return [each for each in self.machines if each.node.is_running]

    @property
    def now(self) -> float:
        return self.world.clock.elapsed()


def live(seed: int, folder: Path) -> Counter[str]:
    """A world of a seed, from beginning to end, and what happened in it. Raises AssertionError for
    a broken promise."""
    counts: Counter[str] = Counter()
    anyio.run(_live, seed, folder, counts, backend_options={"loop_factory": reading_loop})
    return counts


async def _live(seed: int, folder: Path, counts: Counter[str]) -> None:
    rng = Random(f"replica {seed}")
    lag_max = rng.choice(LAGS_MAX)
    async with World(seed, folder=folder, threads=False, timeout_s=120) as world:
        world.expect(Superseded)
        store = SimulatedStore(Random(f"objects {seed}"), world.clock.now)
        views = {f"sim://{name}": store.view() for name in NAMES}
        with simulated_requests(views):
            machines = [
                Machine(name, view, _node(world, name, folder, url, lag_max))
                for name, (url, view) in zip(NAMES, views.items(), strict=True)
            ]
            pair = Pair(world, store, machines, rng, counts=counts)
            for each in machines:
                world.start(_run, pair, each)
                world.start(_write, pair, each)
            await _serves(pair)
            for _ in range(rng.randint(4, 12)):
                await world.clock.sleep(rng.choice((0.0, 0.3, 1.0, 4.0)))
                event = rng.choice(EVENTS)
                counts[event] += 1
                await _happens(pair, event, folder)
            await _settle(pair)
            await _check(pair, folder)
            pair.is_over = True
            for each in machines:
                each.scope.cancel()
                await each.node.crash()


def _node(world: World, name: str, folder: Path, url: str, lag_max: int) -> SimNode:
    context = WorldContext(
        world.tasks,
        world.clock,
        world.links,
        world.failures,
        world.rng,
        world.entropy,
        world.idle,
    )
    settings = {
        "replica": url,
        "durability": Durability.REPLICATED,
        "replica_ack_s": ACK_S,
        "replica_lag_bytes_max": lag_max,
        "replica_keep_s": 20.0,
        "replica_snapshot_s": 15.0,
        "channels": (ChannelRule.parse("*=queue"),),
    }
    node = SimNode(context, name, folder / name, "real", settings)
    world.nodes[name] = node
    return node


async def _run(pair: Pair, machine: Machine) -> None:
    """The process of a machine, again and again."""
    world = pair.world
    while not pair.is_over:
        entropy = world.entropy(f"standby {machine.name}")
        standby = Standby(
            machine.view,
            machine.node.folder,
            TAKEOVER_S,
            now=world.clock.elapsed,
            wall=partial(world.clock.wall, machine.name),
            entropy=entropy,
        )
        with anyio.CancelScope() as machine.scope:
            await standby.run()
            try:
                await machine.node.start()
            except Superseded:
                pair.counts["superseded at the start"] += 1
            while machine.node.is_running:  # noqa: ASYNC110 (it tells nobody that it ended)
                await anyio.sleep(LOOK_S)
        await anyio.sleep(pair.rng.uniform(0.1, 2.0))


async def _kill(pair: Pair, machine: Machine) -> None:
    machine.scope.cancel()
    await machine.node.crash()


async def _write(pair: Pair, machine: Machine) -> None:
    """Put numbers at a machine whenever that serves."""
    while not pair.is_over:
        await anyio.sleep(LOOK_S)
        try:
            shipper = _shipper(machine)
            async with machine.node.connect(
                CHANNEL, who=f"writer-{machine.name}", role="producer", reconnect=False
            ) as channel:
                while not pair.is_over:
                    pair.numbers += 1
                    number, began = pair.numbers, pair.now
                    receipt = await channel.put(b"%d" % number, ttl=86_400)
                    ack = Ack(began, pair.now, shipper._epoch, number, receipt.id)
                    pair.acks.append(ack)
                    await anyio.sleep(pair.rng.uniform(0.05, 0.5))
        except (MillpondError, OSError, NotRunning):
            pass


def _shipper(machine: Machine) -> Shipper:
    replica = machine.node.node.replica
    assert replica is not None
    return replica.shipper


async def _happens(pair: Pair, event: str, folder: Path) -> None:
    rng, store, world = pair.rng, pair.store, pair.world
    machine = rng.choice(pair.owners or pair.machines)
    match event:
        case "kill":
            await _kill(pair, machine)
        case "standby":
            await _kill(pair, rng.choice([each for each in pair.machines if each is not machine]))
        case "part":
            machine.view.is_parted = True
            await world.clock.sleep(rng.choice((0.5, 4.0, 8.0)))
            machine.view.heal()
        case "slow":
            for each in pair.machines:  # so that one acts while a request of the other is under way
                is_chosen = each is machine
                each.view.request_s = rng.choice((0.5, 4.0, 20.0) if is_chosen else (0.02, 1.0))
            await world.clock.sleep(rng.choice((5.0, 10.0)))
            for each in pair.machines:
                each.view.heal()
        case "refuse":
            machine.view.has_wrong_credentials = True
            await world.clock.sleep(rng.choice((1.0, 10.0)))
            machine.view.heal()
        case "throttle":
            store.is_throttled = True
            await world.clock.sleep(rng.choice((1.0, 10.0)))
            store.is_throttled = False
        case "full":
            store.is_full = True
            await world.clock.sleep(rng.choice((1.0, 10.0)))
            store.is_full = False
        case "snapshot":
            if machine.node.is_running:
                replica = machine.node.node.replica
                assert replica is not None
                replica.answer(SnapshotRequest())
        case "restore":
            world.start(_restore, pair, folder / f"restored-{pair.counts[event]}")
        case "skew":
            world.clock.skew(machine.name, rng.choice((-3600.0, 0.0, 3600.0)))
        case _:
            await _damage(pair)


async def _restore(pair: Pair, target: Path) -> None:
    """A restoration beside everything else, which may remove what it needs."""
    expected = {each.number for each in pair.acks}
    view = pair.store.view()
    view.request_s = pair.rng.choice((0.02, 1.0))

    def run() -> None:
        ReplicaRestoration(view, target).run(lambda size: None, lambda: None)

    try:
        await in_steps(run)
    except (BadReplica, ObjectStoreAway):
        pair.counts["restoration refused"] += 1
        return
    pair.counts["restored"] += 1
    assert expected <= {*_numbers_in(target)}, "a restoration lacks what was acknowledged"
    rmtree(target)


def _numbers_in(folder: Path) -> list[int]:
    run = Run(folder)
    try:
        snapshot = run.load(CHANNEL.encode())
        return [int(bytes(each.data)) for each in snapshot.rows]
    finally:
        run.close()


async def _damage(pair: Pair) -> None:
    """An object is damaged for a while: whoever reads it says so."""
    kept = pair.store.kept
    names = [each for each in kept if each.startswith((JOURNAL, SNAPSHOT, BLOB))]
    if not names:
        return
    name = pair.rng.choice(sorted(names))
    intact = kept[name]
    at = pair.rng.randrange(len(intact)) if intact else 0
    kept[name] = intact[:at] + bytes((intact[at] ^ 1,)) + intact[at + 1 :] if intact else b"x"
    calm, pair.store.is_calm = pair.store.is_calm, True
    try:
        verify(pair.store.view(), lambda size: None)
        assert not name.startswith((JOURNAL, SNAPSHOT)), f"{name} is damaged, and not named"
    except BadReplica as exc:
        pair.counts["damage named"] += name in str(exc)
    pair.store.is_calm = calm
    await pair.world.clock.sleep(pair.rng.choice((1.0, 5.0)))
    if name in kept:
        kept[name] = intact


async def _settle(pair: Pair) -> None:
    """Nothing is wrong any more: one of the machines serves soon."""
    pair.store.is_calm = True
    pair.store.is_full = pair.store.is_throttled = False
    for each in pair.machines:
        each.view.heal()
    await _serves(pair)
    pair.counts["acknowledged"] += len(pair.acks)
    pair.counts["takeovers"] += len({each.epoch for each in pair.acks}) - 1


async def _serves(pair: Pair) -> None:
    began = pair.now
    while not any(each.began > began for each in pair.acks):
        assert pair.now - began < SETTLE_S, "no machine serves"
        await anyio.sleep(LOOK_S)


async def _check(pair: Pair, folder: Path) -> None:
    acks = sorted(pair.acks, key=lambda each: each.ended)
    newest = acks[0]
    for each in acks:  # the first acknowledgements of an owner come in this order as well
        assert each.epoch >= newest.epoch or each.began < newest.ended, (
            f"two owners acknowledge: epoch {each.epoch} after {newest.epoch}"
        )
        if each.epoch > newest.epoch:
            newest = each
    ids = [each.id for each in acks]
    assert len(ids) == len({*ids}), "an id came again"
    by_epoch = sorted(acks, key=lambda each: (each.epoch, each.began))
    assert [each.id for each in by_epoch] == sorted(ids), "ids step back"
    expected = {each.number for each in acks}
    target = folder / "at the end"
    ReplicaRestoration(pair.store.view(), target).run(lambda size: None, lambda: None)
    found = _numbers_in(target)
    assert len(found) == len({*found}), "doubled"
    assert expected <= {*found}, f"lost: {sorted(expected - {*found})}"
    verify(pair.store.view(), lambda size: None)


def main() -> int:
    """Play seeds, and print what happened in them."""
    parser = argparse.ArgumentParser(description="Worlds of machines with one replica.")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    args = parser.parse_args()
    counts: Counter[str] = sum(play(live, range(args.first, args.first + args.seeds)), Counter())
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
