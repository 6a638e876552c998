"""What a request asks, as far as its head says it: method, path, query, headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from millpond.transports.http.asgi import Headers, Scope

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BEARER = re.compile(rb"bearer +(.+)", re.IGNORECASE | re.DOTALL)


class BadPath(Exception):
    """the path cannot be read (400)"""


class RequestHead(msgspec.Struct, frozen=True):
    """`segments`: the raw path split at `/`, each percent-decoded; `query`: decoded pairs, `+` is a
    space, bytes that are no UTF-8 as surrogates (`surrogateescape`). `last` has the last value of
    each header, `bearer` the access token."""

    method: str
    segments: tuple[bytes, ...]
    query: Sequence[tuple[str, str]]
    headers: Headers
    last: dict[bytes, bytes]
    bearer: bytes | None
    is_http2: bool


def request_head(scope: Scope, segments: tuple[bytes, ...]) -> RequestHead:
    """What is asked at a path with these segments. Raises BadPath for a query that cannot be
    read."""
    raw: bytes = scope.get("query_string", b"")
    return _question(scope, segments, parse_query(raw) if raw else ())


def head_without_path(scope: Scope) -> RequestHead:
    """The same of a request whose path or query cannot be read."""
    return _question(scope, (), ())


def _question(
    scope: Scope, segments: tuple[bytes, ...], query: Sequence[tuple[str, str]]
) -> RequestHead:
    headers: Headers = scope["headers"]
    last = dict(headers)
    found = last.get(b"authorization")
    matched = _BEARER.fullmatch(found) if found is not None else None
    return RequestHead(
        scope["method"],
        segments,
        query,
        headers,
        last,
        matched[1].strip() if matched else None,
        scope.get("http_version", "1.1") not in ("1.0", "1.1"),
    )


def raw_segments(scope: Scope) -> tuple[bytes, ...]:
    """The segments as they came, to tell whose a path is that cannot be read."""
    raw: bytes = scope.get("raw_path") or b""
    return tuple(raw.partition(b"?")[0].split(b"/")[1:])


def split_path(scope: Scope) -> tuple[bytes, ...]:
    """The segments of the raw path below `root_path`, decoded one by one. Raises BadPath."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        # A server that tells no raw path has decoded it; nothing is left to be decoded.
        parts = scope["path"].encode("utf-8", "surrogateescape").split(b"/")[1:]
    else:
        parts = raw.partition(b"?")[0].split(b"/")[1:]
        if b"%" in raw:
            parts = [percent_decoded(part) for part in parts]
    root: str = scope.get("root_path", "")
    if root:
        above = root.encode("utf-8", "surrogateescape").strip(b"/").split(b"/")
        if parts[: len(above)] == above:
            parts = parts[len(above) :]
    return tuple(parts)


def percent_decoded(part: bytes) -> bytes:
    """A part of a URL without its escapes. Raises BadPath for a `%` that begins none."""
    if b"%" not in part:
        return part
    if _BROKEN_ESCAPE.search(part):
        raise BadPath("a percent sign is not followed by two hexadecimal digits")
    return unquote_to_bytes(part)


def parse_query(raw: bytes) -> list[tuple[str, str]]:
    """The pairs of a query, in their order; a key without `=` has the value "". Raises BadPath."""
    pairs = []
    for each in raw.replace(b"+", b" ").split(b"&"):
        if each:
            name, _, value = each.partition(b"=")
            pairs.append((_text(name), _text(value)))
    return pairs


def _text(part: bytes) -> str:
    return percent_decoded(part).decode("utf-8", "surrogateescape")
