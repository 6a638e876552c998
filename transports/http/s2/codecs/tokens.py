"""Access tokens in S2's JSON: permissions and expiry (A.3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from millpond.transports.http.s2.codecs.info import read_time, time_text
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.errors import bad_json, invalid
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
    """A token by its id. `expires_ms` None: it expires with its issuer."""

    id: str
    scope: Scope
    expires_ms: int | None = None
    auto_prefix_streams: bool = False


class _Sent(msgspec.Struct, frozen=True, gc=False):
    id: str
    scope: Scope
    expires_at: str | None = None
    auto_prefix_streams: bool | None = None


_decode = msgspec.json.Decoder(_Sent).decode
_unpack = msgspec.msgpack.Decoder(AccessTokenInfo).decode


def read_token(data: bytes) -> AccessTokenInfo:
    """A token to make. Raises CodedError: bad_json; invalid for an id, or a scope that permits
    nothing, or names to prefix without a prefix."""
    sent = decode_json(_decode, data)
    check_token_id(sent.id)
    scope = sent.scope
    if scope.ops is not None:
        scope = msgspec.structs.replace(scope, ops=list(dict.fromkeys(scope.ops)))
    for names in (scope.basins, scope.streams, scope.access_tokens):
        if names is not None and (names.exact is UNSET) == (names.prefix is UNSET):
            raise bad_json("scope: names have one of 'exact' and 'prefix'")
    if not _permits_something(scope):
        raise invalid("scope: it permits nothing")
    is_prefixing = bool(sent.auto_prefix_streams)
    if is_prefixing and (scope.streams is None or not scope.streams.prefix):
        raise invalid("auto_prefix_streams: the scope has no prefix of streams")
    expires_ms = None if sent.expires_at is None else read_time(sent.expires_at, "expires_at")
    return AccessTokenInfo(sent.id, scope, expires_ms, is_prefixing)


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
        "expires_at": None if expires_ms is None else time_text(expires_ms),
        "auto_prefix_streams": info.auto_prefix_streams,
        "scope": info.scope,
    }
