"""TLS of a node's listeners: their certificates, and failed handshakes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio

from millpond.node.config import Config
from millpond.node.tls.errors import reason_of
from millpond.node.tls.pins import key_pin_of
from millpond.transports.io.tls_handshake import TlsAcceptor
from millpond.transports.server.interface import ConnectionCounters

if TYPE_CHECKING:
    from millpond.node.tls.contexts import Certificates

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0
WARN_EVERY_S = 86_400.0
PEER_LISTENERS = ("p2p", "ws")
"""The listeners at which nodes reach each other."""
REASON = "tls handshake"
"""The reason of these refusals in `info`."""


class TlsListeners:
    """The TLS of a node's listeners. `now`: seconds since 1970.

    With `tls_cert` the listeners of `tls_listeners` speak nothing else. Besides, P2P listeners that
    other machines reach speak TLS with clients that begin with it, by that certificate or by one of
    the node's own, which `open` loads.

    Handshakes that fail are counted in `counters`; one a second is logged. `on_certificate` gets
    the SHA-256 of the certificate, when it is loaded and after each reload; `on_refused` is called
    for each failed handshake. Raises TlsError for files that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        now: Callable[[], float],
        counters: ConnectionCounters,
        on_certificate: Callable[[bytes], None],
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.certificates = _certificates(config) if config.tls_cert else None
        self.own_key_hash: bytes | None = None
        """SHA-256 of the public key of the node's own certificate, if listeners show that."""
        self._names = config.tls_names
        self._optional = tuple(each for each in PEER_LISTENERS if _may_speak_tls(config, each))
        self._certificate_file = config.tls_cert
        self._folder = Path(config.data) if config.data else None
        self._now = now
        self._counters = counters
        self._on_certificate = on_certificate
        self._on_refused = on_refused
        self._logged_at = float("-inf")
        self._unlogged = 0
        self._publish()

    @property
    def names(self) -> tuple[str, ...]:
        """The listeners that speak TLS, whether they speak without it as well or not."""
        return self._names + self._optional

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names and addresses for which the configured certificate is valid."""
        return () if self.certificates is None else self.certificates.names

    def open(self) -> None:
        """Load the certificate of the node's own, and make it if there is none, where listeners
        need it. Raises TlsError, OSError."""
        if self.certificates is not None:
            self._withdraw_own()
        elif self._optional:
            self._load_own()

    def _withdraw_own(self) -> None:
        from millpond.node.tls.own_certificate import CERTIFICATE_FILE, withdraw_certificate

        if self._folder is None or Path(self._certificate_file) == self._folder / CERTIFICATE_FILE:
            return
        withdraw_certificate(self._folder)

    def _load_own(self) -> None:
        from millpond.node.tls.contexts import Certificates
        from millpond.node.tls.own_certificate import own_certificate

        with _folder_of_keys(self._folder) as folder:
            own = own_certificate(folder, self._now())
            self.certificates = Certificates(own.files)
        self.own_key_hash = own.key_hash
        log.info("own certificate: listeners=%s pin=%s", self.names, key_pin_of(own.key_hash))
        self._publish()

    def acceptor(self, listener: str) -> TlsAcceptor | None:
        """The TLS of a listener; None: it does not use TLS."""
        certificates = self.certificates
        if certificates is None or listener not in self.names:
            return None

        def refused(host: str, failure: OSError) -> None:
            self._refused(listener, host, failure)

        return TlsAcceptor(
            lambda: certificates.context(listener), refused, or_plain=listener in self._optional
        )

    def guards(self, listener: str) -> bool:
        """True if clients of the listener need a certificate that we trust."""
        certificates = self.certificates
        return certificates is not None and certificates.demands_client and listener in self._names

    def reload(self) -> None:
        """Read the files again. Files that cannot be used are logged, and the old ones stay."""
        if self.own_key_hash is not None:
            self._renew()
        elif self.certificates is not None and self.certificates.reload():
            self._publish()
            self.certificates.warn(self._now())

    async def watch(self) -> None:
        """Once a day, log that the certificate is about to expire; the node's own is renewed."""
        while self.certificates is not None:
            if self.own_key_hash is not None:
                self._renew()
            self.certificates.warn(self._now())
            await anyio.sleep(WARN_EVERY_S)

    def _renew(self) -> None:
        """Renew the own certificate if it is time for that. Its key stays until the next start:
        the cards of this run have its pin."""
        if self._folder is None or self.certificates is None:
            return
        from millpond.node.tls.contexts import TlsError
        from millpond.node.tls.own_certificate import own_certificate

        try:
            own = own_certificate(self._folder, self._now())
        except (TlsError, OSError) as exc:
            log.error("own certificate not renewed: %s", exc)
            return
        if own.key_hash != self.own_key_hash:
            log.warning("own key has changed on disk: it is used from the next start on")
        elif own.certificate_hash != self.certificates.hash and self.certificates.reload():
            self._publish()

    def _publish(self) -> None:
        if self.certificates is not None:
            self._on_certificate(self.certificates.hash)

    def _refused(self, listener: str, host: str, failure: OSError) -> None:
        reasons = self._counters.reasons
        reasons[REASON] = reasons.get(REASON, 0) + 1
        self._unlogged += 1
        self._on_refused()
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


def _may_speak_tls(config: Config, listener: str) -> bool:
    """True for a listener that other machines reach, and that has to speak without TLS too."""
    # An authority for clients is one for those of `tls_listeners`: other nodes have none of it.
    is_settled = listener in config.tls_names or config.tls_client_ca
    return not is_settled and config.is_reachable(listener)


@contextmanager
def _folder_of_keys(folder: Path | None) -> Iterator[Path]:
    """The data folder; without one, a folder for as long as OpenSSL reads the files."""
    if folder is not None:
        yield folder
        return
    with TemporaryDirectory(prefix="millpond-") as temporary:
        yield Path(temporary)
