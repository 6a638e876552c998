"""Rejections: reasons for which the application itself answers a request, not an API."""

from __future__ import annotations

from enum import Enum


class Rejection(Enum):
    """A reason of the application: status, code and message. The API gives it its form."""

    NOT_FOUND = (404, "not_found", "there is nothing at this path")
    BAD_REQUEST = (400, "bad_request", "this is no request of HTTP")
    BAD_VERSION = (505, "bad_version", "HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here")
    BAD_CODING = (501, "bad_coding", "bodies are taken plain or chunked")
    NO_TUNNEL = (405, "not_allowed", "no tunnels begin here")
    BAD_PATH = (400, "bad_path", "the path or the query cannot be read")
    URL_TOO_LONG = (414, "url_too_long", "the URL is too long")
    HEADERS_TOO_LARGE = (431, "headers_too_large", "the headers are too large")
    BODY_TOO_LARGE = (413, "body_too_large", "the body is larger than is taken")
    BODY_BROKEN = (400, "body_broken", "the body did not come to its end")
    BODY_TOO_SLOW = (408, "request_timeout", "the body did not come in time")
    TOO_MANY = (503, "unavailable", "too many requests are under way")
    TOO_FAST = (429, "rate_limited", "too many requests; retry later")
    DRAINING = (503, "server_draining", "the node stops; go on at another one, or later")
    CUT_OFF = (500, "other", "the node stopped meanwhile; what was under way may be done or not")
    NOT_ALLOWED = (403, "permission_denied", "not allowed any more")
    CRASHED = (500, "other", "the request failed; whether it was carried out is not known")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def code(self) -> str:
        return self.value[1]

    @property
    def message(self) -> str:
        return self.value[2]
