"""The outbox of a node: messages to peers are sealed, stored, and forwarded when the peer is
online."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import anyio
import msgspec

from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    EmptyData,
    KeyReused,
    NoPrekey,
    NotAllowed,
    OutcomeUnknown,
    RequestError,
    UnknownPeer,
)
from millpond.actors.messages import Put, PutAck
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import DeliveryStatus, OnDeliveryStatus, OutboxContext
from millpond.node.outbox.inbound import accepts_relayed
from millpond.node.outbox.key_exchange import learn_from_cards
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.relayed_message import (
    OVERHEAD_BYTES,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    envelope_idempotency_key,
)
from millpond.node.outbox.scheduling import OutboxScheduler
from millpond.node.peers.envelope import (
    UUID_BYTES,
    OpenedEnvelope,
    envelope_uuid,
    open_envelope,
    seal,
)
from millpond.node.peers.prekeys import SignedPrekey
from millpond.transports.p2p.admission import is_channel_name

KEYS_TRIED_MAX = 4
RECENT_MAX = 4096
"""The number of recent messages whose uuids are remembered after they were forwarded."""
TTL_S_MIN = 3600.0
"""The least lifetime of a prekey for a message without a time to live."""
SEALED_BYTES = 230
"""The largest overhead of sealing."""


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message that is stored in the mailbox under `id`, for at most `ttl` seconds."""

    uuid: bytes
    id: int
    ttl: int


class Outbox:
    """The outbox of a node. `run` is its task; everything else is called in the same loop."""

    def __init__(self, context: OutboxContext) -> None:
        self.context = context
        self.scheduler = OutboxScheduler(context)
        self._locks: dict[bytes, anyio.Lock] = {}
        self._recent: dict[tuple[bytes, bytes], ReplyFuture[QueuedMessage]] = {}
        """By peer and uuid, in the order of the calls."""
        context.on_status.append(self._on_status)

    async def run(self) -> None:
        """Forward, fetch and route messages until cancelled."""
        await self.scheduler.run()

    def message_arrived(self, mailbox: bytes) -> None:
        """There is a message in a mailbox."""
        self.scheduler.message_arrived(mailbox)

    @property
    def presence(self) -> Presence:
        """The presence of peers."""
        return self.context.presence

    def queued(self, peer: bytes) -> int:
        """The number of messages that wait for the peer."""
        return self.context.local.count(mailbox_of(peer))

    def on_status(self, callback: OnDeliveryStatus) -> None:
        """Call `callback` with every new status of a sent message."""
        self.context.on_status.append(callback)

    def on_prekey(self, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with the public key of a peer that has a new prekey."""
        self.context.on_prekey.append(callback)

    def can_seal(self, peer: bytes, ttl: float = 0.0) -> bool:
        """True if a prekey is valid for the lifetime of such a message."""
        return self._prekey(peer, ttl) is not None

    async def send(
        self,
        peer: bytes,
        channel: bytes,
        plaintext: bytes,
        ttl: float = 0.0,
        uuid: bytes | None = None,
    ) -> QueuedMessage:
        """Seal a message and store it in the mailbox of the peer, from where it is forwarded.

        `ttl` is in seconds, at most that of the node; 0 is as long as the node and the prekey
        allow. `uuid` (16 bytes) identifies the message: a second call with it sends nothing new.
        Messages to one peer are forwarded in the order of the calls. Returns when the message is
        stored.

        Raises UnknownPeer, NoPrekey (a prekey of the peer is then requested), and the errors of a
        PUT.
        """
        self._check(peer, channel, plaintext)
        if uuid is None:
            uuid = self.context.entropy(UUID_BYTES)
            return await self._send(peer, channel, plaintext, ttl, uuid)
        known = self._recent.get((peer, uuid))
        return await (known or self._send_named(peer, channel, plaintext, ttl, uuid))

    async def _send_named(
        self, peer: bytes, channel: bytes, plaintext: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        """Send, and remember the message by its uuid if it was stored."""
        queued = self._recent[peer, uuid] = ReplyFuture()
        if len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        error: RequestError = OutcomeUnknown()
        try:
            stored = await self._send(peer, channel, plaintext, ttl, uuid)
            queued.resolve(stored)
            return stored
        except RequestError as reason:
            error = reason
            raise
        finally:
            if not queued.done:
                queued.fail(error)
                self._recent.pop((peer, uuid), None)

    async def _on_status(self, peer: bytes, uuid: bytes, status: DeliveryStatus) -> None:
        """A message that does not arrive may be sent again."""
        if status is not DeliveryStatus.SENT:
            self._recent.pop((peer, uuid), None)

    async def _send(
        self, peer: bytes, channel: bytes, plaintext: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        async with self._locks.setdefault(peer, anyio.Lock()):
            prekey = self._prekey(peer, ttl) or await self._prekey_of_card(peer, ttl)
            if prekey is None:
                self.scheduler.request_prekey(peer)
                raise NoPrekey
            relayed = await self._seal(peer, prekey, channel, plaintext, uuid, ttl)
            ttl_s = ceil(relayed.deadline - self.context.now())
            put = Put(
                envelope_idempotency_key(relayed.envelope),
                max(1, ttl_s),
                encode_relayed_message(relayed),
            )
            answer = self.context.local.put_nowait(mailbox_of(peer), put)
        try:
            stored = await answer
        except KeyReused:
            stored = await self._put_with_other_key(peer, put, relayed)
        assert isinstance(stored, PutAck)
        return QueuedMessage(uuid, stored.id, stored.ttl)

    async def open(self, channel: bytes, envelope: bytes) -> OpenedEnvelope:
        """Open an envelope that was sealed for this node and `channel`. Raises CannotOpen.

        The caller checks whether `sender` is known and trusted.
        """
        context = self.context
        work = partial(
            open_envelope,
            envelope,
            recipient=context.identity,
            prekey_of=context.prekeys.private,
            channel=channel,
        )
        return await anyio.to_thread.run_sync(work)

    def _check(self, peer: bytes, channel: bytes, plaintext: bytes) -> None:
        if peer == self.context.identity.public or not self.context.book.is_trusted(peer):
            raise UnknownPeer
        if not is_channel_name(channel) or not accepts_relayed(channel):
            raise NotAllowed("messages to peers cannot name this channel")
        if not plaintext:
            raise EmptyData
        size = OVERHEAD_BYTES + len(channel) + len(plaintext) + SEALED_BYTES
        if size > self.context.settings.message_bytes_max:
            raise DataTooLarge

    def _prekey(self, peer: bytes, ttl: float) -> SignedPrekey | None:
        needed_s = min(ttl, self.context.settings.ttl_s) if ttl else TTL_S_MIN
        return self.context.prekey_cache.best(peer, self.context.now() + needed_s)

    async def _prekey_of_card(self, peer: bytes, ttl: float) -> SignedPrekey | None:
        """A prekey from the card of a peer that was just added, or whose card is not read yet."""
        found = self.context.book.by_public(peer)
        if found is None or not found.card:
            return None
        await learn_from_cards(self.context, [found], set())
        return self._prekey(peer, ttl)

    async def _seal(
        self,
        peer: bytes,
        prekey: SignedPrekey,
        channel: bytes,
        plaintext: bytes,
        uuid: bytes,
        ttl: float,
    ) -> RelayedMessage:
        now, most = self.context.now(), self.context.settings.ttl_s
        deadline = ceil(now + min(ttl or prekey.good_until - now, most))
        work = partial(
            seal,
            plaintext,
            sender=self.context.identity,
            recipient=peer,
            prekey=prekey.public,
            channel=channel,
            uuid=uuid,
            entropy=self.context.entropy,
        )
        return RelayedMessage(0, deadline, peer, channel, await anyio.to_thread.run_sync(work))

    async def _put_with_other_key(self, peer: bytes, put: Put, relayed: RelayedMessage) -> PutAck:
        """Resolve a taken idempotency key: it belongs to this message, or to another one."""
        local, mailbox, uuid = self.context.local, mailbox_of(peer), envelope_uuid(relayed.envelope)
        for row in local.messages(mailbox):
            stored = decode_relayed_message(row.data)
            if envelope_uuid(stored.envelope) == uuid:
                return PutAck(row.key, row.ttl, row.id)
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            key = envelope_idempotency_key(relayed.envelope, attempt, put.data)
            try:
                return await local.put(mailbox, Put(key, put.ttl, put.data))
            except KeyReused:
                continue
        raise BufferFull("no idempotency key is left for this message")
