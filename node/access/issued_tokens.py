"""Access tokens that the API of S2 issued, as the access policy sees them.

They are valid at the listener `http` only. S2 asks for each operation whether the token permits it;
for other APIs a token has the rights whose operations it permits all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millpond.actors.streams.catalogs.access_tokens import AccessToken, AccessTokens
from millpond.node.access.grants import Grant, Subject, SubjectKind
from millpond.node.access.tokens import ISSUED_PREFIX, new_token
from millpond.transports.server.interface import Principal

if TYPE_CHECKING:
    from millpond.transports.http.s2.codecs.tokens import NameSet

LISTENER = "http"
_PREFIX = ISSUED_PREFIX.encode()
_ESCAPES = str.maketrans({each: f"[{each}]" for each in "*?[{"})


class IssuedAccess:
    """Implements `transports.http.s2.interface.IssuedTokens`, for the basin `own` of all views."""

    def __init__(self, book: AccessTokens, own: bytes, now: Callable[[], float]) -> None:
        self._book = book
        self._own = own
        self._now = now
        self.make: Callable[[], str] = partial(new_token, os.urandom, ISSUED_PREFIX)

    def is_issued_form(self, token: bytes) -> bool:
        """True for a token in the form of those that S2 issues."""
        return token.startswith(_PREFIX)

    def find(self, token: bytes) -> AccessToken | None:
        """The stored form of a valid token; None: it is unknown, expired or revoked."""
        return self._book.find(token, self._now())

    def all(self) -> Iterator[tuple[bytes, AccessToken]]:
        """All valid tokens, each after its id, in the order of the ids."""
        return self._book.all(self._now())

    def grants(self, principal: Principal) -> Sequence[Grant]:
        """The grants of a client's token in other APIs: in streams of the node's own basin, at the
        HTTP listener."""
        found = self.find(principal.token or b"") if principal.listener == LISTENER else None
        if found is None:
            return ()
        # Imported for the first such token: other nodes do not need the S2 modules.
        from millpond.transports.http.s2.authorization import (
            rights_in_other_apis,
            stored_authorization,
        )

        authorization = stored_authorization(found.metadata)
        rights, scope = rights_in_other_apis(authorization), authorization.info.scope
        if not rights or scope.basins is None or scope.streams is None:
            return ()
        if not scope.basins.has(self._own.decode()):
            return ()
        patterns = _patterns(scope.streams)
        until = None if found.expires_ms is None else found.expires_ms / 1000
        source = f"access token {authorization.info.id!r} of S2"
        return (Grant(Subject(SubjectKind.TOKEN), rights, (), patterns, until, source),)


def _patterns(names: NameSet) -> tuple[str, ...]:
    """Patterns for names of streams. None of them matches the empty name, which stands for all
    streams."""
    if isinstance(names.prefix, str):
        begin = names.prefix.translate(_ESCAPES)
        return (f"{begin}?*", begin) if begin else ("?*",)
    return (str(names.exact).translate(_ESCAPES),) if names.exact else ()
