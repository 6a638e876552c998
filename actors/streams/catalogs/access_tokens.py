"""The catalogue of access tokens that S2 clients were issued: a cell, and what it says in memory.

Of a token there is its SHA-256 and what it permits, in S2's own words; the token itself is told to
who asked for it and kept nowhere. What has ended is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from math import inf

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Port,
    Reply,
    StreamFailed,
    StreamRequest,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.messages import CancelRead, Done, IssueToken, RevokeToken

TOKENS_MAX = 10_000
METADATA_BYTES_MAX = 4096

_TOKEN = b"token\0"


class AccessToken(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The note of a token, as MessagePack. It ends at `expires_ms`; None: it does not."""

    digest: bytes
    expires_ms: int | None
    metadata: bytes

    def has_ended(self, now: float) -> bool:
        """Is its time over?"""
        return self.expires_ms is not None and now >= self.expires_ms / 1000


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AccessToken)


class AccessTokens:
    """Which tokens there are. Nothing is decided by it; the catalogue decides."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, AccessToken] = {}
        self._by_digest: dict[bytes, AccessToken] = {}

    def sync(self, tokens: dict[bytes, AccessToken]) -> None:
        """The catalogue says which there are."""
        self._tokens = tokens
        self._by_digest = {each.digest: each for each in tokens.values()}

    def find(self, token: bytes, now: float) -> AccessToken | None:
        """What is noted of a token; None: it was revoked, has ended, or never was.

        Looked up by digest: how long a wrong one takes tells nothing about a right one.
        """
        found = self._by_digest.get(sha256(token).digest())
        return None if found is None or found.has_ended(now) else found

    def all(self, now: float) -> Iterator[tuple[bytes, AccessToken]]:
        """Every token by its id, in their order."""
        return ((each, row) for each, row in sorted(self._tokens.items()) if not row.has_ended(now))


class AccessTokenCatalog:
    """The catalogue."""

    __slots__ = ("_book", "_tokens", "deadline")

    def __init__(self, outline: LogSnapshot, book: AccessTokens) -> None:
        self._book = book
        self._tokens = {
            name[len(_TOKEN) :]: _DECODER.decode(value)
            for name, value in outline.metadata.items()
            if name.startswith(_TOKEN)
        }
        self._sync()

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return ()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            reply = self._answer(message, now, effects)
            if reply is not None and batch.port is not None:
                effects.answers.append(reply)
        if effects.changes:
            self._sync()
        return effects

    def wake(self, now: float) -> Effects:
        """Forget what has ended."""
        effects = Effects()
        for each in [name for name, row in self._tokens.items() if row.has_ended(now)]:
            self._forget(each, effects)
        self._sync()
        return effects

    def _answer(self, message: CellMessage, now: float, effects: Effects) -> Reply | None:
        match message:
            case IssueToken():
                return self._issue(message, now, effects)
            case RevokeToken(number=number, id=token_id):
                row = self._tokens.get(token_id)
                if row is None or row.has_ended(now):
                    return StreamFailed(number, Code.UNKNOWN_STREAM)
                self._forget(token_id, effects)
                return Done(number)
            case Drain() | Detach() | CancelRead():
                return None
            case _:
                raise AssertionError(f"{type(message).__name__} is not for the catalogue")

    def _issue(self, request: IssueToken, now: float, effects: Effects) -> Reply:
        before = self._tokens.get(request.id)
        if before is not None and not before.has_ended(now):
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        if before is None and len(self._tokens) >= TOKENS_MAX:
            return StreamFailed(request.number, Code.BUFFER_FULL)
        row = AccessToken(request.digest, request.expires_ms, request.metadata)
        self._tokens[request.id] = row
        effects.changes.append(MetadataSet(_TOKEN + request.id, _ENCODER.encode(row)))
        return Done(request.number)

    def _forget(self, token_id: bytes, effects: Effects) -> None:
        del self._tokens[token_id]
        effects.changes.append(MetadataSet(_TOKEN + token_id, None))

    def _sync(self) -> None:
        self._book.sync(self._tokens)
        ends = (row.expires_ms for row in self._tokens.values() if row.expires_ms is not None)
        self.deadline = min(ends, default=inf) / 1000
