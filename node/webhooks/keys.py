"""Keys of webhooks and lease tokens, derived from the identity of the node.

So they are as private as that is, encrypted with the folder if it is, and in its backups; a node
without a data folder has others after each start. `webhook_key` in the configuration is the number
of the key that signs: a rotation is a higher one, and the key before it stays listed.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from millpond.actors.subscriptions.tokens import LeaseTokens
from millpond.transports.http.webhooks.signature import WebhookKey

_SIGNING = b"millpond webhook key 1\0"
_TOKENS = b"millpond lease tokens 1\0"


def webhook_key(seed: bytes, number: int) -> WebhookKey:
    """The signing key of this number, of an identity with this seed."""
    return WebhookKey(hmac.digest(seed, _SIGNING + number.to_bytes(8), sha256))


def lease_tokens(seed: bytes) -> LeaseTokens:
    """The tokens of an identity with this seed."""
    return LeaseTokens(hmac.digest(seed, _TOKENS, sha256))
