"""`millpond serve`: the ready line, signals, refusals, and what a service manager sees."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from node.cli.main import main
from tests.node.processes import ROOT, command, environment, serving, started

GOODBYE = bytes.fromhex("00000003 ffff00")
BARE_PING = bytes.fromhex("00000001 00")
LOOPS = ("uvloop", "asyncio", "trio")


def test_the_ready_line_in_json_names_node_version_durability_and_listeners():
    with serving("--memory", "--s3p", "off", "--rustlog", "off", "--http", "off") as node:
        ready = node.ready
        assert ready["event"] == "ready"
        assert set(ready) == {"event", "node", "version", "durability", "listeners"}
        assert int(ready["node"], 16) >= 0
        assert ready["durability"] == "memory"
        assert list(ready["listeners"]) == ["p2p", "ws"]
        for name in ready["listeners"]:
            socket.create_connection(("127.0.0.1", node.port(name)), timeout=5).close()


def test_a_listener_that_is_off_is_absent():
    with serving("--ws", "off") as node:
        assert list(node.ready["listeners"]) == ["p2p"]


def test_the_plain_ready_line_says_where_and_that_memory_forgets():
    with started("serve", "--p2p", "127.0.0.1:0", "--ws", "off") as process:
        line = process.stdout.readline().decode()
        assert line.startswith("millpond ready")
        assert "p2p=127.0.0.1:" in line and "restart forgets" in line


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_says_goodbye_to_peers_and_exits_0(loop: str, number: signal.Signals):
    """PA-36, P2P-17."""
    with serving("--loop", loop, "--default-channel", "chat/1") as node:
        with socket.create_connection(("127.0.0.1", node.port("p2p")), timeout=5) as peer:
            peer.sendall(BARE_PING)
            assert peer.recv(5) == bytes.fromhex("00000001 01")
            node.process.send_signal(number)
            assert peer.recv(64) == GOODBYE
        assert node.process.wait(5) == 0
        assert node.process.stderr.read() == b""


def test_a_node_behind_nohup_stays_when_its_terminal_goes():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving() as node:
            node.process.send_signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                node.process.wait(0.3)
            node.process.terminate()
            assert node.process.wait(5) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_signal_exits_at_once_with_1(loop: str):
    with serving("--loop", loop, "--default-channel", "c", "--drain-timeout", "60") as node:
        with socket.create_connection(("127.0.0.1", node.port("p2p")), timeout=5) as peer:
            peer.sendall(BARE_PING)
            peer.recv(5)
            node.process.terminate()
            assert peer.recv(64) == GOODBYE
            assert node.process.poll() is None
            node.process.send_signal(signal.SIGINT)
            assert node.process.wait(5) == 1
        assert b"SIGINT again" in node.process.stderr.read()


def test_the_drain_ends_with_its_timeout():
    """PA-36: a peer that does not leave is waited for, but not for ever."""
    with serving("--default-channel", "c", "--drain-timeout", "0.2") as node:
        with socket.create_connection(("127.0.0.1", node.port("p2p")), timeout=5) as peer:
            peer.sendall(BARE_PING)
            peer.recv(5)
            before = time.monotonic()
            node.process.terminate()
            assert node.process.wait(5) == 0
            assert 0.15 < time.monotonic() - before < 4


def test_a_taken_port_is_one_line_and_exit_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = command("serve", "--p2p", "127.0.0.1:0", "--ws", address)
    assert done.returncode == 1
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert address in line and "--ws" in line and "taken" in line


REFUSED = {
    "--s3p 127.0.0.1:7402": "no S3P listener",
    "--rustlog 127.0.0.1:0": "no RustLog listener",
    "--http 127.0.0.1:0": "no HTTP listener",
    "--data /tmp/x": "memory only",
    "--durability disk": "only `memory`",
    "--durability os": "only `memory`",
    "--p2p off --ws off": "every listener is off",
    "--p2p nonsense": "not HOST:PORT",
    "--p2p 127.0.0.1:65536": "not HOST:PORT",
    "--p2p 0.0.0.0:0 --ws off": "--token-file, or --insecure-public",
    "--p2p 192.0.2.1:0 --ws off --insecure-public": "not an address of this machine",
    "--channel jobs": "want PATTERN=",
    "--channel jobs/*=queue,size=3": "unknown option",
    "--drain-timeout soon": "drain_timeout_s",
    "--token-file /nonexistent": "/nonexistent",
    "--config /nonexistent": "/nonexistent",
    "--loop twisted": "invalid choice",
    "--no-such-option": "unrecognized arguments",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_a_usage_error(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", *words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert REFUSED[words] in told.err.splitlines()[-1]
    assert "Traceback" not in told.err


def test_absent_listeners_are_refused_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MILLPOND_HTTP", "127.0.0.1:7404")
    assert main(["serve"]) == 2
    assert "no HTTP listener" in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """PA-39; the text never holds a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret all\n")
    tokens.chmod(0o644)
    assert main(["serve", "--token-file", str(tokens)]) == 2
    told = capsys.readouterr().err
    assert "chmod 600" in told and "s3cret" not in told


def test_the_service_manager_hears_of_start_and_stop():
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        address = str(Path(folder, "notify"))
        manager.bind(address)
        manager.settimeout(10)
        with serving(env=environment(NOTIFY_SOCKET=address)) as node:
            assert manager.recv(100) == b"READY=1"
            node.process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            assert node.process.wait(5) == 0


def test_the_descriptor_limit_is_raised_to_what_the_system_allows():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = [sys.executable, "-m", "node", "serve", "--p2p", "127.0.0.1:0", "--ws", "off"]
    limited = ["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", *words]
    with subprocess.Popen(
        limited, cwd=ROOT, stdout=subprocess.PIPE, env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout.readline()
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        finally:
            process.kill()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path):
    settings = tmp_path / "millpond.toml"
    settings.write_text('p2p = "off"\nws = "off"\n')
    env = environment(MILLPOND_WS="127.0.0.1:0", MILLPOND_CONFIG=str(settings))
    with started("serve", "--json", "--log-level", "error", env=env) as process:
        assert list(json.loads(process.stdout.readline())["listeners"]) == ["ws"]
        assert os.kill(process.pid, signal.SIGTERM) is None
        assert process.wait(5) == 0
