"""Failover among the addresses of a server: one is used until it is lost or refuses."""

from __future__ import annotations

import ssl

import anyio
from anyio.abc import TaskGroup

from millpond.transports.io import tcp
from millpond.transports.io.address import parse_address
from millpond.transports.io.interface import Session

ADDRESSES_MAX = 16
DIAL_S = 5.0
"""For one address of several. The last one has what is left of the connection's time."""


class Failover:
    """A dialer of `HOST:PORT[,HOST:PORT...]`, which begins behind the address that it used last."""

    def __init__(self, addresses: str, tls: ssl.SSLContext | None) -> None:
        self._addresses = [parse_address(each.strip()) for each in addresses.split(",")]
        if len(self._addresses) > ADDRESSES_MAX:
            raise ValueError(f"there may be {ADDRESSES_MAX} addresses at most")
        self._tls = tls
        self._next = 0

    async def dial(self, tasks: TaskGroup, session: Session) -> None:
        """Dial each in turn. Raises the OSError of the last where none is there."""
        for left in reversed(range(len(self._addresses))):
            host, port = self._addresses[self._next]
            self._next = (self._next + 1) % len(self._addresses)
            try:
                with anyio.fail_after(DIAL_S if left else None):
                    await tcp.dial(tasks, host, port, session, tls=self._tls)
            except OSError:
                if not left:
                    raise
            else:
                return
