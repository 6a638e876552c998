"""The world of a seed, drawn by chance: nodes, channels, job queues, streams, and their clients.

Strings that seed a generator, and names of clients, decide what is drawn: changing one changes all
seeds. So they keep words that the code has not any more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from msgspec import structs

from millpond.actors.messages import Durability, Mode
from millpond.node.config_rules import ChannelRule
from tests.sim.nodes.fault_plans import draw_confirm_s, draw_rush, draw_trouble
from tests.sim.nodes.flow_plans import has_flows, with_flows
from tests.sim.nodes.plan import (
    GRACE_S_MAX,
    TTL_DEFAULT_S,
    ChannelPlan,
    ClientNames,
    ConsumerPlan,
    Habits,
    JobsPlan,
    Kind,
    MailPlan,
    Plan,
    ProducerPlan,
    StreamPlan,
)
from tests.sim.nodes.tee_plans import has_tees, with_tees

NAMES = ("oak", "elm", "ash")
AGE_S = 10 * 365 * 86_400
"""Of streams whose records must all be there: more than any clock jumps."""
KINDS: tuple[Kind, ...] = (
    "channels",
    "channels",
    "channels",
    "jobs",
    "jobs",
    "streams",
    "mail",
    "mixed",
)
SUBSCRIBED_SHARE = 0.5
"""The share of streams that a subscription follows."""
OVERSLEEP_SHARE = 0.2
"""The share of worlds that oversleep."""
TTL_SHARE = 0.3
"""The share of worlds in which jobs have a ttl, and of those with a short default."""
OPERATED_SHARE = 0.5
"""The share of worlds whose queues have limits, priorities and pauses."""
TTL_SHORT_S = 4
RUSH_SETTINGS = {
    "segment_bytes": 2**14,
    "journal_bytes_max": 2**15,
    "ttl_default_s": TTL_DEFAULT_S,
}
RUSH = 0.2
"""The share of worlds of channels in which much is put without a pause."""


def draw(seed: int) -> Plan:
    """The world of a seed."""
    rng = Random(f"plan {seed}")
    kind = "channels" if has_tees(seed) else rng.choice(KINDS)
    is_many = kind in ("mail", "mixed")
    nodes = NAMES[: rng.choice((2, 2, 3)) if is_many else rng.choice((1, 1, 1, 2))]
    lasts_s = rng.choice((10.0, 20.0, 40.0, 80.0))
    names = ClientNames(rng)
    mostly = rng.choice((Durability.DISK, Durability.DISK, Durability.OS, Durability.MEMORY))
    counts = {
        "channels": (rng.randint(1, 3), 0, 0, 0),
        "jobs": (rng.choice((0, 0, 1)), 1, 0, 0),
        "streams": (0, 0, rng.randint(1, 2), 0),
        "mail": (0, 0, 0, rng.randint(1, 3)),
        "mixed": (1, rng.randint(0, 1), rng.randint(0, 1), 1),
    }[kind]
    channels = tuple(
        draw_channel(names, n, rng.choice(nodes), mostly, lasts_s) for n in range(counts[0])
    )
    jobs = tuple(draw_jobs(names, n, rng.choice(nodes), mostly, lasts_s) for n in range(counts[1]))
    streams = tuple(
        with_subscribers(
            seed, with_history(seed, draw_stream(names, n, rng.choice(nodes), mostly, lasts_s))
        )
        for n in range(counts[2])
    )
    mail = tuple(draw_mail(rng, nodes, lasts_s) for _ in range(counts[3]))
    oversleeps = Random(f"naps {seed}").random() < OVERSLEEP_SHARE
    plan = Plan(
        kind=kind,
        nodes=nodes,
        linked=len(nodes) > 1,
        settings=draw_settings(rng)
        | {
            "s2_trim_grace_s": draw_grace(seed),
            "clock_confirm_s": draw_confirm_s(seed),
        },
        channels=tuple(
            with_putting_consumers(seed, with_deadlines(each) if oversleeps else each)
            for each in channels
        ),
        jobs=jobs,
        streams=streams,
        mail=mail,
        faults=draw_trouble(seed, names, nodes, bool(mail), lasts_s),
        lasts_s=lasts_s,
        split=rng.random() < 0.2,
        latency_s=rng.choice((0.0, 0.0, 0.0, 0.01, 0.2)) or (0.1 if oversleeps else 0.0),
        forgets=rng.random() < 0.05,
        oversleeps=oversleeps,
    )
    plan = with_operators(seed, with_ttls(seed, plan))
    if kind == "channels" and not oversleeps:
        plan = with_rush(seed, plan)
    if has_flows(seed):
        return with_flows(seed, plan)
    return with_tees(seed, plan) if has_tees(seed) else plan


def with_ttls(seed: int, plan: Plan) -> Plan:
    """Perhaps: some jobs have a ttl, and what has none expires soon unless it is in a queue."""
    rng = Random(f"ttl {seed}")
    if rng.random() < TTL_SHARE:
        plan = replace(plan, jobs=tuple(replace(each, ttls=(0, 2, 8)) for each in plan.jobs))
    if rng.random() < TTL_SHARE:
        plan = replace(plan, settings={**plan.settings, "ttl_default_s": TTL_SHORT_S})
    return plan


def with_operators(seed: int, plan: Plan) -> Plan:
    """Perhaps: limits and pauses of its queues change."""
    if Random(f"operators {seed}").random() >= OPERATED_SHARE:
        return plan
    jobs = (
        replace(
            each, is_operated=True, jobs=max(12, each.jobs), work_s=max(0.3, each.work_s), gap_s=0.0
        )
        for each in plan.jobs
    )
    return replace(plan, jobs=tuple(jobs))


def with_rush(seed: int, plan: Plan) -> Plan:
    """Perhaps: its channels are put into all the time, some with a sync for each group and some
    without, so that journals turn over while others wait, and end in the midst of a group."""
    rng = Random(f"rush {seed}")
    if rng.random() >= RUSH:
        return plan
    burst, sizes = rng.choice(((1, (0, 100, 3000)), (1, (3000,)), (8, (100, 3000))))
    channels = []
    for channel in plan.channels:
        durability = rng.choice((Durability.OS, Durability.DISK))
        producers = tuple(
            replace(each, count=48, gap_s=0.3 * burst, burst=burst, ttls=(0,), sizes=sizes)
            for each in channel.producers
        )
        rule = structs.replace(channel.rule, durability=durability, ttl=None)
        channels.append(replace(channel, rule=rule, producers=producers))
    rush = draw_rush(rng, plan.nodes, hangs=rng.random() < 0.4)
    return replace(
        plan,
        channels=tuple(channels),
        settings={**plan.settings, **RUSH_SETTINGS},
        faults=tuple(sorted((*plan.faults, *rush), key=lambda each: each.at)),
        lasts_s=max(plan.lasts_s, 10.0),
    )


def draw_settings(rng: Random) -> dict[str, Any]:
    """Small files, so that journals turn over; channels are unloaded early."""
    segment = rng.choice((2**14, 2**14, 2**18))
    return {
        "segment_bytes": segment,
        "journal_bytes_max": segment * rng.choice((2, 4)),
        "passivate_after_s": rng.choice((1.0, 60.0)),
        "partition_handles_max": rng.choice((1, 256)),
        "drain_timeout_s": rng.choice((0.2, 2.0)),
        "keep_alive_s": rng.choice((5.0, 20.0)),
    }


def draw_durability(rng: Random, mostly: Durability) -> Durability:
    """A durability: mostly that of the world, now and then another one."""
    # Nodes of these worlds have no replica.
    here = [each for each in Durability if each is not Durability.REPLICATED]
    return mostly if rng.random() < 0.7 else rng.choice(here)


def draw_channel(
    names: ClientNames, number: int, node: str, mostly: Durability, lasts_s: float
) -> ChannelPlan:
    """A channel of any mode."""
    rng = names.rng
    mode = rng.choice((Mode.PAIR, Mode.FANOUT, Mode.QUEUE, Mode.QUEUE))
    rule = ChannelRule(
        f"c{number}",
        mode,
        ttl=rng.choice((None, None, 60, 300)),
        lease=rng.choice((1.0, 2.0, 5.0, 10.0)),
        attempts=rng.choice((1, 2, 3, 5)),
        durability=draw_durability(rng, mostly),
    )
    ttls = rng.choice(((0,), (0,), (0, 1, 2, 5), (3, 8), (0, 20)))
    producers = tuple(
        ProducerPlan(
            who=names.name("p", node),
            count=rng.randint(2, 14),
            gap_s=rng.choice((0.0, 0.2, lasts_s / 8)),
            burst=rng.choice((1, 1, 4, 8)),
            ttls=ttls,
            again=rng.choice((0.0, 0.2)),
            known=rng.random() < 0.2,
        )
        for _ in range(rng.choice((1, 1, 2)))
    )
    some_known = mode is Mode.FANOUT or rng.random() < 0.2
    consumers = tuple(
        ConsumerPlan(
            who=names.name("c", node),
            window=rng.choice((1, 1, 2, 4, 32)),
            habits=draw_habits(rng, rule.lease or 1.0),
            known=some_known and rng.random() < 0.7,
            credits=rng.random() < 0.15,
        )
        for _ in range(rng.choice((1, 2, 2, 3)))
    )
    return ChannelPlan(node, rule.pattern, rule, producers, consumers, rng.random() < 0.3)


def with_deadlines(channel: ChannelPlan) -> ChannelPlan:
    """The channel, with deadlines that pass while the process oversleeps, and an observer."""
    producers = tuple(replace(each, ttls=(0, 1, 2, 5)) for each in channel.producers)
    return replace(channel, producers=producers, is_inspected=True)


def with_putting_consumers(seed: int, channel: ChannelPlan) -> ChannelPlan:
    """In some queues consumers put as well; there is always another one for what they put."""
    rng = Random(f"talk {seed} {channel.name}")
    if channel.mode is not Mode.QUEUE or len(channel.consumers) < 2 or rng.random() < 0.5:
        return channel
    return replace(
        channel,
        consumers=tuple(
            replace(each, habits=replace(each.habits, puts=rng.choice((0.0, 0.3))))
            for each in channel.consumers
        ),
    )


def draw_habits(rng: Random, lease_s: float) -> Habits:
    """The habits of one consumer; most have one bad habit, or none."""

    def sometimes(value: float) -> float:
        return value if rng.random() < 0.3 else 0.0

    return Habits(
        think_s=rng.choice((0.0, 0.0, lease_s / 4, lease_s, 2 * lease_s)),
        nacks=sometimes(0.3),
        delay_s=rng.choice((0.0, 0.0, 1.0, 6.0)),
        rejects=sometimes(0.15),
        touches=sometimes(0.5),
        sleeps=sometimes(0.3),
        hangs_up=sometimes(0.15),
        dies=sometimes(0.2),
        batch=rng.choice((1, 1, 1, 3)),
    )


def draw_jobs(
    names: ClientNames, number: int, node: str, mostly: Durability, lasts_s: float
) -> JobsPlan:
    """A queue with workers."""
    rng = names.rng
    name = f"q{number}"
    names.pairs.append((f"boss-{name}", node))
    workers = rng.choice((1, 2, 3))
    for each in range(workers):
        names.pairs.append((f"w-{name}-{each}", node))

    def sometimes(value: float) -> float:
        return value if rng.random() < 0.4 else 0.0

    return JobsPlan(
        node=node,
        name=name,
        durability=draw_durability(rng, mostly),
        jobs=rng.randint(3, 16),
        gap_s=rng.choice((0.0, 0.3, lasts_s / 10)),
        workers=workers,
        concurrency=rng.choice((1, 2, 4)),
        lease_s=rng.choice((1.5, 3.0, 10.0)),
        attempts=rng.choice((1, 2, 4, 8)),
        fails=sometimes(0.3),
        retries=sometimes(0.3),
        rejects=sometimes(0.15),
        hangs=sometimes(0.2),
        work_s=rng.choice((0.0, 0.3, 3.0)),
        restarts=sometimes(0.05),
        waits=sometimes(0.5),
        due=sometimes(0.3),
        unique=sometimes(0.3),
        cancels=sometimes(0.1),
    )


def draw_stream(
    names: ClientNames, number: int, node: str, mostly: Durability, lasts_s: float
) -> StreamPlan:
    """A stream."""
    rng = names.rng
    name = f"s{number}"
    writers, readers = rng.choice((1, 1, 2)), rng.choice((0, 1, 2))
    for each in range(writers):
        names.pairs.append((f"a-{name}-{each}", node))
    for each in range(readers):
        names.pairs.append((f"r-{name}-{each}", node))
    return StreamPlan(
        node=node,
        name=name,
        protocol=rng.choice(("stream", "s3p", "rustlog")),
        durability=rng.choice((Durability.DISK, Durability.DISK, Durability.OS)),
        writers=writers,
        appends=rng.randint(3, 20),
        batch=rng.choice((1, 1, 5)),
        gap_s=rng.choice((0.0, 0.3, lasts_s / 10)),
        readers=readers,
    )


def draw_grace(seed: int) -> float:
    """The grace of trims: none to speak of, as ever, or longer than any connection is cut."""
    return Random(f"grace {seed}").choice((0.5, 10.0, GRACE_S_MAX))


def with_history(seed: int, plan: StreamPlan) -> StreamPlan:
    """Records that say they are older than the stream keeps any, or of a far future; generations
    that end with a trim while readers follow. Both take a protocol that can say so."""
    rng = Random(f"history {seed} {plan.name}")
    if plan.protocol != "stream":
        return plan
    return replace(
        plan,
        age_s=rng.choice((None, AGE_S)),
        is_stamped=rng.random() < 0.6,
        ends=rng.choice((0.0, 0.0, 0.2, 0.6)),
    )


def with_subscribers(seed: int, plan: StreamPlan) -> StreamPlan:
    """Perhaps: workers of a subscription to the stream."""
    rng = Random(f"subscribers {seed} {plan.name}")
    if rng.random() >= SUBSCRIBED_SHARE:
        return plan
    return replace(
        plan,
        workers=rng.choice((1, 2, 3)),
        lease_s=rng.choice((1.0, 3.0, 10.0)),
        is_pattern=rng.random() < 0.5,
    )


def draw_mail(rng: Random, nodes: tuple[str, ...], lasts_s: float) -> MailPlan:
    """Sealed messages from one node to another."""
    source, target = rng.sample(nodes, 2)
    return MailPlan(source, target, rng.randint(1, 8), rng.choice((0.0, 0.5, lasts_s / 6)))
