"""TLS of a node's listeners: their certificates, and failed handshakes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from millpond.node.config import Config
from millpond.node.tls.errors import reason_of
from millpond.transports.io.tls_handshake import TlsAcceptor
from millpond.transports.server.interface import ConnectionCounters

if TYPE_CHECKING:
    from millpond.node.tls.contexts import Certificates

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0
WARN_EVERY_S = 86_400.0
REASON = "tls handshake"
"""The reason of these refusals in `info`."""


class TlsListeners:
    """The listeners that speak TLS, none without a certificate. `now`: seconds since 1970.

    Handshakes that fail are counted in `counters`; one a second is logged. `on_certificate` gets
    the SHA-256 of the certificate, now and after each reload. Raises TlsError for files that cannot
    be used.
    """

    def __init__(
        self,
        config: Config,
        now: Callable[[], float],
        counters: ConnectionCounters,
        on_certificate: Callable[[bytes], None],
    ) -> None:
        self.certificates = _certificates(config) if config.tls_cert else None
        self._names = config.tls_names
        self._now = now
        self._counters = counters
        self._on_certificate = on_certificate
        self._logged_at = float("-inf")
        self._unlogged = 0
        self._publish()

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names and addresses for which the certificate is valid."""
        return () if self.certificates is None else self.certificates.names

    def acceptor(self, listener: str) -> TlsAcceptor | None:
        """The TLS of a listener; None: it does not use TLS."""
        certificates = self.certificates
        if certificates is None or listener not in self._names:
            return None

        def refused(host: str, failure: OSError) -> None:
            self._refused(listener, host, failure)

        return TlsAcceptor(lambda: certificates.context(listener), refused)

    def guards(self, listener: str) -> bool:
        """True if clients of the listener need a certificate that we trust."""
        certificates = self.certificates
        return certificates is not None and certificates.demands_client and listener in self._names

    def reload(self) -> None:
        """Read the files again. Files that cannot be used are logged, and the old ones stay."""
        if self.certificates is not None and self.certificates.reload():
            self._publish()
            self.certificates.warn(self._now())

    async def watch(self) -> None:
        """Log once a day that the certificate is about to expire, if it is."""
        while self.certificates is not None:
            self.certificates.warn(self._now())
            await anyio.sleep(WARN_EVERY_S)

    def _publish(self) -> None:
        if self.certificates is not None:
            self._on_certificate(self.certificates.hash)

    def _refused(self, listener: str, host: str, failure: OSError) -> None:
        reasons = self._counters.reasons
        reasons[REASON] = reasons.get(REASON, 0) + 1
        self._unlogged += 1
        now = self._now()
        if now - self._logged_at >= LOG_EVERY_S:
            text = "tls handshake refused: listener=%s host=%s reason=%s count=%d"
            log.warning(text, listener, host, reason_of(failure).text, self._unlogged)
            self._logged_at = now
            self._unlogged = 0


def _certificates(config: Config) -> Certificates:
    from millpond.node.tls.contexts import (  # X.509 takes 50 ms, and few nodes need it
        Certificates,
        TlsFiles,
    )

    files = (config.tls_cert, config.tls_key, config.tls_client_ca, config.tls_client)
    return Certificates(TlsFiles(*files))
