"""Descriptions of basins and streams as JSON, and lists of them (A.2, A.3); times as RFC 3339."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum

import msgspec

from millpond.transports.http.s2.errors import CodedError, ErrorCode, bad_json
from millpond.transports.http.s2.read_query import unique

LIST_MAX = 1000

_encode = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999: RFC 3339 has no later times."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_LIMIT = re.compile(r"\d{1,20}", re.ASCII)


class BasinState(Enum):
    """A basin that is being deleted takes nothing any more."""

    ACTIVE = "active"
    DELETING = "deleting"


class BasinInfo(msgspec.Struct, frozen=True, gc=False):
    """A basin. Times are in milliseconds."""

    name: str
    created_ms: int
    deleted_ms: int | None = None
    location: str | None = None


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """A stream of a basin. Times are in milliseconds."""

    name: str
    created_ms: int
    deleted_ms: int | None = None
    cipher: str | None = None


class ListQuery(msgspec.Struct, frozen=True, gc=False):
    """Names that begin with `prefix` and are above `start_after`, in byte order."""

    prefix: str = ""
    start_after: str = ""
    limit: int = LIST_MAX


def read_list_query(pairs: Sequence[tuple[str, str]]) -> ListQuery:
    """A limit of 0 or above 1000 means 1000 (A.2). Raises CodedError (bad_query)."""
    given = unique(pairs)
    text = given.get("limit")
    limit = LIST_MAX
    if text is not None:
        if _LIMIT.fullmatch(text) is None:
            raise CodedError(ErrorCode.BAD_QUERY, "limit: expected a number, 0 or more")
        limit = int(text) if 1 <= int(text) <= LIST_MAX else LIST_MAX
    return ListQuery(given.get("prefix", ""), given.get("start_after", ""), limit)


def encode_basin(info: BasinInfo) -> bytes:
    """A BasinInfo."""
    return _encode(_basin(info))


def encode_basins(infos: Sequence[BasinInfo], *, has_more: bool) -> bytes:
    """A page of basins."""
    return _encode({"basins": list(map(_basin, infos)), "has_more": has_more})


def encode_stream(info: StreamInfo) -> bytes:
    """A StreamInfo."""
    return _encode(_stream(info))


def encode_streams(infos: Sequence[StreamInfo], *, has_more: bool) -> bytes:
    """A page of streams."""
    return _encode({"streams": list(map(_stream, infos)), "has_more": has_more})


def _basin(info: BasinInfo) -> dict[str, str | None]:
    state = BasinState.ACTIVE if info.deleted_ms is None else BasinState.DELETING
    return {
        "name": info.name,
        "location": info.location,
        "created_at": time_text(info.created_ms),
        "deleted_at": _time_or_null(info.deleted_ms),
        "state": state.value,
    }


def _stream(info: StreamInfo) -> dict[str, str | None]:
    return {
        "name": info.name,
        "created_at": time_text(info.created_ms),
        "deleted_at": _time_or_null(info.deleted_ms),
        "cipher": info.cipher,
    }


def _time_or_null(ms: int | None) -> str | None:
    return None if ms is None else time_text(ms)


def time_text(ms: int, ns: int = 0) -> str:
    """Milliseconds since the epoch, and nanoseconds behind them, as RFC 3339 in UTC."""
    moment = _EPOCH + min(ms, _LAST_MS) * _MS
    text = moment.isoformat(timespec="milliseconds").removesuffix("+00:00")
    return f"{text}{f'{ns:06d}'.rstrip('0')}Z"


def read_time(text: str, name: str) -> int:
    """RFC 3339 as milliseconds since the epoch. Raises CodedError (bad_json)."""
    wrong = bad_json(f"{name}: expected a time of RFC 3339, such as 2030-01-31T12:00:00Z")
    if _TIME.fullmatch(text) is None:
        raise wrong
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise wrong from None
    return (moment - _EPOCH) // _MS


def nanoseconds_of(text: str) -> int:
    """The nanoseconds of a time of RFC 3339 behind those milliseconds."""
    found = _TIME.fullmatch(text)
    fraction = (found and found.group(1)) or "."
    return int(fraction[1:].ljust(9, "0")[3:])
