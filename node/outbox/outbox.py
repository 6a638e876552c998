"""The post of a node: seals and keeps what is sent, opens what came, and has the rest carried."""

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
from millpond.node.outbox.inbound import is_open
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
NAMED_MAX = 4096
"""So many of the latest messages with a name are known by it when they were carried away."""
TTL_S_LEAST = 3600.0
"""Where nobody said how long, a prekey that is good for so long will do."""
SEALED_BYTES = 230
"""At most what sealing adds."""


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message is kept here for `ttl` seconds, as letter `id`, until it is carried away."""

    uuid: bytes
    id: int
    ttl: int


class Outbox:
    """One per node. `run` it as a task; everything else is called in the same loop."""

    def __init__(self, office: OutboxContext) -> None:
        self.context = office
        self.rounds = OutboxScheduler(office)
        self._lines: dict[bytes, anyio.Lock] = {}
        self._named: dict[tuple[bytes, bytes], ReplyFuture[QueuedMessage]] = {}
        """By peer and uuid, in the order of the calls."""
        office.on_report.append(self._hear)

    async def run(self) -> None:
        """Sort, carry, fetch and report, until cancelled."""
        await self.rounds.run()

    def notice(self, mailbox: bytes) -> None:
        """There is something in a mailbox."""
        self.rounds.notice(mailbox)

    @property
    def presence(self) -> Presence:
        """Who is here."""
        return self.context.presence

    def queued(self, peer: bytes) -> int:
        """How many letters for the peer wait here."""
        return self.context.local.count(mailbox_of(peer))

    def on_report(self, hear: OnDeliveryStatus) -> None:
        """Hear what becomes of messages that were sent."""
        self.context.on_report.append(hear)

    def on_prekey(self, hear: Callable[[bytes], None]) -> None:
        """Hear that there is a new prekey of a peer: what could not be sealed can be now."""
        self.context.on_prekey.append(hear)

    def can_seal(self, peer: bytes, ttl: float = 0.0) -> bool:
        """Is there a prekey that is good for as long as such a message may live?"""
        return self._prekey(peer, ttl) is not None

    async def send(
        self, peer: bytes, channel: bytes, clear: bytes, ttl: float = 0.0, uuid: bytes | None = None
    ) -> QueuedMessage:
        """Seal a message and keep it for the peer, to whom it goes when it is there.

        `ttl` in seconds, at most the node's; 0 is as long as the node and the prekey allow. `uuid`
        (16 bytes) names the message: sent again under the same one, it is the same message.
        Messages to one peer are carried in the order of the calls. Returns once it is kept here.

        Raises UnknownPeer, NoPrekey (a peer's next prekey is asked for), and what a PUT raises.
        """
        self._check(peer, channel, clear)
        if uuid is None:
            uuid = self.context.entropy(UUID_BYTES)
            return await self._send(peer, channel, clear, ttl, uuid)
        known = self._named.get((peer, uuid))
        return await (known or self._send_named(peer, channel, clear, ttl, uuid))

    async def _send_named(
        self, peer: bytes, channel: bytes, clear: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        """Have it known by its name, unless it was not kept."""
        sent = self._named[peer, uuid] = ReplyFuture()
        if len(self._named) > NAMED_MAX:
            del self._named[next(iter(self._named))]
        error: RequestError = OutcomeUnknown()
        try:
            kept = await self._send(peer, channel, clear, ttl, uuid)
            sent.resolve(kept)
            return kept
        except RequestError as reason:
            error = reason
            raise
        finally:
            if not sent.done:
                sent.fail(error)
                self._named.pop((peer, uuid), None)

    async def _hear(self, peer: bytes, uuid: bytes, fate: DeliveryStatus) -> None:
        """What will not arrive may be sent again."""
        if fate is not DeliveryStatus.SENT:
            self._named.pop((peer, uuid), None)

    async def _send(
        self, peer: bytes, channel: bytes, clear: bytes, ttl: float, uuid: bytes
    ) -> QueuedMessage:
        async with self._lines.setdefault(peer, anyio.Lock()):
            prekey = self._prekey(peer, ttl) or await self._prekey_of_card(peer, ttl)
            if prekey is None:
                self.rounds.ask_for_key(peer)
                raise NoPrekey
            letter = await self._sealed(peer, prekey, channel, clear, uuid, ttl)
            ttl_s = ceil(letter.deadline - self.context.now())
            put = Put(
                envelope_idempotency_key(letter.envelope),
                max(1, ttl_s),
                encode_relayed_message(letter),
            )
            answer = self.context.local.put_soon(mailbox_of(peer), put)
        try:
            kept = await answer
        except KeyReused:
            kept = await self._put_again(peer, put, letter)
        assert isinstance(kept, PutAck)
        return QueuedMessage(uuid, kept.id, kept.ttl)

    async def open(self, channel: bytes, envelope: bytes) -> OpenedEnvelope:
        """What was sealed for us in `channel`. Raises CannotOpen.

        The caller asks whether it knows `sender`, and whether it may say such things.
        """
        office = self.context
        work = partial(
            open_envelope,
            envelope,
            recipient=office.identity,
            prekey_of=office.prekeys.private,
            channel=channel,
        )
        return await anyio.to_thread.run_sync(work)

    def _check(self, peer: bytes, channel: bytes, clear: bytes) -> None:
        if peer == self.context.identity.public or not self.context.book.is_trusted(peer):
            raise UnknownPeer
        if not is_channel_name(channel) or not is_open(channel):
            raise NotAllowed("letters cannot be for this channel")
        if not clear:
            raise EmptyData
        size = OVERHEAD_BYTES + len(channel) + len(clear) + SEALED_BYTES
        if size > self.context.settings.letter_bytes_max:
            raise DataTooLarge

    def _prekey(self, peer: bytes, ttl: float) -> SignedPrekey | None:
        needed_s = min(ttl, self.context.settings.ttl_s) if ttl else TTL_S_LEAST
        return self.context.known.best(peer, self.context.now() + needed_s)

    async def _prekey_of_card(self, peer: bytes, ttl: float) -> SignedPrekey | None:
        """Of a peer who was added right now, or whose card is not read yet after the start."""
        found = self.context.book.by_public(peer)
        if found is None or not found.card:
            return None
        await learn_from_cards(self.context, [found], set())
        return self._prekey(peer, ttl)

    async def _sealed(
        self,
        peer: bytes,
        prekey: SignedPrekey,
        channel: bytes,
        clear: bytes,
        uuid: bytes,
        ttl: float,
    ) -> RelayedMessage:
        now, most = self.context.now(), self.context.settings.ttl_s
        deadline = ceil(now + min(ttl or prekey.good_until - now, most))
        work = partial(
            seal,
            clear,
            sender=self.context.identity,
            recipient=peer,
            prekey=prekey.public,
            channel=channel,
            uuid=uuid,
            entropy=self.context.entropy,
        )
        return RelayedMessage(0, deadline, peer, channel, await anyio.to_thread.run_sync(work))

    async def _put_again(self, peer: bytes, put: Put, letter: RelayedMessage) -> PutAck:
        """The key was used: for this very message, or for another whose key is the same."""
        local, mailbox, uuid = self.context.local, mailbox_of(peer), envelope_uuid(letter.envelope)
        for row in local.rows(mailbox):
            kept = decode_relayed_message(row.data)
            if envelope_uuid(kept.envelope) == uuid:
                return PutAck(row.key, row.ttl, row.id)
        for attempt in range(1, KEYS_TRIED_MAX + 1):
            key = envelope_idempotency_key(letter.envelope, attempt, put.data)
            try:
                return await local.put(mailbox, Put(key, put.ttl, put.data))
            except KeyReused:
                continue
        raise BufferFull("no key is left for this message")
