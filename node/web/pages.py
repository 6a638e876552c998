"""The chat page as the WebSocket listener serves it: its files, login and logout."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from importlib.resources import files

import msgspec

from millpond.node.web.login import WebLogin
from millpond.transports.websocket.http_pages import Form, Page, Site

HTML, CSS = "text/html; charset=utf-8", "text/css; charset=utf-8"
SCRIPT, ICON, JSON = "text/javascript; charset=utf-8", "image/svg+xml", "application/json"
SCRIPTS = (
    *(
        "camera",
        "chat",
        "conversation",
        "elements",
        "files",
        "format",
        "frame",
        "groups",
        "home",
        "login",
        "msgpack",
        "p2p",
    ),
    *("peer_list", "rows", "search", "sheets", "tabs", "timeline"),
)
FILES = {
    "/": ("index.html", HTML),
    "/chat": ("index.html", HTML),
    "/chat.css": ("chat.css", CSS),
    "/icon.svg": ("icon.svg", ICON),
    **{f"/{name}.js": (f"{name}.js", SCRIPT) for name in SCRIPTS},
}
LOGIN, LOGOUT = "/chat/login", "/chat/logout"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    )
)
_SECURITY_HEADERS = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
_REVALIDATED_HEADERS = (*_SECURITY_HEADERS, ("Cache-Control", "no-cache"))
_UNSTORED_HEADERS = (*_SECURITY_HEADERS, ("Cache-Control", "no-store"))


def chat_site(login: WebLogin) -> Site:
    """The site: all pages and forms that a browser may request."""
    folder = files("millpond.node.web") / "static"
    pages = {
        path: Page((folder / name).read_bytes(), content_type, _REVALIDATED_HEADERS)
        for path, (name, content_type) in FILES.items()
    }
    forms: dict[str, Form] = {LOGIN: partial(_log_in, login), LOGOUT: partial(_log_out, login)}
    return Site(pages, forms)


def _log_in(login: WebLogin, body: bytes) -> Page:
    """A session's token for a link's secret."""
    token = login.exchange(body.decode("ascii", "replace"))
    if token is None:
        text = b"this link was used already or has expired\n"
        return Page(text, "text/plain; charset=utf-8", _UNSTORED_HEADERS, HTTPStatus.FORBIDDEN)
    return Page(msgspec.json.encode({"token": token}), JSON, _UNSTORED_HEADERS)


def _log_out(login: WebLogin, body: bytes) -> Page:
    """The response to a logout, the same whether there was a session or not."""
    login.revoke(body)
    return Page(b"", "text/plain; charset=utf-8", _UNSTORED_HEADERS)
