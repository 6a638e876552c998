"""The certificate of the node's own, for connections between machines without any other: made at
the first start, renewed by the node, and trusted by the pin of its key.

The key in `own-tls.key` (mode 0600) stays until `millpond keys tls --new-key` replaces it, and so
does its pin in contact cards; `own-tls.crt` is made of it again when it is missing or about to
expire. Without a data folder both are new at each start. The certificate is in the folder as long
as the node shows it: that is how commands know whether cards have its pin.
"""

from __future__ import annotations

import logging
import os
import socket
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.node import atomic_files
from millpond.node.tls.certificates import (
    BadCertificate,
    CertificateAndKey,
    CertificateInfo,
    is_host,
    key_hash,
    make_certificate,
    make_key,
    public_key_hash,
    read_certificate,
)
from millpond.node.tls.contexts import DAY_S, TlsError, TlsFiles, check_secret

log = logging.getLogger(__name__)

KEY_FILE, CERTIFICATE_FILE = "own-tls.key", "own-tls.crt"
NAME = "millpond node"
HERE = ("localhost", "127.0.0.1", "::1")
DAYS, RENEW_DAYS = 365, 60


class OwnCertificate(msgspec.Struct, frozen=True):
    """The certificate of a data folder, as files, and the SHA-256 of its public key and of it."""

    files: TlsFiles
    key_hash: bytes
    certificate_hash: bytes


def own_certificate(folder: Path, now: float) -> OwnCertificate:
    """The certificate in a data folder; what is missing is made, and what expires renewed.

    `now`: seconds since 1970. Raises TlsError for files that cannot be used, and OSError.
    """
    key, certificate = folder / KEY_FILE, folder / CERTIFICATE_FILE
    if not key.exists():
        _write_key(key)
    check_secret(key)
    secret = key.read_bytes()
    try:
        of_key = public_key_hash(secret)
    except BadCertificate as exc:
        raise TlsError(f"{key}: {exc}; `millpond keys tls --new-key` makes a new one") from exc
    found = _of_key(certificate, of_key)
    if found is None:
        atomic_files.replace(certificate, _made(secret, now).certificate)
    elif not found.not_before <= now < found.not_after - RENEW_DAYS * DAY_S:
        try:
            atomic_files.replace(certificate, _made(secret, now).certificate)
        except OSError as exc:  # a full disk keeps no node from starting
            log.warning("own certificate not renewed: file=%s error=%s", certificate, exc)
    shown = sha256(read_certificate(certificate).der).digest()
    return OwnCertificate(TlsFiles(str(certificate), str(key)), of_key, shown)


def replace_key(folder: Path, now: float) -> OwnCertificate:
    """A new key with its certificate, which a node uses from its next start on.

    `now`: seconds since 1970. Raises TlsError and OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A crash between the two does no harm: a certificate of another key is made again.
    atomic_files.replace(folder / KEY_FILE, make_key())
    return own_certificate(folder, now)


def shown_key_hash(folder: Path) -> bytes | None:
    """SHA-256 of the public key in the certificate that the node shows; None: it shows none of its
    own, or was not started yet. Raises OSError."""
    try:
        return key_hash(read_certificate(folder / CERTIFICATE_FILE).der)
    except (BadCertificate, FileNotFoundError):
        return None


def withdraw_certificate(folder: Path) -> None:
    """The node shows another certificate. The key stays. Raises OSError."""
    (folder / CERTIFICATE_FILE).unlink(missing_ok=True)


def _write_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        atomic_files.write_new(path, make_key(), f".{path.name}.{os.urandom(8).hex()}")
    except FileExistsError:
        pass  # made in between, by a command


def _of_key(certificate: Path, of_key: bytes) -> CertificateInfo | None:
    """The certificate in a file, if there is one of this key."""
    try:
        found = read_certificate(certificate)
        return found if key_hash(found.der) == of_key else None
    except (BadCertificate, FileNotFoundError):
        return None


def _made(secret: bytes, now: float) -> CertificateAndKey:
    own = socket.gethostname().lower()
    names = dict.fromkeys((*((own,) if is_host(own) else ()), *HERE))
    return make_certificate(NAME, list(names), DAYS, now, key=secret)
