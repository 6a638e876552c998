"""Invites: a contact card with a one-time introduction, as one line of text.

    <card>.<base64url without padding of: secret[16] | until u32>

The secret introduces its first holder to the node that made it: it is sent back inside a sealed
message, once (`introductions`). `until` (seconds since 1970) is its end. A relay and a network
never see either of them. The card is signed; the rest is not: whoever changes it has an invite
that introduces nobody.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from millpond.node.peers.card import BadCard, ContactCard, decode_card

SECRET_BYTES = 16
_UNTIL_BYTES = 4
SEPARATOR = "."


class Introduction(msgspec.Struct, frozen=True):
    """The one-time introduction of an invite. `until`: seconds since 1970."""

    secret: bytes
    until: int

    def __repr__(self) -> str:
        """Without the secret: this may end up in a log."""
        return f"<Introduction until {self.until}>"


class Invite(msgspec.Struct, frozen=True):
    """A decoded invite. `line` is its card as the peer book keeps it."""

    card: ContactCard
    line: str
    introduction: Introduction


def encode_invite(card: str, introduction: Introduction) -> str:
    """The line of an invite."""
    end = introduction.secret + introduction.until.to_bytes(_UNTIL_BYTES, "big")
    return card + SEPARATOR + _encoded(end)


def decode_invite(text: str) -> Invite:
    """The invite in a line, in which white space is ignored. Raises BadCard."""
    line, mark, encoded = "".join(text.split()).partition(SEPARATOR)
    card = decode_card(line)
    if not mark:
        raise BadCard("this is a contact card, and no invite: `millpond peer add` takes it")
    try:
        end = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError as exc:
        raise BadCard("the invite is damaged: it is not base64url") from exc
    if len(end) != SECRET_BYTES + _UNTIL_BYTES or _encoded(end) != encoded:
        raise BadCard("the end of the invite is missing or damaged")
    until = int.from_bytes(end[SECRET_BYTES:], "big")
    return Invite(card, line, Introduction(end[:SECRET_BYTES], until))


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii").rstrip("=")


def introduction_digest(secret: bytes) -> bytes:
    """The digest by which the inviting node knows a secret: it keeps nothing else of it."""
    return sha256(b"millpond invite v1\0" + secret).digest()


def introduction_uuid(secret: bytes) -> bytes:
    """The uuid of the message that takes up an invite: the same, however often it is accepted."""
    return sha256(b"millpond introduction v1\0" + secret).digest()[:16]
