"""Bearer tokens: random ones, whose SHA-256 a node keeps, and signed ones, of which it keeps
nothing.

Random tokens are in the access file, or were issued by the API of S2, which their prefix tells. A
signed token is `mpt1.PAYLOAD.SIGNATURE`, both in base64url without padding; the payload is a
MessagePack map, signed by the identity of the node that accepts the token.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256

import msgspec

from millpond.actors.messages import Rights
from millpond.node.access.grants import Grant, Subject, SubjectKind, split_patterns
from millpond.node.peers.identity import Identity, verify

RANDOM_PREFIX, SIGNED_PREFIX, ISSUED_PREFIX = "mpr1.", "mpt1.", "mpi1."
RANDOM_BYTES, ID_BYTES = 32, 8
ID_DIGITS = 12
"""The digits of a random token's SHA-256 that are its id."""
TOKEN_BYTES_MAX = 3072
SIGNED_CACHE_MAX = 256
_CONTEXT = b"millpond token 1\0"


class SignedToken(msgspec.Struct, frozen=True):
    """The content of a signed token. `not_after`: seconds since 1970; None: it does not expire."""

    id: str
    rights: int
    patterns: list[str]
    not_after: float | None = None

    @property
    def grant(self) -> Grant:
        """The grant of the token, as a line of the access file gives it."""
        channels, streams = split_patterns(self.patterns)
        rights = Rights(self.rights & Rights.ALL)
        source = f"signed token {self.id}"
        return Grant(Subject(SubjectKind.TOKEN), rights, channels, streams, self.not_after, source)


def new_token(entropy: Callable[[int], bytes], prefix: str = RANDOM_PREFIX) -> str:
    """A random token; `entropy` must be unpredictable."""
    return prefix + _base64url(entropy(RANDOM_BYTES))


def digest_of(token: str) -> str:
    """The SHA-256 of a token that the access file keeps, in 64 digits."""
    return sha256(token.encode()).hexdigest()


def id_of(token: str) -> str:
    """The id of a token: the beginning of its SHA-256, or the id in a signed one."""
    signed = _unverified(token.encode()) if token.startswith(SIGNED_PREFIX) else None
    return digest_of(token)[:ID_DIGITS] if signed is None else signed.id


def new_signed(
    identity: Identity,
    rights: Rights,
    patterns: Sequence[str],
    not_after: float | None,
    entropy: Callable[[int], bytes],
) -> tuple[str, str]:
    """A signed token and its id. Raises ValueError for more patterns than fit into a HELLO."""
    body = SignedToken(entropy(ID_BYTES).hex(), int(rights), [*patterns], not_after)
    payload = msgspec.msgpack.encode(body)
    signature = identity.sign(_CONTEXT + payload)
    token = f"{SIGNED_PREFIX}{_base64url(payload)}.{_base64url(signature)}"
    if len(token) > TOKEN_BYTES_MAX:
        raise ValueError(f"the token would have {len(token)} bytes; {TOKEN_BYTES_MAX} fit")
    return token, body.id


@lru_cache(maxsize=SIGNED_CACHE_MAX)
def read_signed(token: bytes, public: bytes) -> SignedToken | None:
    """The content of a token that the holder of `public` signed; None: it is not such a token.

    Results for the latest tokens are cached, as lists of streams check thousands of times.
    """
    prefix = SIGNED_PREFIX.encode()
    parts = token.removeprefix(prefix).split(b".")
    if not token.startswith(prefix) or len(parts) != 2 or len(token) > TOKEN_BYTES_MAX:
        return None
    payload, signature = map(_from_base64url, parts)
    if payload is None or signature is None or not verify(public, signature, _CONTEXT + payload):
        return None
    return _decode(payload)


def _unverified(token: bytes) -> SignedToken | None:
    """The content of a signed token, whoever signed it."""
    payload = _from_base64url(token.removeprefix(SIGNED_PREFIX.encode()).partition(b".")[0])
    return None if payload is None else _decode(payload)


def _decode(payload: bytes) -> SignedToken | None:
    try:
        return msgspec.msgpack.decode(payload, type=SignedToken)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _from_base64url(text: bytes) -> bytes | None:
    """The bytes of base64url text; None for any but the one valid spelling."""
    try:
        data = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if _base64url(data).encode() == text else None
