"""Signatures of webhooks: Ed25519 over the time and the exact body, and the keys as a JWK set
(DSS-24 to DSS-26)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

HEADER = b"webhook-signature"
ALGORITHM = "ed25519"


class WebhookKey:
    """A signing key. `repr` does not show it."""

    __slots__ = ("_key", "kid", "x")

    def __init__(self, seed: bytes) -> None:
        # To import it takes 20 ms, and most nodes sign nothing.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.x = _base64url(self._key.public_key().public_bytes_raw())
        """The public key."""
        thumbprint = f'{{"crv":"Ed25519","kty":"OKP","x":"{self.x}"}}'
        self.kid = "ds_" + _base64url(sha256(thumbprint.encode()).digest())
        """The id of the key, by RFC 7638."""

    def header(self, seconds: int, body: bytes) -> bytes:
        """The value of `Webhook-Signature` for a body that is sent at a time."""
        signature = _base64url(self._key.sign(b"%d.%b" % (seconds, body)))
        return f"t={seconds},kid={self.kid},{ALGORITHM}={signature}".encode()

    def jwk(self) -> dict[str, str]:
        """The public key as a JWK."""
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": self.x,
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
        }


def jwk_set(keys: Sequence[WebhookKey]) -> dict[str, list[dict[str, str]]]:
    """The keys of a node; the one that signs is the first."""
    return {"keys": [each.jwk() for each in keys]}


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii").rstrip("=")
