"""Certificates for tests: made once, in a folder of the test's."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple

from millpond.node.tls.certificates import CertificateAndKey, make_authority, make_certificate
from millpond.node.tls.contexts import TlsFiles, client_context, server_context

HOSTS = ("mill", "localhost", "127.0.0.1")


class Files(NamedTuple):
    """A certificate and its key, and contexts of them."""

    cert: str
    key: str

    def server(self, **options: Any) -> ssl.SSLContext:
        return server_context(TlsFiles(self.cert, self.key, **options))

    def client(self, **options: Any) -> ssl.SSLContext:
        return client_context(**{"ca": self.cert, **options})


def files_of(folder: Path, pair: CertificateAndKey | None = None, name: str = "mill") -> Files:
    """The files of a pair; without one, of a new certificate for this machine."""
    pair = pair or make_certificate(name, HOSTS, 30, time.time())
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    cert.write_bytes(pair.certificate)
    key.touch(0o600)
    key.write_bytes(pair.key)
    return Files(str(cert), str(key))


def authority() -> CertificateAndKey:
    """One that signs certificates of tests."""
    return make_authority("an authority", 30, time.time())


def signed_by(authority: CertificateAndKey, name: str) -> CertificateAndKey:
    """A certificate of that authority for this machine."""
    return make_certificate(name, HOSTS, 30, time.time(), authority)
