"""A peer in the address book, and the rules for names, keys and addresses."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from enum import Enum

import msgspec

from millpond.node.client.url import crosses_plainly, parse_url
from millpond.node.peers.identity import BadPeerId, is_key, peer_id, public_key_of

NAME_CHARS_MAX = 64
ADDRESSES_MAX = 8
ADDRESS_CHARS_MAX = 300
CARD_CHARS_MAX = 8192
ADDED_AT_MAX = 253_402_300_799
"""The end of the year 9999."""
RESERVED = "/!"
"""They mean something in names of channels."""


class Trust(Enum):
    """The trust in a peer, which gives it its rights.

    PINNED: its key was shown at the first connection, and no person has added it. It has no rights.
    ADDED: a person added the key, and compared nothing. VERIFIED: a person compared the safety
    number. Both are contacts. RELAY: it stores and forwards mail, and is no contact. BLOCKED: the
    key must not be accepted any more.
    """

    PINNED = "pinned"
    ADDED = "added"
    VERIFIED = "verified"
    RELAY = "relay"
    BLOCKED = "blocked"


CONTACTS = frozenset({Trust.ADDED, Trust.VERIFIED})
"""The levels of people: they write to each other, and a relay keeps their mail."""


class Peer(msgspec.Struct, frozen=True):
    """A known identity, by a local name. `added_at`: seconds since 1970. `card`: the line of the
    contact card that it was added by, which has a prekey. `allows_local`: a person has allowed that
    its addresses lead to this machine or link."""

    name: str
    public: bytes
    trust: Trust
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    added_at: float
    card: str = ""
    allows_local: bool = False

    @property
    def id(self) -> str:
        """The peer id."""
        return peer_id(self.public)

    @property
    def is_contact(self) -> bool:
        """True for an added or verified peer."""
        return self.trust in CONTACTS


def checked_name(text: str) -> str:
    """The name of a peer in its stored spelling (NFC). ValueError says what is wrong.

    1 to 64 printable characters, without `/` and `!`, and without spaces at the ends; no peer id.
    """
    name = unicodedata.normalize("NFC", text)
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"a name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}")
    if not name.isprintable() or name != name.strip() or any(char in name for char in RESERVED):
        wanted = "printable characters other than / and !, and no space at its ends"
        raise ValueError(f"{name!r}: a name has {wanted}")
    if is_peer_id(name):
        raise ValueError(f"{name!r} is a peer id, and cannot be a name as well")
    return name


def is_peer_id(text: str) -> bool:
    """True for a peer id, which cannot be a name."""
    try:
        public_key_of(text)
    except BadPeerId:
        return False
    return True


def checked_key(public: bytes) -> bytes:
    """A usable public key. Raises ValueError."""
    if not is_key(public):
        raise ValueError("no Ed25519 key that somebody could be known by")
    return public


def checked_addresses(urls: Sequence[str]) -> tuple[str, ...]:
    """Up to 8 URLs as `--connect` takes them, each once. ValueError says which is wrong."""
    for url in urls:
        _checked_url(url)
    return _distinct(urls, "addresses")


def checked_relays(relays: Sequence[str]) -> tuple[str, ...]:
    """Up to 8 URLs, each alone or as `PEER-ID@URL`. ValueError says which is wrong."""
    for relay in relays:
        owner, mark, url = relay.partition("@")
        if mark:
            checked_key(public_key_of(owner))
        _checked_url(url if mark else relay)
    return _distinct(relays, "relays")


def plain_addresses(peer: Peer) -> tuple[str, ...]:
    """The addresses and relays of a peer on other machines that do not say TLS."""
    urls = (*peer.addresses, *(relay.rpartition("@")[2] for relay in peer.relays))
    return tuple(url for url in urls if crosses_plainly(url))


def endpoint(url: str) -> str:
    """The `host:port` of an address."""
    return str(parse_url(url)).lower()


def checked(peer: Peer) -> Peer:
    """The peer with checked parts. ValueError says which part is wrong."""
    if not 0 <= peer.added_at < ADDED_AT_MAX:
        raise ValueError(f"added at {peer.added_at}, which is no time")
    if len(peer.card) > CARD_CHARS_MAX or not (peer.card.isascii() and peer.card.isprintable()):
        raise ValueError("a card is one line of text")
    return msgspec.structs.replace(
        peer,
        name=checked_name(peer.name),
        public=checked_key(peer.public),
        addresses=checked_addresses(peer.addresses),
        relays=checked_relays(peer.relays),
    )


def _checked_url(url: str) -> None:
    if len(url) > ADDRESS_CHARS_MAX or not url.isprintable():
        raise ValueError(f"{url[:80]!r}: not printable, or too long")
    parse_url(url)


def _distinct(urls: Sequence[str], what: str) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(urls))
    if len(kept) > ADDRESSES_MAX:
        raise ValueError(f"{len(kept)} {what}; at most {ADDRESSES_MAX} are kept")
    return kept
