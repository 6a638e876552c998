"""`millpond ask` and `millpond reply`: questions and answers between processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond import sync
from tests.node.processes import Serving, command, environment, serving

OFF = [word for name in ("ws", "s3p", "rustlog", "http") for word in (f"--{name}", "off")]
UPPER = "import sys; sys.stdout.write(sys.stdin.read().upper())"
FAILS = "import sys; sys.exit('no such word')"


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--memory", *OFF) as ready:
        yield ready


@contextmanager
def replying(node: Serving, channel: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`millpond reply`, once it receives in the channel."""
    program = [sys.executable, "-m", "millpond", "reply", channel, "--connect", node.urls["tcp"]]
    with subprocess.Popen(
        [*program, *words], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            with sync.connect_channels(node.urls["tcp"]) as channels:
                limit = time.monotonic() + 60
                while not any(each.receivers for each in channels.list(channel)):
                    assert time.monotonic() < limit and process.poll() is None
                    time.sleep(0.02)
            yield process
        finally:
            process.terminate()
            process.wait(60)


def test_a_question_is_answered_by_a_program(node: Serving) -> None:
    at = ("--connect", node.urls["tcp"])
    with replying(node, "rpc", "-n", "3", "--json", "--", sys.executable, "-c", UPPER) as process:
        told = command("ask", "rpc", "hello", *at)
        assert (told.returncode, told.stdout, told.stderr) == (0, b"HELLO\n", b"")
        told = command("ask", "rpc", *at, "--raw", input=b"of stdin")
        assert told.stdout == b"OF STDIN"
        told = command("ask", "rpc", "x", "--json", *at)
        assert json.loads(told.stdout) == {"data": "X"}
        assert process.wait(60) == 0 and process.stdout is not None
        rows = [json.loads(line) for line in process.stdout]
    assert [row["reply"] for row in rows] == ["HELLO", "OF STDIN", "X"]
    assert {row["error"] for row in rows} == {None}


def test_a_program_that_fails_fails_the_question(node: Serving) -> None:
    with replying(node, "fails", "--", sys.executable, "-c", FAILS):
        told = command("ask", "fails", "hello", "--connect", node.urls["tcp"])
    assert told.returncode == 1
    assert told.stderr == b"millpond ask: the question failed: no such word\n"


def test_a_program_that_takes_too_long_fails_the_question(node: Serving) -> None:
    hangs = "import time; time.sleep(600)"
    with replying(node, "slow", "--run-for", "0.2", "--", sys.executable, "-c", hangs):
        told = command("ask", "slow", "hello", "--connect", node.urls["tcp"])
    assert told.returncode == 1 and b"no answer within 0.2 s" in told.stderr


def test_questions_without_an_answer(node: Serving, tmp_path: Path) -> None:
    at = ("--connect", node.urls["tcp"])
    told = command("ask", "nobody", "hello", *at)
    assert told.returncode == 4 and b"nobody listens in the channel" in told.stderr
    with sync.connect(node.urls["tcp"], "silent", role="consumer"):
        told = command("ask", "silent", "hello", "--timeout", "0.2", *at)
    assert told.returncode == 3 and b"no answer within 0.2 s" in told.stderr
    assert command("ask", "rpc", *at, input=b"").returncode == 2
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with replying(node, "none", "--", str(program)) as process:
        program.unlink()
        told = command("ask", "none", "hello", "--timeout", "0.2", *at)
        assert told.returncode == 3
        assert process.wait(60) == 1 and process.stderr is not None
        assert f"cannot run '{program}'".encode() in process.stderr.read()
