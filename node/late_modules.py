"""Modules that listeners need with their first connections, but not to be ready.

A node loads them by itself when they are needed. `millpond serve` loads them in a thread as soon as
it is ready: so a first request does not hold up the others, and a package that is replaced below a
running node is not loaded half old and half new.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib import import_module

log = logging.getLogger(__name__)

_STREAMS = ("millpond.node.stream_listeners",)
_P2P = ("millpond.transports.p2p.connection",)
OF_NODE = (
    "millpond.node.admin",
    "millpond.actors.jobs.flows",
    "millpond.actors.jobs.results",
    "millpond.actors.jobs.schedules",
    "millpond.actors.state.cell",
    "millpond.actors.subscriptions.subscription",
    "millpond.node.chat.search_index",
    "millpond.node.client.connect",
    "millpond.node.jobs.payload",
    "zoneinfo",
)
"""The modules of cells and services that many nodes never use, whatever their listeners."""
OF_LISTENERS = {
    "p2p": _P2P,
    "ws": (*_P2P, "millpond.transports.websocket.framing", "millpond.node.web.pages"),
    "s3p": _STREAMS,
    "rustlog": _STREAMS,
    "http": (
        "millpond.node.http.app",
        "millpond.transports.http.server.http1",
        "millpond.transports.http.server.http2",
        "millpond.transports.http.durable.app",
        "millpond.transports.http.s2.app",
        "millpond.transports.http.state.app",
        "millpond.transports.http.tails.app",
        "millpond.transports.http.tails.replica_files",
        "millpond.transports.http.transactions.app",
        "millpond.transports.http.server.websocket",
        "millpond.node.console.audit",
        "millpond.node.console.page",
        "millpond.node.http.state_page",
        "email.utils",
    ),
}
"""The modules by listener."""


def load_late_modules(listeners: Iterable[str]) -> None:
    """Load the modules of these listeners, then those that every node has.

    A module that cannot be loaded is logged: requests that need it fail, others are served."""
    for name in (*(each for listener in listeners for each in OF_LISTENERS[listener]), *OF_NODE):
        try:
            import_module(name)
        except Exception:  # whatever the code of a module raises
            log.exception("module not loaded: name=%s", name)
