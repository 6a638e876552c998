"""Mailboxes: the channels `mail/<peer id>` with the messages for a peer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import Attach, Batch, Mode, Port
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Snapshot
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of

PREFIX = b"mail/"
KEYS_SUFFIX = b"!keys"
DEAD_SUFFIX = b"!dead"

OnMessage = Callable[[bytes], None]
"""A callback with the name of a mailbox that is not empty."""


def mailbox_of(public: bytes) -> bytes:
    """The name of the mailbox of the peer with this public key."""
    return PREFIX + peer_id(public).encode()


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


def rule_name_of(channel: bytes) -> bytes | None:
    """The name by which the configured rules find a channel; None for a mailbox, its dead letters
    and its prekeys: they are the node's own, and no rule matches them."""
    return None if owner_of(channel) is not None else channel


class Mailbox(Channel):
    """A channel that calls `on_message` after each batch that leaves messages in it.

    The call is only a hint, made before the messages are durable. A consumer attaches to the
    channel then, and gets the messages once they are.
    """

    __slots__ = ("_on_message",)

    def __init__(
        self,
        name: bytes,
        snapshot: Snapshot,
        attachments: dict[Port, Attach],
        settings: ChannelSettings,
        context: ChannelContext,
        on_message: OnMessage,
    ) -> None:
        super().__init__(name, snapshot, attachments, settings, context)
        self._on_message = on_message

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = super().handle(batch, now)
        if self.buffer.rows:
            self._on_message(self.name)
        return effects


def mailbox_settings(settings: ChannelSettings, ttl_s: int) -> ChannelSettings:
    """The settings of a mailbox: messages that are not fetched in time become dead letters."""
    return msgspec.structs.replace(
        settings,
        mode=Mode.PAIR,
        ttl_default=min(ttl_s, settings.ttl_max),
        dead_letter_expired=True,
        tee=b"",
    )
