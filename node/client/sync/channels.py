"""Blocking channels by name: `with connect_channels(url) as channels`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import partial

from millpond.node.client.channels import Channels as AsyncChannels
from millpond.node.client.channels import connect_channels as connect_channels_async
from millpond.node.client.connect import ModeName
from millpond.node.client.events import Event
from millpond.node.client.sync.portal import BlockingContext
from millpond.transports.p2p.channel_operations import ChannelInfo as ChannelInfo
from millpond.transports.p2p.handshake import Signer


class Channels(BlockingContext[AsyncChannels]):
    """The channels of a node by name. Tasks may share it.

    It is open within `with`, or from `open` to `close`. Methods raise RequestErrors,
    ConnectionLost, ClientClosed, and OutcomeUnknown where the connection was lost before the reply.
    A channel that was not created exists as long as it has a message, a key of one or a connection.
    """

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return self._async.connected

    def create(self, name: str | bytes, mode: ModeName = "pair", *, exist_ok: bool = False) -> None:
        """Create a channel in a mode that stays: while it is empty, and over restarts.

        Needs the right `admin` in it. Raises ChannelExists where it was created before, unless
        `exist_ok` and in this mode, and where it is in use, or configured, in another mode.
        """
        self._await(self._async.create, name, mode, exist_ok=exist_ok)

    def delete(self, name: str | bytes) -> int:
        """Delete a channel with its messages, the keys of its puts, its subscribers that are away
        and its mode; gives the number of messages. Needs the right `admin` in it.

        Connections stay: for them, and for messages that are put meanwhile, it is a new channel.
        Raises UnknownChannel.
        """
        return self._await(self._async.delete, name)

    def purge(self, name: str | bytes) -> int:
        """Remove the messages that the channel has now, those with consumers as well; gives their
        number. Needs the right `ack` in it. Raises UnknownChannel.
        """
        return self._await(self._async.purge, name)

    def describe(self, name: str | bytes) -> ChannelInfo:
        """The state of a channel. Needs the right `list` in it: without that there is none.
        Raises UnknownChannel.
        """
        return self._await(self._async.describe, name)

    def list(self, *patterns: str | bytes) -> Iterator[ChannelInfo]:
        """The channels whose names match one of the patterns, all by default, by name.

        `*` is any text, `?` any character, `[ab]` one of these. Those in which the client has the
        right `list`; the node's own channels have a `!` in their names.
        """
        return self._iterate(self._async.list(*patterns))


def connect_channels(
    url: str,
    *,
    token: str | bytes | None = None,
    identity: Signer | None = None,
    peer: bytes | None = None,
    on_peer: Callable[[bytes], None] | None = None,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    reconnect: bool = True,
    wait_s: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
) -> Channels:
    """The channels of the node at `url` by name, for the block; see `millpond.connect`."""
    return Channels(
        partial(
            connect_channels_async,
            url,
            token=token,
            identity=identity,
            peer=peer,
            on_peer=on_peer,
            tls=tls,
            allow_plain=allow_plain,
            reconnect=reconnect,
            wait_s=wait_s,
            on_event=on_event,
        )
    )
