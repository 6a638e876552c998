"""The page on which windows share a state, and its files."""

from __future__ import annotations

from importlib.resources import files

from millpond.node.web.pages import CSS, HTML, ICON, POLICY, SCRIPT
from millpond.transports.errors import UpgradeRefused
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import (
    Response,
    ResponseWriter,
    json_response,
    plain_rejection,
)
from millpond.transports.websocket.origin import check_host

PREFIX = (b"millpond", b"page")
FILES = {
    b"states.css": ("millpond.node.http", CSS),
    b"shared.js": ("millpond.node.http", SCRIPT),
    b"board.js": ("millpond.node.http", SCRIPT),
    b"icon.svg": ("millpond.node.web", ICON),
}
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
)


class StatePage:
    """Implements `millpond.transports.http.app.Api` for the page's files. The page itself is shown
    at `/millpond/state/` (`front`), under an address or a name of `origins` only."""

    name = "page"

    def __init__(self, origins: frozenset[str]) -> None:
        self._origins = origins
        self._front = _file("millpond.node.http", "states.html", HTML)
        self._files = {
            name: _file(home, name.decode(), kind) for name, (home, kind) in FILES.items()
        }

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        """A file."""
        found = self._files.get(b"/".join(request.segments[len(PREFIX) :]))
        if found is None or request.method not in ("GET", "HEAD"):
            found = plain_rejection(Rejection.NOT_FOUND)
        return found

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(reason)

    def front(self, request: Request) -> Response:
        """The page, or why it is not shown."""
        authority = request.values(b"host") or request.values(b":authority")
        try:
            check_host([value.decode("latin-1") for value in authority], self._origins)
        except UpgradeRefused as exc:
            return json_response(exc.status, {"code": "host", "message": exc.reason})
        return self._front


def _file(home: str, name: str, kind: str) -> Response:
    body = (files(home) / "static" / name).read_bytes()
    return Response(200, ((b"content-type", kind.encode()), *_HEADERS), body)
