"""The page of the console as the HTTP listener serves it: its files, login and logout."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from millpond.node.web.pages import CONTENT_SECURITY_POLICY, CSS, HTML, ICON, SCRIPT
from millpond.transports.http import paths
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import (
    Response,
    ResponseWriter,
    json_response,
    plain_rejection,
)

if TYPE_CHECKING:
    from millpond.node.web.login import WebLogin

OWN, CHAT = "millpond.node.console", "millpond.node.web"
FRONT = b""
"""The name of the page itself, at `/millpond/`."""
SCRIPTS = (
    *("app", "bodies", "channels", "charts", "dialogs", "dom", "envelope", "events", "flows"),
    *("format", "job", "jobs", "limits", "node", "overview", "pages", "peers", "rights"),
    *("replica", "samples", "schedules", "streams", "table", "tabs", "workers"),
)
FILES = {
    FRONT: (OWN, "console.html", HTML),
    b"console.css": (OWN, "console.css", CSS),
    b"icon.svg": (CHAT, "icon.svg", ICON),
    **{f"{name}.js".encode(): (CHAT, f"{name}.js", SCRIPT) for name in ("msgpack", "p2p")},
    **{f"{name}.js".encode(): (OWN, f"{name}.js", SCRIPT) for name in SCRIPTS},
}
LOGIN, LOGOUT = b"login", b"logout"
FORM_BYTES_MAX = 1024
ROOT = ((b"",), (paths.CONSOLE,))
"""`/` and `/millpond`, from where browsers are led to the page."""
_LOCATION = (b"location", b"/" + paths.CONSOLE + b"/")
_SECURITY = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_REVALIDATED = (*_SECURITY, (b"cache-control", b"no-cache"))
_UNSTORED = (*_SECURITY, (b"cache-control", b"no-store"))


class ConsoleApi:
    """The page, at `/millpond/`, and its files and forms below it. Implements
    `millpond.transports.http.app.Api`. Its files are for everybody: they say nothing of the node.
    """

    name = "console"

    def __init__(self, login: WebLogin | None) -> None:
        self._login = login

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        segments = request.segments
        is_read = request.method in ("GET", "HEAD")
        if segments in ROOT:
            return _lead(request) if is_read else plain_rejection(Rejection.NOT_FOUND)
        match segments[1:]:
            case (b"",) if is_read:
                return _file(FRONT)
            case (b"console", name) if is_read and name in FILES and name != FRONT:
                return _file(name)
            case (b"console", form) if form in (LOGIN, LOGOUT) and request.method == "POST":
                return await self._answer_form(form, request)
        return plain_rejection(Rejection.NOT_FOUND)

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(reason)

    async def _answer_form(self, form: bytes, request: Request) -> Response:
        """A session's token for a link's secret; nothing for the token of one that ends."""
        body = await request.body(FORM_BYTES_MAX)
        if self._login is None:
            return plain_rejection(Rejection.NOT_FOUND)
        if form == LOGOUT:
            self._login.revoke(body)
            return Response(204, _UNSTORED)
        token = self._login.exchange(body.decode("ascii", "replace"))
        if token is None:
            message = "this link was used already or has expired"
            return json_response(403, {"code": "link_used", "message": message}, _UNSTORED)
        return json_response(200, {"token": token}, _UNSTORED)


def _lead(request: Request) -> Response:
    """The way to the page, for browsers; other clients get what paths without an API answer."""
    accepted = b",".join(request.values(b"accept"))
    if b"text/html" not in accepted.lower():
        found = plain_rejection(Rejection.NOT_FOUND)
        return Response(found.status, (*found.headers, (b"vary", b"accept")), found.body)
    return Response(303, (_LOCATION, (b"vary", b"accept"), *_UNSTORED))


@cache
def _file(name: bytes) -> Response:
    home, file, kind = FILES[name]
    body = (files(home) / "static" / file).read_bytes()
    return Response(200, ((b"content-type", kind.encode()), *_REVALIDATED), body)
