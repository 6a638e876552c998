"""Makers of subscriptions: the clients that subscriptions act for, and what they may read today.

A subscription keeps what its maker showed: a token, a key, an address, a certificate. It is sealed,
since a token is a secret, with a key derived from the identity of the node. Another identity
cannot open it; such a maker may read nothing, until it or another client puts the subscription
again.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256

import msgspec

from millpond.actors.subscriptions.messages import Maker
from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.transports.server.interface import Principal

_LABEL = b"millpond makers of subscriptions 1\0"
_LOCATION = b"maker"
_KNOWN_MAX = 10_000
Scope = tuple[str, ...] | None


class _Shown(msgspec.Struct, frozen=True, array_like=True):
    """The credentials that a client showed, as MessagePack."""

    token: bytes | None
    identity: bytes | None
    address: str
    listener: str
    certificate: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Shown).decode


class Makers:
    """The makers of a node's subscriptions. `seed` is that of its identity; `scope` gives the
    streams that a client may read now."""

    def __init__(self, seed: bytes, scope: Callable[[Principal], Scope]) -> None:
        self._key = DataKey(hmac.digest(seed, _LABEL, sha256))
        self._scope = scope
        self._known: dict[bytes, Principal] = {}

    def credentials(self, principal: Principal) -> bytes:
        """The credentials that a client showed, sealed."""
        shown = _Shown(
            principal.token,
            principal.identity,
            principal.address,
            principal.listener,
            principal.certificate,
        )
        return self._key.seal(_LOCATION, _encode(shown))

    def scope_of(self, maker: Maker) -> Scope:
        """The streams that a maker may read now, as patterns; None: all that are not private."""
        if not maker.credentials:
            return maker.scope
        principal = self._known.get(maker.credentials)
        if principal is None:
            try:
                shown = _decode(self._key.unseal(_LOCATION, maker.credentials))
            except CannotUnseal:
                return ()
            principal = Principal(
                shown.token, shown.identity, shown.address, shown.listener, shown.certificate
            )
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[maker.credentials] = principal
        return self._scope(principal)
