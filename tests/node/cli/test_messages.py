"""The commands that talk to a node: output, JSON shapes, exit codes; over TCP and WebSocket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from millpond.node.cli.main import main
from millpond.node.cli.token_file import read_token
from millpond.node.config import LISTENERS
from tests.node.processes import (
    ROOT,
    Serving,
    command,
    command_here,
    environment,
    serving,
    started,
)


class Told(NamedTuple):
    code: int
    out: bytes
    err: str


Run = Callable[..., Told]


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--channel", "jobs/*=queue") as ready:
        yield ready


@pytest.fixture(params=["tcp", "ws"])
def run(
    node: Serving,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Run a command in this process, against the node in the other."""
    monkeypatch.setenv("MILLPOND_CONNECT", node.urls[request.param])

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


@pytest.fixture
def channel() -> str:
    return f"test/{uuid4().hex}"


def objects(told: Told) -> list[dict[str, Any]]:
    assert told.code == 0, told.err
    return [json.loads(line) for line in told.out.splitlines()]


def test_put_list_get_ack(run: Run, channel: str):
    """P2P-06, P2P-10, P2P-11, P2P-13; ids are decimal, one a line."""
    ids = [run("put", channel, text).out.decode().strip() for text in ("one", "two", "three")]
    assert ids == sorted(ids, key=int)
    assert run("list", channel).out.decode().split() == ids
    assert run("list", channel, "--limit", "2").out.decode().split() == ids[:2]
    assert run("list", channel, "--from", ids[1]).out.decode().split() == ids[1:]
    assert run("list", channel, "--to", ids[1]).out.decode().split() == ids[:2]
    newest = run("list", channel, "--from", str(2**64 - 1), "--limit", "1")
    assert newest.out.decode().split() == [ids[2]]
    assert run("get", channel, ids[1]) == (0, b"two\n", "")
    assert run("ack", channel, ids[0], ids[1]) == (0, b"", "")
    assert run("list", channel).out.decode().split() == ids[2:]
    assert run("get", channel, ids[2], "--ack").out == b"three\n"
    assert run("list", channel) == (0, b"", "")


def test_json_has_ids_as_strings_and_bytes_as_text_or_base64(run: Run, channel: str):
    [kept] = objects(run("put", channel, "hé", "--ttl", "60", "--key", "7", "--json"))
    assert kept == {"id": kept["id"], "ttl": 60, "key": 7, "durability": "memory"}
    assert isinstance(kept["id"], str) and int(kept["id"]) > 2**53
    assert objects(run("list", channel, "--json")) == [{"id": kept["id"]}]
    assert objects(run("get", channel, kept["id"], "--json")) == [{"id": kept["id"], "data": "hé"}]
    assert objects(run("ack", channel, kept["id"], "--json")) == [{"acked": [kept["id"]]}]
    [kept] = objects(run("put", channel, os.fsdecode(b"\xff"), "--json"))
    [pushed] = objects(run("recv", channel, "--json"))
    assert pushed == {"id": kept["id"], "attempt": 1, "data_base64": "/w=="}


def test_the_same_key_and_data_put_again_is_the_same_message(run: Run, channel: str):
    """P2P-07, PA-10."""
    first = run("put", channel, "hi", "--key", "1")
    assert run("put", channel, "hi", "--key", "1").out == first.out
    other = run("put", channel, "other", "--key", "1")
    assert other.code == 1 and "key was used before" in other.err


def test_recv_prints_and_acknowledges(run: Run, channel: str):
    """P2P-09, P2P-10."""
    for text in ("one", "two", "three"):
        run("put", channel, text)
    assert run("recv", channel) == (0, b"one\n", "")
    assert run("recv", channel, "-n", "2").out == b"two\nthree\n"
    assert run("list", channel).out == b""


def test_recv_without_ack_leaves_the_messages(run: Run, channel: str):
    """P2P-15."""
    for number in range(3):
        run("put", channel, str(number))
    assert run("recv", channel, "-n", "3", "--no-ack").out == b"0\n1\n2\n"
    assert len(run("list", channel).out.split()) == 3


def test_no_ack_goes_beyond_the_window(run: Run, channel: str):
    """PS-03: what is never acknowledged is replaced by credit."""
    for number in range(5):
        run("put", channel, str(number))
    told = run("recv", channel, "-n", "5", "--no-ack", "--window", "2", "--timeout", "5")
    assert told == (0, b"0\n1\n2\n3\n4\n", "")


def test_recv_that_times_out_exits_3_with_what_came(run: Run, channel: str):
    run("put", channel, "one")
    assert run("recv", channel, "-n", "2", "--timeout", "0.3") == (3, b"one\n", "")
    assert run("list", channel).out == b""


def test_a_message_larger_than_a_pipe_comes_out_whole(node: Serving, channel: str):
    large = bytes(range(256)) * 2000
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    assert command("put", channel, input=large, env=env).returncode == 0
    assert command("recv", channel, env=env).stdout == large + b"\n"


EXAMPLES = [
    "recv files/1 --raw > photo.jpg",
    "recv files/1 -o photo.jpg",
    "get files/1 ID --raw > photo.jpg",
    "get files/1 ID -o photo.jpg",
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_bytes_come_back_as_they_went_in(
    node: Serving, tmp_path: Path, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the examples of the help, in a shell, with what no text is."""
    assert main([example.split()[0], "--help"]) == 0
    assert f"millpond {example} " in capsys.readouterr().out
    data = os.urandom(100_000) + b"\r\n\0"
    (tmp_path / "source").write_bytes(data)
    (tmp_path / "photo.jpg").write_bytes(b"older, and longer" * 10_000)
    millpond = f"{sys.executable} -m millpond"
    channel = f"files/{uuid4().hex}"
    taking = example.replace("files/1", channel).replace("ID", "$ID")
    script = f"ID=$({millpond} put {channel} < source) && {millpond} {taking}"
    env = environment(MILLPOND_CONNECT=node.urls["tcp"], PYTHONPATH=str(ROOT))
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, timeout=300, check=False)
    assert done.returncode == 0
    assert (tmp_path / "photo.jpg").read_bytes() == data


def test_raw_messages_follow_each_other(run: Run, channel: str, tmp_path: Path) -> None:
    file = tmp_path / "out"
    for text in ("one", "two", "three"):
        run("put", channel, text)
    assert run("recv", channel, "-n", "2", "--raw", "--no-ack") == (0, b"onetwo", "")
    assert run("recv", channel, "-n", "3", "-o", str(file)) == (0, b"", "")
    assert file.read_bytes() == b"onetwothree" and file.stat().st_mode & 0o777 == 0o600
    assert run("recv", channel, "-o", str(file), "--timeout", "0.3").code == 3
    assert file.read_bytes() == b"onetwothree"
    message_id = run("put", channel, "{}").out.decode().strip()
    assert run("get", channel, message_id, "--json", "-o", str(file)) == (0, b"", "")
    assert json.loads(file.read_text()) == {"id": message_id, "data": "{}"}
    assert run("get", channel, "1", "-o", str(file)).code == 4
    assert json.loads(file.read_text())["id"] == message_id


def test_a_message_that_cannot_be_written_is_not_acknowledged(
    run: Run, channel: str, tmp_path: Path
) -> None:
    message_id = run("put", channel, "kept").out
    told = run("recv", channel, "-o", str(tmp_path / "missing" / "out"))
    assert told.code == 1 and "cannot write" in told.err
    assert run("recv", channel, "-o", "/dev/full").code == 1
    assert run("recv", channel, "-o", str(tmp_path)).code == 2
    assert run("recv", channel, "--raw", "--json").code == 2
    assert run("list", channel).out == message_id


def test_recv_refuses_a_mode_that_the_channel_does_not_have(run: Run):
    """PS-05."""
    told = run("recv", "jobs/mail", "--mode", "fanout", "--timeout", "5")
    assert told.code == 1 and "queue mode" in told.err


def test_what_is_not_there_exits_4(run: Run, channel: str):
    """P2P-12."""
    told = run("get", channel, "42")
    assert told == (4, b"", "millpond get: no such message: never there, expired or acknowledged\n")
    assert run("ack", channel, "42").code == 0
    assert run("info", channel + "/none").code == 4


def test_ping_tells_round_trips(run: Run):
    """P2P-04."""
    [one, two] = objects(run("ping", "-c", "2", "--json"))
    assert [one["number"], two["number"]] == [1, 2]
    assert 0 < one["ms"] < 5000
    assert run("ping", "-c", "2").out.decode().splitlines()[-1].startswith("min ")


def test_info_shows_the_node_and_a_channel(run: Run, channel: str):
    run("put", channel, "hello")
    [told] = objects(run("info", channel, "--json"))
    assert told["durability"] == "memory"
    [shown] = told["page"]
    assert (shown["name"], shown["messages"]) == (channel, 1)
    page = run("info").out.decode()
    assert "durability   memory" in page and channel in page
    assert channel in run("info", channel).out.decode()


def test_info_shows_every_page_and_names_that_are_no_text(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("millpond.node.cli.commands.ping.CHANNELS_MAX", 2)
    names = [f"pages/{number}" for number in range(5)]
    for name in (*names, os.fsdecode(b"pages/\xff")):
        run("put", name, "hello")
    [told] = objects(run("info", "--json"))
    shown = [each["name"] for each in told["page"]]
    assert shown == sorted(shown) and not told["more"]
    assert {*names, "pages/\\xff"} <= set(shown)
    lines = run("info").out.decode().splitlines()
    assert sum(line.startswith("pages/") for line in lines) == 6


def test_recv_takes_one_job_at_a_time(node: Serving, run: Run):
    """PS-03: what one receiver will not show soon stays for the others."""
    name = f"jobs/{uuid4().hex}"
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    for number in range(4):
        run("put", name, str(number))
    for words in (["--mode", "queue"], []):
        with started(
            "recv", name, "-n", "3", "--no-ack", "--timeout", "9", *words, env=env
        ) as first:
            assert [first.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
            assert first.wait(5) == 0
    last = objects(run("recv", name, "-n", "4", "--json"))[3]
    assert (last["data"], last["attempt"]) == ("3", 1)


def test_doctor_finds_the_node_well(run: Run):
    findings = {each["check"]: each["level"] for each in objects(run("doctor", "--json"))}
    assert findings["node"] == findings["self test"] == "ok"
    assert {"packages", "event loop", "codecs", "descriptors", "clock", "configuration"} <= set(
        findings
    )
    assert "ok    self test" in run("doctor").out.decode()


def test_doctor_tells_of_each_listener_whether_its_port_is_in_use(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    with ExitStack() as stack:
        taken = {
            name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in LISTENERS
        }
        where = {name: f"127.0.0.1:{each.getsockname()[1]}" for name, each in taken.items()}
        where |= {"ws": "off", "p2p": "127.0.0.1:0"}
        for name, address in where.items():
            monkeypatch.setenv(f"MILLPOND_{name.upper()}", address)
        found = {each["check"]: each for each in objects(run("doctor", "--json"))}
    assert [name for name in LISTENERS if f"port {name}" in found] == [
        *("p2p", "s3p", "rustlog", "http")
    ]
    for name in ("s3p", "rustlog", "http"):
        assert found[f"port {name}"]["text"].startswith(f"{where[name]} is in use (")
        assert found[f"port {name}"]["level"] == "ok"
    assert found["port p2p"]["text"] == "127.0.0.1:0 is free"


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("words", ["put c x", "recv c", "list c", "export c", "ping", "info"])
def test_without_a_node_one_line_says_what_to_do(
    words: str, closed_port: int, capsys: pytest.CaptureFixture[str]
):
    assert main([*words.split(), "--connect", f"tcp://127.0.0.1:{closed_port}"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"no node at 127.0.0.1:{closed_port}" in line and "millpond serve" in line


def test_doctor_fails_without_a_node(closed_port: int, capfd: pytest.CaptureFixture[str]):
    assert main(["doctor", "--connect", f"tcp://127.0.0.1:{closed_port}"]) == 1
    assert "fail  node" in capfd.readouterr().out


def test_a_silent_other_end_is_a_timeout(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["list", "c", "--timeout", "0.2", "--connect", url]) == 3
    assert "--timeout" in capsys.readouterr().err


def test_names_of_the_nodes_own_are_told(run: Run):
    done = run("put", "jobs!dead", "x")
    assert done.code == 5 and "cannot write to names with `!`" in done.err


USAGE = {
    "put": "required: CHANNEL",
    "put c ": "empty messages",
    "put c x --lines": "remove DATA",
    "put c x --ttl soon": "not a duration",
    "put c x --ttl 4294967296": "not a duration",
    "put c x --key -1": "not a whole number",
    "put c x --connect http://127.0.0.1": "scheme must be one of",
    "put c x --connect tcp://a..b:7400": "not a host name",
    "put c x --token-file /nonexistent": "--token-file",
    f"put {251 * 'c'} x": "1 to 250 bytes, not 251",
    "list !dead": "1 to 250 bytes, not 0",
    "recv c -n 0": "at least 1",
    "recv c -n 2 --follow": "not allowed with",
    "list c --from x": "not a message id",
    "get c 18446744073709551616": "not a message id",
    "ack c": "required: ID",
    "config": "required: ACTION",
    "nonsense": "there is no command",
}


@pytest.mark.parametrize("words", USAGE)
def test_usage_errors_exit_2(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split(" ")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert USAGE[words] in told.err.splitlines()[-1]


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "  0     success" in shown and "  6     another process took over the replica" in shown


@pytest.mark.parametrize(
    "name",
    [
        *("serve", "put", "recv", "list", "get", "ack", "export", "import"),
        *("ping", "info", "doctor", "config"),
    ],
)
def test_every_command_has_help_and_json(name: str, capsys: pytest.CaptureFixture[str]):
    assert main([name, *(["show"] if name == "config" else []), "--help"]) == 0
    told = capsys.readouterr().out
    assert "--json" in told
    assert "example" in told or "exit code" in told


def test_lines_are_a_message_each_and_empty_ones_are_left_out(node: Serving, channel: str):
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    words = ("put", channel, "--lines", "--key", "4294967295", "--json")
    done = command(*words, input=b"one\n\ntwo\nthree", env=env)
    kept = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["key"] for each in kept] == [4294967295, 0, 1]
    assert command_here("recv", channel, "-n", "3", env=env).stdout == b"one\ntwo\nthree\n"
    again = command_here(*words, input=b"one\n\ntwo\nthree", env=env)
    assert again.stdout == done.stdout
    assert command_here("list", channel, env=env).stdout == b""


def test_lines_are_put_as_they_come(node: Serving, channel: str):
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("put", channel, "--lines", stdin=subprocess.PIPE, env=env) as process:
        for _ in range(2):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert process.stdout.readline().strip().isdigit()
        process.stdin.close()
        assert process.wait(5) == 0


@pytest.mark.parametrize("words", [(), ("--lines",)])
def test_what_never_ends_is_refused_early(words: tuple[str, ...], node: Serving, channel: str):
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    done = command("put", channel, *words, input=bytes(2**24 + 2**20), env=env)
    assert done.returncode == 1 and done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert "is larger than any message" in line


@pytest.mark.parametrize("words", [(), ("--lines",)])
def test_the_timeout_of_put_holds_while_stdin_is_open(
    words: tuple[str, ...], node: Serving, channel: str
):
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    options = ("--timeout", "0.3", *words)
    with started("put", channel, *options, stdin=subprocess.PIPE, env=env) as process:
        assert process.wait(5) == 3
        assert b"--timeout" in process.stderr.read()


def test_follow_goes_on_until_interrupted(node: Serving, channel: str):
    env = environment(MILLPOND_CONNECT=node.urls["ws"])
    with started("recv", channel, "--follow", env=env) as process:
        for data in (b"one", b"two"):
            assert main(["put", channel, data.decode(), "--connect", node.urls["tcp"]]) == 0
            assert process.stdout.readline() == data + b"\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 0
        assert process.stderr.read() == b""
    assert command_here("list", channel, env=env).stdout == b""


def test_a_message_that_nobody_read_is_not_acknowledged(node: Serving, channel: str):
    """P2P-15: `recv | head -1` takes one message, the next one stays."""
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    with started("recv", channel, "--follow", env=env) as process:
        assert main(["put", channel, "one", "--connect", node.urls["tcp"]]) == 0
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        assert main(["put", channel, "two", "--connect", node.urls["tcp"]]) == 0
        assert process.wait(5) == 0
        assert process.stderr.read() == b""
    assert command_here("recv", channel, env=env).stdout == b"two\n"


def test_a_connection_that_does_not_come_back_is_a_failure(channel: str):
    with serving() as node:
        url = node.urls["tcp"]
        with started(
            "recv", channel, "--follow", "--reconnect", "0.3", "--connect", url
        ) as process:
            assert main(["put", channel, "one", "--connect", url]) == 0
            assert process.stdout.readline() == b"one\n"
            node.process.kill()
            assert process.wait(10) == 1
            assert b"not back within 0.3 s" in process.stderr.read()


def test_tokens_open_what_they_are_good_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """P2P-24, PA-39: refusals exit 5 and never show a token."""
    tokens = tmp_path / "tokens"
    mine = tmp_path / "mine"
    for file, text in ((tokens, "s3cret put,list chat/*\nroot all\n"), (mine, "s3cret\n")):
        file.touch(0o600)
        file.write_text(text)
    with serving("--token-file", str(tokens)) as node:
        monkeypatch.setenv("MILLPOND_CONNECT", node.urls["tcp"])
        assert main(["put", "chat/1", "x"]) == 5
        assert "give a token" in capfd.readouterr().err
        monkeypatch.setenv("MILLPOND_TOKEN", str(mine))
        assert main(["put", "chat/1", "x"]) == 0
        message = capfd.readouterr().out.strip()
        assert main(["get", "chat/1", message]) == 5
        assert main(["put", "other", "x"]) == 5
        assert main(["info"]) == 5
        assert main(["put", "chat/1", "x", "--connect", node.urls["ws"]]) == 0
        assert main(["put", "other", "x", "--connect", node.urls["ws"]]) == 5
        assert "s3cret" not in capfd.readouterr().err
    mine.chmod(0o644)
    assert main(["put", "chat/1", "x"]) == 2
    assert "chmod 600" in capfd.readouterr().err


def test_the_nodes_token_file_is_no_token_of_a_client(
    node: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MILLPOND_CONNECT", node.urls["tcp"])
    monkeypatch.setenv("MILLPOND_TOKEN_FILE", str(tmp_path / "absent"))
    assert main(["ping", "-c", "1"]) == 0
    monkeypatch.setenv("MILLPOND_TOKEN", str(tmp_path / "absent"))
    assert main(["ping", "-c", "1"]) == 2


def test_a_token_may_hold_a_hash_sign_but_not_begin_with_it(tmp_path: Path):
    mine = tmp_path / "mine"
    mine.touch(0o600)
    mine.write_text("# a comment\n  \ns3#cret rest\n")
    assert read_token(str(mine)) == "s3#cret"


def test_a_command_does_not_import_what_it_does_not_use(closed_port: int):
    words = ["put", "c", "x", "--connect", f"tcp://127.0.0.1:{closed_port}"]
    code = (
        f"import sys; from millpond.node.cli.main import main; main({words!r}); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=300, check=True
    )
    loaded = set(done.stdout.decode().split())
    assert "argparse" in loaded
    assert not loaded & {
        "uvloop",
        "cryptography",
        "millpond.node.node",
        "millpond.node.cli.commands.serve",
        "trio",
        "rich",
    }
