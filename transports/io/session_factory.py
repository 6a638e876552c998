"""Sessions that cannot be made: their connections are closed, and their listener goes on.

An exception of a factory would end the listener on uvloop and the node on trio, and nothing would
be told of it on asyncio.
"""

from __future__ import annotations

import logging

from millpond.transports.io.interface import Session, SessionFactory, Wire

log = logging.getLogger(__name__)


class FailedSession(Session):
    """The session of a connection that is closed as soon as it is open."""

    def opened(self, wire: Wire) -> None:
        wire.abort()

    def received(self, data: bytes) -> None:
        pass

    def uncongested(self) -> None:
        pass

    def eof(self) -> None:
        pass

    def ended(self) -> None:
        pass


def contained(factory: SessionFactory) -> SessionFactory:
    """The sessions of `factory`, and one that fails in place of each that cannot be made.

    The first failure is logged, and once one can be made again, how many there were.
    """
    failed = 0

    def make() -> Session:
        nonlocal failed
        try:
            session = factory()
        except Exception:  # the border of the listener: modules are loaded by first connections
            failed += 1
            if failed == 1:
                log.exception("connection closed: its session cannot be made")
            return FailedSession()
        if failed:
            log.info("sessions are made again: failed=%d", failed)
            failed = 0
        return session

    return make
