"""Mistakes of a first hour: the wrong port, nothing there yet, a program that does not load."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.processes import Serving, command, command_here, environment, serving

LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    addresses = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    with serving("--memory", *addresses) as opened:
        yield opened


def failure(*words: str, **options: object) -> str:
    done = command(*words, **options)
    assert done.returncode != 0
    return done.stderr.decode()


NAMES = {"p2p": "P2P", "ws": "WebSocket", "s3p": "S3P", "rustlog": "RustLog", "http": "HTTP"}
SCHEMES = {("p2p", False): "tcp", ("p2p", True): "tls", ("ws", False): "ws", ("ws", True): "wss"}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A node all of whose listeners have TLS."""
    folder = tmp_path_factory.mktemp("tls")
    made = command("keys", "cert", "here", "--host", "127.0.0.1", "--out", str(folder))
    assert made.returncode == 0, made.stderr
    addresses = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    with serving("--memory", *addresses, "--tls-cert", str(folder / "here.crt")) as opened:
        yield opened


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("scheme", ["tcp", "ws", "tls", "wss"])
def test_the_port_of_another_listener_is_told_as_such(
    node: Serving, secure: Serving, scheme: str, listener: str, has_tls: bool
) -> None:
    """Each pair of a client and a listener, with TLS and without it."""
    right = SCHEMES.get((listener, has_tls))
    if right == scheme or (listener == "http" and scheme == SCHEMES["ws", has_tls]):
        return  # P2P is spoken there: the console's page connects to the HTTP port
    where = (secure if has_tls else node).ready["listeners"][listener]
    words = ("ping", "--connect", f"{scheme}://{where}", "--timeout", "1", "--json")
    done = command_here(*words, env=environment())
    *_, line = done.stderr.decode().splitlines()
    told = json.loads(line)
    assert done.returncode == told["exit_status"] == 1
    assert f"{where}: this is the {NAMES[listener]} port" in told["message"]
    if right is not None:
        assert told["hint"] == f"use {right}://{where}"
        assert told["message"].endswith("with TLS" if has_tls else "with no TLS")
    else:
        usual = "WebSocket listens on 7401" if scheme in ("ws", "wss") else "P2P listens on 7400"
        assert told["hint"] == f"{usual} unless a node is told otherwise"


def test_a_put_to_a_silent_port_is_told_as_well(node: Serving) -> None:
    where = node.ready["listeners"]["rustlog"]
    told = failure("put", "c", "hello", "--connect", f"tcp://{where}", "--timeout", "1")
    assert f"{where}: this is the RustLog port; P2P listens on 7400" in told


def test_a_port_of_another_server_is_no_listener_of_a_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        told = failure("ping", "--connect", f"tcp://{where}", "--timeout", "0.5")
    assert f"no answer from {where} within 0.5 s" in told


def test_a_stream_without_records_has_no_last_one(node: Serving) -> None:
    url = node.urls["tcp"]
    assert command("stream", "create", "empty", "--connect", url).returncode == 0
    done = command("stream", "ls", "-l", "--connect", url)
    assert done.stdout.decode().split() == ["0", "0", "-", "empty"]


def test_tokens_before_there_is_a_file(tmp_path: Path) -> None:
    told = failure("token", "ls", "--data", str(tmp_path))
    assert "there is no access file" in told and "millpond token new" in told


def test_a_module_that_does_not_load_shows_its_own_frames(node: Serving, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("import not_installed\n")
    (tmp_path / "handlers.py").write_text("import helpers\n")
    here = environment(PYTHONPATH=str(tmp_path))
    words = ("work", "handlers:run", "--connect", node.urls["tcp"])
    told = failure(*words, env=here)
    assert "module 'handlers' does not load" in told
    frames = [line for line in told.splitlines() if line.lstrip().startswith("File ")]
    assert [Path(line.split('"')[1]).name for line in frames] == ["handlers.py", "helpers.py"]
    assert told.rstrip().endswith("ModuleNotFoundError: No module named 'not_installed'")


def test_names_of_topics_and_streams(node: Serving) -> None:
    """A topic of one partition is the stream of its name; the streams of another are numbered."""
    at = ("--connect", node.urls["tcp"])
    assert command("topic", "create", "many", "--partitions", "3", *at).returncode == 0
    assert command("stream", "create", "one", *at).returncode == 0
    assert command("stream", "create", "part/0", *at).returncode == 0
    many = "'many': a topic of this name exists, with 3 partitions"
    assert many in failure("stream", "create", "many", *at)
    assert many in failure("topic", "create", "many", *at)
    assert "which is a topic of one partition as well" in failure("topic", "create", "one", *at)
    told = failure("topic", "create", "part", "--partitions", "2", *at)
    assert "'part': a stream of one of its partitions exists ('part/0')" in told
    told = failure("stream", "rm", "many", "none", *at)
    assert len(told.strip().splitlines()) == 1 and "there is no stream 'none'" in told
    assert "it is a topic, whose streams are many/0 to many/2; see millpond topic rm" in told
    for words in (("append", "many", "x"), ("read", "many"), ("info", "many")):
        done = command("stream", *words, *at)
        assert done.returncode == 4
        assert b"it is a topic, whose streams are many/0 to many/2" in done.stderr, words
    assert "no stream has this name" in failure("stream", "info", "none", *at)
    told = failure("stream", "append", "none", "x", *at)
    assert "no stream has this name; `millpond stream create` makes one" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ping", "--connect", "127.0.0.1:7400"), "has no scheme, as in tcp://127.0.0.1:7400"),
        (("ping", "--connect", "tcp://mill.invalid:1"), "name of the host cannot be resolved"),
        (("ping", "--token-file", "none"), "--token-file: none: No such file or directory"),
        (("serve", "--config", "none.toml"), "none.toml: No such file or directory"),
        (("serve", "--memory", "--p2p", "7400"), "'7400' is not HOST:PORT, as in 127.0.0.1:7400"),
        (("serve", "--memory", "--p2p", "127.0.0.1:74000"), "a port is at most 65535"),
        (("context", "add", "home", "tcp://h"), "millpond context add: error: too many arguments"),
        (("put", "c", "x", "--file", "none"), "unknown option --file"),
        (("put", "c", "x", "--jsn"), "did you mean --json?"),
        (("reply", "c", "no-such-program"), "there is no program 'no-such-program'"),
    ],
)
def test_a_mistake_is_told_in_one_plain_line(words: tuple[str, ...], told: str) -> None:
    done = command_here(*words, env=environment())
    *_, line = done.stderr.decode().splitlines()
    assert done.returncode in (1, 2)
    assert told in line and "Errno" not in line
    assert "token-file" not in line or "--token-file" in words


def test_a_channel_that_exists_is_told_with_its_mode(node: Serving) -> None:
    at = ("--connect", node.urls["tcp"])
    assert command("channel", "create", "there", "--mode", "queue", *at).returncode == 0
    told = failure("channel", "create", "there", "--mode", "pair", *at)
    assert "'there' exists, in queue mode, not pair; choose another name" in told
    told = failure("channel", "create", "there", "--mode", "queue", *at)
    assert "'there' exists, in queue mode; --if-missing accepts that" in told


def test_a_job_that_is_not_there_is_no_message(node: Serving) -> None:
    for verb in ("retry", "cancel"):
        yes = ("--yes",) if verb == "cancel" else ()
        done = command("jobs", verb, "mails", "5", *yes, "--connect", node.urls["tcp"])
        assert done.returncode == 4
        assert b"there is no job 5 in queue 'mails': done, cancelled or never there" in done.stderr
