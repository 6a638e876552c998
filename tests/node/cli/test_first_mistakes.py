"""Mistakes of a first hour: the wrong port, nothing there yet, a program that does not load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.processes import Serving, command, environment, serving

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


@pytest.mark.parametrize(
    ("scheme", "listener", "told"),
    [
        ("tcp", "http", "this is a port of HTTP or WebSocket; P2P listens on 7400"),
        ("tcp", "s3p", "this is a port of S3P; P2P listens on 7400"),
        ("ws", "http", "this is a port of HTTP; WebSocket listens on 7401"),
        ("tls", "p2p", "does not speak TLS here; use tcp:// or ws://"),
    ],
)
def test_the_port_of_another_listener(node: Serving, scheme: str, listener: str, told: str) -> None:
    url = f"{scheme}://{node.ready['listeners'][listener]}"
    assert told in failure("put", "c", "hello", "--connect", url)


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
    assert "'part': a stream of one of its partitions exists" in told
    for words in (("append", "many", "x"), ("read", "many"), ("info", "many")):
        done = command("stream", *words, *at)
        assert done.returncode == 4
        assert b"it is a topic, whose streams are many/0 to many/2" in done.stderr, words
    assert "no stream has this name" in failure("stream", "info", "none", *at)
