"""The chat page of a node: its files at the WebSocket listener, its sessions, and its links."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.node.access.policy import AccessPolicy
from millpond.node.config import Config
from millpond.node.outbox.requests import PeerRequests
from millpond.node.web.login import FILE_NAME, WebLogin
from millpond.node.web.requests import PageLinks, WebOperation
from millpond.transports.browser_policy import BrowserPolicy, origin_of

if TYPE_CHECKING:
    from millpond.transports.websocket.framing import ServerFraming
    from millpond.transports.websocket.http_pages import Site

Revoked = Callable[[], None]


class WebServices:
    """The chat page of one node. `now`: seconds since 1970; `entropy` gives random bytes."""

    def __init__(
        self,
        config: Config,
        policy: BrowserPolicy,
        now: Callable[[], float],
        entropy: Callable[[int], bytes],
    ) -> None:
        path = Path(config.data) / FILE_NAME if config.data else None
        self.login = WebLogin(path, now, entropy)
        self._config = config
        self._policy = policy

    def open(
        self,
        access: AccessPolicy,
        peer_requests: PeerRequests,
        listeners: dict[str, str],
        on_revoked: Revoked,
    ) -> None:
        """Accept sessions, and answer requests for links.

        `listeners` gives the address of each listener by name; `on_revoked` is called when sessions
        were ended early.
        """
        access.accept_page_sessions(self.login.rights)
        self.login.on_revoked.append(on_revoked)
        is_secure = "ws" in self._config.tls_names
        address = partial(listeners.get, "ws")
        origins = [origin_of(each) for each in self._config.origins]
        links = PageLinks(self.login, "/chat", address, origins, is_secure=is_secure)
        links.register(peer_requests, WebOperation.LINK, WebOperation.REVOKE)

    def framing(self) -> ServerFraming:
        """The framing of a WebSocket connection, which may request a page instead."""
        from millpond.transports.websocket.framing import ServerFraming

        return ServerFraming(self._config.packet_bytes_max, self._policy, self.site)

    @cached_property
    def site(self) -> Site:
        """The pages, read with the first connection: that is no part of the node's start."""
        from millpond.node.web.pages import chat_site

        return chat_site(self.login)
