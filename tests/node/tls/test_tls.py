"""Contexts made of files: which files do, which certificates, and what a reload changes."""

from __future__ import annotations

import logging
import os
import re
import ssl
import subprocess
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.config import Config
from millpond.node.tls.certificates import (
    BadCertificate,
    key_hash,
    make_certificate,
    read_certificate,
)
from millpond.node.tls.contexts import (
    Certificates,
    TlsError,
    TlsFiles,
    server_context,
)
from millpond.node.tls.errors import REASONS, VERIFY_CODES, PinMismatch, TlsReason, reason_of
from millpond.node.tls.listeners import TlsListeners
from millpond.node.tls.pins import key_pin_of, parse_key_pin, parse_pin, pin_of
from millpond.transports.server.interface import ConnectionCounters
from tests.node.tls.certificate_files import Files, authority, files_of, signed_by
from tests.transports.io.test_tls import Pipe
from tests.transports.io.test_wires import Recorder

DAY_S = 86_400.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_of(tmp_path)


def key_of(files: Files) -> bytes:
    return key_hash(read_certificate(Path(files.cert)).der)


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "mill"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake. Raises what the client or the server does."""
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ends = (
        client.wrap_bio(pipes[0], pipes[1], server_hostname=name),
        server.wrap_bio(pipes[1], pipes[0], server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends


def refusal(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "mill") -> TlsReason:
    with pytest.raises(ssl.SSLError) as caught:
        shaken(server, client, name)
    return reason_of(caught.value)


def der_of(path: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


def hash_of(path: str) -> bytes:
    return sha256(der_of(path)).digest()


def test_tls_1_3_is_spoken_with_whom_a_client_trusts(files: Files) -> None:
    client, _ = shaken(files.server(), files.client())
    assert client.version() == "TLSv1.3"
    assert client.getpeercert(True) == der_of(files.cert)


def test_a_certificate_of_an_authority_is_contact_by_it_alone(tmp_path: Path) -> None:
    home = authority()
    (tmp_path / "home.crt").write_bytes(home.certificate)
    bob = files_of(tmp_path, signed_by(home, "bob"), "bob")
    shaken(bob.server(), bob.client(ca=str(tmp_path / "home.crt")))
    stranger = files_of(tmp_path, name="stranger")
    assert "authority" in refusal(bob.server(), stranger.client()).text


def test_a_refusal_says_why_and_what_to_do(tmp_path: Path, files: Files) -> None:
    for name in ("other", "127.0.0.2"):
        text = str(refusal(files.server(), files.client(), name))
        assert name in text and "--host" in text
    alone = refusal(files.server(), files_of(tmp_path, name="other").client())
    assert "nobody but itself" in alone.text and "--ca" in alone.advice
    old = files_of(tmp_path, make_certificate("mill", ["mill"], 1, time.time() - 3 * DAY_S), "old")
    assert "has expired" in refusal(old.server(), old.client()).text
    new = files_of(tmp_path, make_certificate("mill", ["mill"], 9, time.time() + 3 * DAY_S), "new")
    assert "not valid yet" in refusal(new.server(), new.client()).text


def test_a_pin_alone_is_enough_whatever_name_and_date(tmp_path: Path) -> None:
    old = files_of(tmp_path, make_certificate("mill", ["mill"], 1, time.time() - 3 * DAY_S))
    shaken(old.server(), old.client(ca="", pins=[bytes(32), hash_of(old.cert)]), "elsewhere")


def test_another_certificate_than_the_pinned_is_refused_and_shown(files: Files) -> None:
    reason = refusal(files.server(), files.client(ca="", pins=[bytes(32)]))
    assert pin_of(hash_of(files.cert)) in reason.text
    both = refusal(files.server(), files.client(pins=[bytes(32)]))  # trusted, and yet not the one
    assert both.text == reason.text
    pinned = files.client(pins=[hash_of(files.cert)])
    assert "another name" in refusal(files.server(), pinned, "other").text


def test_a_pinned_key_outlives_its_certificate(tmp_path: Path) -> None:
    old = files_of(tmp_path, make_certificate("mill", ["mill"], 1, time.time() - 3 * DAY_S))
    pinned = old.client(ca="", key_pins=[bytes(32), key_of(old)])
    shaken(old.server(), pinned, "elsewhere")
    renewed = make_certificate("new", ["x"], 9, time.time(), key=Path(old.key).read_bytes())
    shaken(files_of(tmp_path, renewed).server(), pinned, "elsewhere")


def test_another_key_than_the_pinned_is_refused_and_shown(tmp_path: Path, files: Files) -> None:
    """Also with the same name, and by an authority that is trusted."""
    other = files_of(tmp_path, name="other")
    reason = refusal(files.server(), files.client(key_pins=[key_of(other)]))
    assert key_pin_of(key_of(files)) in reason.text
    either = files.client(ca="", pins=[hash_of(files.cert)], key_pins=[key_of(other)])
    shaken(files.server(), either)
    shaken(other.server(), either)


def test_the_hash_of_a_key_is_that_of_other_tools(files: Files) -> None:
    """RFC 7469, as OpenSSL makes it."""
    public = subprocess.run(
        ["openssl", "x509", "-in", files.cert, "-noout", "-pubkey"], capture_output=True, check=True
    )
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-outform", "DER"],
        input=public.stdout,
        capture_output=True,
        check=True,
    )
    assert key_of(files) == sha256(der.stdout).digest()


def test_a_key_that_was_not_made_here_is_not_certified() -> None:
    with pytest.raises(BadCertificate, match="cannot be read"):
        make_certificate("mill", ["mill"], 1, 0.0, key=b"no key")


def test_who_shows_no_certificate_comes_in_where_that_is_optional(files: Files) -> None:
    options = {"client_ca": files.cert, "client": "optional"}
    _, server = shaken(files.server(**options), files.client())
    assert server.getpeercert(True) is None
    _, server = shaken(files.server(**options), files.client(cert=files.cert, key=files.key))
    assert server.getpeercert(True) == der_of(files.cert)
    reason = refusal(files.server(client_ca=files.cert), files.client())
    assert reason.text == "the other end has no certificate"


def test_a_stranger_s_certificate_is_refused_even_where_none_is_needed(
    files: Files, tmp_path: Path
) -> None:
    other = files_of(tmp_path, name="other")
    optional = files.server(client_ca=files.cert, client="optional")
    refusal(optional, files.client(cert=other.cert, key=other.key))


def _foreign_key(folder: Path, files: Files) -> TlsFiles:
    return TlsFiles(files.cert, files_of(folder, name="other").key)


def _missing(folder: Path, files: Files) -> TlsFiles:
    return TlsFiles(str(folder / "none.crt"), files.key)


def _missing_key(folder: Path, files: Files) -> TlsFiles:
    return TlsFiles(files.cert, str(folder / "none.key"))


def _open_key(folder: Path, files: Files) -> TlsFiles:
    Path(files.key).chmod(0o644)
    return TlsFiles(files.cert, files.key)


def _rubbish(folder: Path, files: Files) -> TlsFiles:
    Path(files.cert).write_text("rubbish")
    return TlsFiles(files.cert, files.key)


def _no_key_in_it(folder: Path, files: Files) -> TlsFiles:
    Path(files.cert).chmod(0o600)
    return TlsFiles(files.cert)


def _encrypted(folder: Path, files: Files) -> TlsFiles:
    locked = folder / "locked.key"
    words = ["openssl", "pkey", "-aes256", "-passout", "pass:x", "-in", files.key, "-out"]
    subprocess.run([*words, str(locked)], check=True, capture_output=True, timeout=300)
    locked.chmod(0o600)
    return TlsFiles(files.cert, str(locked))


def _no_authority(folder: Path, files: Files) -> TlsFiles:
    return TlsFiles(files.cert, files.key, client_ca=files.key)


@pytest.mark.parametrize(
    ("make", "file", "reason"),
    [
        (_foreign_key, "other.key", "not that of the certificate"),
        (_missing, "none.crt", "No such file"),
        (_missing_key, "none.key", "No such file"),
        (_open_key, "mill.key", "chmod 600"),
        (_rubbish, "mill.crt", "not a certificate and its key"),
        (_no_key_in_it, "mill.crt", "certificate and its key in it"),
        (_encrypted, "locked.key", "without a password"),
        (_no_authority, "mill.key", "no certificate in it"),
    ],
)
def test_a_file_that_does_not_do_is_named_with_the_reason(
    tmp_path: Path, files: Files, make: Callable[[Path, Files], TlsFiles], file: str, reason: str
) -> None:
    with pytest.raises(TlsError) as caught:
        server_context(make(tmp_path, files))
    assert str(caught.value).startswith(f"{tmp_path}/") and "\n" not in str(caught.value)
    assert file in str(caught.value) and reason in str(caught.value)


def test_a_certificate_and_its_key_may_be_one_file(tmp_path: Path, files: Files) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Path(files.key).read_bytes() + Path(files.cert).read_bytes())
    both.chmod(0o600)
    shaken(server_context(TlsFiles(str(both))), files.client())


@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_a_key_that_others_may_write_is_refused(files: Files, mode: int) -> None:
    """They could put one of theirs in its place."""
    Path(files.key).chmod(mode)
    with pytest.raises(TlsError, match="others can write the key; `chmod 600"):
        server_context(TlsFiles(files.cert, files.key))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_may_let_a_group_read_the_key(files: Files) -> None:
    Path(files.key).chmod(0o640)
    server_context(TlsFiles(files.cert, files.key))
    os.chown(files.key, 1000, 1000)
    with pytest.raises(TlsError, match="chmod 600"):
        server_context(TlsFiles(files.cert, files.key))


def test_a_reload_is_for_connections_to_come(tmp_path: Path, files: Files) -> None:
    certificates = Certificates(TlsFiles(files.cert, files.key))
    before = hash_of(files.cert)
    assert certificates.hash == before
    standing, _ = shaken(certificates.context("p2p"), files.client())
    files_of(tmp_path)
    assert certificates.reload()
    assert certificates.hash == hash_of(files.cert) != before
    for listener in ("p2p", "ws"):
        client, _ = shaken(certificates.context(listener), files.client())
        assert client.getpeercert(True) == der_of(files.cert)
    assert sha256(standing.getpeercert(True) or b"").digest() == before


@pytest.mark.parametrize("file", ["mill.crt", "mill.key"])
def test_what_cannot_be_used_leaves_the_old_in_place(
    tmp_path: Path, files: Files, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    trusting = files.client()
    certificates = Certificates(TlsFiles(files.cert, files.key))
    before = certificates.hash
    (tmp_path / file).write_text("half of a fi")
    assert not certificates.reload()
    assert certificates.hash == before
    shaken(certificates.context("p2p"), trusting)
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert str(tmp_path / file) in record.getMessage()


def test_a_websocket_is_promised_http_1_1(files: Files) -> None:
    certificates = Certificates(TlsFiles(files.cert, files.key))
    browser = files.client(alpn=("h2", "http/1.1"))
    client, _ = shaken(certificates.context("ws"), browser)
    assert client.selected_alpn_protocol() == "http/1.1"
    client, _ = shaken(certificates.context("p2p"), browser)
    assert client.selected_alpn_protocol() is None


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [(20, None, ""), (13, logging.WARNING, "expires in 13"), (-1, logging.ERROR, "has expired")],
)
def test_two_weeks_ahead_the_log_tells_that_it_expires(
    tmp_path: Path, days: int, level: int | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_700_000_000.0
    files = files_of(tmp_path, make_certificate("mill", ["mill"], 30, now - (30 - days) * DAY_S))
    Certificates(TlsFiles(files.cert, files.key)).warn(now)
    assert [each.levelno for each in caplog.records] == ([] if level is None else [level])
    assert words in caplog.text


def listeners_of(config: Config, now: Callable[[], float] = time.time) -> TlsListeners:
    return TlsListeners(config, now, ConnectionCounters(), lambda certificate_hash: None)


async def test_refusals_are_logged_once_a_second(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_700_000_000.0
    listeners = listeners_of(Config(tls_cert=files.cert, tls_key=files.key), lambda: now)
    acceptor = listeners.acceptor("p2p")
    assert acceptor is not None

    def knock(host: str) -> None:
        wire = acceptor.wrap(Recorder)()
        below = Pipe()
        below.host = host
        wire.opened(below)
        wire.received(b"GET / HTTP/1.1\r\n")

    for _ in range(100):
        knock("192.0.2.7")
    now += 1.5
    knock("192.0.2.8")
    first, second = (each.getMessage() for each in caplog.records)
    assert "listener=p2p host=192.0.2.7" in first and first.endswith("count=1")
    assert "does not speak TLS" in first
    assert "host=192.0.2.8" in second and second.endswith("count=100")


def test_only_what_is_named_speaks_tls(files: Files) -> None:
    config = Config(
        tls_cert=files.cert, tls_key=files.key, tls_listeners=("s3p",), rustlog="off", http="off"
    )
    listeners = listeners_of(config)
    assert [each for each in ("p2p", "ws", "s3p", "rustlog") if listeners.acceptor(each)] == ["s3p"]
    assert listeners_of(Config()).acceptor("p2p") is None


@pytest.mark.parametrize(
    "text",
    [
        "sha256:" + "ab" * 32,
        "AB" * 32,
        ":".join(["ab"] * 32),
        "SHA256:" + ":".join(["AB"] * 32),
        " sha256:" + "ab" * 32 + "\n",
    ],
)
def test_a_pin_may_be_written_as_other_tools_do(text: str) -> None:
    assert parse_pin(text) == b"\xab" * 32


@pytest.mark.parametrize(
    "text", ["", "sha256:", "ab" * 31, "ab" * 33, "sha1:" + "ab" * 32, "xx" * 32]
)
def test_what_is_no_pin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        parse_pin(text)


@given(st.binary(min_size=32, max_size=32))
def test_a_pin_is_read_as_it_is_shown(value: bytes) -> None:
    assert parse_pin(pin_of(value)) == value


@given(st.binary(min_size=32, max_size=32))
def test_the_pins_of_a_key_and_of_a_certificate_are_not_confused(value: bytes) -> None:
    assert parse_key_pin(key_pin_of(value)) == value
    for parse, text in ((parse_pin, key_pin_of(value)), (parse_key_pin, pin_of(value))):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            parse(text)


def test_every_error_has_words() -> None:
    assert reason_of(PinMismatch(1, "not the one")).text == "not the one"
    for error in (ssl.SSLError(1, "odd"), ssl.SSLEOFError(8, "gone"), OSError(5, "broken")):
        assert reason_of(error).text
    assert reason_of(ConnectionResetError("the connection broke")).text == "the connection broke"


def test_the_reference_has_a_row_for_each_cause() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \|", page.partition("\n## TLS\n")[2], re.MULTILINE)
    known = (*VERIFY_CODES.values(), *REASONS.values())
    causes = {text.partition(":")[0] for text, _ in known}  # of ours, the reason comes behind it
    assert causes - set(rows) == set()
