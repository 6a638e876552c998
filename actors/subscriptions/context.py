"""Limits and counters of subscriptions, and the parts that those of a node share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random

import msgspec

from millpond.actors.messages import CellMessage, Port
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.subscription_index import SubscriptionIndex
from millpond.actors.streams.takeovers import Takeovers
from millpond.actors.subscriptions.messages import Maker
from millpond.actors.subscriptions.status import SubscriptionStatus
from millpond.actors.subscriptions.tokens import LeaseTokens


class SubscriptionLimits(msgspec.Struct, frozen=True):
    """Limits of subscriptions; docs/reference/limits.md. `timeout_s` is that of one delivery."""

    subscriptions_max: int = 1000
    links_max: int = 10_000
    waiting_max: int = 1000
    timeout_s: float = 10.0


class SubscriptionCounters(msgspec.Struct):
    """Counts of all subscriptions since the start, and `failed`, the cells of those whose last
    delivery or event failed. `unlinked`: streams above the limit of links."""

    wakes: int = 0
    claims: int = 0
    delivered: int = 0
    undelivered: int = 0
    events: int = 0
    events_failed: int = 0
    leases_expired: int = 0
    fenced: int = 0
    unlinked: int = 0
    failed: set[bytes] = msgspec.field(default_factory=set)


class SubscriptionContext(msgspec.Struct, frozen=True):
    """The parts that the subscriptions of a node share. `post` sends a message to a cell,
    `post_later` one that nobody waits for, which gives way to others;
    `webhooks` takes each `Delivery`; `entropy` gives so many unpredictable bytes."""

    post: Callable[[bytes, CellMessage], None]
    post_later: Callable[[bytes, CellMessage], None]
    directory: Directory
    index: SubscriptionIndex
    limits: SubscriptionLimits
    counters: SubscriptionCounters
    tokens: Callable[[], LeaseTokens]
    webhooks: Port
    entropy: Callable[[int], bytes]
    rng: Random
    may_link: Callable[[tuple[str, ...] | None, bytes], bool]
    """True: a maker with this scope may read the stream of this name."""
    statuses: dict[bytes, Callable[[], SubscriptionStatus]]
    """The statuses of all subscriptions, by cell."""
    scope_of: Callable[[Maker], tuple[str, ...] | None]
    """The scope that a maker has now."""
    numbers: Iterator[int] = msgspec.field(default_factory=partial(count, 1))
    """Of deliveries and events: a behaviour that is built anew knows none of those before."""
    takeovers: Takeovers = msgspec.field(default_factory=Takeovers)
