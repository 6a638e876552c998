"""Heads of HTTP: a request as an ASGI scope, and the first bytes of a response."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from millpond.transports.http.asgi import EXTENSION, Headers, Scope, ServerExtension
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Wire

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_STATUS_LINES = {
    each.value: b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus
}
_CHUNKED = [b"chunked"]
_HOST = re.compile(rb"(?:\[[\w.~!$&'()*+,;=:%-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?")
"""RFC 3986, 3.2.2: the name may come back in a URL of a response."""


_LATER_VERSION = re.compile(rb"[^ ]+ [^ ]+ HTTP/1\.[2-9]\r?")


class BadHead(Exception):
    """the head says what cannot be served"""


def line_rejection(line: bytes) -> Rejection | None:
    """The rejection of a request line that cannot be parsed, or whose head cannot; None: it is not
    of HTTP."""
    if b"HTTP/" not in line and len(line.split()) > 2:
        return None
    later = _LATER_VERSION.fullmatch(line)
    return Rejection.BAD_REQUEST if later is None else Rejection.BAD_VERSION


def body_length(headers: Headers) -> int | None:
    """The length of the body that an accepted head has; None: it is in chunks, if there is one."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None


def head_rejection(
    version: str, method: bytes, target: bytes, headers: Headers, settings: ServerSettings
) -> Rejection | None:
    """The rejection of a parsed head of HTTP/1 (RFC 9112, 3.2, 6.1); None: it is accepted."""
    if version not in ("1.0", "1.1"):
        return Rejection.BAD_VERSION
    if method == b"CONNECT":
        return Rejection.NO_TUNNEL
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (not hosts and version == "1.1"):
        return Rejection.BAD_REQUEST
    if b"transfer-encoding" in names:
        if version == "1.0" or b"content-length" in names:
            return Rejection.BAD_REQUEST
        if [value.lower() for name, value in headers if name == b"transfer-encoding"] != _CHUNKED:
            return Rejection.BAD_CODING
    if len(names) > settings.headers_max:
        return Rejection.HEADERS_TOO_LARGE
    if len(target) > 4 * settings.url_bytes_max:
        return Rejection.URL_TOO_LONG
    return None


def request_scope(
    wire: Wire, version: str, method: bytes, target: bytes, headers: Headers, is_secure: bool
) -> Scope:
    """A request as ASGI tells it. Raises BadHead for a target or a host that is none."""
    path_and_query, host = read_target(target)
    if host is not None:
        headers = [*(each for each in headers if each[0] != b"host"), (b"host", host)]
    for name, value in headers:
        if name == b"host" and _HOST.fullmatch(value) is None:
            raise BadHead("the host is none")
    raw, _, query = path_and_query.partition(b"?")
    path = unquote_to_bytes(raw) if b"%" in raw else raw
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "method": method.decode("latin-1"),
        "scheme": "https" if is_secure else "http",
        "path": path.decode("utf-8", "surrogateescape"),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": (wire.host, port_of(wire)),
        "server": None,
        "extensions": {EXTENSION: ServerExtension(wire.peer_certificate_hash, {})},
    }


def port_of(wire: Wire) -> int:
    """The other end's port; 0 where it has none."""
    port = wire.peer.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def read_target(target: bytes) -> tuple[bytes, bytes | None]:
    """A request's target as a path, and the host that it names, which counts more than the header
    (RFC 9112, 3.2). Raises BadHead."""
    if target.startswith(b"/") or target == b"*":
        return target, None
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise BadHead("the target is no path")
    path, mark, query = rest.partition(b"?")
    host, _, path = path.partition(b"/")
    if not host:
        raise BadHead("the target names no host")
    return b"/" + path + mark + query, host


def response_head(status: int, lines: bytes, date: bytes, more: bytes = b"") -> bytes:
    """The head of an answer of HTTP/1.1; `lines`: its headers, `more`: the connection's own."""
    first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"".join((first, lines, b"date: ", date, b"\r\n", more, b"\r\n"))
