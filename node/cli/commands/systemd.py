"""Tells the service manager how the node is doing: one datagram, where NOTIFY_SOCKET says."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state such as `READY=1`; without a service manager nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # Linux' abstract name space
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), address)
        except OSError as exc:
            log.warning("service manager not reached: %s", exc)
