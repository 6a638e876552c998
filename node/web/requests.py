"""Requests for links to a page of the node, over packet 94, by clients that may administer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import msgspec

from millpond.node.ip import ip_of
from millpond.node.outbox.messages import Nothing, write_body
from millpond.node.outbox.requests import PeerRequests
from millpond.node.web.login import LINK_S, WebLogin
from millpond.transports.io.tcp import parse_address
from millpond.transports.p2p.bodies import read_body


class WebOperation(IntEnum):
    """The operations of packet 94 for the chat page."""

    LINK = 10
    REVOKE = 11


class LinkAnswer(msgspec.Struct):
    """Links that open the page once. `url` None: its listener is off; `others` use the
    allowed origins. `good_for` is in seconds."""

    url: str | None
    others: list[str]
    good_for: float = LINK_S


class RevokeAnswer(msgspec.Struct):
    """The number of sessions that were ended."""

    sessions: int


class PageLinks:
    """Links to the page at `path`. `where` gives the address of its listener, None without one;
    `is_secure`: TLS."""

    def __init__(
        self,
        login: WebLogin,
        path: str,
        where: Callable[[], str | None],
        origins: Sequence[str],
        *,
        is_secure: bool,
    ) -> None:
        self._login = login
        self._path = path
        self._where = where
        self._origins = origins
        self._scheme = "https" if is_secure else "http"

    def register(self, peer_requests: PeerRequests, link: int, revoke: int) -> None:
        """Register the operations: a new link, and the end of all sessions."""
        peer_requests.register(link, self._link)
        peer_requests.register(revoke, self._revoke)

    async def _link(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        address = self._where()
        if address is None:
            return write_body(LinkAnswer(None, []))
        secret = self._login.new_link()
        url = f"{self._scheme}://{reachable(address)}{self._path}#{secret}"
        others = [f"{origin}{self._path}#{secret}" for origin in self._origins]
        return write_body(LinkAnswer(url, others))

    async def _revoke(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        return write_body(RevokeAnswer(self._login.revoke_all()))


def reachable(address: str) -> str:
    """The address at which a browser on this machine reaches a listener."""
    host, port = parse_address(address)
    found = ip_of(host.strip("[]"))
    if not host or (found is not None and found.is_unspecified):
        return f"127.0.0.1:{port}"
    return address
