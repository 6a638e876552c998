"""Contact keys: prekeys of this node for one peer alone, told to it inside sealed messages.

Each key is replaced as soon as the peer has used it, so the keys change with every turn of a
conversation, and what was sealed for a key that is gone cannot be opened by anybody. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from millpond.node.peers.envelope import KEY_BYTES
from millpond.node.peers.sealed_message import ContactKey, kid_of

KEPT_MAX = 4
"""The newest keys that are kept: late messages are still sealed for older ones."""
ROTATED_MS = 86_400_000
"""A key that the peer does not use is replaced after a day."""
AHEAD_MS_MAX = 3_600_000


class OwnContactKey(msgspec.Struct, array_like=True):
    """A key with its private half. Times in ms since 1970."""

    private: bytes
    public: bytes
    number: int
    made_at: int
    destroyed_after: int
    is_used: bool = False

    def __repr__(self) -> str:
        return f"OwnContactKey({self.number})"


class ContactKeys(msgspec.Struct, array_like=True):
    """The keys of this node for one peer, the newest last. `number` is the last one given out."""

    number: int = 0
    keys: list[OwnContactKey] = []

    def wants_new(self, now_ms: int) -> bool:
        """True if the next message has to bring a new key."""
        if not self.keys:
            return True
        newest = self.keys[-1]
        return newest.is_used or not 0 <= now_ms - newest.made_at < ROTATED_MS

    def make(self, now_ms: int, lifetime_ms: int, entropy: Callable[[int], bytes]) -> OwnContactKey:
        """Make a new key; the oldest of more than `KEPT_MAX` is destroyed."""
        self.number = max(self.number + 1, now_ms)  # also higher after a loss of the state
        private = entropy(KEY_BYTES)
        public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        key = OwnContactKey(private, public, self.number, now_ms, now_ms + lifetime_ms)
        self.keys = [*self.keys, key][-KEPT_MAX:]
        return key

    def current(self, margin_ms: int) -> ContactKey | None:
        """The key to tell the peer; it is good until `margin_ms` before it is destroyed."""
        if not self.keys:
            return None
        key = self.keys[-1]
        return ContactKey(key.public, key.number, key.made_at, key.destroyed_after - margin_ms)

    def used(self, kid: bytes) -> bool:
        """Record that a message was opened with a key; True if that changes anything."""
        for key in self.keys:
            if not key.is_used and kid_of(key.public) == kid:
                key.is_used = True
                return True
        return False

    def sweep(self, now_ms: int) -> bool:
        """Destroy the keys whose time is over; True if there were any.

        One that a clock ahead of the true time made goes with the fourth key after it.
        """
        kept = [each for each in self.keys if each.destroyed_after >= now_ms]
        is_changed = len(kept) < len(self.keys)
        self.keys = kept
        return is_changed


def replaces(new: ContactKey, known: ContactKey | None, now_ms: int) -> bool:
    """True if a key of a peer replaces the known one. One dated ahead of now by more than an hour
    does not: it could lock out all later ones."""
    if new.made_at > now_ms + AHEAD_MS_MAX or new.good_until <= now_ms:
        return False
    return known is None or known.good_until <= now_ms or new.number > known.number
