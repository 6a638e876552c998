"""What the channels of one node have in common, and what they tell of themselves."""

from __future__ import annotations

from random import Random

import msgspec

from actors.ids import IdSource
from actors.limits import NodeLimits
from actors.store.seam import Usage


class Shared(msgspec.Struct, frozen=True):
    """What the channels of one node have in common."""

    ids: IdSource
    rng: Random
    usage: Usage
    limits: NodeLimits = NodeLimits()


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
