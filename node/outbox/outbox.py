"""The outbox of a node: messages to peers are sealed, stored, and forwarded when the peer is
online."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, inf

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
    StorageFailed,
    UnknownPeer,
)
from millpond.actors.messages import Put, PutAck
from millpond.node.client.future import ReplyFuture
from millpond.node.outbox.context import (
    DeliveryStatus,
    OnDeliveryStatus,
    OutboxContext,
    StrangerMessages,
)
from millpond.node.outbox.deliveries import Deliveries
from millpond.node.outbox.inbound import InboundRouter, accepts_relayed
from millpond.node.outbox.key_exchange import learn_from_cards
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.relayed_message import (
    OVERHEAD_BYTES,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    relayed_idempotency_key,
)
from millpond.node.outbox.scheduling import OutboxScheduler
from millpond.node.peers.delivery_token import DeliveryToken
from millpond.node.peers.envelope import (
    UUID_BYTES,
    OpenedEnvelope,
    envelope_uuid,
    open_envelope,
    seal,
)
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.identity import peer_id
from millpond.node.peers.local_envelope import is_local
from millpond.node.peers.prekeys import SignedPrekey
from millpond.node.peers.sealed_message import sealed_size_max
from millpond.transports.p2p.admission import is_channel_name

log = logging.getLogger(__name__)

KEYS_TRIED_MAX = 4
RECENT_MAX = 4096
"""The number of recent messages whose uuids are remembered after they were forwarded."""
REFUSED_LOGGED_EVERY_S = 60.0
"""The least time between two lines of the log about refused messages of one peer."""
TOKENS_READ_EVERY_S = 2.0
TTL_S_MIN = 3600.0
"""The least lifetime of a prekey for a message without a time to live."""


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message that is stored in the mailbox under `id`, for at most `ttl` seconds."""

    uuid: bytes
    id: int
    ttl: int


class _Refused(msgspec.Struct):
    """The messages that a peer has refused since the start."""

    count: int = 0
    logged_at: float = -inf


class Outbox:
    """The outbox of a node. `run` is its task; everything else is called in the same loop."""

    def __init__(self, context: OutboxContext, strangers: StrangerMessages | None = None) -> None:
        """`strangers` keeps messages of unknown senders; None: they are dropped."""
        self.context = context
        self._deliveries = Deliveries(context)
        inbound = InboundRouter(context, self._deliveries, strangers)
        self.scheduler = OutboxScheduler(context, inbound)
        self._refused: dict[bytes, _Refused] = {}
        self._recent: dict[tuple[bytes, bytes], ReplyFuture[QueuedMessage]] = {}
        """By peer and uuid, in the order of the calls."""
        context.on_status.append(self._on_status)

    async def run(self) -> None:
        """Forward, fetch and route messages until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliveries.run)
            tasks.start_soon(self._watch_delivery_tokens)
            await self.scheduler.run()

    async def _watch_delivery_tokens(self) -> None:
        """Use new delivery keys, and give them to relays, soon after a command has changed the
        tokens."""
        before: list[DeliveryToken] | None = None
        known = self.context.delivery_tokens
        read = known.valid if self.context.settings.via else known.existing
        while True:
            try:
                tokens = await anyio.to_thread.run_sync(read)
            except (DeliveryTokenError, OSError) as error:
                if before != []:
                    log.error("delivery tokens not read: %s", error)
                tokens = []
            self.context.own_delivery_keys.use(tokens)
            if self.context.settings.via and before is not None and tokens != before:
                self.scheduler.publish_again()
            before = tokens
            await anyio.sleep(TOKENS_READ_EVERY_S)

    def message_arrived(self, mailbox: bytes) -> None:
        """There is a message in a mailbox."""
        self.scheduler.message_arrived(mailbox)

    @property
    def presence(self) -> Presence:
        """The presence of peers."""
        return self.context.presence

    def queued(self, peer: bytes) -> int:
        """The number of messages that wait for the peer, here or on their way."""
        return self.context.local.count(mailbox_of(peer))

    def unconfirmed(self, peer: bytes) -> int:
        """The number of messages to a peer without a receipt."""
        return self._deliveries.count(peer)

    def on_status(self, callback: OnDeliveryStatus) -> None:
        """Call `callback` with every new status of sent messages."""
        self.context.on_status.append(callback)

    def on_prekey(self, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with the public key of a peer that has a new prekey."""
        self.context.on_prekey.append(callback)

    def can_seal(self, peer: bytes, ttl: float = 0.0) -> bool:
        """True if such a message can be sealed now."""
        return self._deliveries.prekey_for(peer, 0.0) is not None or (
            not self._speaks_v2(peer) and self._prekey_v1(peer, ttl) is not None
        )

    def version(self, peer: bytes) -> int:
        """The version of the messages that a peer reads, as far as this node knows."""
        return 2 if self._speaks_v2(peer) else 1

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

    async def _on_status(self, peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        """Messages that do not arrive may be sent again; the log has those that are refused."""
        if status in (DeliveryStatus.EXPIRED, DeliveryStatus.REFUSED):
            for uuid in uuids:
                self._recent.pop((peer, uuid), None)
                if status is DeliveryStatus.REFUSED:
                    self._log_refused(peer, uuid)

    def _log_refused(self, peer: bytes, uuid: bytes) -> None:
        now = self.context.now()
        refused = self._refused.setdefault(peer, _Refused())
        refused.count += 1
        if 0 <= now - refused.logged_at < REFUSED_LOGGED_EVERY_S:
            return
        refused.logged_at = now
        text = "message refused: by=%s uuid=%s refused=%d"
        log.warning(text, peer_id(peer), uuid.hex(), refused.count)

    async def _send(
        self, peer: bytes, channel: bytes, plaintext: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        context, deliveries = self.context, self._deliveries
        kept = deliveries.kept(peer, uuid)
        if kept is None:
            await self._learn_from_card(peer)
            deadline = context.latest() + min(ttl or inf, context.settings.ttl_s)
            try:
                if deliveries.prekey_for(peer, deadline) is not None:
                    kept = await deliveries.send(peer, channel, plaintext, deadline, uuid)
            except OSError as error:
                raise StorageFailed(str(error)) from error
        if kept is not None:
            ttl_s = ceil(kept.deadline / 1000 - context.latest())
            return QueuedMessage(uuid, kept.mailbox_id, max(1, ttl_s))
        return await self._send_v1(peer, channel, plaintext, ttl, uuid)

    async def _send_v1(
        self, peer: bytes, channel: bytes, plaintext: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        """Send to a peer of version 1."""
        async with self._deliveries.lock(peer):
            prekey = None if self._speaks_v2(peer) else self._prekey_v1(peer, ttl)
            if prekey is None:
                self.scheduler.request_prekey(peer)
                raise NoPrekey
            log.info("message sent by version 1: to=%s", peer_id(peer))
            relayed = await self._seal_v1(peer, prekey, channel, plaintext, uuid, ttl)
            ttl_s = ceil(relayed.deadline - self.context.now())
            put = Put(
                relayed_idempotency_key(relayed),
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
        """Open a message of `channel`: it is sealed for this disk, or by version 1 for this node.

        The caller checks whether `sender` is a contact. Raises CannotOpen.
        """
        context = self.context
        if is_local(envelope):
            return context.local_key.open(envelope, channel)
        work = partial(
            open_envelope,
            envelope,
            recipient=context.identity,
            prekey_of=context.prekeys.private,
            channel=channel,
        )
        return await anyio.to_thread.run_sync(work)

    def _check(self, peer: bytes, channel: bytes, plaintext: bytes) -> None:
        if peer == self.context.identity.public or not self.context.book.is_contact(peer):
            raise UnknownPeer
        if not is_channel_name(channel) or not accepts_relayed(channel):
            raise NotAllowed("messages to peers cannot name this channel")
        if not plaintext:
            raise EmptyData
        size = OVERHEAD_BYTES + sealed_size_max(len(plaintext), len(channel))
        if size > self.context.settings.message_bytes_max:
            raise DataTooLarge

    def _speaks_v2(self, peer: bytes) -> bool:
        return self.context.store.state(peer).speaks_v2

    def _prekey_v1(self, peer: bytes, ttl: float) -> SignedPrekey | None:
        needed_s = min(ttl, self.context.settings.ttl_s) if ttl else TTL_S_MIN
        return self.context.prekey_cache.best(peer, self.context.now() + needed_s)

    async def _learn_from_card(self, peer: bytes) -> None:
        """Learn the prekey of the card of a peer that was just added."""
        if self.can_seal(peer):
            return
        found = self.context.book.by_public(peer)
        if found is not None and found.card:
            await learn_from_cards(self.context, [found], set())

    async def _seal_v1(
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
            if stored.is_version_1 and envelope_uuid(stored.envelope) == uuid:
                return PutAck(row.key, row.ttl, row.id)
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            key = relayed_idempotency_key(relayed, attempt, put.data)
            try:
                return await local.put(mailbox, Put(key, put.ttl, put.data))
            except KeyReused:
                continue
        raise BufferFull("no idempotency key is left for this message")
