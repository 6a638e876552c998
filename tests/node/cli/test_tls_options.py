"""TLS from the command line: `keys cert`, the flags of clients, `doctor tls`, SIGHUP."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import termios
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from millpond.node.tls.certificates import (
    key_hash,
    make_certificate,
    read_certificate,
    read_certificates,
)
from millpond.node.tls.pins import key_pin_of, pin_of
from tests.node.processes import Serving, serving, started
from tests.node.stream_commands import OFF, Run, Told, objects
from tests.node.tls.certificate_files import Files, files_of

DAY_S = 86_400.0
OURS = ("CA", "PIN", "CERT", "CERT_KEY", "CONFIG", "TLS_CERT", "CONNECT")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in OURS:
        monkeypatch.delenv(f"MILLPOND_{name}", raising=False)

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return files_of(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def node(files: Files) -> Iterator[Serving]:
    options = ("--tls-cert", files.cert, "--s3p", "off", "--rustlog", "off")
    with serving(*options, limit_s=90) as ready:
        yield ready


@pytest.fixture
def urls(node: Serving) -> list[str]:
    return [f"tls://{node.ready['listeners']['p2p']}", f"wss://{node.ready['listeners']['ws']}"]


def pin(path: str | Path) -> str:
    return pin_of(sha256(read_certificate(Path(path)).der).digest())


def key_pin(path: str | Path) -> str:
    return key_pin_of(key_hash(read_certificate(Path(path)).der))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def levels(told: Told) -> dict[str, str]:
    return {each["check"]: each["level"] for each in map(json.loads, told.out.splitlines())}


def texts(told: Told) -> dict[str, str]:
    return {each["check"]: each["text"] for each in map(json.loads, told.out.splitlines())}


def test_a_certificate_for_this_machine(run: Run, tmp_path: Path) -> None:
    [told] = objects(run("keys", "cert", "alice", "--out", str(tmp_path / "new"), "--json"))
    certificate, key = Path(told["certificate"]), Path(told["key"])
    assert (certificate, key) == (tmp_path / "new" / "alice.crt", tmp_path / "new" / "alice.key")
    assert (mode(certificate), mode(key)) == (0o644, 0o600)
    shown = read_certificate(certificate)
    assert set(shown.names) == {"alice", "localhost", "127.0.0.1", "::1"} == set(told["names"])
    assert told["pin"] == pin(certificate)
    assert 364 < (shown.not_after - time.time()) / DAY_S <= 365


def test_hosts_and_days_are_as_asked_for(run: Run, tmp_path: Path) -> None:
    words = ("--host", "mill.lan", "--host", "192.168.1.5", "--days", "7", "--out", str(tmp_path))
    assert run("keys", "cert", "A B", *words).code == 0
    shown = read_certificate(tmp_path / "A B.crt")
    assert shown.names == ("mill.lan", "192.168.1.5")  # the name is no host
    assert 6 < (shown.not_after - time.time()) / DAY_S <= 7


def test_what_is_there_is_replaced_only_when_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    make = ("keys", "cert", "alice", "--out", str(tmp_path))
    assert run(*make, "--host", "mill.lan").code == 0
    before = (tmp_path / "alice.crt").read_bytes(), (tmp_path / "alice.key").read_bytes()
    told = run(*make)
    assert told.code == 1 and "--renew" in told.err
    assert before == ((tmp_path / "alice.crt").read_bytes(), (tmp_path / "alice.key").read_bytes())
    assert run(*make, "--renew").code == 0
    assert read_certificate(tmp_path / "alice.crt").names == ("alice", "mill.lan")
    renewed = (tmp_path / "alice.crt").read_bytes(), (tmp_path / "alice.key").read_bytes()
    assert renewed[0] != before[0] and renewed[1] == before[1], "its key and the pin of it stay"
    assert run(*make, "--new-key").code == 2
    assert run(*make, "--renew", "--new-key").code == 0
    assert (tmp_path / "alice.key").read_bytes() != before[1]
    assert mode(tmp_path / "alice.key") == 0o600


def test_an_authority_signs_and_renews(run: Run, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path))
    assert run("keys", "cert", "home", "--ca", *out).code == 0
    by = ("--signed-by", str(tmp_path / "home.crt"))
    assert run("keys", "cert", "bob", *by, *out).code == 0
    bob, home = read_certificates(tmp_path / "bob.crt")
    assert bob.issuer == home.subject == "CN=home" and home.is_authority
    told = run("keys", "cert", "bob", "--renew", *out)
    assert told.code == 2 and "--signed-by" in told.err
    assert run("keys", "cert", "bob", "--renew", *by, *out).code == 0
    assert read_certificate(tmp_path / "bob.crt").der != bob.der
    (tmp_path / "home.key").chmod(0o644)
    told = run("keys", "cert", "eve", *by, *out)
    assert told.code == 1 and "chmod 600" in told.err
    assert not (tmp_path / "eve.key").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("../alice",),
        (".alice",),
        ("alice", "--host", "a b"),
        ("alice", "--days", "0"),
        ("alice", "--days", "99999999"),
        ("alice", "--renew"),
        ("alice", "--signed-by", "none.crt"),
        ("alice", "--ca", "--signed-by", "none.crt"),
        ("a" * 65,),
    ],
)
def test_what_cannot_be_leaves_no_file(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    told = run("keys", "cert", *words, "--out", str(tmp_path))
    assert told.code in (1, 2) and told.err.count("\n") >= 1
    assert "internal error" not in told.err
    assert list(tmp_path.iterdir()) == []


def test_the_ready_line_tells_who_speaks_tls(node: Serving) -> None:
    assert node.ready["tls"] == ["p2p", "ws"]


def test_a_client_trusts_a_file_or_a_pin(
    run: Run, urls: list[str], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in urls:
        assert run("put", "chat/1", "a", "--connect", url, "--ca", files.cert).code == 0
        told = run("recv", "chat/1", "--connect", url, "--pin", pin(files.cert))
        assert (told.code, told.out) == (0, b"a\n")
        assert run("ping", "--connect", url, "--pin", key_pin(files.cert)).code == 0
        assert run("ping", "--connect", f"{url}#{key_pin(files.cert)}").code == 0
        both = f"sha256:{'00' * 32},{pin(files.cert)}"  # while certificates change
        assert run("ping", "--connect", url, "--pin", both).code == 0
    monkeypatch.setenv("MILLPOND_CA", files.cert)
    monkeypatch.setenv("MILLPOND_CONNECT", urls[0])
    assert run("info").code == 0


def test_one_line_says_why_there_is_no_connection(
    run: Run, node: Serving, urls: list[str], tmp_path: Path
) -> None:
    stranger = files_of(tmp_path, name="stranger")
    listeners = node.ready["listeners"]
    for where, words, reason in (
        (urls[0], (), "--ca FILE"),
        (urls[1], ("--ca", stranger.cert), "--ca FILE"),
        (urls[0], ("--pin", "sha256:" + "00" * 32), "not the pinned one"),
        (urls[0] + "#key-sha256:" + "00" * 32, (), "key is not the pinned one"),
        (f"tcp://{listeners['p2p']}", (), "tls://"),
        (f"ws://{listeners['ws']}", (), "wss://"),
    ):
        told = run("put", "chat/1", "a", "--connect", where, *words)
        assert told.code == 1 and told.err.count("\n") == 1
        assert reason in told.err and "internal" not in told.err


def test_a_node_that_does_not_speak_tls_is_named_so(run: Run) -> None:
    with serving(*OFF) as plain:
        told = run("ping", "--connect", f"tls://{plain.ready['listeners']['p2p']}")
        assert told.code == 1 and "tcp://" in told.err
        told = run("doctor", "tls", f"tls://{plain.ready['listeners']['p2p']}", "--json")
        assert told.code == 1 and levels(told)["server"] == "fail"


@pytest.mark.parametrize(
    "words",
    [("--pin", "sha256:12"), ("--ca", "/none.crt"), ("--cert", "/none.crt")],
)
def test_flags_that_do_not_do_are_usage_errors(
    run: Run, urls: list[str], words: tuple[str, ...]
) -> None:
    told = run("ping", "--connect", urls[0], *words)
    assert told.code == 2 and told.err.count("\n") == 1


def test_a_certificate_of_one_s_own_where_one_is_needed(run: Run, tmp_path: Path) -> None:
    """The key is found beside it."""
    files, bob = files_of(tmp_path), files_of(tmp_path, name="bob")
    with serving("--tls-cert", files.cert, "--tls-client-ca", bob.cert, *OFF) as node:
        url = f"tls://{node.ready['listeners']['p2p']}"
        words = ("--connect", url, "--ca", files.cert)
        told = run("ping", *words)
        assert told.code == 1 and "give --cert" in told.err
        assert run("ping", *words, "--cert", bob.cert).code == 0
        seen = levels(run("doctor", "tls", url, "--ca", files.cert, "--json"))
        assert (seen["trust"], seen["own cert"]) == ("ok", "fail")
        told = run("doctor", "tls", url, "--ca", files.cert, "--cert", bob.cert, "--json")
        assert told.code == 0


def test_the_doctor_sees_what_a_client_sees(run: Run, urls: list[str], files: Files) -> None:
    for url in urls:
        told = run("doctor", "tls", url, "--ca", files.cert, "--json")
        assert told.code == 0 and set(levels(told).values()) == {"ok"}
        seen = texts(told)
        assert "TLSv1.3" in seen["server"] and ("http/1.1" in seen["server"]) == ("wss" in url)
        assert pin(files.cert) in seen["certificate"]
        assert seen["names"] == "mill localhost 127.0.0.1"
        assert "29 days left" in seen["validity"] or "30 days left" in seen["validity"]
    told = run("doctor", "tls", urls[0], "--json")
    assert told.code == 1 and levels(told)["trust"] == "fail"
    assert pin(files.cert) in texts(told)["certificate"]  # shown all the same, to be compared
    assert run("doctor", "tls", urls[0], "--pin", pin(files.cert)).code == 0


def test_the_doctor_looks_at_the_files(run: Run, tmp_path: Path) -> None:
    now = time.time()
    for days_ago, level in ((0, "ok"), (20, "warn"), (40, "fail")):
        name = f"old{days_ago}"
        pair = make_certificate(name, ["mill"], 30, now - days_ago * DAY_S)
        files = files_of(tmp_path, pair, name)
        told = run("doctor", "tls", "--tls-cert", files.cert, "--json")
        assert levels(told)["validity"] == level
        assert told.code == (level == "fail")
        assert level == "ok" or "--renew" in texts(told)["validity"]


def test_the_doctor_names_a_file_that_does_not_do(run: Run, tmp_path: Path) -> None:
    files, other = files_of(tmp_path), files_of(tmp_path, name="other")
    told = run("doctor", "tls", "--tls-cert", files.cert, "--tls-key", other.key, "--json")
    assert told.code == 1 and other.key in texts(told)["tls files"]
    Path(files.key).chmod(0o644)
    told = run("doctor", "tls", "--tls-cert", files.cert, "--json")
    assert told.code == 1 and "chmod 600" in texts(told)["tls files"]
    Path(files.cert).write_bytes(Path(files.cert).read_bytes() + Path(other.cert).read_bytes())
    Path(files.key).chmod(0o600)
    told = run("doctor", "tls", "--tls-cert", files.cert, "--json")
    assert told.code == 1 and levels(told)["chain"] == "fail"


def test_the_doctor_without_anything_to_look_at(run: Run) -> None:
    told = run("doctor", "tls", "--json")
    assert told.code == 0 and "--tls-cert" in texts(told)["tls files"]
    assert run("doctor", "tls", "tcp://127.0.0.1:7400").code == 2
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = run("doctor", "tls", f"tls://127.0.0.1:{port}", "--json")
    assert told.code == 1 and "refused" in texts(told)["server"]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio", "trio"])
def test_sighup_reads_the_files_again_and_ends_no_connection(
    run: Run, tmp_path: Path, loop: str
) -> None:
    files = files_of(tmp_path)
    options = ("--tls-cert", files.cert, "--tls", "p2p", "--loop", loop, *OFF)
    with serving(*options, start_new_session=True) as node:
        assert node.ready["tls"] == ["p2p"]
        with socket.create_connection(("127.0.0.1", node.port("p2p")), timeout=5) as plain:
            with files.client().wrap_socket(plain, server_hostname="localhost") as standing:
                standing.sendall(bytes.fromhex("00000001 00"))
                files_of(tmp_path)
                node.process.send_signal(signal.SIGHUP)
                url = f"tls://127.0.0.1:{node.port('p2p')}"
                give_up_at = time.monotonic() + 10
                while run("ping", "--connect", url, "--ca", files.cert).code:
                    assert time.monotonic() < give_up_at
                Path(files.key).write_text("broken")
                node.process.send_signal(signal.SIGHUP)
                assert run("ping", "--connect", url, "--pin", pin(files.cert)).code == 0
                standing.sendall(bytes.fromhex("00000001 00"))
                assert node.process.poll() is None
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(10) == 0
        told = node.process.stderr.read().decode()
        assert "tls files reloaded" in told and files.key in told


def test_a_terminal_that_closes_ends_the_node() -> None:
    """PA-36. While there is one, SIGHUP is somebody's who wants the files read."""
    outer, inner = pty.openpty()
    any_port = [word for name in ("p2p", "ws") for word in (f"--{name}", "127.0.0.1:0")]

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)

    words = ("serve", "--memory", *any_port)
    with started(*words, stdin=inner, preexec_fn=take_terminal) as process:
        os.close(inner)
        assert process.stdout is not None
        assert b"millpond ready" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        os.close(outer)
        assert process.wait(10) == 0
