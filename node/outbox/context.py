"""What the rooms of the post work with."""

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
"""What somebody elsewhere, or the way there, does to us."""


class OutboxSettings(msgspec.Struct, frozen=True):
    """Times in seconds. `via`: relays that keep mail for us, as `places.relay_places` reads them.

    `ttl_s` is how long a letter lives at most; `letter_bytes_max` how large it may be;
    `carriers_max` how many connections to peers may stand at once, and `fetchers_max` likewise.
    """

    ttl_s: int = 604_800
    letter_bytes_max: int = 2**20 - 64
    carriers_max: int = 64
    fetchers_max: int = 64
    via: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    idle_s: float = 60.0


class DeliveryStatus(Enum):
    """What became of a message of ours.

    SENT: it left this node for its peer or a relay. The others are final.
    """

    SENT = "sent"
    EXPIRED = "expired"
    REFUSED = "refused"


OnDeliveryStatus = Callable[[bytes, bytes, DeliveryStatus], Awaitable[None]]
"""Hears the peer, the message's uuid and its fate; again if the node stops before it returns."""


class OutboxContext(msgspec.Struct, frozen=True):
    """One for all tasks of a node's post."""

    identity: Identity
    book: AddressBook
    prekeys: Prekeys
    known: PrekeyCache
    local: LocalChannels
    presence: Presence
    reach: RouteDialer
    rng: Random
    entropy: Callable[[int], bytes]
    settings: OutboxSettings
    carriers: anyio.CapacityLimiter
    on_report: list[OnDeliveryStatus]
    on_prekey: list[Callable[[bytes], None]]

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.local.now()

    async def report(self, peer: bytes, uuid: bytes, fate: DeliveryStatus) -> None:
        """Tell all who asked for it."""
        for hear in self.on_report:
            await hear(peer, uuid, fate)


class Wakeup:
    """An alarm that ends a rest early."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def __call__(self) -> None:
        self._event.set()

    def forget(self) -> None:
        """What was said so far is known: it ends no rest."""
        self._event = anyio.Event()

    async def rest(self, seconds: float) -> None:
        """Rest for so long, or until a nudge that came since the last rest."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()
