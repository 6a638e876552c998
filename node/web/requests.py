"""Requests for links to the chat page, over packet 94, by clients that may administer the node."""

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
    """Links that open the page once. `url` None: there is no WebSocket listener; `others` use the
    allowed origins. `good_for` is in seconds."""

    url: str | None
    others: list[str]
    good_for: float = LINK_S


class RevokeAnswer(msgspec.Struct):
    """The number of sessions that were ended."""

    sessions: int


class WebRequests:
    """`where` gives the address of the WebSocket listener, None without one; `is_secure`: TLS."""

    def __init__(
        self,
        login: WebLogin,
        where: Callable[[], str | None],
        origins: Sequence[str],
        *,
        is_secure: bool,
    ) -> None:
        self._login = login
        self._where = where
        self._origins = origins
        self._scheme = "https" if is_secure else "http"

    def register(self, peer_requests: PeerRequests) -> None:
        """Register the operations."""
        peer_requests.register(WebOperation.LINK, self._link)
        peer_requests.register(WebOperation.REVOKE, self._revoke)

    async def _link(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        address = self._where()
        if address is None:
            return write_body(LinkAnswer(None, []))
        secret = self._login.new_link()
        url = f"{self._scheme}://{reachable(address)}/chat#{secret}"
        others = [f"{origin}/chat#{secret}" for origin in self._origins]
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
