"""Contact cards: the addresses and prekey of a node as one signed line of text.

millpond:<base64url without padding of: body | signature[64]>
body       MessagePack array: version (1 or 2), public key, addresses, relays,
           prekey as it is published in the form of version 1 or nil, made_at (ms since 1970);
           version 2 has as well: statements of succession, the oldest first; the prekey in the form
           of version 2 or nil; the delivery token (16 bytes) or nil, which may be missing; what a
           later version appends is signed, and not read here
signature  Ed25519("p2pbuf card v1\\0" | body), or "millpond card v2\\0"

Nodes that read messages of version 1 alone take the first form of the prekey and pass over the
second one; that says that the owner reads version 2, so no relay can hide it. A card without
statements, prekey and delivery token is of version 1.

`made_at` is the sequence number of the owner's cards: the peer book takes no card that is older
than the one it has, so nobody brings back addresses that were given up.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Literal

import msgspec

from millpond.node.client.url import parse_url
from millpond.node.ip import is_local
from millpond.node.peers.identity import Identity, peer_id, verify
from millpond.node.peers.peer import CARD_CHARS_MAX, checked_addresses, checked_relays
from millpond.node.peers.prekeys import (
    MalformedPrekey,
    SignedPrekey,
    check,
    decode_prekey,
    encode_prekey,
    sign_prekey,
)
from millpond.node.peers.succession import SUCCESSIONS_MAX, BadSuccession, predecessors

PREFIX = "millpond:"
SIGNATURE_BYTES = 64
TOKEN_BYTES = 16

_LABELS = {1: b"p2pbuf card v1\0", 2: b"millpond card v2\0"}
_Time = Annotated[int, msgspec.Meta(ge=0, lt=2**52)]


class BadCard(ValueError):
    """Text that is not a card, or not signed by its owner."""


class ContactCard(msgspec.Struct, frozen=True):
    """A contact card of the node `public`. `made_at`: seconds since 1970, in whole milliseconds.

    `successions` are the statements that lead from earlier keys of the node to this one.
    `delivery_token` lets messages for the node be left at its relays; empty: the card has none.
    """

    public: bytes
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    prekey: SignedPrekey | None
    made_at: float
    successions: tuple[bytes, ...] = ()
    delivery_token: bytes = b""

    def __repr__(self) -> str:
        """Without the token: this may end up in a log."""
        return f"<ContactCard of {peer_id(self.public)}>"

    @property
    def predecessors(self) -> list[bytes]:
        """The earlier keys of the node, the latest first."""
        return predecessors(self.successions, self.public)


def local_addresses(card: ContactCard) -> tuple[str, ...]:
    """The addresses and relays of a card that lead to the machine or the link of its reader."""
    return tuple(
        text
        for text in (*card.addresses, *card.relays)
        if is_local(parse_url(text.rpartition("@")[2]).host)
    )


class _Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    public: bytes
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    prekey: bytes | None
    made_at: _Time


class _SecondBody(msgspec.Struct, frozen=True, array_like=True):
    version: Literal[2]
    public: bytes
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    prekey: bytes | None
    made_at: _Time
    successions: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=SUCCESSIONS_MAX)]
    prekey_v2: bytes | None = None
    delivery_token: (
        Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)] | None
    ) = None


_first_decoder = msgspec.msgpack.Decoder(_Body)
_second_decoder = msgspec.msgpack.Decoder(_SecondBody)


def encode_card(card: ContactCard, identity: Identity, *, is_short: bool = False) -> str:
    """The line of a card. Raises ValueError for the card of another identity or invalid
    addresses.

    `is_short` leaves out the form of the prekey that only nodes of version 1 read.
    """
    if card.public != identity.public:
        raise ValueError("a card is signed by its owner, and by nobody else")
    prekey, prekey_v2 = _prekey_forms(card.prekey, identity)
    prekey = None if is_short and prekey_v2 else prekey
    addresses, relays = checked_addresses(card.addresses), checked_relays(card.relays)
    made = round(card.made_at * 1000)
    fields: tuple[object, ...] = (card.public, addresses, relays, prekey, made)
    version = 2 if card.successions or prekey_v2 or card.delivery_token else 1
    if version == 2:
        fields += (card.successions, prekey_v2)
    if card.delivery_token:
        fields += (card.delivery_token,)
    body = msgspec.msgpack.encode((version, *fields))
    data = body + identity.sign(_LABELS[version] + body)
    return PREFIX + urlsafe_b64encode(data).decode("ascii").rstrip("=")


def decode_card(text: str) -> ContactCard:
    """The card in a line, in which white space is ignored. Raises BadCard.

    Signed by its owner, its prekey, too; an old one may be shown again by anybody
    (`AddressBook.update` refuses it).
    """
    data = _bytes("".join(text.split()))
    body, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    version = body[1] if len(body) > 1 else 0  # behind the head of the array
    try:
        read = (_second_decoder if version == 2 else _first_decoder).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadCard(f"the card is damaged, or of a later version: {exc}") from exc
    if not verify(read.public, signature, _LABELS[read.version] + body):
        raise BadCard("the card is not signed by its owner: somebody or something changed it")
    try:
        addresses = checked_addresses(read.addresses)
        relays = checked_relays(read.relays)
    except ValueError as exc:
        raise BadCard(f"the card has an address that cannot be used: {exc}") from exc
    successions = read.successions if isinstance(read, _SecondBody) else ()
    try:
        predecessors(successions, read.public)
    except BadSuccession as exc:
        raise BadCard(f"the card has {exc}") from exc
    made_at = read.made_at / 1000
    token = (read.delivery_token if isinstance(read, _SecondBody) else None) or b""
    return ContactCard(read.public, addresses, relays, _prekey(read), made_at, successions, token)


def _bytes(line: str) -> bytes:
    if not line.startswith(PREFIX):
        raise BadCard(f"a card begins with {PREFIX!r}")
    if "." in line:
        raise BadCard("this is an invite: `millpond chat accept LINK NAME` accepts it")
    if len(line) > CARD_CHARS_MAX:
        raise BadCard(f"a card has at most {CARD_CHARS_MAX} characters")
    encoded = line.removeprefix(PREFIX)
    try:
        data = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError as exc:
        raise BadCard("the card is damaged: it is not base64url") from exc
    if urlsafe_b64encode(data).decode("ascii").rstrip("=") != encoded:
        raise BadCard("the card is damaged: it is not base64url")
    return data


def _prekey_forms(
    prekey: SignedPrekey | None, owner: Identity
) -> tuple[bytes | None, bytes | None]:
    """A prekey as it is published in versions 1 and 2, as far as it has them."""
    if prekey is None or prekey.version == 1:
        return (None if prekey is None else encode_prekey(prekey)), None
    old = sign_prekey(owner, prekey.public, prekey.made_at, prekey.good_until, version=1)
    return encode_prekey(old), encode_prekey(prekey)


def _prekey(read: _Body | _SecondBody) -> SignedPrekey | None:
    published = read.prekey_v2 if isinstance(read, _SecondBody) else None
    published = published or read.prekey
    if published is None:
        return None
    try:
        prekey = decode_prekey(published)
    except MalformedPrekey as exc:
        raise BadCard("the card's prekey is damaged") from exc
    if not check(prekey, read.public):
        raise BadCard("the card's prekey is not signed by the card's owner")
    return prekey
