"""The objects and settings that all tasks of a node's outbox share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from random import Random

import anyio
import msgspec

from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.outbox.local_channels import LocalChannels
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.routes import RouteDialer
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.identity import Identity
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import Prekeys

GONE = (ConnectionLost, ChannelClosed, OSError)
"""Errors of a connection that is lost or refused."""


class OutboxSettings(msgspec.Struct, frozen=True):
    """Settings of the outbox. Times are in seconds.

    `ttl_s` is the longest life of a message and `message_bytes_max` its largest size with the
    header of `relayed_message`. `forwarders_max` and `fetchers_max` limit the connections to peers.
    `via` names the relays that store messages for this node (`routes.relay_routes`), `addresses`
    the URLs at which others reach it. A forwarder without work stays connected for `idle_s`.
    """

    ttl_s: int = 604_800
    message_bytes_max: int = 2**20 - 64
    forwarders_max: int = 64
    fetchers_max: int = 64
    via: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    idle_s: float = 60.0


class DeliveryStatus(Enum):
    """The state of a message that this node has sent.

    SENT: the peer or a relay has stored it. EXPIRED and REFUSED are final.
    """

    SENT = "sent"
    EXPIRED = "expired"
    REFUSED = "refused"


OnDeliveryStatus = Callable[[bytes, bytes, DeliveryStatus], Awaitable[None]]
"""A callback with the public key of the peer, the uuid of the message and its status. It is called
again if the node stops before it returns."""


class OutboxContext(msgspec.Struct, frozen=True):
    """The objects that all tasks of one outbox share."""

    identity: Identity
    book: AddressBook
    prekeys: Prekeys
    prekey_cache: PrekeyCache
    local: LocalChannels
    presence: Presence
    dial: RouteDialer
    rng: Random
    entropy: Callable[[int], bytes]
    settings: OutboxSettings
    forwarders: anyio.CapacityLimiter
    on_status: list[OnDeliveryStatus]
    on_prekey: list[Callable[[bytes], None]]

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.local.now()

    async def report_status(self, peer: bytes, uuid: bytes, status: DeliveryStatus) -> None:
        """Call everything in `on_status`."""
        for callback in self.on_status:
            await callback(peer, uuid, status)


class Wakeup:
    """An event that ends a wait early."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def __call__(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Clear the event: earlier calls end no wait."""
        self._event = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until a call since the last wait."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()
