"""The faults of a world, drawn by chance, with their times."""

from __future__ import annotations

from random import Random

from tests.sim.nodes.plan import KEPT, ClientNames, Fault, FaultPlan

FAULTS: tuple[Fault, ...] = (
    "partition", "reset", "stall", "latency", "split", "disk", "full", "hang", "crash", "power",
    "stop", "skew",
)  # fmt: skip
CALLS = ("write", "fdatasync", "create", "sql commit")
OUTAGES = 0.25
"""The share of worlds with crashes and power failures beside their other faults."""
JUMPS = 0.15
"""The share of worlds whose clocks are wrong by hours or days."""
FLAWS = 0.12
"""The share of worlds whose disks fail just when a message was pushed."""


def draw_trouble(
    seed: int, names: ClientNames, nodes: tuple[str, ...], has_mail: bool, lasts_s: float
) -> tuple[FaultPlan, ...]:
    """All faults, in the order of time."""
    faults = (
        *draw_faults(names, nodes, has_mail, lasts_s),
        *draw_outages(seed, nodes, lasts_s),
        *draw_flaws(seed, nodes, lasts_s),
        *draw_jumps(seed, nodes, has_mail, lasts_s),
    )
    return tuple(sorted(faults, key=lambda each: each.at))


def draw_jumps(
    seed: int, nodes: tuple[str, ...], has_mail: bool, lasts_s: float
) -> tuple[FaultPlan, ...]:
    """In some worlds clocks are wrong by hours or days, right again soon after or never, and nodes
    restart meanwhile, in some cases with their machines."""
    rng = Random(f"jumps {seed}")
    if has_mail or rng.random() >= JUMPS:
        return ()
    faults: list[FaultPlan] = []
    for _ in range(rng.choice((1, 2, 4))):
        at, node = rng.uniform(0.0, lasts_s), rng.choice(nodes)
        much = rng.choice((7200.0, 100_000.0, -7200.0, -100_000.0))
        faults.append(FaultPlan(at, "skew", "", node, 0.0, much=much))
        if rng.random() < 0.6:
            how: Fault = rng.choice(("crash", "power", "stop"))
            faults.append(FaultPlan(at + rng.choice((0.1, 2.0, 35.0)), how, "", node, 0.05))
        if rng.random() < 0.6:
            at += rng.choice((0.5, 20.0, 40.0))
            faults.append(FaultPlan(at, "skew", "", node, 0.0, much=rng.choice((0.0, 0.0, -30.0))))
    return tuple(faults)


def draw_confirm_s(seed: int) -> float:
    """The time after which a node of the world confirms a jump by itself."""
    return Random(f"confirms {seed}").choice((5.0, 600.0))


def draw_faults(
    names: ClientNames, nodes: tuple[str, ...], has_mail: bool, lasts_s: float
) -> tuple[FaultPlan, ...]:
    """The faults of a world; some worlds have none."""
    rng = names.rng
    kinds = rng.sample(FAULTS, rng.choice((1, 2, 3, 4)))
    pairs = list(names.pairs)
    if has_mail:
        pairs += [(a, b) for a in nodes for b in nodes if a < b] * 2
    faults = []
    for _ in range(rng.choice((0, 1, 2, 4, 7))):
        a, b = rng.choice(pairs)
        faults.append(
            FaultPlan(
                at=rng.uniform(0.0, lasts_s),
                kind=rng.choice(kinds),
                a=a,
                b=b,
                lasts_s=rng.choice((0.05, 1.0, 5.0, 15.0)),
                much=rng.choice((0.05, 0.5, 30.0, -30.0)),
                call=rng.choice(CALLS),
            )
        )
    return tuple(faults)


def draw_outages(seed: int, nodes: tuple[str, ...], lasts_s: float) -> tuple[FaultPlan, ...]:
    """In some worlds the power fails now and then, also soon after a process was killed: then what
    that one left in the system's memory is gone."""
    rng = Random(f"outages {seed}")
    faults: list[FaultPlan] = []
    if rng.random() < OUTAGES:
        for _ in range(rng.choice((1, 3, 6))):
            at, node = rng.uniform(0.0, lasts_s), rng.choice(nodes)
            if rng.random() < 0.5:
                faults.append(FaultPlan(at, "crash", "", node, 0.05, call=rng.choice(("", KEPT))))
                at += rng.choice((0.2, 2.5, 8.0))
            faults.append(FaultPlan(at, "power", "", node, 0.05, call=rng.choice(("", KEPT))))
    return tuple(faults)


def draw_flaws(seed: int, nodes: tuple[str, ...], lasts_s: float) -> tuple[FaultPlan, ...]:
    """In some worlds a disk fails, for a moment or a while, right when a lease has begun: the next
    put is refused, and the channel is built anew while somebody holds what was in it. Or that put
    hangs first, and what consumers say meanwhile waits behind it."""
    rng = Random(f"flaws {seed}")
    if rng.random() >= FLAWS:
        return ()
    return tuple(
        FaultPlan(
            at=rng.uniform(0.0, lasts_s),
            kind="flaw",
            a="",
            b=rng.choice(nodes),
            lasts_s=rng.choice((0.3, 1.0, 3.0)),
            much=rng.choice((0.0, 1.0)),
            call=rng.choice(("write", "write", "fdatasync")),
        )
        for _ in range(rng.choice((2, 4, 8)))
    )


def draw_rush(rng: Random, nodes: tuple[str, ...], *, hangs: bool) -> tuple[FaultPlan, ...]:
    """While much is put: the power fails; or a disk hangs, so that much waits behind it, and soon
    after it works again the process is killed."""
    faults: list[FaultPlan] = []
    for _ in range(rng.choice((2, 4, 6))):
        at, node = rng.uniform(1.0, 9.0), rng.choice(nodes)
        if hangs:
            lasts_s = rng.choice((0.3, 1.0))
            faults.append(FaultPlan(at, "hang", "", node, lasts_s))
            at += lasts_s + rng.choice((0.01, 0.1))
            faults.append(FaultPlan(at, "crash", "", node, 0.05))
        else:
            faults.append(FaultPlan(at, "power", "", node, 0.05, call=rng.choice(("", KEPT))))
    return tuple(faults)
