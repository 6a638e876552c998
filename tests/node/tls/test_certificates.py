"""Certificates that are made here: what they say, who vouches for them, what is refused."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.tls.certificates import (
    BadCertificate,
    CertificateAndKey,
    is_chain,
    is_host,
    make_authority,
    make_certificate,
    read_certificate,
    read_certificates,
    read_der,
)

DAY_S = 86_400.0
NOW = 1_700_000_000.0
HOSTS = ("mill", "Mill.LAN", "*.mill.lan", "192.168.1.5", "[fd00::1]", "xn--mhle-0ra")


def of(pair: CertificateAndKey) -> x509.Certificate:
    return x509.load_pem_x509_certificates(pair.certificate)[0]


def test_a_certificate_says_for_which_names_and_addresses_and_how_long(tmp_path: Path) -> None:
    (tmp_path / "mill.crt").write_bytes(make_certificate("mill", HOSTS, 30, NOW).certificate)
    shown = read_certificate(tmp_path / "mill.crt")
    assert shown.subject == shown.issuer == "CN=mill"
    assert set(shown.names) == {
        *("mill", "mill.lan", "*.mill.lan"),
        *("192.168.1.5", "fd00::1", "xn--mhle-0ra"),
    }
    assert shown.not_before < NOW  # another clock may be behind
    assert shown.not_after == NOW + 30 * DAY_S
    assert shown.is_self_signed and not shown.is_authority
    assert read_der(shown.der) == shown


def test_no_key_is_in_the_words_for_a_pair() -> None:
    assert "PRIVATE" not in repr(make_certificate("mill", ["mill"], 30, NOW))


def test_it_is_good_for_nodes_and_for_clients_and_signs_nobody() -> None:
    extensions = of(make_certificate("mill", ["mill"], 30, NOW)).extensions
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(purposes) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_each_has_a_key_and_a_number_of_its_own() -> None:
    one, other = (make_certificate("mill", ["mill"], 30, NOW) for _ in range(2))
    assert one.key != other.key
    assert of(one).serial_number != of(other).serial_number


def test_an_authority_vouches_and_comes_along(tmp_path: Path) -> None:
    authority = make_authority("home", 3650, NOW)
    pair = make_certificate("bob", ["bob"], 30, NOW, authority)
    path = tmp_path / "bob.crt"
    path.write_bytes(pair.certificate)
    bob, home = read_certificates(path)
    assert (bob.issuer, bob.is_self_signed, bob.chain) == ("CN=home", False, 2)
    assert (home.subject, home.is_authority, home.chain) == ("CN=home", True, 1)
    assert is_chain(path)
    path.write_bytes(pair.certificate[: len(pair.certificate) - len(authority.certificate)])
    assert len(read_certificates(path)) == 1 and is_chain(path)
    path.write_bytes(pair.certificate + make_authority("home", 30, NOW).certificate)
    assert not is_chain(path)  # of the same name, but it did not sign the one before


def test_who_is_no_authority_signs_nothing() -> None:
    alice = make_certificate("alice", ["alice"], 30, NOW)
    with pytest.raises(BadCertificate, match="no authority"):
        make_certificate("bob", ["bob"], 30, NOW, alice)
    home = make_authority("home", 30, NOW)
    with pytest.raises(BadCertificate, match="not that of its certificate"):
        make_certificate("bob", ["bob"], 30, NOW, CertificateAndKey(home.certificate, alice.key))
    with pytest.raises(BadCertificate, match="cannot be read"):
        make_certificate("bob", ["bob"], 30, NOW, CertificateAndKey(home.certificate, b"rubbish"))


@pytest.mark.parametrize(
    "host", ["", "-mill", "mill-", "a b", "a..b", "a" * 64, "mühle", "*", "*."]
)
def test_what_no_host_can_be_called_is_refused(host: str) -> None:
    assert not is_host(host)
    with pytest.raises(BadCertificate, match="neither a name nor an address"):
        make_certificate("mill", [host], 30, NOW)


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb", "a\0"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(BadCertificate, match="1 to 64"):
        make_certificate(name, ["mill"], 30, NOW)
    with pytest.raises(BadCertificate, match="1 to 64"):
        make_authority(name, 30, NOW)


def test_a_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(BadCertificate, match="too many"):
        make_certificate("mill", ["mill"], 10_000_000, NOW)


@given(st.text(max_size=300))
def test_a_host_that_is_accepted_can_be_in_a_certificate(text: str) -> None:
    if is_host(text):
        make_certificate("mill", [text], 30, NOW)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\xff",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mill.crt").write_bytes(data)
    with pytest.raises(BadCertificate):
        read_certificate(tmp_path / "mill.crt")
    with pytest.raises(BadCertificate):
        read_der(data)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@given(st.binary(max_size=400), st.data())
def test_damaged_bytes_are_a_typed_error_or_a_certificate(data: bytes, draw: st.DataObject) -> None:
    der = ssl.PEM_cert_to_DER_cert(CERTIFICATE.decode())
    place = draw.draw(st.integers(0, len(der) - 1))
    for damaged in (data, der[:place] + data + der[place + len(data) :]):
        try:
            read_der(damaged)
        except BadCertificate as exc:
            assert "cannot be read" in str(exc)


def test_a_certificate_of_an_unknown_version_is_refused() -> None:
    der = ssl.PEM_cert_to_DER_cert(CERTIFICATE.decode())
    version = der.index(b"\xa0\x03\x02\x01") + 4
    with pytest.raises(BadCertificate, match="cannot be read"):
        read_der(der[:version] + b"\x01" + der[version + 1 :])


def test_words_before_the_certificate_are_skipped(tmp_path: Path) -> None:
    """Other tools write what a certificate says, in words, above it; a key may be in the file."""
    pair = make_certificate("mill", ["mill"], 30, NOW)
    (tmp_path / "both.pem").write_bytes(b"Certificate: of m\xfchle\n" + pair.key + pair.certificate)
    assert read_certificate(tmp_path / "both.pem").subject == "CN=mill"


def test_names_of_another_kind_are_not_shown(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    others = [x509.RFC822Name("a@b.example"), x509.DNSName("mill")]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime.fromtimestamp(NOW, UTC))
        .not_valid_after(datetime.fromtimestamp(NOW + 1, UTC))
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .sign(key, SHA256())
    )
    shown = read_der(made.public_bytes(Encoding.DER))
    assert (shown.subject, shown.names) == ("", ("mill",))


CERTIFICATE = make_certificate("mill", ["mill"], 30, NOW).certificate
