"""`millpond stream append` and `read` with pipes, files, signals, and nodes that go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.node.processes import Serving, command_here, environment, serving, started
from tests.node.stream_commands import OFF, Run, bodies, fed, objects
from tests.ports import free_port

HANG_S = 120.0
"""A process that has not ended by then hangs; a loaded machine takes less."""


@pytest.fixture
def scheme() -> str:
    """Commands that are processes take long: they are run over TCP only."""
    return "tcp"


def test_append_reads_lines(node: Serving, run: Run, name: str) -> None:
    lines = [b"%d" % number for number in range(2500)]
    done = fed(node, b"\n".join(lines), "stream", "append", name, "--create", "--json")
    assert done.returncode == 0, done.stderr
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(batch["count"] for batch in batches) == 2500
    assert max(batch["count"] for batch in batches) <= 1000
    assert bodies(run, name) == lines
    done = fed(node, b"a\n\nb\n", "stream", "append", name, "--batch", "1", "--match", "2500")
    assert done.stdout.split() == [b"2500", b"2501", b"2502"]
    assert run("stream", "tail", name, "-n", "3").out == b"a\n\nb\n"
    done = fed(node, b"", "stream", "append", name)
    assert (done.returncode, done.stdout) == (0, b"")


def test_append_shows_a_line_as_soon_as_it_is_kept(node: Serving, name: str) -> None:
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("stream", "append", name, "--create", stdin=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(3):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            assert process.stdout.readline() == b"%d\n" % number
        process.stdin.close()
        assert process.wait(HANG_S) == 0


def test_append_reads_a_file_whole(node: Serving, run: Run, name: str, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    data = bytes(range(256)) * 1000
    file.write_bytes(data)
    told = run("stream", "append", name, "--create", "--whole", "--file", str(file))
    assert told == (0, b"0\n", "")
    assert run("stream", "read", name, "--format", "raw").out == data
    assert fed(node, data, "stream", "append", name, "--whole", "-").returncode == 0
    assert run("stream", "read", name, "--from", "1", "--format", "raw").out == data
    file.write_bytes(bytes(2**21))
    for how in ("--whole", "--batch=1"):
        told = run("stream", "append", name, "--file", str(file), how)
        assert told.code == 1 and "larger than any message" in told.err
    told = run("stream", "append", name, "--file", str(tmp_path / "none"))
    assert told.code == 1 and "No such file" in told.err


def test_a_stream_is_copied_by_lines_of_json(node: Serving, run: Run, name: str) -> None:
    copy = f"{name}-copy"
    run("stream", "append", name, "hé", "--create", "--header", "k=v", "--header", "k=w")
    run("stream", "append", name, os.fsdecode(b"\xfe"), "--header", os.fsdecode(b"b=\xff"))
    lines = run("stream", "read", name, "--json").out
    for more in ((), ("--timestamps",)):
        done = fed(node, lines, "stream", "append", copy, "--create", "--jsonl", *more)
        assert done.returncode == 0, done.stderr
    old = objects(run("stream", "read", name, "--json"))
    new = objects(run("stream", "read", copy, "--json"))
    assert old[0]["headers"] == [["k", "v"], ["k", "w"]]
    assert old[1]["headers_base64"] == [["Yg==", "/w=="]]
    kept = ("data", "data_base64", "headers", "headers_base64")
    for one, other in zip([*old, *old], new, strict=True):
        assert {key: one.get(key) for key in kept} == {key: other.get(key) for key in kept}


@pytest.mark.parametrize(
    "line", [b"x", b"{}", b"[]", b'{"data": 1}', b'{"data": "x", "data_base64": "eA=="}', b"\xff"]
)
def test_a_line_that_is_no_record_is_told_by_its_number(
    node: Serving, run: Run, name: str, line: bytes
) -> None:
    text = b'{"data": "one"}\n\n' + line + b"\n"
    done = fed(node, text, "stream", "append", name, "--create", "--jsonl")
    assert done.returncode == 1 and b"line 3 is not a record" in done.stderr


def test_a_refused_append_tells_what_was_done_before(node: Serving, name: str) -> None:
    run_in = ("stream", "append", name, "--create", "--batch", "1", "--jsonl", "--timestamps")
    lines = b'{"data": "one"}\n{"data": "two"}\nno\n'
    with started(
        *run_in, stdin=subprocess.PIPE, env=environment(MILLPOND_CONNECT=node.urls["tcp"])
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None and process.stderr is not None
        process.stdin.write(lines[:32])
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
        process.stdin.write(lines[32:])
        process.stdin.close()
        assert process.wait(HANG_S) == 1
        told = process.stderr.read().decode()
    assert "line 3 is not a record" in told and "2 records appended before" in told


def test_read_follows_until_it_has_enough_or_time_is_over(
    node: Serving, run: Run, name: str
) -> None:
    run("stream", "append", name, "--create", "0", "1")
    told = run("stream", "read", name, "--follow", "-n", "3", "--timeout", "0.3")
    assert told == (3, b"0\n1\n", "")
    assert run("stream", "read", name, "-f", "-n", "2") == (0, b"0\n1\n", "")
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("stream", "tail", name, "-f", "--json", env=env) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["data"] == "0"
        assert json.loads(process.stdout.readline())["data"] == "1"
        run("stream", "append", name, "2")
        assert json.loads(process.stdout.readline())["data"] == "2"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
        assert process.stderr is not None and process.stderr.read() == b""


def test_ctrl_c_ends_an_append_with_130_and_says_how_far_it_got(node: Serving, name: str) -> None:
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("stream", "append", name, "--create", stdin=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None and process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"0\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        assert b"1 record appended before" in process.stderr.read()


def test_a_reader_that_goes_away_is_no_error(node: Serving, run: Run, name: str) -> None:
    run("stream", "append", name, "--create", "x" * 1000)
    run("stream", "append", name, *["x" * 1000] * 900)
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("stream", "read", name, "--follow", env=env) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(HANG_S)) == (b"", 0)


def test_follow_goes_on_after_a_restart_of_the_node(tmp_path: Path, name: str) -> None:
    data, port = str(tmp_path / "data"), free_port()
    words = ("--data", data, "--p2p", f"127.0.0.1:{port}", *OFF)
    env = environment(MILLPOND_CONNECT=f"tcp://127.0.0.1:{port}")
    with serving(*words) as node:
        assert (
            command_here("stream", "append", name, "--create", "0", "1", env=env).stdout
            == b"0\n1\n"
        )
        follower = started("stream", "read", name, "--follow", "-n", "4", env=env)
        with follower as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
            node.process.send_signal(signal.SIGTERM)
            assert node.process.wait(HANG_S) == 0
            with serving(*words):
                done = command_here("stream", "append", name, "2", "3", env=env)
                assert done.stdout == b"2\n3\n"
                assert [process.stdout.readline() for _ in range(2)] == [b"2\n", b"3\n"]
                assert process.wait(HANG_S) == 0


def test_an_append_goes_on_over_a_stop_of_the_node_and_each_line_is_kept_once(
    tmp_path: Path, name: str
) -> None:
    """A node that stops answers what is on its way before the connection ends."""
    data, port = str(tmp_path / "data"), free_port()
    words = ("--data", data, "--p2p", f"127.0.0.1:{port}", *OFF)
    env = environment(MILLPOND_CONNECT=f"tcp://127.0.0.1:{port}")
    lines = [b"%d\n" % number for number in range(3000)]
    file = tmp_path / "lines"
    file.write_bytes(b"".join(lines))
    appending = ("stream", "append", name, "--create", "--batch", "1", "--file", str(file))
    with serving(*words) as node, started(*appending, env=env) as process:
        assert process.stdout is not None and process.stderr is not None
        assert [process.stdout.readline() for _ in range(100)] == lines[:100]
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(HANG_S) == 0
        with serving(*words):
            assert process.stdout.read() == b"".join(lines[100:])
            assert process.wait(HANG_S) == 0, process.stderr.read()
            assert command_here("stream", "read", name, env=env).stdout == b"".join(lines)


def test_a_lost_node_ends_an_append_with_what_is_not_known(tmp_path: Path, name: str) -> None:
    with serving(*OFF) as node:
        env = environment(MILLPOND_CONNECT=node.urls["tcp"])
        words = ("stream", "append", name, "--create", "--reconnect", "0.2")
        with started(*words, stdin=subprocess.PIPE, env=env) as process:
            assert process.stdin is not None
            assert process.stdout is not None and process.stderr is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"0\n"
            node.process.kill()
            node.process.wait(HANG_S)
            process.stdin.write(b"two\n")
            process.stdin.close()
            assert process.wait(HANG_S) == 1
            assert b"1 record appended before" in process.stderr.read()


def test_without_a_node_and_without_access(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("stream", "ls", "--connect", f"tcp://127.0.0.1:{free_port()}")
    assert told.code == 1 and "no node at" in told.err
    tokens = tmp_path / "tokens"
    tokens.write_text("owner all\nclerk put,get,push,ack,list\n")
    tokens.chmod(0o600)
    clerk = tmp_path / "clerk"
    clerk.write_text("clerk\n")
    clerk.chmod(0o600)
    with serving(*OFF, "--token-file", str(tokens)) as node:
        url = node.urls["tcp"]
        told = run("stream", "ls", "--connect", url)
        assert told.code == 5 and "token" in told.err
        told = run("stream", "ls", "--connect", url, "--token-file", str(clerk))
        assert told.code == 5 and "not allowed" in told.err
