"""Lease tokens: the proof of a worker that a wake is its own (DSS-21).

A token is the generation and the expiry, and an HMAC-SHA256 over both, the id of the subscription
and the nonce of its creation. Nothing of it is stored: tokens survive a restart with the key.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

TOKEN_S = 86_400.0
_LABEL = b"millpond lease token 1\0"
_CLAIMS = struct.Struct(">QQ")
_MAC_BYTES = 32
TOKEN_BYTES_MAX = 128


class LeaseClaims(msgspec.Struct, frozen=True, gc=False):
    """The content of a genuine token."""

    generation: int
    expires_at: float


class LeaseTokens:
    """The tokens of a node. `key` is secret."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, id_: bytes, nonce: bytes, generation: int, now: float) -> bytes:
        """A token for a wake of a subscription."""
        claims = _CLAIMS.pack(generation, int((now + TOKEN_S) * 1000))
        return urlsafe_b64encode(claims + self._mac(id_, nonce, claims)).rstrip(b"=")

    def verify(self, id_: bytes, nonce: bytes, token: bytes) -> LeaseClaims | None:
        """The content of a token of this subscription; None: it is not genuine."""
        if len(token) > TOKEN_BYTES_MAX:
            return None
        try:
            data = urlsafe_b64decode(token + b"=" * (-len(token) % 4))
        except ValueError:
            return None
        if len(data) != _CLAIMS.size + _MAC_BYTES:
            return None
        claims, mac = data[: _CLAIMS.size], data[_CLAIMS.size :]
        if not hmac.compare_digest(mac, self._mac(id_, nonce, claims)):
            return None
        generation, expires_ms = _CLAIMS.unpack(claims)
        return LeaseClaims(generation, expires_ms / 1000)

    def _mac(self, id_: bytes, nonce: bytes, claims: bytes) -> bytes:
        data = _LABEL + len(id_).to_bytes(4) + id_ + nonce + claims
        return hmac.digest(self._key, data, sha256)
