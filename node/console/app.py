"""The console of one node: its sessions, and its links."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millpond.node.access.policy import AccessPolicy
from millpond.node.config import Config
from millpond.node.console.login import console_login
from millpond.node.console.requests import PATH, ConsoleOperation
from millpond.node.outbox.requests import PeerRequests
from millpond.node.web.requests import PageLinks
from millpond.transports.browser_policy import origin_of

Revoked = Callable[[], None]


class Console:
    """The console of a node. `now`: seconds since 1970; `entropy` gives random bytes."""

    def __init__(
        self, config: Config, now: Callable[[], float], entropy: Callable[[int], bytes]
    ) -> None:
        self.login = console_login(config.data, now, entropy)
        self._config = config

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
        access.accept_console_sessions(self.login.is_session)
        self.login.on_revoked.append(on_revoked)
        is_secure = "http" in self._config.tls_names
        origins = [origin_of(each) for each in self._config.origins]
        address = partial(listeners.get, "http")
        links = PageLinks(self.login, PATH, address, origins, is_secure=is_secure)
        links.register(peer_requests, ConsoleOperation.LINK, ConsoleOperation.REVOKE)
