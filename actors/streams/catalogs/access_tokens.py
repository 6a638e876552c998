"""The catalog of the access tokens that S2 clients were issued.

Of a token it has the SHA-256 and the permissions, as S2 metadata; the token itself is told to the
client that asked for it and stored nowhere. Expired tokens are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from math import inf

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Port, Reply, StreamFailed
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import entries_of
from millpond.actors.streams.messages import Done, IssueToken, RevokeToken

TOKENS_MAX = 10_000
METADATA_BYTES_MAX = 4096

_TOKEN = b"token\0"


class AccessToken(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The entry of a token, as MessagePack. It expires at `expires_ms`; None: it does not."""

    digest: bytes
    expires_ms: int | None
    metadata: bytes

    def has_expired(self, now: float) -> bool:
        """True: the token is not valid any more."""
        return self.expires_ms is not None and now >= self.expires_ms / 1000


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AccessToken)


class AccessTokens:
    """The issued tokens, for lookups. Only the catalog changes them."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, AccessToken] = {}
        self._by_digest: dict[bytes, AccessToken] = {}

    def replace(self, tokens: dict[bytes, AccessToken]) -> None:
        """All tokens of the catalog, as it is opened."""
        self._tokens = dict(tokens)
        self._by_digest = {each.digest: each for each in tokens.values()}

    def add(self, token_id: bytes, token: AccessToken) -> None:
        """A token was issued, perhaps in the place of one that has expired."""
        self.remove(token_id)
        self._tokens[token_id] = token
        self._by_digest[token.digest] = token

    def remove(self, token_id: bytes) -> None:
        """A token was revoked or has expired."""
        token = self._tokens.pop(token_id, None)
        if token is not None:
            self._by_digest.pop(token.digest, None)

    def find(self, token: bytes, now: float) -> AccessToken | None:
        """The entry of a token; None: it was revoked, has expired, or never was.

        Looked up by digest: how long a wrong one takes tells nothing about a right one.
        """
        found = self._by_digest.get(sha256(token).digest())
        return None if found is None or found.has_expired(now) else found

    def all(self, now: float) -> Iterator[tuple[bytes, AccessToken]]:
        """All valid tokens by id, in the order of their ids."""
        tokens = sorted(self._tokens.items())
        return ((each, token) for each, token in tokens if not token.has_expired(now))


class AccessTokenCatalog:
    """The entries of the catalog."""

    __slots__ = ("_lookup", "_tokens", "deadline")

    def __init__(self, snapshot: LogSnapshot, lookup: AccessTokens) -> None:
        self._lookup = lookup
        self._tokens = entries_of(snapshot, _TOKEN, _DECODER.decode)
        self._lookup.replace(self._tokens)
        self.deadline = self._first_end()

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case IssueToken():
                return self._issue(message, now, effects)
            case RevokeToken(number=number, id=token_id):
                token = self._tokens.get(token_id)
                if token is None or token.has_expired(now):
                    return StreamFailed(number, Code.UNKNOWN_STREAM)
                self._remove(token_id, effects)
                return Done(number)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for this catalog")

    def wake(self, now: float, effects: Effects) -> None:
        """Forget expired tokens."""
        for each in [name for name, token in self._tokens.items() if token.has_expired(now)]:
            self._remove(each, effects)
        self.deadline = self._first_end()

    def _issue(self, request: IssueToken, now: float, effects: Effects) -> Reply:
        before = self._tokens.get(request.id)
        if before is not None and not before.has_expired(now):
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        if before is None and len(self._tokens) >= TOKENS_MAX:
            return StreamFailed(request.number, Code.BUFFER_FULL)
        token = AccessToken(request.digest, request.expires_ms, request.metadata)
        self._tokens[request.id] = token
        self._lookup.add(request.id, token)
        effects.changes.append(MetadataSet(_TOKEN + request.id, _ENCODER.encode(token)))
        if token.expires_ms is not None:
            self.deadline = min(self.deadline, token.expires_ms / 1000)
        return Done(request.number)

    def _remove(self, token_id: bytes, effects: Effects) -> None:
        del self._tokens[token_id]
        self._lookup.remove(token_id)
        effects.changes.append(MetadataSet(_TOKEN + token_id, None))

    def _first_end(self) -> float:
        """The time at which the first token expires. A deadline may be earlier, after that token
        was revoked: then `wake` finds nothing, and looks again."""
        tokens = self._tokens.values()
        ends = (token.expires_ms for token in tokens if token.expires_ms is not None)
        return min(ends, default=inf) / 1000
