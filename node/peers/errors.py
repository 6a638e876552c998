"""Errors of the address book, and of the file of delivery tokens.

AddressBookError
+-- BadPeer         an invalid name, key or address
+-- BookUnreadable  the file is damaged or not safe
+-- BookFull
+-- DuplicatePeer
+-- PeerNotFound
+-- PeerBlocked
+-- StaleCard       a card older than the known one, or made in the future
`-- KeyChanged      a peer shows another key: never to be ignored
DeliveryTokenError
"""

from __future__ import annotations

from millpond.node.peers.peer import Peer


class AddressBookError(Exception):
    """A request that the address book cannot fulfil; the text says why."""


class BadPeer(AddressBookError, ValueError):
    """An invalid name, key or address."""


class BookUnreadable(AddressBookError):
    """A file that is damaged, or that other users may write."""


class BookFull(AddressBookError):
    """10,000 peers are in the book."""


class DuplicatePeer(AddressBookError):
    """A name or key that another peer has."""


class PeerNotFound(AddressBookError):
    """A name or key that no peer has."""


class PeerBlocked(AddressBookError):
    """A blocked key; only a person can accept it again."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(f"the key of {peer.name!r} is blocked")
        self.peer = peer


class StaleCard(AddressBookError):
    """A card that is older than the known one of this key, or that was made in the future."""


class KeyChanged(AddressBookError):
    """Another key, `public`, in place of that of the known `peer`. Never to be ignored."""

    def __init__(self, peer: Peer, public: bytes, address: str = "") -> None:
        where = f" at {address}" if address else ""
        super().__init__(f"the key of {peer.name!r}{where} has changed")
        self.peer = peer
        self.public = public
        self.address = address


class DeliveryTokenError(Exception):
    """An unusable file of delivery tokens; the text names the file and the reason."""
