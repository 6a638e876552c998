"""Mailboxes: the channels `mail/<peer id>` with the messages for a peer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.channels.publish import Publisher, Sweeper
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import Attach, Batch, Failed, Mode, Port, Put, PutAck, Reply
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import SENDER_SHIFT, Snapshot, StoredMessage
from millpond.node.outbox.relayed_message import MalformedRelayedMessage, decode_relayed_message
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.transports.server.rate_limit import TokenBucket

PREFIX = b"mail/"
KEYS_SUFFIX = b"!keys"
DEAD_SUFFIX = b"!dead"

SENDER_PER_S, SENDER_BURST = 100, 10_000
"""The rate of a sender in one mailbox: what a long absence has left comes at once."""
SENDERS_MAX = 10_000
OWNERS_CACHED = 1024
PREKEYS_MAX, PREKEYS_BYTES_MAX = 1000, 2**20
STRANGERS = bytes(32)
"""The identity of all senders together that the node does not know: nobody has this key."""

OnMessage = Callable[[bytes], None]
"""A callback with the name of a mailbox that is not empty."""


@lru_cache(maxsize=OWNERS_CACHED)
def mailbox_of(public: bytes) -> bytes:
    """The name of the mailbox of the peer with this public key."""
    return PREFIX + peer_id(public).encode()


@lru_cache(maxsize=OWNERS_CACHED)
def owner_of(channel: bytes) -> bytes | None:
    """The public key of the owner of a mailbox, its dead letters or its prekeys; None for
    others."""
    if not channel.startswith(PREFIX):
        return None
    name = channel.removeprefix(PREFIX).partition(b"!")[0]
    try:
        return public_key_of(name.decode("ascii"))
    except (BadPeerId, UnicodeDecodeError):
        return None


def is_mailbox(channel: bytes) -> bool:
    """True for mailboxes and for the dead letters of mailboxes."""
    return not channel.endswith(KEYS_SUFFIX) and owner_of(channel) is not None


def is_prekeys(channel: bytes) -> bool:
    """True for the channel with the prekeys of a peer."""
    return channel.endswith(KEYS_SUFFIX) and owner_of(channel) is not None


def rule_name_of(channel: bytes) -> bytes | None:
    """The name by which the configured rules find a channel; None for a mailbox, its dead letters
    and its prekeys: they are the node's own, and no rule matches them."""
    return None if owner_of(channel) is not None else channel


class Share:
    """The messages and bytes of a sender in a mailbox."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, messages: int, size: int) -> None:
        """Count messages of a size, or (below 0) count them no more."""
        self.messages += messages
        self.bytes += messages * size

    def fits(self, size: int, messages_max: int, bytes_max: int) -> bool:
        """True if one more message of a size is within limits; a first one always is."""
        if not self.messages:
            return True
        return self.messages < messages_max and self.bytes + size <= bytes_max


NOTHING = Share()


class MailPublisher(Publisher):
    """The way of a new message into a mailbox, which stops other nodes from filling it.

    Messages of this node itself come from the connection `own_source`, and are limited as in any
    channel. All others have to be relayed messages for the owner, with at least one hop, as the
    others count as sent here, and are reported. They leave room: three quarters of the mailbox are
    for them together, a quarter for each sender, and half of the node. A sender is an identity.
    Identities that the node does not know, and which come by the delivery token of the owner, are
    one sender together: new ones cost nothing. A client without an identity has a grant of its own
    for this: it has no share, but a rate.
    """

    __slots__ = ("_by_sender", "_others", "_own_source", "_owner", "_rates", "_shared")

    def __init__(
        self,
        owner: bytes,
        buffer: Buffer,
        keys: IdempotencyKeys,
        settings: ChannelSettings,
        context: ChannelContext,
        own_source: int,
    ) -> None:
        super().__init__(buffer, keys, settings, context, Mode.PAIR)
        self._owner = owner
        self._own_source = own_source
        self._shared = context
        self._by_sender: dict[int, Share] = {}
        self._others = Share()
        self._rates: OrderedDict[int, TokenBucket] = OrderedDict()
        for row in buffer.rows.values():
            self._count(row, 1)

    def put(
        self, put: Put, source: int, now: float, effects: Effects, sweeper: Sweeper
    ) -> Reply | None:
        """The answer to a PUT; see `Publisher.put`."""
        if source == self._own_source or self.is_known(put, now):
            return super().put(put, source, now, effects, sweeper)
        sender = put.key >> SENDER_SHIFT
        refusal = self._form_refusal(put.data) or self._share_refusal(sender, len(put.data))
        if refusal is not None:
            return Failed(put, refusal)
        delay_ms = self._rate_of(sender, now).take(now)
        if delay_ms:
            return Failed(put, Code.SLOW_DOWN, delay_ms)
        reply = super().put(put, source, now, effects, sweeper)
        if isinstance(reply, PutAck):
            self._count(self.added[-1], 1)
        return reply

    def forget(self, row: StoredMessage) -> None:
        """A message was removed."""
        self._count(row, -1)

    def _count(self, row: StoredMessage, sign: int) -> None:
        if row.sender:
            share = self._by_sender.setdefault(row.sender, Share())
            share.add(sign, len(row.data))
            self._others.add(sign, len(row.data))
            if not share.messages:
                del self._by_sender[row.sender]

    def _form_refusal(self, data: bytes) -> Code | None:
        try:
            relayed = decode_relayed_message(data)
        except MalformedRelayedMessage:
            return Code.MALFORMED
        if not relayed.hops:
            return Code.MALFORMED
        return None if relayed.recipient == self._owner else Code.NOT_ALLOWED

    def _share_refusal(self, sender: int, size: int) -> Code | None:
        settings, limits, usage = self._settings, self._shared.limits, self._shared.usage
        share = self._by_sender.get(sender, NOTHING)
        has_room = (
            share.fits(size, settings.messages_max // 4, settings.bytes_max // 4)
            and self._others.fits(size, settings.messages_max * 3 // 4, settings.bytes_max * 3 // 4)
            and usage.messages < limits.messages_max // 2
            and usage.bytes + size <= limits.bytes_max // 2
        )
        return None if has_room else Code.BUFFER_FULL

    def _rate_of(self, sender: int, now: float) -> TokenBucket:
        bucket = self._rates.get(sender)
        if bucket is None:
            bucket = self._rates[sender] = TokenBucket(SENDER_PER_S, now, SENDER_BURST)
            if len(self._rates) > SENDERS_MAX:
                self._rates.popitem(last=False)
        self._rates.move_to_end(sender)
        return bucket


class Mailbox(Channel):
    """A channel with the messages for the owner of a key, or with dead ones among them.

    It calls `on_message` after each batch that leaves messages in it. The call is only a hint, made
    before the messages are durable. A consumer attaches to the channel then, and gets the messages
    once they are. `own_source` is the number of the connection of this node itself; `is_known` is
    true for the keys of its contacts and relays.
    """

    __slots__ = ("_is_known", "_mail", "_on_message")

    def __init__(
        self,
        name: bytes,
        snapshot: Snapshot,
        attachments: dict[Port, Attach],
        settings: ChannelSettings,
        context: ChannelContext,
        on_message: OnMessage,
        own_source: int,
        is_known: Callable[[bytes], bool],
    ) -> None:
        super().__init__(name, snapshot, attachments, settings, context)
        self._on_message = on_message
        self._is_known = is_known
        owner = owner_of(name)
        assert owner is not None
        self._mail = MailPublisher(owner, self.buffer, self.keys, settings, context, own_source)
        self._mail.use_mode(self.delivery.mode)
        self.publisher = self._mail

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = super().handle(batch, now)
        if self.buffer.rows:
            self._on_message(self.name)
        return effects

    def _put_identified(
        self, identity: bytes, port: Port, put: Put, now: float, effects: Effects
    ) -> Reply | None:
        sender = identity if self._is_known(identity) else STRANGERS
        return super()._put_identified(sender, port, put, now, effects)

    def remove(self, message_id: int, effects: Effects) -> None:
        row = self.buffer.rows.get(message_id)
        super().remove(message_id, effects)
        if row is not None:
            self._mail.forget(row)


def prekeys_settings(settings: ChannelSettings) -> ChannelSettings:
    """The settings of the channel with the prekeys of a peer: a few small messages."""
    return msgspec.structs.replace(
        settings, messages_max=PREKEYS_MAX, bytes_max=PREKEYS_BYTES_MAX, tee=b""
    )


def mailbox_settings(settings: ChannelSettings, ttl_s: int) -> ChannelSettings:
    """The settings of a mailbox: messages that are not fetched in time become dead letters."""
    return msgspec.structs.replace(
        settings,
        mode=Mode.PAIR,
        ttl_default=min(ttl_s, settings.ttl_max),
        dead_letter_expired=True,
        tee=b"",
    )
