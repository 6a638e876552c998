"""Plans of worlds whose channels feed streams: seeds of their own, so no other seed changes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from msgspec import structs

from millpond.actors.messages import Durability
from tests.sim.nodes.plan import ChannelPlan, Plan, StreamPlan

FROM, UNTIL = 1_000_000, 2_000_000
"""The first seed of such worlds, and the first one behind them."""
SHARED = "t0"


def has_tees(seed: int) -> bool:
    """Is it a seed of such a world?"""
    return FROM <= seed < UNTIL


def with_tees(seed: int, plan: Plan) -> Plan:
    """The channels of a world feed a stream of their own each, or one for all of a node."""
    rng = Random(f"tees {seed}")
    is_shared = rng.random() < 0.4
    channels, streams = [], {}
    for number, channel in enumerate(plan.channels):
        name = f"{SHARED}-{channel.node}" if is_shared else f"t{number}"
        channels.append(_with_tee(rng, channel, name))
        streams[name] = StreamPlan(
            node=channel.node,
            name=name,
            protocol="stream",
            durability=Durability.DISK if rng.random() < 0.8 else Durability.OS,
            writers=0,
            appends=0,
            batch=1,
            gap_s=0.0,
            readers=rng.choice((0, 1)),
        )
    return replace(plan, kind="tees", channels=tuple(channels), streams=tuple(streams.values()))


def _with_tee(rng: Random, channel: ChannelPlan, stream: str) -> ChannelPlan:
    durability = Durability.DISK if rng.random() < 0.7 else channel.durability
    return replace(channel, rule=structs.replace(channel.rule, tee=stream, durability=durability))
