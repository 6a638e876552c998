"""The peers of a book at one moment: by name and by key, and what a change makes of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from millpond.node.peers.errors import BookFull, DuplicatePeer, KeyChanged, PeerRevoked, UnknownPeer
from millpond.node.peers.identity import public_key_of
from millpond.node.peers.peer import NAME_CHARS_MAX, Peer, Trust, endpoint, is_peer_id

PEERS_MAX = 10_000


class Known:
    """The peers at one moment. Never changed, so any thread may look at it."""

    __slots__ = ("by_name", "by_public")

    def __init__(self, peers: Iterable[Peer] = ()) -> None:
        self.by_name: dict[str, Peer] = {}
        self.by_public: dict[bytes, Peer] = {}
        for peer in peers:
            if peer.name in self.by_name:
                raise DuplicatePeer(f"there is a peer {peer.name!r} already")
            if peer.public in self.by_public:
                raise DuplicatePeer(
                    f"the key of {peer.name!r} is that of {self.by_public[peer.public].name!r}"
                )
            self.by_name[peer.name] = self.by_public[peer.public] = peer
        if len(self.by_name) > PEERS_MAX:
            raise BookFull(f"a peer book holds {PEERS_MAX} peers")

    def named(self, name: str) -> Peer | None:
        """In any Unicode spelling of it."""
        return self.by_name.get(unicodedata.normalize("NFC", name))

    def without(self, peer: Peer | None = None) -> list[Peer]:
        """All but this one."""
        return [each for each in self.by_name.values() if each is not peer]

    def with_instead(self, old: Peer, new: Peer) -> list[Peer]:
        """All, with `new` in the place of `old`."""
        return [new if each is old else each for each in self.by_name.values()]


def found(known: Known, who: str) -> Peer:
    """Whoever has this name or id. Raises UnknownPeer."""
    peer = known.by_public.get(public_key_of(who)) if is_peer_id(who) else known.named(who)
    if peer is None:
        raise UnknownPeer(f"there is no peer {who!r}")
    return peer


def met_at(known: Known, public: bytes, address: str, place: str) -> Peer | None:
    """Whom we meet when `public` is shown at `address`, which is `place` as host:port; None: a
    stranger. Raises KeyChanged when somebody else is known to be there, PeerRevoked.
    """
    here = _at(known, place)
    if here is not None and here.public != public:
        raise KeyChanged(here, public, address)
    peer = known.by_public.get(public)
    if peer is not None and peer.trust is Trust.REVOKED:
        raise PeerRevoked(peer)
    return peer


def _at(known: Known, place: str) -> Peer | None:
    """Whoever is known by this address, or by the name that a stranger there would get."""
    for peer in known.by_name.values():
        if any(endpoint(each) == place for each in peer.addresses):
            return peer
    return known.by_name.get(place[:NAME_CHARS_MAX])


def rekeyed(known: Known, old: Peer, new: Peer) -> list[Peer]:
    """`new` in the place of `old`, which stays as revoked. Whoever had the new key without being
    trusted was the same peer."""
    same = known.by_public.get(new.public)
    if same is not None and same.trust is Trust.TRUSTED:
        raise DuplicatePeer(f"that is the key of {same.name!r}")
    ends = (f" (old {number})" for number in range(1, PEERS_MAX + 2))
    names = (old.name[: NAME_CHARS_MAX - len(end)].rstrip() + end for end in ends)
    name = next(each for each in names if each not in known.by_name)
    kept = Peer(name, old.public, Trust.REVOKED, (), (), old.added_at)
    return [*(new if each is old else each for each in known.without(same)), kept]
