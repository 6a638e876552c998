"""Contact cards: the addresses and prekey of a node as one signed line of text.

millpond:<base64url without padding of: body | signature[64]>
body       MessagePack array: version (1), public key, addresses, relays,
           prekey as it is published or nil, made_at (ms since 1970)
signature  Ed25519("p2pbuf card v1\\0" | body)
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Literal

import msgspec

from millpond.node.peers.identity import Identity, verify
from millpond.node.peers.peer import CARD_CHARS_MAX, checked_addresses, checked_relays
from millpond.node.peers.prekeys import (
    MalformedPrekey,
    SignedPrekey,
    check,
    decode_prekey,
    encode_prekey,
)

PREFIX = "millpond:"
SIGNATURE_BYTES = 64

_SIGNED = b"p2pbuf card v1\0"
_Time = Annotated[int, msgspec.Meta(ge=0, lt=2**52)]


class BadCard(ValueError):
    """Text that is not a card, or not signed by its owner."""


class ContactCard(msgspec.Struct, frozen=True):
    """A contact card of the node `public`. `made_at`: seconds since 1970, in whole milliseconds."""

    public: bytes
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    prekey: SignedPrekey | None
    made_at: float


class _Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    public: bytes
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    prekey: bytes | None
    made_at: _Time


_decoder = msgspec.msgpack.Decoder(_Body)


def encode_card(card: ContactCard, identity: Identity) -> str:
    """The line of a card. Raises ValueError for the card of another identity or invalid
    addresses."""
    if card.public != identity.public:
        raise ValueError("a card is signed by its owner, and by nobody else")
    prekey = None if card.prekey is None else encode_prekey(card.prekey)
    addresses, relays = checked_addresses(card.addresses), checked_relays(card.relays)
    made = round(card.made_at * 1000)
    body = msgspec.msgpack.encode(_Body(1, card.public, addresses, relays, prekey, made))
    data = body + identity.sign(_SIGNED + body)
    return PREFIX + urlsafe_b64encode(data).decode("ascii").rstrip("=")


def decode_card(text: str) -> ContactCard:
    """The card in a line, in which white space is ignored. Raises BadCard.

    Signed by its owner, its prekey, too; an old one may be shown again by anybody.
    """
    data = _bytes("".join(text.split()))
    body, signature = data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
    try:
        read = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadCard(f"the card is damaged, or of a later version: {exc}") from exc
    if not verify(read.public, signature, _SIGNED + body):
        raise BadCard("the card is not signed by its owner: somebody or something changed it")
    try:
        addresses = checked_addresses(read.addresses)
        relays = checked_relays(read.relays)
    except ValueError as exc:
        raise BadCard(f"the card has an address that cannot be used: {exc}") from exc
    return ContactCard(read.public, addresses, relays, _prekey(read), read.made_at / 1000)


def _bytes(line: str) -> bytes:
    if not line.startswith(PREFIX):
        raise BadCard(f"a card begins with {PREFIX!r}")
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


def _prekey(read: _Body) -> SignedPrekey | None:
    if read.prekey is None:
        return None
    try:
        prekey = decode_prekey(read.prekey)
    except MalformedPrekey as exc:
        raise BadCard("the card's prekey is damaged") from exc
    if not check(prekey, read.public):
        raise BadCard("the card's prekey is not signed by the card's owner")
    return prekey
