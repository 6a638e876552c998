"""Settings of the Durable Streams API."""

from __future__ import annotations

import msgspec

from millpond.transports.http.durable.subscriptions.interface import SubscriptionSettings


class DurableSettings(msgspec.Struct, frozen=True):
    """A long-poll is held for `long_poll_s`, server-sent events end after `events_s`; where there
    is nothing to say for `heartbeat_s`, they have a comment. `is_secure`: the listener uses TLS.
    `messages_max`: JSON messages in one append."""

    long_poll_s: float = 20.0
    events_s: float = 60.0
    heartbeat_s: float = 15.0
    is_secure: bool = False
    messages_max: int = 10_000
    subscriptions: SubscriptionSettings = SubscriptionSettings()
