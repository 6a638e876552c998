"""Authorization of S2: the right that each operation takes, and the scopes of access tokens.

A token permits operations one by one, each for the names in its scope. Other clients have rights as
at every listener (docs/guides/access.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from millpond.actors.messages import Rights
from millpond.transports.http.s2.codecs.tokens import (
    AccessTokenInfo,
    NameSet,
    Operation,
    ReadWrite,
    decode_stored_token,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, invalid
from millpond.transports.http.s2.model import BASIN_BYTES_MAX, STREAM_BYTES_MAX, TOKEN_BYTES_MAX

KEPT_MAX = 256
_O = Operation
GET_OR_LIST = Rights.GET | Rights.LIST

RIGHTS: dict[Operation, Rights | None] = {
    _O.LIST_BASINS: None,
    _O.CREATE_BASIN: Rights.ADMIN,
    _O.DELETE_BASIN: Rights.ADMIN,
    _O.RECONFIGURE_BASIN: Rights.ADMIN,
    _O.GET_BASIN_CONFIG: GET_OR_LIST,
    _O.ISSUE_ACCESS_TOKEN: Rights.ADMIN,
    _O.REVOKE_ACCESS_TOKEN: Rights.ADMIN,
    _O.LIST_ACCESS_TOKENS: Rights.ADMIN,
    _O.LIST_STREAMS: None,
    _O.CREATE_STREAM: Rights.PUT,
    _O.DELETE_STREAM: Rights.ADMIN,
    _O.GET_STREAM_CONFIG: GET_OR_LIST,
    _O.RECONFIGURE_STREAM: Rights.ADMIN,
    _O.CHECK_TAIL: GET_OR_LIST,
    _O.APPEND: Rights.PUT,
    _O.READ: Rights.GET,
    _O.TRIM: Rights.ADMIN,
    _O.FENCE: Rights.PUT,
    _O.ACCOUNT_METRICS: Rights.LIST,
    _O.BASIN_METRICS: Rights.LIST,
    _O.STREAM_METRICS: GET_OR_LIST,
    _O.LIST_LOCATIONS: None,
    _O.GET_DEFAULT_LOCATION: None,
    _O.SET_DEFAULT_LOCATION: Rights.ADMIN,
}
"""One of these in the stream, or in all streams where none is meant; None: any right anywhere."""

OF_TOKENS = frozenset({_O.ISSUE_ACCESS_TOKEN, _O.REVOKE_ACCESS_TOKEN, _O.LIST_ACCESS_TOKENS})
OF_STREAMS = frozenset(
    {
        _O.CREATE_STREAM,
        _O.DELETE_STREAM,
        _O.GET_STREAM_CONFIG,
        _O.RECONFIGURE_STREAM,
        _O.CHECK_TAIL,
        _O.APPEND,
        _O.READ,
        _O.TRIM,
        _O.FENCE,
        _O.STREAM_METRICS,
    }
)
OF_BASINS = OF_STREAMS | {
    _O.CREATE_BASIN,
    _O.DELETE_BASIN,
    _O.RECONFIGURE_BASIN,
    _O.GET_BASIN_CONFIG,
    _O.LIST_STREAMS,
    _O.BASIN_METRICS,
}
"""Operations by the names that they take; those of streams take a basin as well."""

_ACCOUNT_READ = (
    _O.LIST_BASINS,
    _O.GET_BASIN_CONFIG,
    _O.LIST_ACCESS_TOKENS,
    _O.ACCOUNT_METRICS,
    _O.LIST_LOCATIONS,
    _O.GET_DEFAULT_LOCATION,
)
_ACCOUNT_WRITE = (
    _O.CREATE_BASIN,
    _O.DELETE_BASIN,
    _O.RECONFIGURE_BASIN,
    _O.ISSUE_ACCESS_TOKEN,
    _O.REVOKE_ACCESS_TOKEN,
    _O.SET_DEFAULT_LOCATION,
)
_BASIN_READ = (_O.LIST_STREAMS, _O.GET_STREAM_CONFIG, _O.BASIN_METRICS)
_BASIN_WRITE = (_O.CREATE_STREAM, _O.DELETE_STREAM, _O.RECONFIGURE_STREAM)
_STREAM_READ = (_O.CHECK_TAIL, _O.READ, _O.STREAM_METRICS)
_STREAM_WRITE = (_O.APPEND, _O.TRIM, _O.FENCE)


class Authorization(msgspec.Struct, frozen=True):
    """The permissions of an access token."""

    info: AccessTokenInfo
    operations: frozenset[Operation]

    @property
    def prefix(self) -> bytes:
        """A prefix of all stream names that the token's client gives, and does not see."""
        streams = self.info.scope.streams
        if not self.info.auto_prefix_streams or streams is None or streams.prefix is msgspec.UNSET:
            return b""
        return streams.prefix.encode()

    def allows(self, operation: Operation, name: bytes | None, stream: bytes | None) -> bool:
        """True if the operation is permitted for this basin or token `name`, and this stream.

        None: for some of them, which are checked one by one.
        """
        scope = self.info.scope
        if operation not in self.operations:
            return False
        if operation in OF_TOKENS:
            return name is None or _has(scope.access_tokens, name)
        if operation in OF_BASINS and name is not None and not _has(scope.basins, name):
            return False
        if operation in OF_STREAMS and stream is not None:
            return _has(scope.streams, stream)
        return True

    def sees_basin(self, name: bytes) -> bool:
        """True if the client may learn that this basin exists."""
        return _has(self.info.scope.basins, name)

    def sees_stream(self, name: bytes) -> bool:
        """True if the client may learn that this stream exists."""
        return _has(self.info.scope.streams, name)

    def narrowed(self, prefix: bytes) -> bytes | None:
        """The longest prefix of the visible stream names that begin with `prefix`; None: there are
        none."""
        streams = self.info.scope.streams
        if streams is None or not _names_any(streams):
            return None
        begin = _text(streams).encode()
        if prefix.startswith(begin):
            return prefix
        return begin if begin.startswith(prefix) else None


def authorization_of(info: AccessTokenInfo) -> Authorization:
    """The permissions of a token: its groups and operations together."""
    groups = info.scope.op_groups
    found = set(info.scope.ops or ())
    if groups is not None:
        found.update(_in_group(groups.account, _ACCOUNT_READ, _ACCOUNT_WRITE))
        found.update(_in_group(groups.basin, _BASIN_READ, _BASIN_WRITE))
        found.update(_in_group(groups.stream, _STREAM_READ, _STREAM_WRITE))
    return Authorization(info, frozenset(found))


@lru_cache(maxsize=KEPT_MAX)
def stored_authorization(metadata: bytes) -> Authorization:
    """The permissions of a stored token; results for the latest ones are cached."""
    return authorization_of(decode_stored_token(metadata))


def check_authorization(authorization: Authorization) -> None:
    """Raises CodedError (422) for what no name can be. A part of the scope may be missing although
    operations need it: they are permitted nowhere then."""
    scope = authorization.info.scope
    names = (
        ("basins", scope.basins, BASIN_BYTES_MAX),
        ("streams", scope.streams, STREAM_BYTES_MAX),
        ("access_tokens", scope.access_tokens, TOKEN_BYTES_MAX),
    )
    for what, given, bytes_max in names:
        if given is not None and len(_text(given).encode("utf-8", "surrogatepass")) > bytes_max:
            raise invalid(f"scope.{what}: no name has more than {bytes_max} bytes")


def issued_by(issuer: Authorization, asked: AccessTokenInfo) -> AccessTokenInfo:
    """The token that a client with another token gets for what it asks: within the issuer's scope
    and time. Names of streams are relative to the issuer's own prefix (S2X-23, S2X-24).

    Raises CodedError (403) for what the issuer does not have itself.
    """
    own, scope = issuer.info, asked.scope
    if issuer.prefix and scope.streams is not None:
        whole = scope.streams.behind(issuer.prefix.decode())
        scope = msgspec.structs.replace(scope, streams=whole)
    last = own if asked.expires_ms is None else asked
    parts = (
        (own.scope.basins, scope.basins),
        (own.scope.streams, scope.streams),
        (own.scope.access_tokens, scope.access_tokens),
    )
    has_operations = authorization_of(asked).operations <= issuer.operations
    has_names = all(_includes(mine, other) for mine, other in parts)
    has_time = own.expires_ms is None or _end_of(last) <= _end_of(own)
    if not (has_operations and has_names and has_time):
        text = "the access token cannot issue one that permits more, or for longer, than it does"
        raise CodedError(ErrorCode.PERMISSION_DENIED, text)
    return msgspec.structs.replace(
        asked,
        scope=scope,
        expires_ms=last.expires_ms,
        expires_ns=last.expires_ns,
        issuer=own.id,
    )


def _end_of(info: AccessTokenInfo) -> tuple[int, int]:
    return info.expires_ms or 0, info.expires_ns


def _includes(mine: NameSet | None, other: NameSet | None) -> bool:
    if other is None or other.is_empty:
        return True
    return mine is not None and mine.includes(other)


def rights_in_other_apis(authorization: Authorization) -> Rights:
    """The rights of a token in other APIs: those of which it permits every operation."""
    rights = Rights.NONE
    for right, operations in _WHOLE.items():
        if operations <= authorization.operations:
            rights |= right
    return rights


_DESCRIBES = frozenset({_O.CHECK_TAIL, _O.GET_STREAM_CONFIG})
_WHOLE = {
    Rights.PUT: frozenset({_O.APPEND, _O.FENCE, _O.CREATE_STREAM}),
    Rights.GET: _DESCRIBES | {_O.READ},
    Rights.LIST: _DESCRIBES | {_O.LIST_STREAMS},
    Rights.ADMIN: OF_STREAMS | {_O.LIST_STREAMS},
}


def _in_group(
    given: ReadWrite | None, reads: Sequence[Operation], writes: Sequence[Operation]
) -> Sequence[Operation]:
    if given is None:
        return ()
    return [*(reads if given.read else ()), *(writes if given.write else ())]


def _has(names: NameSet | None, name: bytes) -> bool:
    """No set of names is none of them."""
    return names is not None and names.has(name.decode("utf-8", "surrogateescape"))


def _text(names: NameSet) -> str:
    return names.exact if isinstance(names.exact, str) else str(names.prefix)


def _names_any(names: NameSet | None) -> bool:
    return names is not None and (isinstance(names.prefix, str) or bool(names.exact))
