"""What the channels of one node have in common, and what they tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec

from actors.ids import IdSource
from actors.limits import NodeLimits
from actors.store.seam import Health, Usage


@dataclass(slots=True)
class DeliveryCounters:
    """What happened in all channels since the start. `late_acks`: of messages not there (PA-16)."""

    late_acks: int = 0


class Shared(msgspec.Struct, frozen=True):
    """What the channels of one node have in common."""

    ids: IdSource
    rng: Random
    usage: Usage
    limits: NodeLimits = NodeLimits()
    counters: DeliveryCounters = msgspec.field(default_factory=DeliveryCounters)
    health: Health = msgspec.field(default_factory=Health)


class ChannelInfo(msgspec.Struct, frozen=True):
    """A channel as `info` shows it."""

    name: bytes
    mode: str
    messages: int
    bytes: int
    keys: int
    leased: int
    connections: int
    credit: int
    subscribers: int = 0
    """Identities that get what is put while they are away (fanout)."""
