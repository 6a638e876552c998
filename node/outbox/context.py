"""The objects and settings that all tasks of a node's outbox share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from random import Random
from typing import Protocol

import anyio
import msgspec

from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.outbox.delivery_keys import DeliveryKeys, OwnDeliveryKeys
from millpond.node.outbox.given_prekeys import GivenPrekeys
from millpond.node.outbox.local_channels import LocalChannels
from millpond.node.outbox.own_addresses import OwnAddresses
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.routes import RouteDialer
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.delivery_token import DeliveryTokens
from millpond.node.peers.identity import Identity
from millpond.node.peers.local_envelope import LocalKey
from millpond.node.peers.one_time_prekeys import OneTimePrekeys, TakenPrekeys
from millpond.node.peers.peer_store import PeerStore, Statement
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import Prekeys
from millpond.node.peers.sealed_message import Content

log = logging.getLogger(__name__)

GONE = (ConnectionLost, ChannelClosed, OSError)
"""Errors of a connection that is lost or refused."""


class OutboxSettings(msgspec.Struct, frozen=True):
    """Settings of the outbox. Times are in seconds.

    `ttl_s` is the longest life of a message that is sent, and `message_bytes_max` the largest size
    of a message with the header of `relayed_message`. `forwarders_max` and `fetchers_max` limit the
    connections to peers.
    `via` names the relays that store messages for this node (`routes.relay_routes`), `addresses`
    the URLs at which others reach it, as they are configured. `is_local`: only this machine reaches
    the node, so cards may lead to this machine. A forwarder without work stays connected for
    `idle_s`.
    """

    ttl_s: int = 604_800
    message_bytes_max: int = 2**20 - 64
    forwarders_max: int = 64
    fetchers_max: int = 64
    via: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    idle_s: float = 60.0
    is_local: bool = False
    successions: tuple[bytes, ...] = ()
    """For the contact card: the statements that lead from earlier keys to the identity."""


class DeliveryStatus(Enum):
    """The state of a message that this node has sent.

    SENT: the peer or a relay has stored it. The others are final. DELIVERED: the peer has said that
    it has it, signed; a peer of version 1 says nothing. REFUSED: the peer will never accept it.
    """

    SENT = "sent"
    DELIVERED = "delivered"
    EXPIRED = "expired"
    REFUSED = "refused"


OnDeliveryStatus = Callable[[bytes, Sequence[bytes], DeliveryStatus], Awaitable[None]]
"""A callback with the public key of the peer, and the uuids of messages that have a new status
together. It is called again if the node stops before it returns."""

OnForwarded = Callable[[bytes, Sequence[int], str | None], Awaitable[None]]
"""A callback with the public key of the peer, the ids of messages in the mailbox of the peer, and
the reason why the peer refuses them (None: the peer or a relay has stored them)."""


class Unfinished(msgspec.Struct, frozen=True):
    """A message of a peer that is recorded as accepted, and is not in its channel yet; none of
    version 1."""

    sender: bytes
    line: bytes
    counter: int


class StrangerMessages(Protocol):
    """Messages of senders that no person has accepted."""

    @property
    def is_on(self) -> bool:
        """True if some of them are kept."""
        ...

    def receive(self, sender: bytes, content: Content, sealed: bytes) -> list[Statement] | str:
        """The statements that keep a verified message, `sealed` as it was relayed; else the
        reason to drop it."""
        ...

    def reload(self) -> None:
        """Statements were not stored."""


class OutboxContext(msgspec.Struct, frozen=True):
    """The objects that all tasks of one outbox share."""

    identity: Identity
    book: AddressBook
    prekeys: Prekeys
    prekey_cache: PrekeyCache
    store: PeerStore
    local_key: LocalKey
    delivery_tokens: DeliveryTokens
    one_time: OneTimePrekeys
    taken_prekeys: TakenPrekeys
    given_prekeys: GivenPrekeys
    delivery_keys: DeliveryKeys | None
    """Of the owners of mailboxes here; None: this node is no relay."""
    own_delivery_keys: OwnDeliveryKeys
    own_addresses: OwnAddresses
    may_send: Callable[[bytes, bytes], bool]
    """True if a peer (its public key) may send messages to a channel of this node."""
    local: LocalChannels
    presence: Presence
    dial: RouteDialer
    rng: Random
    entropy: Callable[[int], bytes]
    settings: OutboxSettings
    latest: Callable[[], float]
    """The time for deadlines of new messages, in seconds since the Unix epoch: a confirmed jump of
    the clock does not cut them short."""
    forwarders: anyio.CapacityLimiter
    on_status: list[OnDeliveryStatus]
    on_prekey: list[Callable[[bytes], None]]
    on_forwarded: list[OnForwarded] = []
    unfinished: dict[int, Unfinished] = {}
    """By the id of the message in the own mailbox."""
    dropped: dict[str, int] = {}
    """The number of received messages that were dropped, by reason."""
    refusals: dict[str, int] = {}
    """The refusals of the node, by reason (`wire.reasons` in `info`); dropped messages are too."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.local.now()

    async def report_status(
        self, peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus
    ) -> None:
        """Call everything in `on_status`."""
        for callback in self.on_status:
            await callback(peer, uuids, status)

    async def report_forwarded(
        self, peer: bytes, mailbox_ids: Sequence[int], refusal: str | None
    ) -> None:
        """Call everything in `on_forwarded`."""
        for callback in self.on_forwarded:
            await callback(peer, mailbox_ids, refusal)

    def unfinished_of(self, sender: bytes) -> set[tuple[bytes, int]]:
        """The lines and counters of unfinished messages of a sender."""
        found = self.unfinished.values()
        return {(each.line, each.counter) for each in found if each.sender == sender}

    def drop(self, reason: str, detail: str) -> None:
        """Count a received message that is dropped; the 1st, 2nd, 4th, 8th and so on is logged."""
        count = self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.refusals[f"message {reason}"] = count
        level = logging.DEBUG if count & count - 1 else logging.INFO
        log.log(level, "message dropped: reason=%s count=%d %s", reason, count, detail)


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
