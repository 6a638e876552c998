"""Where a peer's mail can be brought, and how to get there: its own addresses, then its relays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Protocol

import msgspec

from millpond.node.client.channel import Channel
from millpond.node.client.connect import RoleName
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.identity import BadPeerId, public_key_of

REST_S_MIN, REST_S_MAX = 1.0, 300.0
DOUBLINGS_MAX = 10
KEY_MARK = "@"


class Route(msgspec.Struct, frozen=True):
    """A node to dial. `public` is the key it has to prove; None: that of any trusted peer."""

    url: str
    public: bytes | None
    is_relay: bool


class RouteDialer(Protocol):
    """Joins a channel at a place, as ourselves, for the block; the connection is not mended.

    Raises ConnectionLost and OSErrors when there is nobody, or somebody else.
    """

    def __call__(
        self, place: Route, channel: bytes, role: RoleName, window: int = 0, /
    ) -> AbstractAsyncContextManager[Channel]: ...


class RedialDelay:
    """Rests between attempts: 1 s, 2 s, 4 s and so on up to 5 min, each shortened by chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = 0

    def next_s(self) -> float:
        """How long to rest after another failure."""
        ceiling_s: float = min(REST_S_MAX, REST_S_MIN * 2.0 ** min(self._failures, DOUBLINGS_MAX))
        self._failures += 1
        return ceiling_s * self._rng.uniform(0.5, 1.0)

    def forgive(self) -> None:
        """It worked."""
        self._failures = 0


def routes_to(peer: Peer, book: AddressBook) -> Iterator[Route]:
    """Where mail for the peer can be brought: to itself first."""
    for url in peer.addresses:
        yield Route(url, peer.public, False)
    for relay in peer.relays:
        yield from relay_routes(relay, book)


def relay_routes(text: str, book: AddressBook) -> Iterator[Route]:
    """The places of a relay: `PEER-ID@URL`, a URL, or the name or id of a peer in the book.

    Of a bare URL the key is that of the trusted peer who has this address, else of any of them. A
    key that was revoked is nobody's.
    """
    if "://" not in text:
        peer = _found(text, book)
        if peer is not None and peer.trust is Trust.TRUSTED:
            yield from (Route(url, peer.public, True) for url in peer.addresses)
        return
    head, mark, url = text.partition(KEY_MARK)
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


def _found(text: str, book: AddressBook) -> Peer | None:
    return next((each for each in book.peers if text in (each.name, each.id)), None)


Key = Callable[[bytes], None]
"""Hears the key that a node proved; raises ConnectionLost if it will not do."""
