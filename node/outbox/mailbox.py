"""Mailboxes: the channels `mail/<peer id>`, whose names they have, and word of what is in them."""

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

Notice = Callable[[bytes], None]
"""Hears the name of a mailbox that holds something."""


def mailbox_of(public: bytes) -> bytes:
    """The channel for the mail of the holder of this public key."""
    return PREFIX + peer_id(public).encode()


def owner_of(channel: bytes) -> bytes | None:
    """Whose mailbox, dead letters or prekeys these are: a public key; None for other channels."""
    if not channel.startswith(PREFIX):
        return None
    name = channel.removeprefix(PREFIX).partition(b"!")[0]
    try:
        return public_key_of(name.decode("ascii"))
    except (BadPeerId, UnicodeDecodeError):
        return None


def is_mailbox(channel: bytes) -> bool:
    """Is it a mailbox, or the dead letters of one?"""
    return not channel.endswith(KEYS_SUFFIX) and owner_of(channel) is not None


class Mailbox(Channel):
    """A channel that gives notice after each batch that leaves something in it.

    A hint, before it is durable: who hears it joins the channel, and is pushed what is kept.
    """

    __slots__ = ("_notice",)

    def __init__(
        self,
        name: bytes,
        kept: Snapshot,
        guests: dict[Port, Attach],
        settings: ChannelSettings,
        shared: ChannelContext,
        notice: Notice,
    ) -> None:
        super().__init__(name, kept, guests, settings, shared)
        self._notice = notice

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = super().handle(batch, now)
        if self._buffer.rows:
            self._notice(self._name)
        return effects


def mailbox_settings(settings: ChannelSettings, ttl_s: int) -> ChannelSettings:
    """A mailbox keeps what its owner does not fetch in time as dead letters."""
    return msgspec.structs.replace(
        settings,
        mode=Mode.PAIR,
        ttl_default=min(ttl_s, settings.ttl_max),
        dead_letter_expired=True,
        tee=b"",
    )
