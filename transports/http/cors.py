"""Cross-origin requests (CORS): the checks of the browser policy as HTTP's APIs apply them, and the
headers that let pages of admitted origins read responses.

The decision depends on the head of a request alone: a head that comes again is not checked again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from millpond.transports.browser_policy import BrowserPolicy, BrowserRefusal
from millpond.transports.http.asgi import Headers
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.response import Pairs, Response

METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
MAX_AGE_S = b"600"
_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*")
_VARY = (b"vary", b"origin")
_REJECTIONS = {
    BrowserRefusal.BAD_HEADERS: Rejection.BAD_REQUEST,
    BrowserRefusal.HOST: Rejection.HOST_REFUSED,
    BrowserRefusal.ORIGIN: Rejection.ORIGIN_REFUSED,
    BrowserRefusal.CROSS_SITE: Rejection.CROSS_SITE_REFUSED,
}
_OF_PAGES = (BrowserRefusal.ORIGIN, BrowserRefusal.CROSS_SITE)


class CrossOriginDecision(msgspec.Struct, frozen=True, gc=False):
    """The decision on a request: a reason to reject it, the headers that every response to it has,
    and the response to a preflight, which no API sees."""

    reason: Rejection | None = None
    headers: Pairs = ()
    preflight: Response | None = None


ADMITTED_PLAINLY = CrossOriginDecision()


class CrossOrigin:
    """The cross-origin rules of an application.

    Pages may send the headers `accepted` and whatever else their preflights name, and read the
    response headers `exposed`.
    """

    def __init__(
        self,
        policy: BrowserPolicy,
        accepted: Collection[bytes] = (),
        exposed: Collection[bytes] = (),
    ) -> None:
        self._policy = policy
        self._accepted = b", ".join(accepted)
        self._exposed: Pairs = ()
        if exposed:
            self._exposed = ((b"access-control-expose-headers", b", ".join(exposed)),)
        self._always: Pairs = (_VARY,) if policy.origins else ()
        self._without_origin = (
            CrossOriginDecision(headers=self._always) if policy.origins else ADMITTED_PLAINLY
        )

    def decide(
        self, method: str, headers: Headers, last: Mapping[bytes, bytes], *, is_page: bool
    ) -> CrossOriginDecision:
        """The decision on a request. `last` has the last value of each header; `is_page`: the path
        is that of a page for people."""
        origin, site = last.get(b"origin"), last.get(b"sec-fetch-site")
        is_page_visit = (
            is_page
            and method in ("GET", "HEAD")
            and last.get(b"sec-fetch-mode") == b"navigate"
            and last.get(b"sec-fetch-dest") == b"document"
        )
        hosts = [value for name, value in headers if name in (b"host", b":authority")]
        origins = () if origin is None else [each[1] for each in headers if each[0] == b"origin"]
        refusal = self._policy.check(hosts, origins, site, is_page_visit=is_page_visit)
        is_preflight = method == "OPTIONS" and b"access-control-request-method" in last
        if refusal in _OF_PAGES and is_preflight:
            # It is told the methods, as Durable Streams has it, but not that it may use them.
            return CrossOriginDecision(None, self._always, self._preflight(last))
        if refusal is not None:
            return CrossOriginDecision(_REJECTIONS[refusal], self._always)
        if origin is None:
            return self._without_origin
        named = (b"access-control-allow-origin", origin)
        if is_preflight:
            return CrossOriginDecision(None, (named, _VARY), self._preflight(last))
        return CrossOriginDecision(None, (named, *self._exposed, _VARY))

    def rejection_headers(self, headers: Headers) -> Pairs:
        """The headers of a rejection by the server, which has read these headers of the request."""
        found = self.decide("", headers, dict(headers), is_page=False)
        return self._always if found.reason is not None else found.headers

    def _preflight(self, last: Mapping[bytes, bytes]) -> Response:
        """The response that permits the request which a page of an admitted origin is to send."""
        wanted = last.get(b"access-control-request-headers", b"")
        accepted = b", ".join(
            each for each in (self._accepted, wanted) if each and _NAMES.fullmatch(each)
        )
        headers = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", accepted),
            (b"access-control-max-age", MAX_AGE_S),
        ]
        if last.get(b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        return Response(204, headers)
