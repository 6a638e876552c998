"""Requests for links to the console, over packet 94, by the operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from millpond.node.outbox.messages import Nothing, write_body
from millpond.node.outbox.requests import PeerRequests
from millpond.node.web.login import WebLogin
from millpond.node.web.requests import LinkAnswer, RevokeAnswer, reachable
from millpond.transports.http.paths import CONSOLE
from millpond.transports.p2p.bodies import read_body

PATH = "/" + CONSOLE.decode() + "/"


class ConsoleOperation(IntEnum):
    """The operations of packet 94 for the console."""

    LINK = 18
    REVOKE = 19


class ConsoleRequests:
    """`where` gives the address of the HTTP listener, None without one; `is_secure`: TLS."""

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
        peer_requests.register(ConsoleOperation.LINK, self._link)
        peer_requests.register(ConsoleOperation.REVOKE, self._revoke)

    async def _link(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        address = self._where()
        if address is None:
            return write_body(LinkAnswer(None, []))
        secret = self._login.new_link()
        url = f"{self._scheme}://{reachable(address)}{PATH}#{secret}"
        others = [f"{origin}{PATH}#{secret}" for origin in self._origins]
        return write_body(LinkAnswer(url, others))

    async def _revoke(self, body: bytes) -> bytes:
        read_body(body, Nothing)
        return write_body(RevokeAnswer(self._login.revoke_all()))
