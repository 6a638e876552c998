"""Pages beside the WebSockets of a listener: one plain HTTP request, its answer, the end.

There is no more of HTTP than a page of one's own node needs: GET and HEAD of what a table holds,
POST of a few bytes to what it knows, no ranges, no cookies, nothing kept alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

import msgspec

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import UpgradeRefused
from millpond.transports.websocket.upgrade import check_browser

HEAD_BYTES_MAX = 8192
HEADERS_MAX = 128
FORM_BYTES_MAX = 1024
CHANNELS = "/v1/channels/"

_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}")
_PLAIN = "text/plain; charset=utf-8"


Headers = tuple[tuple[str, str], ...]


class Page(msgspec.Struct, frozen=True):
    """The answer to a request; `headers` are added to those that every answer has."""

    body: bytes
    content_type: str
    headers: Headers = ()
    status: HTTPStatus = HTTPStatus.OK


Form = Callable[[bytes], Page]
"""Takes the body of a POST; quick, as everything that a session calls."""


class Site(msgspec.Struct, frozen=True):
    """The pages, by path without a query."""

    pages: Mapping[str, Page] = {}
    forms: Mapping[str, Form] = {}


class PageRequest(msgspec.Struct, frozen=True):
    """`fields` are the headers, their names in lower case; `body_bytes` follow the head."""

    method: str
    path: str
    fields: Sequence[tuple[str, str]]
    body_bytes: int = 0

    def all_of(self, name: str) -> list[str]:
        """The values of a header."""
        return [value for each, value in self.fields if each == name]


def read_page_request(head: bytes) -> PageRequest | None:
    """The page that a complete head requests; None: a WebSocket, or a request for its handshake.

    Raises UpgradeRefused for what is no request.
    """
    line = _REQUEST.match(head)
    if line is None:
        return None
    method, path = line[1].decode(), line[2].decode()
    fields: list[tuple[str, str]] = []
    at = line.end()
    while field := _FIELD.match(head, at):
        if len(fields) == HEADERS_MAX:
            raise UpgradeRefused(400, "too many headers")
        fields.append((field[1].decode().lower(), field[2].decode("latin-1").rstrip(" \t")))
        at = field.end()
    is_upgrade = any(name in ("upgrade", "sec-websocket-key") for name, _ in fields)
    if is_upgrade or path.startswith(CHANNELS):
        return None
    if len(head) > HEAD_BYTES_MAX:
        raise UpgradeRefused(431, "the header is too long")
    if head[at:] != b"\r\n":
        raise UpgradeRefused(400, "not an HTTP request")
    request = PageRequest(method, path.partition("?")[0], fields)
    return msgspec.structs.replace(request, body_bytes=_body_bytes(request))


def answer_page(site: Site, request: PageRequest, body: bytes, policy: BrowserPolicy) -> bytes:
    """The whole answer to a request, a refusal included."""
    cors: Headers = ()
    try:
        check_browser(policy, request.all_of, is_page_visit=_is_page_visit(request))
        cors = _cors_headers(request)
        page = _found(site, request, body)
    except UpgradeRefused as refused:
        status = HTTPStatus(refused.status)
        page = Page(f"{refused.reason}\n".encode(), _PLAIN, status=status)
    return _write(page, cors, is_head=request.method == "HEAD")


def _found(site: Site, request: PageRequest, body: bytes) -> Page:
    page, form = site.pages.get(request.path), site.forms.get(request.path)
    if page is None and form is None:
        raise UpgradeRefused(404, "there is no such page")
    allowed = "GET, HEAD" if form is None else "POST"
    if request.method == "OPTIONS" and request.all_of("access-control-request-method"):
        wanted = ", ".join(request.all_of("access-control-request-headers"))
        headers = (
            ("Access-Control-Allow-Methods", allowed),
            *([("Access-Control-Allow-Headers", wanted)] if wanted else ()),
        )
        return Page(b"", _PLAIN, headers, HTTPStatus.NO_CONTENT)
    if page is not None and request.method in ("GET", "HEAD"):
        return page
    if form is not None and request.method == "POST":
        return form(body)
    status = HTTPStatus.METHOD_NOT_ALLOWED
    return Page(b"not here\n", _PLAIN, (("Allow", allowed),), status)


def _is_page_visit(request: PageRequest) -> bool:
    """True if a person follows a link to a page, perhaps from another site."""
    is_navigation = request.all_of("sec-fetch-mode") == ["navigate"]
    is_read = request.method in ("GET", "HEAD")
    return is_read and is_navigation and request.all_of("sec-fetch-dest") == ["document"]


def _cors_headers(request: PageRequest) -> Headers:
    """The headers that let a page of an admitted origin read the answer."""
    origins = request.all_of("origin")
    if not origins:
        return ()
    return (("Access-Control-Allow-Origin", origins[0]), ("Vary", "Origin"))


def _body_bytes(request: PageRequest) -> int:
    if request.all_of("transfer-encoding"):
        raise UpgradeRefused(411, "a body needs its length")
    lengths = request.all_of("content-length")
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise UpgradeRefused(400, "not a length")
    if int(lengths[0]) > FORM_BYTES_MAX:
        raise UpgradeRefused(413, "the body is too long")
    return int(lengths[0])


def _write(page: Page, cors: Headers, *, is_head: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in (*page.headers, *cors)),
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if is_head else head + page.body
