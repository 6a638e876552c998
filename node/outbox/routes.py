"""Routes to a peer: its own addresses first, then its relays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec

from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel, RoleName

DELAY_S_MIN, DELAY_S_MAX = 1.0, 300.0
DOUBLINGS_MAX = 10
KEY_SEPARATOR = "@"


class Route(msgspec.Struct, frozen=True):
    """A node to dial. It has to prove the key `public`; None: the key of any relay of the book.

    `allows_local`: a person has allowed that the name in `url` leads to this machine or link.
    """

    url: str
    public: bytes | None
    is_relay: bool
    allows_local: bool = False


def may_serve(book: AddressBook, public: bytes, route: Route) -> bool:
    """True if the peer with this key may be the other end: a relay at the route of a relay, and a
    contact at its own address."""
    return book.is_relay(public) if route.is_relay else book.is_contact(public)


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


def routes_to(peer: Peer, book: AddressBook, own: bytes | None = None) -> Iterator[Route]:
    """The routes to a peer: its own addresses, then its relays; none to the key `own`, that of a
    relay which its contacts name."""
    for url in peer.addresses:
        yield Route(url, peer.public, False, peer.allows_local)
    for relay in peer.relays:
        for route in relay_routes(relay, book, allows_local=peer.allows_local):
            if own is None or route.public != own:
                yield route


def relay_routes(text: str, book: AddressBook, *, allows_local: bool = False) -> Iterator[Route]:
    """The routes of a relay given as `PEER-ID@URL`, as a URL, or as the name or id of a peer.

    A bare URL has the key of the relay with this address, else that of any relay. A blocked key
    gives no route. `allows_local` is for URLs; for those of the configuration it is true, as the
    person who runs the node gave them.
    """
    if "://" not in text:
        peer = _peer(text, book)
        if peer is not None and peer.trust is Trust.RELAY:
            local = peer.allows_local
            yield from (Route(url, peer.public, True, local) for url in peer.addresses)
        return
    head, mark, url = text.partition(KEY_SEPARATOR)
    if mark and "://" not in head:
        try:
            public = public_key_of(head)
        except BadPeerId:
            return
        found = book.by_public(public)
        if found is None or found.trust is not Trust.BLOCKED:
            yield Route(url, public, True, allows_local)
        return
    relays = (each for each in book.peers if each.trust is Trust.RELAY)
    known = (each.public for each in relays if text in each.addresses)
    yield Route(text, next(known, None), True, allows_local)


def relay_urls(via: Iterable[str], book: AddressBook) -> tuple[str, ...]:
    """The relays of this node, as contact cards have them."""
    return tuple(
        route.url if route.public is None else f"{peer_id(route.public)}@{route.url}"
        for text in via
        for route in relay_routes(text, book)
    )


def unused_relays(via: Iterable[str], book: AddressBook, own: bytes) -> Iterator[str]:
    """The relays of this node (its key is `own`) and of its contacts whose key or name is none of a
    relay here. Contacts of a relay name this node itself."""
    contacts = (each for each in book.peers if each.is_contact)
    for text in (*via, *(relay for each in contacts for relay in each.relays)):
        routes = list(relay_routes(text, book))
        known = (route.public for route in routes if route.public is not None)
        if not routes or any(not book.is_relay(public) for public in known if public != own):
            yield text


def _peer(text: str, book: AddressBook) -> Peer | None:
    return next((each for each in book.peers if text in (each.name, each.id)), None)
