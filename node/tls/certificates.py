"""X.509 certificates for peers without a public name: created here, read from PEM files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
HOST = re.compile(rf"(\*\.)?{LABEL}(\.{LABEL})*", re.IGNORECASE)
HOST_MAX = 253
NAME_MAX = 64
EARLIER = timedelta(hours=1)
"""The tolerated difference between the clocks of peers."""
BEGIN = b"-----BEGIN CERTIFICATE-----"


class BadCertificate(ValueError):
    """A certificate that cannot be read or created; the text gives the reason."""


class CertificateInfo(msgspec.Struct, frozen=True):
    """A certificate. Times in seconds since 1970; `chain` counts it and its issuers."""

    der: bytes
    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: float
    not_after: float
    is_authority: bool
    is_self_signed: bool
    chain: int = 1


class CertificateAndKey(msgspec.Struct, frozen=True):
    """A certificate with its chain, and its key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Without the key: this may end up in a log."""
        return f"<Pair {self.certificate!r}>"


def make_certificate(
    name: str,
    hosts: Sequence[str],
    days: int,
    now: float,
    authority: CertificateAndKey | None = None,
    *,
    key: bytes | None = None,
) -> CertificateAndKey:
    """A certificate for a node or a client, signed by `authority` or by itself.

    `hosts`: names and addresses that it is valid for. `key`: the key to certify (PEM); None: a new
    one. Raises BadCertificate.
    """
    private = _private_key(key)
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    builder = _builder(name, days, now, private.public_key())
    builder = builder.add_extension(alternatives, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return _signed(builder, _named(name), private, authority)


def make_authority(
    name: str, days: int, now: float, *, key: bytes | None = None
) -> CertificateAndKey:
    """A certificate of an authority, which signs others; `key` as in `make_certificate`. Raises
    BadCertificate."""
    private = _private_key(key)
    builder = _builder(name, days, now, private.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _signed(builder, _named(name), private, None)


def read_certificate(path: Path) -> CertificateInfo:
    """The first certificate of a PEM file. Raises BadCertificate, OSError."""
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[CertificateInfo]:
    """All certificates of a PEM file, at least one. Raises BadCertificate, OSError."""
    return [_shown(each, count) for each, count in _counted(_load(path.read_bytes()))]


def is_chain(path: Path) -> bool:
    """True if each certificate of a file signs the one before. Raises BadCertificate, OSError."""
    found = _load(path.read_bytes())
    return all(_is_issued(each, above) for each, above in pairwise(found))


def read_der(der: bytes) -> CertificateInfo:
    """A certificate as the other end of a connection shows it. Raises BadCertificate."""
    try:
        return _shown(x509.load_der_x509_certificate(der), 1)
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as exc:
        raise BadCertificate(f"it cannot be read: {exc}") from exc


def make_key() -> bytes:
    """A new key for a certificate (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_key_hash(key: bytes) -> bytes:
    """SHA-256 of the public half of a key (PEM), as `key_hash`. Raises BadCertificate."""
    return _hash_of(_private_key(key).public_key())


def key_hash(der: bytes) -> bytes:
    """SHA-256 of the public key of a certificate (SubjectPublicKeyInfo). Raises BadCertificate."""
    try:
        public = x509.load_der_x509_certificate(der).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as exc:
        raise BadCertificate(f"it cannot be read: {exc}") from exc
    return _hash_of(public)


def is_host(text: str) -> bool:
    """True for a name or address that a certificate can be valid for."""
    return _address(text) is not None or (len(text) <= HOST_MAX and bool(HOST.fullmatch(text)))


def _hash_of(public: PublicKeyTypes) -> bytes:
    return sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def _load(pem: bytes) -> list[x509.Certificate]:
    if BEGIN not in pem:
        raise BadCertificate("there is no certificate in it (PEM)")
    try:
        return x509.load_pem_x509_certificates(pem[pem.index(BEGIN) :])
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as exc:
        raise BadCertificate(f"a certificate in it cannot be read: {exc}") from exc


def _counted(found: list[x509.Certificate]) -> list[tuple[x509.Certificate, int]]:
    return [(each, len(found) - place) for place, each in enumerate(found)]


def _shown(certificate: x509.Certificate, chain: int) -> CertificateInfo:
    try:
        extensions = certificate.extensions
    except (ValueError, x509.DuplicateExtension) as exc:
        raise BadCertificate(f"its extensions cannot be read: {exc}") from exc
    names: tuple[str, ...] = ()
    is_authority = False
    for extension in extensions:
        match extension.value:
            case x509.SubjectAlternativeName() as found:
                names = tuple(str(each.value) for each in found if _is_shown(each))
            case x509.BasicConstraints(ca=is_authority):
                pass
    return CertificateInfo(
        der=certificate.public_bytes(Encoding.DER),
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=names,
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=certificate.not_valid_after_utc.timestamp(),
        is_authority=is_authority,
        is_self_signed=_is_issued(certificate, certificate),
        chain=chain,
    )


def _is_shown(name: x509.GeneralName) -> bool:
    return isinstance(name, x509.DNSName | x509.IPAddress)


def _is_issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _private_key(pem: bytes | None) -> ec.EllipticCurvePrivateKey:
    if pem is None:
        return ec.generate_private_key(ec.SECP256R1())
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise BadCertificate(f"the key cannot be read: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the key is none of `keys cert`")
    return key


def _builder(
    name: str, days: int, now: float, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    subject = _named(name)
    start = datetime.fromtimestamp(now, UTC).replace(microsecond=0)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    try:
        end = start + timedelta(days=days)
    except OverflowError as exc:
        raise BadCertificate(f"{days} days are too many") from exc
    return (
        x509.CertificateBuilder(subject_name=subject, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - EARLIER)
        .not_valid_after(end)
        .add_extension(identifier, critical=False)
    )


def _named(name: str) -> x509.Name:
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise BadCertificate(f"a name has 1 to {NAME_MAX} printable characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority: CertificateAndKey | None,
) -> CertificateAndKey:
    signer, above = key, b""
    if authority is not None:
        above = authority.certificate
        certificate, signer = _issuer(authority)
        issuer = certificate.subject
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.issuer_name(issuer).add_extension(identifier, critical=False)
    certificate = builder.sign(signer, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return CertificateAndKey(certificate.public_bytes(Encoding.PEM) + above, private)


def _issuer(authority: CertificateAndKey) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = _load(authority.certificate)[0]
    try:
        key = load_pem_private_key(authority.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise BadCertificate(f"the authority's key cannot be read: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadCertificate("the authority's key is none of `keys cert --ca`")
    if certificate.public_key() != key.public_key():
        raise BadCertificate("the authority's key is not that of its certificate")
    if not _shown(certificate, 1).is_authority:
        raise BadCertificate("it is no authority: make one with `keys cert --ca`")
    return certificate, key


def _general_name(host: str) -> x509.GeneralName:
    address = _address(host)
    if address is not None:
        return x509.IPAddress(address)
    if not is_host(host):
        raise BadCertificate(f"{host!r} is neither a name nor an address of a host")
    return x509.DNSName(host.lower())


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
