"""Rejections: reasons for which the application itself answers a request, not an API."""

from __future__ import annotations

from enum import Enum

from millpond.transports.browser_policy import BrowserRefusal


class Rejection(Enum):
    """A reason of the application: status, code and message. The API gives it its form."""

    NOT_FOUND = (404, "not_found", "nothing exists at this path")
    BAD_REQUEST = (400, "bad_request", "malformed HTTP request")
    BAD_VERSION = (505, "bad_version", "the supported versions are HTTP/1.0, HTTP/1.1 and HTTP/2")
    BAD_CODING = (501, "bad_coding", "chunked is the only supported transfer coding")
    NO_TUNNEL = (405, "not_allowed", "CONNECT is not supported")
    BAD_PATH = (400, "bad_path", "the path or the query cannot be decoded")
    HOST_REFUSED = BrowserRefusal.HOST.value
    ORIGIN_REFUSED = BrowserRefusal.ORIGIN.value
    CROSS_SITE_REFUSED = BrowserRefusal.CROSS_SITE.value
    URL_TOO_LONG = (414, "url_too_long", "the URL is too long")
    HEADERS_TOO_LARGE = (431, "headers_too_large", "the headers are too large")
    BODY_TOO_LARGE = (413, "body_too_large", "the body is too large")
    BODY_BROKEN = (400, "body_broken", "the body is incomplete")
    BODY_TOO_SLOW = (408, "request_timeout", "the body did not arrive in time")
    TOO_MANY = (503, "unavailable", "too many requests are in progress")
    TOO_FAST = (429, "rate_limited", "too many requests; retry later")
    OUT_OF_MEMORY = (503, "unavailable", "the node has no memory for this now; retry later")
    DRAINING = (503, "server_draining", "the node is stopping; retry later or at another node")
    CUT_OFF = (500, "other", "the node stopped; the request may or may not have been carried out")
    NOT_ALLOWED = (403, "permission_denied", "the permission was withdrawn")
    CRASHED = (500, "other", "the request failed; it may or may not have been carried out")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def code(self) -> str:
        return self.value[1]

    @property
    def message(self) -> str:
        return self.value[2]
