"""The node, as requests about subscriptions see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.webhooks.destination import WebhookPolicy
from millpond.transports.http.webhooks.signature import WebhookKey
from millpond.transports.server.interface import Principal


class SubscriptionSettings(msgspec.Struct, frozen=True):
    """`public_url` is the base of the URLs that workers are told; empty: that of the request."""

    policy: WebhookPolicy = WebhookPolicy()
    public_url: str = ""


class SubscriptionNodeServices(HttpNodeServices, Protocol):
    """The node, as requests about subscriptions see it."""

    @property
    def stream_scope(self) -> Callable[[Principal], tuple[str, ...] | None]:
        """The streams that a client may read, as patterns of access rules; None: all that are not
        private."""

    @property
    def is_controlled(self) -> Callable[[], bool]:
        """True: nobody has a right that no access rule gives."""

    @property
    def maker_credentials(self) -> Callable[[Principal], bytes]:
        """The credentials of a client, sealed: a subscription keeps them, to know its rights
        later."""

    @property
    def webhook_keys(self) -> Callable[[], Sequence[WebhookKey]]:
        """The keys of webhooks; the first one signs."""
