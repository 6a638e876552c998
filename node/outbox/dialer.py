"""Dials other nodes as ourselves, and knows them by their keys."""

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
    """Implements `places.Reach` with the client, whose time and chance are the node's own."""

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
        self, place: Route, channel: bytes, role: RoleName, window: int = 0, /
    ) -> AsyncIterator[Channel]:
        met: list[bytes] = []

        def judge(public: bytes) -> None:
            if not self._book.is_trusted(public):
                raise HandshakeRefused(f"{peer_id(public)} is not a trusted peer")
            met.append(public)

        async with connect(
            place.url,
            channel,
            role=role,
            window=window,
            identity=self._identity,
            peer=place.public,
            on_peer=judge,
            tls=_context(place.url),
            reconnect=False,
            dialer=self._dialer,
            rng=self._rng,
            now=self._now,
            entropy=self._entropy,
        ) as joined:
            public = place.public or met[0]
            self._presence.met(public, joined, lambda: self._now() - joined.silent_s)
            try:
                yield joined
            finally:
                self._presence.parted(public, joined)


def _context(url: str) -> ssl.SSLContext | None:
    """Whatever certificate a node shows: its proof of its key is bound to it (wire.md 3b)."""
    if not parse_url(url).secure:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
