"""What the S2 API asks of the node besides what all of HTTP does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.server.interface import StreamDirectory


class BasinRow(Protocol):
    """A basin as the catalogue has it. `metadata` are ours (`transports.http.s2.metadata`)."""

    @property
    def created_ms(self) -> int: ...
    @property
    def metadata(self) -> bytes: ...
    @property
    def removed_ms(self) -> int: ...


class BasinNames(Protocol):
    """The basins of a node, in memory."""

    @property
    def own(self) -> bytes:
        """The basin whose streams are those of the other views."""

    def find(self, name: bytes) -> BasinRow | None:
        """A basin that is there, and not to go."""

    def is_removed(self, name: bytes) -> bool:
        """Is it to go, with streams that may still be there?"""

    def all(self) -> Iterator[tuple[bytes, BasinRow, bool]]:
        """Every basin by name, and whether it is to go."""

    def streams(self, basin: bytes) -> StreamDirectory:
        """The names of a basin's streams."""


class TokenRow(Protocol):
    """An access token as the catalogue has it. `metadata` are ours (`token_form.write_kept`)."""

    @property
    def metadata(self) -> bytes: ...


class IssuedTokens(Protocol):
    """The access tokens that this API issued, in memory."""

    def is_one(self, token: bytes) -> bool:
        """Does it say of itself that it was issued so?"""

    def find(self, token: bytes) -> TokenRow | None:
        """What is noted of a token; None: it permits nothing, any more or ever."""

    def all(self) -> Iterator[tuple[bytes, TokenRow]]:
        """Every token by its id, in their order."""

    @property
    def make(self) -> Callable[[], str]:
        """A new token, which nobody can guess."""


class S2NodeServices(HttpNodeServices, Protocol):
    """The node, as S2 requests see it."""

    @property
    def basins(self) -> BasinNames: ...
    @property
    def tokens(self) -> IssuedTokens: ...

    def reauthorize(self) -> None:
        """Who may do what has changed: nobody goes on with rights that are gone."""

    def stream_age_s(self, name: bytes) -> int:
        """How old records get in a stream that was told nothing of it; 0: no limit. `name` is
        what rules call it."""
