"""The browser policy: the check of Host, Origin and Sec-Fetch-Site before anything else is done
with a request (docs/guides/access.md, "Browsers").

A web page reaches every address that its browser reaches, this machine's own included, and the
rights of an address would then be the page's. Three headers that no page can set tell it:

- **Host**. A page whose name is pointed at the node after it was loaded (DNS rebinding) sends its
  own name. An IP address in Host was not looked up by name, and nobody can point `localhost` or a
  configured name elsewhere.
- **Origin**. The page that sends the request, with every method but GET and HEAD, with every
  request whose answer it wants to read, and with every WebSocket.
- **Sec-Fetch-Site**. It tells of requests without an Origin: images, scripts, links, frames.

Clients that are no browsers send neither of the last two.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

_PORTS = {"http": ":80", "https": ":443"}
_OWN_SITES = (b"same-origin", b"none")
"""`none`: a person typed the address, or opened a bookmark."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s*]+")
_WITHOUT_PORT = re.compile(r":[0-9]{0,5}\Z")
_NAME = re.compile(r"([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
HOST_BYTES_MAX = 300
"""The longest Host that can be one of ours: a name, a colon and a port."""
_HOSTS_CACHED = 256


class BrowserRefusal(Enum):
    """A reason of the policy to refuse a request: HTTP's status, a code and a text."""

    BAD_HEADERS = (400, "bad_request", "the request has more than one Host or Origin")
    HOST = (421, "host_refused", "this host name is not one of the node's; --host-name adds it")
    ORIGIN = (403, "origin_refused", "pages of this origin may not use the node; see --origin")
    CROSS_SITE = (403, "cross_site_refused", "pages of other sites may not use the node")

    @property
    def status(self) -> int:
        """The status of the response."""
        return self.value[0]

    @property
    def code(self) -> str:
        """The code of the reason."""
        return self.value[1]

    @property
    def text(self) -> str:
        """The reason, for the client."""
        return self.value[2]


class BrowserPolicy:
    """The hosts and origins of a node.

    `host_names`: names of the node besides `localhost`; `*.pond.example` is every name below
    `pond.example`. `origins`: web origins (`https://app.example`) whose pages may use the node; the
    host of each is a name of the node as well, for pages that a proxy serves with it.
    """

    __slots__ = ("_authorities", "_is_own_host", "_names", "_suffixes", "origins")

    def __init__(self, host_names: Iterable[str] = (), origins: Sequence[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in host_names}
        self.origins = frozenset(origin.encode() for origin in origins)
        """The origins of other sites, as browsers send them."""
        self._names = frozenset(name for name in names if not name.startswith("*"))
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))
        self._authorities = frozenset(_authorities(origins))
        self._is_own_host = lru_cache(_HOSTS_CACHED)(self._check_host)

    def check(
        self,
        hosts: Sequence[bytes],
        origins: Sequence[bytes],
        fetch_site: bytes | None,
        *,
        is_page_visit: bool = False,
    ) -> BrowserRefusal | None:
        """The reason to refuse a request; None: it is accepted.

        `hosts` and `origins` are all values of these headers, `fetch_site` that of Sec-Fetch-Site.
        `is_page_visit`: a person follows a link to a page of the node, which no other page reads.
        A request without Host comes from no browser.
        """
        if len(set(hosts)) > 1 or len(origins) > 1:
            return BrowserRefusal.BAD_HEADERS
        host = hosts[0] if hosts else b""
        if len(host) > HOST_BYTES_MAX or (host and not self._is_own_host(host)):
            return BrowserRefusal.HOST
        if origins and origins[0] in self.origins:
            return None
        if origins and not _is_same(origins[0], host):
            return BrowserRefusal.ORIGIN
        if fetch_site is None or fetch_site in _OWN_SITES or is_page_visit:
            return None
        return BrowserRefusal.CROSS_SITE

    def _check_host(self, host: bytes) -> bool:
        text = host.decode("latin-1").lower()
        if text in self._authorities:
            return True
        name = _WITHOUT_PORT.sub("", text).removesuffix(".")
        if name == "localhost" or name in self._names or is_address(name):
            return True
        return name.endswith(self._suffixes) and _NAME.fullmatch(name) is not None


def _authorities(origins: Iterable[str]) -> Iterator[str]:
    """The values of Host of pages of these origins."""
    for origin in origins:
        scheme, _, authority = origin.partition("://")
        if scheme in _PORTS:
            yield authority
            yield authority + _PORTS[scheme]


def is_address(name: str) -> bool:
    """True for an IP address; one of IPv6 has brackets."""
    is_bracketed = name.startswith("[") and name.endswith("]")
    try:
        version = ipaddress.ip_address(name[1:-1] if is_bracketed else name).version
    except ValueError:
        return False
    return is_bracketed == (version == 6)


def origin_of(text: str) -> str:
    """An origin as browsers send it. Raises ValueError for what no page has."""
    origin = text.strip().lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise ValueError(f"{text!r} is not SCHEME://HOST or SCHEME://HOST:PORT")
    return origin.removesuffix(_PORTS.get(origin.partition("://")[0], "/"))


def host_name_of(text: str) -> str:
    """A name of hosts, without a port, in lower case. Raises ValueError for what is none."""
    name = text.strip().lower().removesuffix(".")
    if len(name) > 253 or _NAME.fullmatch(name.removeprefix("*.")) is None:
        raise ValueError(f"{text!r} is not NAME or *.NAME")
    return name


def _is_same(origin: bytes, host: bytes) -> bool:
    """True if a page at `host` has this origin. A proxy in front of the node may speak TLS."""
    scheme, separator, authority = origin.decode("latin-1").lower().partition("://")
    if not separator or scheme not in _PORTS or not host:
        return False
    port = _PORTS[scheme]
    return authority.removesuffix(port) == host.decode("latin-1").lower().removesuffix(port)
