"""TLS contexts of a node and of its clients, from files that can be reloaded while a node runs.

TLS 1.3 is the only version. docs/guides/tls.md tells how to use it.
"""

from __future__ import annotations

import logging
import ssl
import stat
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import msgspec

from millpond.node.atomic_files import OTHERS_WRITE
from millpond.node.config_rules import ConfigError
from millpond.node.tls.certificates import BadCertificate, key_hash, read_certificate
from millpond.node.tls.errors import PinMismatch
from millpond.node.tls.pins import key_pin_of, pin_of

log = logging.getLogger(__name__)

ALPN = {"ws": ("http/1.1",), "http": ("h2", "http/1.1")}
"""The protocols of a listener, by its name; clients of others name none."""
REQUIRED, OPTIONAL = "required", "optional"
WARN_DAYS = 14
DAY_S = 86_400.0
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


class TlsError(ConfigError):
    """A file of TLS that cannot be used; the text names the file and the reason."""


class TlsFiles(msgspec.Struct, frozen=True):
    """A certificate with its chain (PEM), its key, and the authorities of client certificates.

    `key` "": in the file of the certificate. `client_ca` "": clients show no certificates.
    """

    cert: str
    key: str = ""
    client_ca: str = ""
    client: str = REQUIRED


class Certificates:
    """The certificates and contexts of a node's listeners. Raises TlsError for unusable files."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._take()

    @property
    def demands_client(self) -> bool:
        """True if clients need a certificate that we trust."""
        return bool(self._files.client_ca) and self._files.client == REQUIRED

    def context(self, listener: str) -> ssl.SSLContext:
        """The context for the next connection of a listener."""
        return self._contexts.get(listener, self._contexts[""])

    def reload(self) -> bool:
        """Read the files again, for new connections; open ones keep theirs.

        False: the files cannot be used; that is logged, and the old ones stay.
        """
        try:
            self._take()
        except TlsError as exc:
            log.error("tls files not reloaded, the old ones stay: %s", exc)
            return False
        log.info("tls files reloaded: cert=%s pin=%s", self._files.cert, pin_of(self.hash))
        return True

    def days_left(self, now: float) -> float:
        """Days until the certificate expires; negative afterwards. `now`: seconds since 1970."""
        return (self.not_after - now) / DAY_S

    def warn(self, now: float) -> None:
        """Log that the certificate expires soon, if it does."""
        days = self.days_left(now)
        if days < 0:
            log.error("tls certificate has expired: cert=%s", self._files.cert)
        elif days < WARN_DAYS:
            log.warning("tls certificate expires in %.1f days: cert=%s", days, self._files.cert)

    def _take(self) -> None:
        contexts = {name: server_context(self._files, alpn) for name, alpn in ALPN.items()}
        contexts[""] = server_context(self._files)
        try:
            shown = read_certificate(Path(self._files.cert))
        except (BadCertificate, OSError) as exc:
            raise TlsError(f"{self._files.cert}: {exc}") from exc
        self.hash = sha256(shown.der).digest()
        self.not_after = shown.not_after
        self.names = shown.names
        self._contexts = contexts


def server_context(files: TlsFiles, alpn: Collection[str] = ()) -> ssl.SSLContext:
    """A context that shows a certificate. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if alpn:
        context.set_alpn_protocols(list(alpn))
    _load_pair(context, files.cert, files.key)
    if files.client_ca:
        _load_authorities(context, files.client_ca)
        is_required = files.client == REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def client_context(
    *,
    ca: str = "",
    pins: Collection[bytes] = (),
    key_pins: Collection[bytes] = (),
    cert: str = "",
    key: str = "",
    alpn: Collection[str] = (),
) -> ssl.SSLContext:
    """A context for a client. Raises TlsError.

    `ca`: a file of certificates to trust instead of the system's. `pins`: SHA-256 of certificates
    (DER), `key_pins`: SHA-256 of their public keys (DER, SubjectPublicKeyInfo); the server has to
    show one of these, and without `ca` nothing else is checked, neither name nor date. `cert`,
    `key`: the client's own, for servers that ask for one.
    """
    is_pinned = bool(pins or key_pins)
    of_own = bool(ca or is_pinned)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if of_own else ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca:
        _load_authorities(context, ca)
    if is_pinned:
        if not ca:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.sslobject_class = _pinned(frozenset(pins), frozenset(key_pins))
    if cert:
        _load_pair(context, cert, key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def check_secret(path: Path) -> None:
    """Check a key file. Raises TlsError if others may read or write it; root's may be read by its
    group."""
    try:
        found = path.stat()
    except OSError as exc:
        raise TlsError(f"{path}: {exc.strerror}") from exc
    allowed = stat.S_IRGRP if found.st_uid == 0 else 0
    loose = found.st_mode & (OTHERS_READ | OTHERS_WRITE) & ~allowed
    if loose:
        what = "read" if loose & OTHERS_READ else "write"
        raise TlsError(f"{path}: others can {what} the key; `chmod 600 {path}` first")


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    check_secret(Path(key or cert))

    def refuse() -> NoReturn:
        raise TlsError(f"{key or cert}: the key is encrypted; give it without a password")

    try:
        context.load_cert_chain(cert, key or None, password=refuse)
    except ssl.SSLError as exc:
        raise TlsError(_about_pair(exc, cert, key)) from exc
    except OSError as exc:
        raise TlsError(f"{cert}: {exc.strerror}") from exc


def _about_pair(error: ssl.SSLError, cert: str, key: str) -> str:
    match error.reason:
        case "KEY_VALUES_MISMATCH":
            return f"{key or cert}: the key is not that of the certificate {cert}"
        case _ if not key:
            return f"{cert}: there have to be a certificate and its key in it (PEM)"
        case _:
            return f"{cert}, {key}: these are not a certificate and its key (PEM)"


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as exc:
        raise TlsError(f"{path}: there is no certificate in it (PEM)") from exc
    except OSError as exc:
        raise TlsError(f"{path}: {exc.strerror}") from exc


def _pinned(pins: frozenset[bytes], key_pins: frozenset[bytes]) -> type[ssl.SSLObject]:
    class Pinned(ssl.SSLObject):
        """A TLS connection that requires one of these certificates or keys at the other end."""

        def do_handshake(self) -> None:
            super().do_handshake()
            der = self.getpeercert(True) or b""
            shown = sha256(der).digest()
            if shown in pins:
                return
            if not key_pins:
                text = f"the certificate is not the pinned one but {pin_of(shown)}"
                raise PinMismatch(ssl.SSL_ERROR_SSL, text)
            try:
                key = key_hash(der)
            except BadCertificate as exc:
                raise PinMismatch(ssl.SSL_ERROR_SSL, f"the certificate: {exc}") from exc
            if key not in key_pins:
                text = f"the certificate's key is not the pinned one but {key_pin_of(key)}"
                raise PinMismatch(ssl.SSL_ERROR_SSL, text)

    return Pinned
