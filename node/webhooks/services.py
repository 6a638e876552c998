"""The subscriptions of a node: the parts that they share, and the cells that serve them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from millpond.actors.messages import CellMessage
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.names import subscription_of
from millpond.actors.streams.subscription_index import SubscriptionIndex
from millpond.actors.streams.takeovers import Takeovers
from millpond.actors.subscriptions.context import (
    SubscriptionContext,
    SubscriptionCounters,
    SubscriptionLimits,
)
from millpond.actors.subscriptions.status import SubscriptionStatus
from millpond.actors.subscriptions.tokens import LeaseTokens
from millpond.node.access.grants import is_in_scope
from millpond.node.config import Config
from millpond.node.webhooks.keys import lease_tokens, webhook_key
from millpond.node.webhooks.makers import Makers, Scope
from millpond.node.webhooks.sender import WebhookSender
from millpond.transports.http.webhooks.destination import WebhookPolicy, hosts_of
from millpond.transports.http.webhooks.signature import WebhookKey
from millpond.transports.server.interface import Principal

if TYPE_CHECKING:
    from millpond.actors.subscriptions.subscription import Subscription
    from millpond.transports.http.webhooks.post import Resolve


class SubscriptionServices:
    """The subscriptions of one node. Keys exist after `open`."""

    def __init__(
        self,
        config: Config,
        post: Callable[[bytes, CellMessage], None],
        post_later: Callable[[bytes, CellMessage], None],
        scope: Callable[[Principal], Scope],
        *,
        entropy: Callable[[int], bytes],
        rng: Random,
        version: Callable[[], str],
        wall: Callable[[], float],
        resolve_name: Resolve | None = None,
    ) -> None:
        self._config = config
        self._post, self._post_later = post, post_later
        self._scope = scope
        self._makers: Makers | None = None
        self._entropy = entropy
        self._rng = rng
        self._numbers = count(1)
        self._takeovers = Takeovers()
        self._seed = b""
        self._keys: list[WebhookKey] = []
        self._tokens: LeaseTokens | None = None
        self.index = SubscriptionIndex(post_later)
        self.counters = SubscriptionCounters()
        self.statuses: dict[bytes, Callable[[], SubscriptionStatus]] = {}
        """The status of each subscription, by cell."""
        self.policy = webhook_policy(config)
        self.sender = WebhookSender(
            post, self.policy, config.webhook_deliveries_max, version, wall, resolve_name
        )

    def open(self, tasks: TaskGroup, seed: bytes) -> None:
        """Make requests, with keys of the identity that has this seed."""
        self._seed = seed
        self.sender.open(tasks, lambda: self.keys()[0])

    def keys(self) -> Sequence[WebhookKey]:
        """The key that signs, and the one before it."""
        if not self._keys:
            latest = self._config.webhook_key
            numbers = range(latest, max(latest - 2, 0), -1)
            self._keys = [webhook_key(self._seed, number) for number in numbers]
        return self._keys

    def tokens(self) -> LeaseTokens:
        """The tokens of the node."""
        if self._tokens is None:
            self._tokens = lease_tokens(self._seed)
        return self._tokens

    def by_id(self) -> dict[bytes, Callable[[], SubscriptionStatus] | None]:
        """The status of each subscription by its id; None: its cell is not served."""
        ids = ((subscription_of(cell), cell) for cell in self.index.cells)
        return {id_: self.statuses.get(cell) for id_, cell in ids if id_ is not None}

    def makers(self) -> Makers:
        """The clients that the subscriptions act for."""
        if self._makers is None:
            self._makers = Makers(self._seed, self._scope)
        return self._makers

    def credentials(self, principal: Principal) -> bytes:
        """The credentials that a client showed, sealed."""
        return self.makers().credentials(principal)

    def spawn(self, id_: bytes, snapshot: LogSnapshot, directory: Directory) -> Subscription:
        """The behaviour of a subscription's cell."""
        config = self._config
        context = SubscriptionContext(
            self._post,
            self._post_later,
            directory,
            self.index,
            SubscriptionLimits(
                subscriptions_max=config.subscriptions_max,
                links_max=config.subscription_streams_max,
                timeout_s=config.webhook_timeout_s,
            ),
            self.counters,
            self.tokens,
            self.sender,
            self._entropy,
            self._rng,
            is_in_scope,
            self.statuses,
            lambda maker: self.makers().scope_of(maker),
            self._numbers,
            self._takeovers,
        )
        from millpond.actors.subscriptions.subscription import Subscription  # it takes time to load

        return Subscription(id_, snapshot, context)


def webhook_policy(config: Config) -> WebhookPolicy:
    """The destinations that this configuration allows."""
    return WebhookPolicy(
        is_enabled=config.webhooks,
        is_local=not (config.is_reachable("http") or config.public_url),
        hosts=hosts_of(config.webhook_hosts),
    )
