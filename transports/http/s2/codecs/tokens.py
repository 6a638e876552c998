"""Access tokens in S2's JSON: permissions and expiry (A.3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from millpond.transports.http.s2.codecs.info import nanoseconds_of, read_time, time_text
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.errors import ErrorCode, bad_json, invalid
from millpond.transports.http.s2.model import check_token_id

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class Operation(Enum):
    """An operation that a token may permit."""

    # Each is there once, and is looked up at every request.
    __hash__ = object.__hash__

    LIST_BASINS = "list-basins"
    CREATE_BASIN = "create-basin"
    DELETE_BASIN = "delete-basin"
    RECONFIGURE_BASIN = "reconfigure-basin"
    GET_BASIN_CONFIG = "get-basin-config"
    ISSUE_ACCESS_TOKEN = "issue-access-token"
    REVOKE_ACCESS_TOKEN = "revoke-access-token"
    LIST_ACCESS_TOKENS = "list-access-tokens"
    LIST_STREAMS = "list-streams"
    CREATE_STREAM = "create-stream"
    DELETE_STREAM = "delete-stream"
    GET_STREAM_CONFIG = "get-stream-config"
    RECONFIGURE_STREAM = "reconfigure-stream"
    CHECK_TAIL = "check-tail"
    APPEND = "append"
    READ = "read"
    TRIM = "trim"
    FENCE = "fence"
    ACCOUNT_METRICS = "account-metrics"
    BASIN_METRICS = "basin-metrics"
    STREAM_METRICS = "stream-metrics"
    LIST_LOCATIONS = "list-locations"
    GET_DEFAULT_LOCATION = "get-default-location"
    SET_DEFAULT_LOCATION = "set-default-location"


class NameSet(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Names: just one (`exact`), or those that begin so (`prefix`); an empty exact one is none."""

    exact: str | UnsetType = UNSET
    prefix: str | UnsetType = UNSET

    @property
    def is_empty(self) -> bool:
        """True if no name is in the set."""
        return isinstance(self.prefix, UnsetType) and not self.exact

    def includes(self, other: NameSet) -> bool:
        """True if all names of the other set are in this one."""
        if other.is_empty:
            return True
        if not isinstance(other.prefix, UnsetType):
            mine = self.prefix
            return not isinstance(mine, UnsetType) and other.prefix.startswith(mine)
        return isinstance(other.exact, str) and self.has(other.exact)

    def behind(self, prefix: str) -> NameSet:
        """The same names with a prefix before each."""
        if self.is_empty:
            return self
        if isinstance(self.prefix, UnsetType):
            return NameSet(exact=f"{prefix}{self.exact}")
        return NameSet(prefix=prefix + self.prefix)

    def has(self, name: str) -> bool:
        """True if the set has this name."""
        if not isinstance(self.prefix, UnsetType):
            return name.startswith(self.prefix)
        return bool(name) and name == self.exact


class ReadWrite(msgspec.Struct, frozen=True, gc=False):
    """The permissions of a group of operations."""

    read: bool = False
    write: bool = False


class OperationGroups(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Operations by what they concern."""

    account: ReadWrite | None = None
    basin: ReadWrite | None = None
    stream: ReadWrite | None = None


class Scope(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The names that a token covers, and the operations there: the groups and `ops` together."""

    basins: NameSet | None = None
    streams: NameSet | None = None
    access_tokens: NameSet | None = None
    op_groups: OperationGroups | None = None
    ops: list[Operation] | None = None


class AccessTokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token by its id. `expires_ms` None: it does not expire. `issuer`: the id of the token that
    issued it; None: a client with the right admin did. `expires_ns`: the nanoseconds behind those
    milliseconds, which are shown as they were given; a token expires by the millisecond."""

    id: str
    scope: Scope
    expires_ms: int | None = None
    auto_prefix_streams: bool = False
    issuer: str | None = None
    expires_ns: int = 0


class _Sent(msgspec.Struct, frozen=True, gc=False):
    id: str
    scope: Scope
    expires_at: str | None = None
    auto_prefix_streams: bool | None = None


_decode = msgspec.json.Decoder(_Sent).decode
_unpack = msgspec.msgpack.Decoder(AccessTokenInfo).decode


def read_token(data: bytes) -> AccessTokenInfo:
    """A token to make. Raises CodedError: bad_json, also for an id; invalid for a scope without an
    operation, or names to prefix without a prefix."""
    sent = decode_json(_decode, data)
    check_token_id(sent.id, ErrorCode.BAD_JSON)
    scope = sent.scope
    if scope.ops is not None:
        scope = msgspec.structs.replace(scope, ops=list(dict.fromkeys(scope.ops)))
    for names in (scope.basins, scope.streams, scope.access_tokens):
        if names is not None and (names.exact is UNSET) == (names.prefix is UNSET):
            raise bad_json("scope: names have one of 'exact' and 'prefix'")
    if not _permits_something(scope):
        raise invalid("Access token permissions cannot be empty")
    is_prefixing = bool(sent.auto_prefix_streams)
    if is_prefixing and (scope.streams is None or scope.streams.prefix is UNSET):
        raise invalid("Auto prefixing is only allowed for streams with prefix matching")
    info = AccessTokenInfo(sent.id, scope, None, is_prefixing)
    if sent.expires_at is None:
        return info
    expires_ms = read_time(sent.expires_at, "expires_at")
    expires_ns = nanoseconds_of(sent.expires_at)
    return msgspec.structs.replace(info, expires_ms=expires_ms, expires_ns=expires_ns)


def _permits_something(scope: Scope) -> bool:
    groups = scope.op_groups or OperationGroups()
    given = (groups.account, groups.basin, groups.stream)
    return bool(scope.ops) or any(each is not None and (each.read or each.write) for each in given)


def encode_stored_token(info: AccessTokenInfo) -> bytes:
    """The stored form of a token, as MessagePack."""
    return _pack(info)


def decode_stored_token(data: bytes) -> AccessTokenInfo:
    """The token that `encode_stored_token` encoded."""
    return _unpack(data)


def encode_issued(access_token: str) -> bytes:
    """The response to the issue of a token: the only time that it is shown."""
    return _encode({"access_token": access_token})


def encode_tokens(infos: Sequence[AccessTokenInfo], *, has_more: bool) -> bytes:
    """A page of tokens."""
    return _encode({"access_tokens": list(map(_shape, infos)), "has_more": has_more})


def encode_token(info: AccessTokenInfo) -> bytes:
    """An AccessTokenInfo; `read_token` reads it."""
    return _encode(_shape(info))


def _shape(info: AccessTokenInfo) -> dict[str, object]:
    expires_ms = info.expires_ms
    return {
        "id": info.id,
        "expires_at": None if expires_ms is None else time_text(expires_ms, info.expires_ns),
        "auto_prefix_streams": info.auto_prefix_streams,
        "scope": _scope_shape(info.scope),
    }


def _scope_shape(scope: Scope) -> dict[str, object]:
    """A scope with all its parts: those that are none as null, groups written out."""
    groups = scope.op_groups or OperationGroups()
    return {
        "basins": _shown(scope.basins),
        "streams": _shown(scope.streams),
        "access_tokens": _shown(scope.access_tokens),
        "op_groups": {
            "account": groups.account or ReadWrite(),
            "basin": groups.basin or ReadWrite(),
            "stream": groups.stream or ReadWrite(),
        },
        "ops": scope.ops or [],
    }


def _shown(names: NameSet | None) -> NameSet | None:
    return None if names is None or names.is_empty else names
