"""TLS or not on one listener, by the first byte of the client.

A ClientHello is a record of type 22 (RFC 8446, 5.1). No protocol behind it begins so: a P2P packet
on TCP has a length below 2^24 in its first four bytes, and the upgrade of a WebSocket is text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millpond.transports.io.interface import Session, SessionFactory, Wire

TLS_HANDSHAKE = 22
SILENT_S = 3.0
"""A client that has said nothing for so long is taken for a plain one that waits to be served."""


class Undecided(Protocol):
    """Told of connections that have not begun to speak."""

    def waits_for_client(self, connection: TlsOrPlain) -> None:
        """The connection is open, and its client has said nothing."""

    def is_decided(self, connection: TlsOrPlain) -> None:
        """The client has begun, or is gone. May be called again."""


class TlsOrPlain:
    """A connection that becomes one of `secure` or of `plain` with its first byte."""

    __slots__ = ("_inner", "_plain", "_secure", "_undecided", "_wire", "host")

    def __init__(
        self,
        plain: SessionFactory,
        secure: Callable[[Session], Session],
        undecided: Undecided,
    ) -> None:
        self.host = ""
        self._plain = plain
        self._secure = secure
        self._undecided = undecided
        self._inner: Session | None = None
        self._wire: Wire | None = None

    def opened(self, wire: Wire) -> None:
        self._wire, self.host = wire, wire.host
        self._undecided.waits_for_client(self)

    def received(self, data: bytes) -> None:
        if self._inner is None:
            self._decide(is_tls=data[0] == TLS_HANDSHAKE)
        if self._inner is not None:
            self._inner.received(data)

    def uncongested(self) -> None:
        if self._inner is not None:
            self._inner.uncongested()

    def eof(self) -> None:
        if self._inner is not None:
            self._inner.eof()
        elif self._wire is not None:
            self._wire.close()

    def ended(self) -> None:
        self._undecided.is_decided(self)
        inner, self._inner, self._wire = self._inner, None, None
        if inner is not None:
            inner.ended()

    def start_plain(self) -> None:
        """The client waits to be served without a word."""
        if self._inner is None:
            self._decide(is_tls=False)

    def abort(self) -> None:
        """End the connection now."""
        if self._wire is not None:
            self._wire.abort()

    def _decide(self, *, is_tls: bool) -> None:
        if self._wire is None:
            return
        self._undecided.is_decided(self)
        session = self._plain()
        self._inner = self._secure(session) if is_tls else session
        self._inner.opened(self._wire)
