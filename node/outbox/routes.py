"""Routes to a peer: its own addresses first, then its relays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Protocol

import msgspec

from millpond.node.client.channel import Channel
from millpond.node.client.connect import RoleName
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.identity import BadPeerId, public_key_of

DELAY_S_MIN, DELAY_S_MAX = 1.0, 300.0
DOUBLINGS_MAX = 10
KEY_SEPARATOR = "@"


class Route(msgspec.Struct, frozen=True):
    """A node to dial. It has to prove the key `public`; None: the key of any trusted peer."""

    url: str
    public: bytes | None
    is_relay: bool


class RouteDialer(Protocol):
    """A context manager that opens a channel at a route; it does not reconnect.

    Raises ConnectionLost and OSError when no node answers, or another one.
    """

    def __call__(
        self, route: Route, channel: bytes, role: RoleName, window: int = 0, /
    ) -> AbstractAsyncContextManager[Channel]: ...


class RedialDelay:
    """Delays between attempts: 1 s, 2 s, 4 s and so on up to 5 min, each with random jitter."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = 0

    def next_s(self) -> float:
        """The delay in seconds after another failure."""
        ceiling_s: float = min(DELAY_S_MAX, DELAY_S_MIN * 2.0 ** min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        return ceiling_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again at the shortest delay: an attempt has succeeded."""
        self._failures = 0


def routes_to(peer: Peer, book: AddressBook) -> Iterator[Route]:
    """The routes to a peer: its own addresses, then its relays."""
    for url in peer.addresses:
        yield Route(url, peer.public, False)
    for relay in peer.relays:
        yield from relay_routes(relay, book)


def relay_routes(text: str, book: AddressBook) -> Iterator[Route]:
    """The routes of a relay given as `PEER-ID@URL`, as a URL, or as the name or id of a peer.

    A bare URL has the key of the trusted peer with this address, else that of any trusted peer. A
    revoked key gives no route.
    """
    if "://" not in text:
        peer = _peer(text, book)
        if peer is not None and peer.trust is Trust.TRUSTED:
            yield from (Route(url, peer.public, True) for url in peer.addresses)
        return
    head, mark, url = text.partition(KEY_SEPARATOR)
    if mark and "://" not in head:
        try:
            public = public_key_of(head)
        except BadPeerId:
            return
        found = book.by_public(public)
        if found is None or found.trust is not Trust.REVOKED:
            yield Route(url, public, True)
        return
    trusted = (each for each in book.peers if each.trust is Trust.TRUSTED)
    known = (each.public for each in trusted if text in each.addresses)
    yield Route(text, next(known, None), True)


def _peer(text: str, book: AddressBook) -> Peer | None:
    return next((each for each in book.peers if text in (each.name, each.id)), None)
