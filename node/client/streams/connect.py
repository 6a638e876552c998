"""Streams over the node's own protocol: `async with connect_streams(url) as streams`.

Requests travel beside channels on one connection, and need the right to administer the node.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millpond.node.client.channel import link_of
from millpond.node.client.connect import connect
from millpond.node.client.events import Event
from millpond.node.client.link import Link
from millpond.node.client.probe import PROBE
from millpond.node.client.settings import DEFAULT_SETTINGS, ConnectSettings
from millpond.node.client.streams.streams import Streams
from millpond.transports.p2p.handshake import Signer


def connect_streams(
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
) -> Streams:
    """The streams of the node at `url`, for the block; see `node.client.connect.connect`."""
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
    async def joined() -> AsyncIterator[Link]:
        async with channel:
            yield link_of(channel)

    return Streams(joined)
