"""TLS handshakes in progress: that of one dialled connection, and those of a listener."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import anyio

from millpond.transports.io.interface import Session, SessionFactory
from millpond.transports.io.tls import HandshakeFailed, SecureWire
from millpond.transports.io.tls_optional import SILENT_S, TlsOrPlain

HANDSHAKE_S = 10.0
HANDSHAKES_MAX = 1024
TICK_S = 1.0


class TlsConnector:
    """The handshake of one dialled connection."""

    def __init__(self) -> None:
        self._over = anyio.Event()

    def handshake_started(self, wire: SecureWire) -> None:
        """Nothing to do: `wait` is called later."""

    def handshake_ended(self, wire: SecureWire) -> None:
        self._over.set()

    async def wait(self, seconds: float, wire: SecureWire) -> None:
        """Wait for the handshake of `wire`. Raises OSError, of TLS mostly, if it fails."""
        try:
            with anyio.move_on_after(seconds):
                await self._over.wait()
        finally:
            if not self._over.is_set():
                wire.fail_handshake(HandshakeFailed(f"no TLS handshake within {seconds:g} s"))
        if wire.failure is not None:
            raise wire.failure


class TlsAcceptor:
    """The handshakes of one listener; each ends within `handshake_s`, give or take a second.

    Above `handshakes_max` at once the oldest one is ended, so that a flood of connections that
    never finish theirs does not keep out others. `context` is called for each connection;
    `on_refused` is called with the host of the other end and the error of its handshake.
    `or_plain`: clients that do not begin with TLS are served without it; those that are silent for
    `SILENT_S`, too.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        on_refused: Callable[[str, OSError], None] = lambda host, failure: None,
        *,
        or_plain: bool = False,
        handshake_s: float = HANDSHAKE_S,
        handshakes_max: int = HANDSHAKES_MAX,
        now: Callable[[], float] = anyio.current_time,
    ) -> None:
        self._context = context
        self._on_refused = on_refused
        self._or_plain = or_plain
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes_max
        self._now = now
        self._in_progress: dict[SecureWire, float] = {}
        self._silent: dict[TlsOrPlain, float] = {}
        self._is_complete = False
        self._over = anyio.Event()

    def wrap(self, factory: SessionFactory) -> SessionFactory:
        """Sessions of `factory`, each behind TLS, or with `or_plain` as its client begins."""
        if self._or_plain:
            return lambda: TlsOrPlain(factory, self._secured, self)
        return lambda: self._secured(factory())

    def _secured(self, session: Session) -> SecureWire:
        return SecureWire(session, self._context(), self)

    def waits_for_client(self, connection: TlsOrPlain) -> None:
        if len(self._silent) >= self._handshakes_max:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.abort()
        self._silent[connection] = self._now() + SILENT_S

    def is_decided(self, connection: TlsOrPlain) -> None:
        self._silent.pop(connection, None)
        self._check_complete()

    def handshake_started(self, wire: SecureWire) -> None:
        if len(self._in_progress) >= self._handshakes_max:
            oldest = next(iter(self._in_progress))
            oldest.fail_handshake(HandshakeFailed("too many TLS handshakes at once"))
        self._in_progress[wire] = self._now() + self._handshake_s

    def handshake_ended(self, wire: SecureWire) -> None:
        self._in_progress.pop(wire, None)
        self._check_complete()
        if wire.failure is not None:
            self._on_refused(wire.host, wire.failure)

    def complete(self) -> None:
        """No more connections come."""
        self._is_complete = True
        self._check_complete()

    async def watch(self) -> None:
        """End handshakes that take too long, until no more can come."""
        while not self._over.is_set():
            with anyio.move_on_after(TICK_S):
                await self._over.wait()
            now = self._now()
            late = [wire for wire, until in self._in_progress.items() if until <= now]
            for wire in late:
                wire.fail_handshake(
                    HandshakeFailed(f"no TLS handshake within {self._handshake_s:g} s")
                )
            silent = [each for each, until in self._silent.items() if until <= now]
            for connection in silent:
                connection.start_plain()

    def _check_complete(self) -> None:
        if self._is_complete and not self._in_progress and not self._silent:
            self._over.set()
