"""`millpond serve`: the ready line, signals, refusals, and what a service manager sees."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.journal.format import FORMAT_VERSION, HEADER_SIZE
from millpond.node.cli.main import main
from millpond.sync import connect
from tests.node.processes import ROOT, command, command_here, environment, serving, started

GOODBYE = bytes.fromhex("00000003 ffff00")
BARE_PING = bytes.fromhex("00000001 00")
BASE = ("event", "node", "version", "durability", "listeners")
LOOPS = ("uvloop", "asyncio", "trio")


def test_the_ready_line_in_json_names_node_version_durability_and_listeners():
    with serving("--memory", "--s3p", "off", "--rustlog", "off", "--http", "off") as node:
        ready = node.ready
        assert ready["event"] == "ready"
        assert set(ready) == {*BASE, "data", "damaged"}
        assert int(ready["node"], 16) >= 0
        assert ready["durability"] == "memory"
        assert list(ready["listeners"]) == ["p2p", "ws"]
        for name in ready["listeners"]:
            socket.create_connection(("127.0.0.1", node.port(name)), timeout=5).close()


def test_a_listener_that_is_off_is_absent():
    with serving("--ws", "off", "--rustlog", "off") as node:
        assert list(node.ready["listeners"]) == ["p2p", "s3p"]


def test_the_plain_ready_line_says_where_and_that_memory_forgets():
    with started("serve", "--memory", "--p2p", "127.0.0.1:0", "--ws", "off") as process:
        line = process.stdout.readline().decode()
        assert line.startswith("millpond ready")
        assert "p2p=127.0.0.1:" in line and "restart forgets" in line


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
        done = command("serve", "--memory", "--p2p", "127.0.0.1:0", "--ws", address)
    assert done.returncode == 1
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert address in line and "--ws" in line and "in use" in line


def refused(*words: str, **options: Any) -> str:
    """`serve` with a data folder that it cannot use: one line, and exit code 1.

    With `options` of a process it runs in one.
    """
    run = partial(command, **options) if options else partial(command_here, env=environment())
    done = run("serve", "--p2p", "127.0.0.1:0", "--ws", "off", *words)
    assert (done.returncode, done.stdout) == (1, b""), done.stderr
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("millpond serve: ")
    return line


def test_a_folder_in_use_names_the_folder_and_the_process(tmp_path: Path):
    with serving("--data", str(tmp_path)) as node:
        line = refused("--data", str(tmp_path))
        assert str(tmp_path) in line and f"process {node.process.pid}" in line
    with serving("--data", str(tmp_path)):
        pass  # a node that was killed holds nothing


@pytest.mark.parametrize("below", ["", "/data", "/a/b"])
def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("mine")
    line = refused("--data", str(tmp_path / "file") + below)
    assert f"{tmp_path}/file" in line and "is a file, not a folder" in line
    assert (tmp_path / "file").read_text() == "mine"


def give_up_override() -> None:
    """Between fork and exec: modes of files hold for root as well, as for everybody else."""
    prctl = ctypes.CDLL(None).prctl
    drop_from_bounding_set, cap_dac_override = 24, 1
    prctl(drop_from_bounding_set, cap_dac_override, 0, 0, 0)


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_folder_that_is_not_writable_is_told(tmp_path: Path, below: str):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    line = refused("--data", str(closed) + below, preexec_fn=give_up_override)
    assert str(closed) + below in line and "no permission" in line


@pytest.mark.parametrize("is_there", [True, False])
def test_a_disk_that_takes_nothing_is_told(tmp_path: Path, is_there: bool):
    """A limit of the size of files stands for a disk that is full."""
    if is_there:
        with serving("--data", str(tmp_path)):
            pass
        (tmp_path / "catalogue.sqlite3").unlink()
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    line = refused("--data", str(tmp_path), preexec_fn=limit)
    assert str(tmp_path) in line and "File too large" in line


def test_a_full_disk_refuses_messages_until_there_is_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """NACK e1; what was kept is read and acknowledged meanwhile, and nobody has to restart it."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**20, hard))
    with serving("--data", str(tmp_path)) as node:
        assert main(["put", "box", "kept", "--connect", node.urls["tcp"]]) == 0
    with serving("--data", str(tmp_path), preexec_fn=limit) as node:
        connected = ("--connect", node.urls["tcp"])
        capfd.readouterr()
        assert main(["put", "box", "refused", *connected]) == 1
        assert "the store cannot read or write this" in capfd.readouterr().err
        assert main(["recv", "box", *connected]) == 0
        assert main(["info", *connected]) == 0
        told = capfd.readouterr().out
        assert told.startswith("kept\n") and "NOT WRITABLE: [Errno 27] File too large" in told
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        with connect(node.urls["tcp"], channel="box") as box:
            assert box.put(b"later", retry_for=10).durability is Durability.DISK
        assert main(["info", *connected]) == 0
        assert "writable, " in capfd.readouterr().out


def test_what_a_later_version_wrote_is_refused_and_left_alone(tmp_path: Path):
    """Upgrades go forward; an older version says so and changes nothing."""
    with serving("--data", str(tmp_path)) as node:
        put = ["put", "box", "hello", "--connect", node.urls["tcp"]]
        assert main(put) == 0
    [segment] = (tmp_path / "journal").iterdir()
    content = bytearray(segment.read_bytes())
    content[16:18] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    content[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(content[: HEADER_SIZE - 4]).to_bytes(4, "little")
    segment.write_bytes(content)
    line = refused("--data", str(tmp_path))
    assert f"journal format {FORMAT_VERSION + 1}" in line and "later version" in line
    assert segment.read_bytes() == content
    catalog = tmp_path / "catalogue.sqlite3"
    with closing(sqlite3.connect(catalog)) as connection:
        connection.execute("PRAGMA user_version = 99")
    line = refused("--data", str(tmp_path))
    assert "format 99" in line and "later version" in line
    with closing(sqlite3.connect(catalog)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)


def test_messages_survive_a_kill_and_a_restart(tmp_path: Path):
    """P2P-30; the folder is that of XDG_DATA_HOME where nobody says another."""
    env = environment(XDG_DATA_HOME=str(tmp_path))
    words = ("serve", "--p2p", "127.0.0.1:0", "--ws", "off", "--json")
    for number in (1, 2, 3):
        with started(*words, env=env) as process:
            ready = json.loads(process.stdout.readline())
            assert (ready["durability"], ready["data"]) == ("disk", str(tmp_path / "millpond"))
            url = f"tcp://{ready['listeners']['p2p']}"
            with connect(url, channel="box", window=0) as box:
                assert box.put(str(number).encode()).durability is Durability.DISK
                assert [box.get(each) for each in box.ids()] == [b"1", b"2", b"3"][:number]
            process.kill()


def test_durability_comes_from_flag_variable_and_rule(tmp_path: Path):
    env = environment(MILLPOND_DATA=str(tmp_path), MILLPOND_DURABILITY="os")
    words = ("serve", "--p2p", "127.0.0.1:0", "--ws", "off", "--json")
    rules = ("--channel", "log=pair,durability=memory", "--channel", "mail=pair,durability=disk")
    with started(*words, *rules, env=env) as process:
        ready = json.loads(process.stdout.readline())
        assert (ready["durability"], ready["data"]) == ("os", str(tmp_path))
        found = {}
        for name in ("log", "mail", "other"):
            with connect(f"tcp://{ready['listeners']['p2p']}", channel=name) as channel:
                found[name] = channel.put(b"x").durability
        assert found == {
            "log": Durability.MEMORY,
            "mail": Durability.DISK,
            "other": Durability.OS,
        }
    with started(*words, "--memory", env=env) as process:
        ready = json.loads(process.stdout.readline())
        assert (ready["durability"], ready["data"]) == ("memory", None)


LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
REFUSED = {
    "--s3p nonsense": "not HOST:PORT",
    "--rustlog 0.0.0.0:0": "or --insecure-public if this is intended",
    "--stream logs=week": "want PATTERN=",
    "--stream logs=size=3": "unknown option",
    "--stream logs=age=0": "must be above 0",
    "--http 0.0.0.0:0": "or --insecure-public if this is intended",
    "--memory --data /nonexistent": "not allowed with",
    "--memory --durability disk": "--memory excludes --durability",
    "--data /nonexistent --durability memory": "--durability memory excludes --data",
    "--data /nonexistent --durability tape": "disk, os or memory",
    "--data /nonexistent --channel jobs=queue,durability=tape": "disk, os or memory",
    "--p2p off --ws off --s3p off --rustlog off --http off": "all listeners are off",
    "--p2p nonsense": "not HOST:PORT",
    "--p2p 127.0.0.1:65536": "a port is at most 65535",
    "--p2p 0.0.0.0:0 --ws off": "or --insecure-public if this is intended",
    "--p2p 192.0.2.1:0 --ws off --insecure-public": "not an address of this machine",
    "--channel jobs": "want PATTERN=",
    "--channel jobs/*=queue,size=3": "unknown option",
    "--drain-timeout soon": "drain_timeout_s",
    "--token-file /nonexistent": "/nonexistent",
    "--config /nonexistent": "/nonexistent",
    "--loop twisted": "invalid choice",
    "--no-such-option": "unknown option",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_a_usage_error(words: str, capsys: pytest.CaptureFixture[str]):
    store = () if "--memory" in words or "--data" in words else ("--memory",)
    # Ports of their own: a node may run on this machine. A later option counts.
    free = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    assert main(["serve", *free, *store, *words.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert REFUSED[words] in told.err.splitlines()[-1]
    assert "Traceback" not in told.err


def test_a_token_file_that_others_can_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """PA-39; the text never holds a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret all\n")
    tokens.chmod(0o644)
    assert main(["serve", "--memory", "--token-file", str(tokens)]) == 2
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
    words = [
        sys.executable,
        "-m",
        "millpond",
        "serve",
        "--memory",
        *("--p2p", "127.0.0.1:0", "--ws", "off"),
    ]
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
    with started("serve", "--memory", "--json", "--log-level", "error", env=env) as process:
        assert list(json.loads(process.stdout.readline())["listeners"]) == ["ws"]
        assert os.kill(process.pid, signal.SIGTERM) is None
        assert process.wait(5) == 0
