"""The page on which windows share a state, and its files."""

from __future__ import annotations

from importlib.resources import files

from millpond.node.web.pages import CONTENT_SECURITY_POLICY, CSS, HTML, ICON, SCRIPT
from millpond.transports.http import paths
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection

FILES = {
    b"states.css": ("millpond.node.http", CSS),
    b"shared.js": ("millpond.node.http", SCRIPT),
    b"board.js": ("millpond.node.http", SCRIPT),
    b"icon.svg": ("millpond.node.web", ICON),
}
_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
)


class StatePage:
    """Implements `millpond.transports.http.app.Api` for the page's files. The page itself, `front`,
    is shown at `/millpond/state/`."""

    name = "page"

    def __init__(self) -> None:
        self.front = _file("millpond.node.http", "states.html", HTML)
        self._files = {
            name: _file(home, name.decode(), kind) for name, (home, kind) in FILES.items()
        }

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        """A file."""
        found = self._files.get(b"/".join(request.segments[len(paths.PAGE) :]))
        if found is None or request.method not in ("GET", "HEAD"):
            found = plain_rejection(Rejection.NOT_FOUND)
        return found

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(reason)


def _file(home: str, name: str, kind: str) -> Response:
    body = (files(home) / "static" / name).read_bytes()
    return Response(200, ((b"content-type", kind.encode()), *_HEADERS), body)
