"""Verification codes: the safety number with the key whose node shows it, in a QR code.

    MILLPOND-VERIFY:1:<peer id>:<60 digits>

The key says on which side a code was shown, so a node that is given its own code does not take it
for that of the peer. Letters may be of either case: a QR code of capitals and digits is smaller.
"""

from __future__ import annotations

import re

from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.safety_number import (
    BadSafetyNumber,
    parse_safety_number,
    safety_number,
)

PREFIX = "MILLPOND-VERIFY:"
VERSION = "1"
NUMBERS_DIFFER = (
    "THE NUMBERS DIFFER: they are not of this peer and this node, or somebody sits in between"
)
OWN_CODE = "this is the code that this node shows: scan the one that the peer's node shows"
_CODE = re.compile(r"([0-9]+):([A-Z2-7]{52}):([0-9]{60})")


class NotSame(ValueError):
    """A number or code that is not of these two keys, as the other side would give it."""


def verification_code(own: bytes, peer: bytes) -> str:
    """The code that the node with the public key `own` shows to `peer`."""
    digits = safety_number(own, peer).replace(" ", "")
    return f"{PREFIX}{VERSION}:{peer_id(own).upper()}:{digits}"


def compare(own: bytes, peer: bytes, text: str) -> None:
    """Compare what a person has heard, pasted or scanned from the peer: its safety number, or its
    code. Raises BadSafetyNumber for text that is neither, NotSame."""
    text = text.strip()
    if not text.upper().startswith(PREFIX):
        if parse_safety_number(text) != safety_number(own, peer):
            raise NotSame(NUMBERS_DIFFER)
        return
    shower, digits = _parse(text.upper().removeprefix(PREFIX))
    if shower == own:
        raise NotSame(OWN_CODE)
    if shower != peer or parse_safety_number(digits) != safety_number(own, peer):
        raise NotSame(NUMBERS_DIFFER)


def _parse(text: str) -> tuple[bytes, str]:
    found = _CODE.fullmatch(text)
    if found is None:
        raise BadSafetyNumber("this is no verification code")
    version, shower, digits = found.groups()
    if version != VERSION:
        raise BadSafetyNumber("this verification code is of a later version")
    try:
        return public_key_of(shower.lower()), digits
    except BadPeerId as error:
        raise BadSafetyNumber("this is no verification code") from error
