"""Delivery proofs: the proof of a sender that it has the delivery token of a mailbox.

key     HMAC-SHA256(token, "millpond delivery key v1\\0" | owner's public key | relay's public key)
proof   HMAC-SHA256(key, "millpond delivery proof v1\\0" | sender's public key | nonce of its HELLO)

The owner gives each relay the key for it, and a sender shows it a proof. The token itself is never
sent: a relay cannot use a key at another relay, and nobody else can use a proof, as it is bound to
a public key that the sender has to prove.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

KEY_BYTES = 32
_KEY_LABEL = b"millpond delivery key v1\0"
_PROOF_LABEL = b"millpond delivery proof v1\0"


def delivery_key(token: bytes, owner: bytes, relay: bytes) -> bytes:
    """The key that the owner of a token gives one of its relays."""
    return hmac.digest(token, _KEY_LABEL + owner + relay, sha256)


def delivery_proof(key: bytes, sender: bytes, nonce: bytes) -> bytes:
    """The proof of a sender, for one connection, that it has the token of a key."""
    return hmac.digest(key, _PROOF_LABEL + sender + nonce, sha256)


def is_proved(keys: Iterable[bytes], sender: bytes, nonce: bytes, proof: bytes) -> bool:
    """True for a proof by one of these keys. The time it takes tells nothing about them."""
    found = [hmac.compare_digest(delivery_proof(key, sender, nonce), proof) for key in keys]
    return any(found)
