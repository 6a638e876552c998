"""The plan of a seed: every seed has other sizes, other channels and other kinds of trouble."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import msgspec

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.settings import StoreSettings
from millpond.node.testing.disk.damage import DIVERTED, DamageKind
from tests.sim.faults import Trouble

IDENTITIES = (b"a" * 32, b"b" * 32, b"c" * 32)
WITHOUT_PAGES = tuple(each for each in DamageKind if each is not DamageKind.STALE_PAGE)
"""The kinds among which seeds were drawn before there were stale pages."""
OF_A_STORE_ALONE = (Durability.MEMORY, Durability.OS, Durability.DISK)
"""The durabilities that a store without a replica can promise."""
CHANNELS = ((b"pair", Mode.PAIR), (b"queue", Mode.QUEUE), (b"fanout", Mode.FANOUT))


@dataclass(frozen=True)
class Plan:
    """Rates are per step; `ends` has the weights of crash, kill and close.

    `identities` are those that clients may have; messages that expire in a channel of
    `keeps_expired` become dead letters. `damages` befall the disk, now and then when the node is
    down, and writes at `damage_rate`. `loses_catalog`: the catalog is lost with other files.
    Snapshots are taken where `snapshot_rate` is above 0.
    """

    steps: int
    channels: dict[bytes, Mode]
    logs: list[bytes]
    durability: dict[bytes, Durability]
    settings: StoreSettings
    data_bytes_max: int
    ttl_max: int
    consumes: float
    workers: float
    end_rate: float
    ends: tuple[int, int, int]
    trouble_rate: float
    troubles: tuple[Trouble, ...]
    garbage: float
    passivate_after_s: float
    identities: tuple[bytes, ...] = ()
    keeps_expired: frozenset[bytes] = frozenset()
    damages: tuple[DamageKind, ...] = ()
    damage_rate: float = 0.0
    loses_catalog: bool = False
    snapshot_rate: float = 0.0


def draw(rng: Random, steps: int) -> Plan:
    """A plan by chance."""
    names: dict[bytes, Mode] = {}
    for number in range(rng.randint(1, 4)):
        stem, mode = rng.choice(CHANNELS)
        names[stem + b"%d" % number] = mode
    logs = [b"log%d" % number for number in range(rng.choice((0, 0, 1, 2)))]
    mostly = rng.choice((Durability.DISK, Durability.DISK, Durability.DISK, Durability.OS))
    return Plan(
        steps=rng.randint(steps // 2, steps),
        channels=names,
        logs=logs,
        durability={
            **{name: draw_durability(rng, mostly) for name in names},
            **{name: rng.choice((mostly, Durability.DISK)) for name in logs},
        },
        settings=draw_settings(rng),
        data_bytes_max=rng.choice((40, 400, 4000)),
        ttl_max=rng.choice((2, 30, 1000, 100_000)),
        consumes=rng.choice((0.0, 0.5, 1.0)),
        workers=rng.choice((0.1, 0.3, 0.6)),
        end_rate=rng.choice((0.01, 0.03)),
        ends=rng.choice(((1, 0, 0), (0, 1, 0), (3, 2, 1), (1, 1, 0))),
        trouble_rate=rng.choice((0.0, 0.0, 0.03, 0.1)),
        troubles=tuple(rng.sample(list(Trouble), rng.randint(1, len(Trouble)))),
        garbage=rng.choice((0.0, 0.0, 0.3)),
        passivate_after_s=rng.choice((0.5, 60.0)),
        identities=IDENTITIES[: rng.choice((0, 1, 2, 3))],
        keeps_expired=frozenset(name for name in names if rng.random() < 0.25),
    )


def draw_damaged(
    rng: Random, steps: int, among: tuple[DamageKind, ...] = tuple(DamageKind)
) -> Plan:
    """A plan of a node that stops in all ways, on a disk that damages files."""
    kinds = tuple(rng.sample(among, rng.randint(1, len(among))))
    has_diverted = any(kind in DIVERTED for kind in kinds)
    return replace(
        draw(rng, steps),
        end_rate=0.03,
        ends=rng.choice(((1, 1, 1), (0, 0, 1), (1, 1, 3))),
        damages=kinds,
        damage_rate=rng.choice((0.0, 0.02)) if has_diverted else 0.0,
    )


def draw_with_files(rng: Random, steps: int, among: tuple[DamageKind, ...]) -> Plan:
    """A damaged plan whose partitions soon have files."""
    plan = draw_damaged(rng, 2 * steps, among)
    settings = StoreSettings(
        segment_bytes=4096,
        journal_bytes_max=8192,
        rewrite_bytes_max=0,
        settle_s=0.0,
        handles_max=1,
        retry_s=1.0,
    )
    return replace(
        plan,
        logs=[b"log0", b"log1"],
        durability={**plan.durability, b"log0": Durability.DISK, b"log1": Durability.DISK},
        settings=settings,
        data_bytes_max=4000,
        ttl_max=100_000,
        consumes=0.5,
        workers=0.6,
        trouble_rate=0.0,
    )


def draw_with_older_pages(rng: Random, steps: int) -> Plan:
    """A plan of channels with subscribers, acks and failed attempts in their files, of which pages
    are older ones after a stop."""
    plan = draw_with_files(rng, 3 * steps, (DamageKind.STALE_PAGE,))
    channels = {
        stem + b"%d" % number: mode
        for stem, mode in CHANNELS
        if mode is not Mode.PAIR
        for number in range(2)
    }
    return replace(
        plan,
        channels=channels,
        logs=[],
        durability=dict.fromkeys(channels, Durability.DISK),
        identities=IDENTITIES,
        end_rate=0.03,
        ends=(0, 0, 1),
        keeps_expired=frozenset(),
    )


def draw_misplaced(rng: Random, steps: int) -> Plan:
    """A plan of a node that is killed, and whose journal goes to wrong places while it runs."""
    plan = draw_damaged(rng, steps, (DamageKind.MISDIRECTED_WRITE,))
    settings = msgspec.structs.replace(
        plan.settings, segment_bytes=65_536, journal_bytes_max=262_144
    )
    return replace(plan, ends=(0, 1, 0), damage_rate=0.3, settings=settings, trouble_rate=0.0)


def draw_without_catalog(rng: Random, steps: int) -> Plan:
    """A plan of a node that loses its catalog, and more with it."""
    plan = draw_with_files(rng, steps, tuple(DamageKind))
    return replace(plan, damages=(), damage_rate=0.0, loses_catalog=True)


def draw_with_snapshots(rng: Random, steps: int) -> Plan:
    """A plan of a node of which snapshots are taken; half of them are on a sound disk."""
    return replace(
        draw(rng, 2 * steps),
        workers=rng.choice((0.3, 0.6)),
        end_rate=0.005,
        snapshot_rate=1.0,
        trouble_rate=rng.choice((0.0, 0.03)),
    )


def draw_durability(rng: Random, mostly: Durability) -> Durability:
    """That of a channel: now and then another than that of most."""
    return mostly if rng.random() < 0.85 else rng.choice(OF_A_STORE_ALONE)


def draw_settings(rng: Random) -> StoreSettings:
    """Small segments, so that rotation, rewrites, flushes and reclaiming happen all the time."""
    segment = rng.choice((4096, 16_384))
    return StoreSettings(
        segment_bytes=segment,
        journal_bytes_max=segment * rng.choice((2, 4, 8)),
        segments_max=rng.choice((4, 32)),
        rewrite_bytes_max=rng.choice((0, 500, 4000)),
        waste_bytes_max=rng.choice((500, 20_000)),
        settle_s=rng.choice((0.0, 0.5, 5.0)),
        handles_max=rng.choice((1, 4, 256)),
        retry_s=1.0,
    )
