"""Contexts: saved settings of connections, and what wins over what."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.node.cli.contexts import BYTES_MAX, CONTEXTS_MAX, changed_contexts, read_contexts
from millpond.node.cli.exit_codes import Failure
from tests.node.cli.test_completion import PROGRAM, offered_in
from tests.node.processes import Serving, command_here, environment, serving

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Serving, Serving]]:
    with serving("--ws", "off") as first, serving("--ws", "off") as second:
        yield first, second


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        env = environment(XDG_CONFIG_HOME=str(tmp_path), **variables)
        return command_here(*words, env=env)

    return run


def done(run: Run, *words: str, **variables: str) -> str:
    result = run(*words, **variables)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_context_is_added_shown_used_and_removed(run: Run, tmp_path: Path) -> None:
    done(run, "context", "add", "prod", "--connect", "tls://a:7400,tls://b", "--ca", "mill.crt")
    done(run, "context", "add", "test", "--connect", "tcp://127.0.0.1:7777")
    done(run, "context", "use", "test")
    assert done(run, "context", "ls") == (
        "  prod  tls://a:7400,tls://b\n* test  tcp://127.0.0.1:7777\n"
    )
    prod, test = objects(done(run, "context", "ls", "--json"))
    assert prod == {
        "context": "prod",
        "current": False,
        "connect": "tls://a:7400,tls://b",
        "ca": str(Path.cwd() / "mill.crt"),
    }
    assert test["current"]
    assert objects(done(run, "context", "show", "prod", "--json")) == [prod]
    done(run, "context", "rm", "test", "prod")
    assert done(run, "context", "ls") == ""
    assert objects(done(run, "context", "show", "--json")) == [
        {"connect": {"value": "tcp://127.0.0.1:7400", "origin": "default"}}
    ]


def test_the_file_is_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    done(run, "context", "add", "prod", "--connect", "tcp://a:7400")
    file = tmp_path / "millpond" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    refused = run("context", "ls")
    assert refused.returncode == 1 and b"chmod 600" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("use", "prdo"), 4, "did you mean prod?"),
        (("show", "other"), 4, "`millpond context ls` lists them"),
        (("rm", "prod", "other"), 4, "there is no context 'other'"),
        (("use",), 2, "--none"),
        (("add", "prod", "--connect", "tcp://b:7400"), 1, "--replace replaces it"),
        (("add", "new", "--connect", "http://b"), 2, "--connect"),
        (("add", "new"), 2, "--connect URL"),
        (("add", "a b", "--connect", "tcp://b:7400"), 2, "not the name of a context"),
    ],
)
def test_mistakes_are_told_and_change_nothing(
    run: Run, words: tuple[str, ...], code: int, told: str
) -> None:
    done(run, "context", "add", "prod", "--connect", "tcp://a:7400", "--use")
    before = done(run, "context", "ls")
    result = run("context", *words)
    assert result.returncode == code
    assert told in result.stderr.decode()
    assert done(run, "context", "ls") == before


@pytest.mark.parametrize("text", ["[", "current = 3", "[contexts.a]\nport = 1", "contexts = 1"])
def test_a_file_of_other_content_is_told_as_such(run: Run, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "millpond"
    folder.mkdir()
    fd = os.open(folder / "contexts.toml", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, text.encode())
    os.close(fd)
    result = run("ping")
    assert result.returncode == 1
    assert b"contexts.toml" in result.stderr


def test_contexts_that_are_added_at_once_are_all_there(run: Run, tmp_path: Path) -> None:
    env = environment(XDG_CONFIG_HOME=str(tmp_path))
    adding = ("context", "add", "--connect", "tcp://a:7400")
    processes = [subprocess.Popen([PROGRAM, *adding, f"c{n}"], env=env) for n in range(4)]
    assert [each.wait(60) for each in processes] == [0] * 4
    assert len(done(run, "context", "ls").splitlines()) == 4


def test_there_may_be_a_thousand_contexts_in_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "contexts.toml"
    with changed_contexts(path) as contexts:
        contexts.by_name = {f"c{n}": {"connect": "tcp://a:7400"} for n in range(CONTEXTS_MAX)}
    with (
        pytest.raises(Failure, match="1000 contexts at most"),
        changed_contexts(path) as contexts,
    ):
        contexts.by_name["another"] = {"connect": "tcp://a:7400"}
    with pytest.raises(Failure, match="at most"), changed_contexts(path) as contexts:
        contexts.by_name["c1"] = {"connect": "x" * BYTES_MAX}
    assert len(read_contexts(path).by_name) == CONTEXTS_MAX


def effective(run: Run, *words: str, **variables: str) -> dict[str, Any]:
    (found,) = objects(done(run, "context", "show", *words, "--json", **variables))
    return found


def test_the_environment_wins_over_the_context_in_use_and_it_over_defaults(run: Run) -> None:
    words = ("--connect", "tls://a:7400", "--token-file", "/a.token", "--ca", "/a.crt")
    done(run, "context", "add", "a", *words, "--use")
    done(run, "context", "add", "b", "--connect", "tcp://b:7400")
    from_context = effective(run)
    assert {name: each["origin"] for name, each in from_context.items()} == dict.fromkeys(
        ("connect", "token_file", "ca"), "context a"
    )
    mixed = effective(run, MILLPOND_CA="/other.crt")
    assert mixed["ca"] == {"value": "/other.crt", "origin": "environment MILLPOND_CA"}
    assert mixed["token_file"]["origin"] == "context a"
    other = effective(run, MILLPOND_CONTEXT="b")
    assert other["connect"]["value"] == "tcp://b:7400" and "token_file" not in other


def test_a_context_keeps_its_token_for_its_own_addresses(run: Run) -> None:
    words = ("--connect", "tls://a:7400", "--token-file", "/a.token")
    done(run, "context", "add", "a", *words, "--use")
    other = effective(run, MILLPOND_CONNECT="tcp://b:7400")
    assert other == {"connect": {"value": "tcp://b:7400", "origin": "environment MILLPOND_CONNECT"}}


def test_commands_connect_where_option_environment_and_context_say(
    run: Run, nodes: tuple[Serving, Serving]
) -> None:
    first, second = (each.urls["tcp"] for each in nodes)
    nowhere = "tcp://127.0.0.1:1"
    done(run, "context", "add", "first", "--connect", first, "--use")
    done(run, "context", "add", "second", "--connect", second)
    done(run, "context", "add", "nowhere", "--connect", nowhere)

    def where(*words: str, **variables: str) -> str:
        return done(run, "ping", "-c", "1", *words, **variables).rpartition(":")[0]

    assert where() == first
    assert where(MILLPOND_CONTEXT="second") == second
    assert where("--context", "second", MILLPOND_CONTEXT="nowhere") == second
    assert where(MILLPOND_CONNECT=second) == second
    assert where("--context", "first", MILLPOND_CONNECT=nowhere) == first
    assert where("--connect", second, MILLPOND_CONNECT=nowhere) == second
    assert where("--connect", second, "--context", "nowhere") == second
    # The plain way of `put`, which loads no client, and a family of commands.
    assert done(run, "put", "notes", "x", "--context", "second").strip().isdigit()
    assert done(run, "get", "notes", done(run, "list", "notes", "--context", "second").split()[0],
                "--context", "second") == "x\n"  # fmt: skip
    done(run, "stream", "create", "s", "--context", "second")
    assert done(run, "stream", "ls", MILLPOND_CONTEXT="second") == "s\n"


def test_an_unknown_context_and_an_unreachable_one_are_named(run: Run) -> None:
    done(run, "context", "add", "first", "--connect", "tcp://127.0.0.1:1", "--use")
    unknown = run("ping", "--context", "frist")
    assert unknown.returncode == 2
    assert b"--context: there is no context 'frist'; did you mean first?" in unknown.stderr
    unknown = run("ping", MILLPOND_CONTEXT="other")
    assert unknown.returncode == 2 and b"MILLPOND_CONTEXT: there is no" in unknown.stderr
    away = run("ping")
    assert away.returncode == 1 and b"no node at 127.0.0.1:1 (context first)" in away.stderr


def test_shells_are_offered_the_names(run: Run, tmp_path: Path) -> None:
    for name in ("prod", "preview", "test"):
        done(run, "context", "add", name, "--connect", "tcp://a:7400")
    here = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert offered_in("millpond context use pr", here) == ["preview", "prod"]
    assert offered_in("millpond recv --context te", here) == ["test"]


def test_names_of_channels_are_those_of_the_context(
    run: Run, tmp_path: Path, nodes: tuple[Serving, Serving]
) -> None:
    url = nodes[1].urls["tcp"]
    done(run, "context", "add", "second", "--connect", url)
    done(run, "put", "orders/1", "x", "--connect", url)
    line = "millpond recv --context second or"
    assert offered_in(line, {"XDG_CONFIG_HOME": str(tmp_path)}) == ["orders/1"]
