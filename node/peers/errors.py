"""Why the peer book cannot do what it was asked to.

AddressBookError
+-- BadPeer         a name, a key or an address that cannot be one
+-- BookUnreadable  the file
+-- BookFull
+-- DuplicatePeer
+-- UnknownPeer
+-- PeerRevoked
`-- KeyChanged      the loud one
"""

from __future__ import annotations

from millpond.node.peers.peer import Peer


class AddressBookError(Exception):
    """The peer book cannot do what it was asked to; the text says why."""


class BadPeer(AddressBookError, ValueError):
    """A name, a key or an address that cannot be one."""


class BookUnreadable(AddressBookError):
    """The file is damaged, or others may write it."""


class BookFull(AddressBookError):
    """There are 10,000 peers."""


class DuplicatePeer(AddressBookError):
    """The name or the key is another peer's."""


class UnknownPeer(AddressBookError):
    """Nobody has this name or key."""


class PeerRevoked(AddressBookError):
    """The key was revoked, and only a person can take that back."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(f"the key of {peer.name!r} was revoked")
        self.peer = peer


class KeyChanged(AddressBookError):
    """Where `peer` was known, somebody shows another key: `public`. Never to be passed over."""

    def __init__(self, peer: Peer, public: bytes, address: str = "") -> None:
        where = f" at {address}" if address else ""
        super().__init__(f"the key of {peer.name!r}{where} is not the one that is known")
        self.peer = peer
        self.public = public
        self.address = address
