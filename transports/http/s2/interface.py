"""The node, as S2 requests see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.server.interface import Principal, StreamDirectory


class BasinRow(Protocol):
    """A basin as the catalog has it. `metadata` are ours (`transports.http.s2.metadata`)."""

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

    def check_complete(self) -> None:
        """Before basins or streams are listed. Raises StorageFailed if some are lost."""

    def is_removed(self, name: bytes) -> bool:
        """True for a basin that is being deleted, whose streams may still exist."""

    def all(self) -> Iterator[tuple[bytes, BasinRow, bool]]:
        """Every basin by name, and whether it is to go."""

    def streams(self, basin: bytes) -> StreamDirectory:
        """The names of a basin's streams."""


class TokenRow(Protocol):
    """An access token as the catalog has it. `metadata` is what
    `codecs.tokens.encode_stored_token` makes."""

    @property
    def metadata(self) -> bytes: ...


class IssuedTokens(Protocol):
    """The access tokens that this API issued, in memory."""

    def is_issued_form(self, token: bytes) -> bool:
        """True for a token in the form of those that this API issues."""

    def find(self, token: bytes) -> TokenRow | None:
        """The stored form of a valid token; None: it permits nothing, any more or ever."""

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

    @property
    def is_stranger(self) -> Callable[[Principal], bool]:
        """True for a client with a token that the node does not know, where it knows any: whatever
        others may do from the same address, these credentials are refused (S2X-27)."""

    def reauthorize(self) -> None:
        """Check the rights of all connections again."""

    def stream_age_s(self, name: bytes) -> int:
        """The maximum age of records in a stream without a setting of its own; 0: no limit. `name`
        is the one that access rules use."""
