"""The channels of a node by name: create, describe, list, purge and delete them.

`async with connect_channels("tcp://127.0.0.1:7400") as channels`. Every operation needs a right in
the channel that it names (docs/guides/access.md).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from millpond.actors.errors import ChannelExists, UnknownChannel
from millpond.node.client.channel import Join, ModeName, join_of, link_of
from millpond.node.client.connect import connect
from millpond.node.client.events import Event
from millpond.node.client.link import Link
from millpond.node.client.node_requests import NodeRequests
from millpond.node.client.openable import Client
from millpond.node.client.probe import PROBE
from millpond.node.client.receiver import Receiver
from millpond.node.client.settings import DEFAULT_SETTINGS, ConnectSettings
from millpond.node.error_groups import single_errors
from millpond.transports.p2p import channel_operations as b
from millpond.transports.p2p.channel_operations import ChannelInfo as ChannelInfo
from millpond.transports.p2p.channel_operations import ChannelOperation
from millpond.transports.p2p.handshake import Signer


class ChannelsConnection(NamedTuple):
    """The parts of open `Channels`."""

    link: Link
    join: Join


class Channels(Client[ChannelsConnection]):
    """The channels of a node by name. Tasks may share it.

    It is open within `async with`, or from `open` to `close`. Methods raise RequestErrors,
    ConnectionLost, ClientClosed, and OutcomeUnknown where the connection was lost before the reply.
    A channel that was not created exists as long as it has a message, a key of one or a connection.
    """

    _requests: NodeRequests
    _join: Join
    _of_connection = frozenset({"_requests", "_join"})

    def _use(self, connection: ChannelsConnection) -> None:
        self._requests = NodeRequests(connection.link)
        self._join = connection.join

    async def _end(self) -> None:
        await self._requests.link.stop()

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return "_requests" in self.__dict__ and self._requests.link.session is not None

    async def create(
        self, name: str | bytes, mode: ModeName = "pair", *, exist_ok: bool = False
    ) -> None:
        """Create a channel in a mode that stays: while it is empty, and over restarts.

        Needs the right `admin` in it. Raises ChannelExists where it was created before, unless
        `exist_ok` and in this mode, and where it is in use, or configured, in another mode.
        """
        body = b.CreateBody(channel_name(name), mode)
        try:
            await self._requests.ask(ChannelOperation.CREATE, body, dict)
        except ChannelExists:
            if not exist_ok:
                raise
            info = await self.describe(name)
            if not info.created or info.mode != mode:
                raise

    async def delete(self, name: str | bytes) -> int:
        """Delete a channel with its messages, the keys of its puts, its subscribers that are away
        and its mode; gives the number of messages. Needs the right `admin` in it.

        Connections stay: for them, and for messages that are put meanwhile, it is a new channel.
        Raises UnknownChannel.
        """
        return await self._clear(ChannelOperation.DELETE, name)

    async def purge(self, name: str | bytes) -> int:
        """Remove the messages that the channel has now, those with consumers as well; gives their
        number. Needs the right `ack` in it. Raises UnknownChannel."""
        return await self._clear(ChannelOperation.PURGE, name)

    async def describe(self, name: str | bytes) -> ChannelInfo:
        """The state of a channel. Needs the right `list` in it: without that there is none.
        Raises UnknownChannel."""
        body = b.ListBody(channel=channel_name(name))
        reply = await self._requests.ask(ChannelOperation.LIST, body, b.ListReply)
        for info in reply.page:
            return info
        raise UnknownChannel

    async def list(self, *patterns: str | bytes) -> AsyncIterator[ChannelInfo]:
        """The channels whose names match one of the patterns, all by default, by name.

        `*` is any text, `?` any character, `[ab]` one of these. Those in which the client has the
        right `list`; the node's own channels have a `!` in their names.
        """
        wanted = [pattern_of(each) for each in patterns or ("*",)]
        after, more = b"", True
        while more:
            body = b.ListBody(wanted, after=after)
            reply = await self._requests.ask(ChannelOperation.LIST, body, b.ListReply)
            for info in reply.page:
                yield info
            more = reply.more and bool(reply.page)
            after = reply.page[-1].name if reply.page else after

    @asynccontextmanager
    async def receiver(
        self,
        *patterns: str | bytes,
        channels_max: int = 64,
        window: int | None = None,
        refresh_s: float = 1.0,
    ) -> AsyncIterator[Receiver]:
        """Receive from all channels whose names match one of the patterns (as in `list`), for the
        block; channels that are made later join within `refresh_s` seconds.

        Each has a connection of its own, with `window` as in `connect`. At most `channels_max` are
        joined, the first by name; others follow once one of them is not in use any more. Needs the
        rights `list`, `push` and `ack` in each; those that refuse are left out.
        """
        wanted = [pattern_of(each) for each in patterns]
        if not wanted or channels_max < 1:
            raise ValueError("a receiver has one pattern at least, and one channel")
        with single_errors():  # those of the block leave as they are
            async with anyio.create_task_group() as tasks:
                receiver = Receiver(
                    self._requests, self._join, wanted, channels_max, window, refresh_s, tasks
                )
                try:
                    await receiver.start()
                    yield receiver
                finally:
                    receiver.end()
                    tasks.cancel_scope.cancel()

    async def _clear(self, operation: ChannelOperation, name: str | bytes) -> int:
        removed, until, more = 0, 0, True
        while more:
            body = b.ClearBody(channel_name(name), until)
            reply = await self._requests.ask(operation, body, b.ClearReply)
            removed, until, more = removed + reply.messages, reply.until, reply.more
        return removed


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
    settings: ConnectSettings = DEFAULT_SETTINGS,
) -> Channels:
    """The channels of the node at `url` by name, for the block; see `millpond.connect`."""
    channel = connect(
        url,
        PROBE,
        role="consumer",
        window=0,
        token=token,
        identity=identity,
        peer=peer,
        on_peer=on_peer,
        tls=tls,
        allow_plain=allow_plain,
        reconnect=reconnect,
        wait_s=wait_s,
        on_event=on_event,
        settings=settings,
    )

    @asynccontextmanager
    async def joined() -> AsyncIterator[ChannelsConnection]:
        async with channel:
            yield ChannelsConnection(link_of(channel), join_of(channel))

    return Channels(joined)


def channel_name(name: str | bytes) -> bytes:
    """A name as bytes. Raises ValueError."""
    raw = os.fsencode(name)
    if not 0 < len(raw) <= 255:
        raise ValueError(f"a channel's name has 1 to 255 bytes, not {len(raw)}")
    return raw


def pattern_of(pattern: str | bytes) -> bytes:
    """A pattern of names as bytes. Raises ValueError."""
    raw = os.fsencode(pattern)
    if not 0 < len(raw) <= b.PATTERN_BYTES_MAX:
        raise ValueError(f"a pattern has 1 to {b.PATTERN_BYTES_MAX} bytes, not {len(raw)}")
    return raw
