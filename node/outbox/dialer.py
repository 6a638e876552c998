"""Connections to other nodes, authenticated with the identity of this node and the key of the
peer."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from millpond.node.client.channel import Channel
from millpond.node.client.connect import Dialer, RoleName, connect
from millpond.node.client.errors import HandshakeRefused
from millpond.node.client.url import parse_url
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.routes import Route
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.identity import Identity, peer_id


class PeerDialer:
    """The implementation of `routes.RouteDialer` by the client, with the node's own clock and
    chance."""

    def __init__(
        self,
        identity: Identity,
        book: AddressBook,
        presence: Presence,
        now: Callable[[], float],
        rng: Random,
        entropy: Callable[[int], bytes],
        dialer: Dialer | None = None,
    ) -> None:
        self._identity = identity
        self._book = book
        self._presence = presence
        self._now = now
        self._rng = rng
        self._entropy = entropy
        self._dialer = dialer

    @asynccontextmanager
    async def __call__(
        self, route: Route, channel: bytes, role: RoleName, window: int = 0, /
    ) -> AsyncIterator[Channel]:
        proved: list[bytes] = []

        def check(public: bytes) -> None:
            if not self._book.is_trusted(public):
                raise HandshakeRefused(f"{peer_id(public)} is not a trusted peer")
            proved.append(public)

        async with connect(
            route.url,
            channel,
            role=role,
            window=window,
            identity=self._identity,
            peer=route.public,
            on_peer=check,
            tls=_context(route.url),
            reconnect=False,
            dialer=self._dialer,
            rng=self._rng,
            now=self._now,
            entropy=self._entropy,
        ) as opened:
            public = route.public or proved[0]
            self._presence.connected(public, opened, lambda: self._now() - opened.silent_s)
            try:
                yield opened
            finally:
                self._presence.disconnected(public, opened)


def _context(url: str) -> ssl.SSLContext | None:
    """A TLS context without certificate checks: the peer's proof of its key is bound to its
    certificate (docs/reference/wire-protocol.md)."""
    if not parse_url(url).secure:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
