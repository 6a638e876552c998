"""Commands that remove something ask on a terminal, and only there."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.node.processes import Serving, command_here, environment, serving

STREAM, TOPIC, QUEUE = "orders", "spread", "mail"


class Told(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--channel", "jobs/*=queue") as ready:
        yield ready


def in_terminal(node: Serving, answer: str, *words: str) -> Told:
    """Run a command whose stdin is a terminal, at which this is typed, or Ctrl-D."""
    control, terminal = pty.openpty()
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    try:
        os.write(control, answer.encode() or b"\x04")
        done = command_here(*words, stdin=terminal, env=env)
    finally:
        os.close(control)
        os.close(terminal)
    return Told(done.returncode, done.stdout.decode(), done.stderr.decode())


def here(node: Serving, *words: str) -> str:
    done = command_here(*words, env=environment(MILLPOND_CONNECT=node.urls["tcp"]))
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_without_consent_nothing_is_removed(node: Serving, answer: str) -> None:
    here(node, "stream", "create", STREAM, "--if-missing")
    here(node, "stream", "append", STREAM, "one")
    before = json.loads(here(node, "stream", "info", STREAM, "--json"))
    for words in (("stream", "trim", STREAM, "1"), ("stream", "delete", STREAM)):
        told = in_terminal(node, answer, *words)
        assert (told.code, told.out) == (1, "")
        assert "[y/N]" in told.err and "nothing was removed" in told.err
    assert json.loads(here(node, "stream", "info", STREAM, "--json")) == before


def test_a_question_says_what_would_be_removed(node: Serving) -> None:
    for name in ("a", "b"):
        here(node, "stream", "create", name)
        here(node, "stream", "append", name, "one", "two", "three")
    info = json.loads(here(node, "stream", "info", "a", "--json"))
    told = in_terminal(node, "y\n", "stream", "trim", "a", "2")
    of = f"3 records ({info['bytes']} bytes) of stream 'a'"
    assert told.code == 0 and f"Remove 2 records of {of}?" in told.err
    left = json.loads(here(node, "stream", "info", "a", "--json"))
    removed = int(info["bytes"]) - int(left["bytes"])
    assert f"2 records ({removed} bytes) of stream 'a' removed, 1 left" in told.err
    told = in_terminal(node, "", "stream", "trim", "a", "99999")
    assert told.code == 1 and "[y/N]" not in told.err and "beyond" in told.err
    told = in_terminal(node, "YES\n", "stream", "delete", "a", "missing", "b", "--json")
    assert told.code == 4
    size = f"1 record ({left['bytes']} bytes)"
    assert f"Delete streams 'a' with {size}, 'b' with 3 records (" in told.err
    assert [json.loads(line)["removed"] for line in told.out.splitlines()] == ["1", "3"]
    assert in_terminal(node, "", "stream", "delete", "a").code == 4


def test_yes_asks_nothing(node: Serving) -> None:
    here(node, "stream", "create", "quiet")
    told = in_terminal(node, "", "stream", "delete", "quiet", "-y")
    assert told == (0, "", "stream 'quiet' deleted with 0 records (0 bytes)\n")


def test_a_topic_is_deleted_with_what_it_has(node: Serving) -> None:
    here(node, "topic", "create", TOPIC, "--partitions", "2")
    here(node, "topic", "produce", TOPIC, "one", "two", "three")
    told = in_terminal(node, "n\n", "topic", "delete", TOPIC)
    assert told.code == 1 and "with 2 partitions, 3 records (" in told.err
    told = in_terminal(node, "y\n", "topic", "delete", TOPIC, "--json")
    done = json.loads(told.out)
    assert (done["topic"], done["deleted"], done["removed"]) == (TOPIC, True, "3")
    assert int(done["removed_bytes"]) > 0


def test_jobs_and_dead_letters(node: Serving) -> None:
    ids = [here(node, "jobs", "put", QUEUE, "1", "--ttl", "1").strip() for _ in range(2)]
    kept = here(node, "jobs", "put", QUEUE, "2").strip()
    while here(node, "jobs", "dead", "ls", QUEUE).count("(expired)") < 2:
        pass
    told = in_terminal(node, "n\n", "jobs", "cancel", QUEUE, kept)
    assert told.code == 1 and "Cancel 1 job of queue 'mail'?" in told.err
    shown = json.loads(here(node, "jobs", "show", QUEUE, ids[0], "--json"))
    assert (shown["state"], shown["reason"], shown["origin"]) == ("dead", "expired", ids[0])
    assert [each["what"] for each in shown["history"]] == ["expired"]
    told = in_terminal(node, "y\n", "jobs", "dead", "purge", QUEUE, "--all")
    assert (told.code, told.out) == (0, "2\n") and "Delete 2 dead letters" in told.err
    told = in_terminal(node, "", "jobs", "cancel", QUEUE, kept, "--yes")
    assert told == (0, "", "1 job of queue 'mail' cancelled\n")
    assert here(node, "jobs", "ls", QUEUE) == ""


def test_tokens_and_peers(node: Serving, tmp_path: Path) -> None:
    folder, run = str(tmp_path / "data"), partial(command_here, env=environment())
    made = run("token", "new", "--data", folder, "--rights", "get", "--json")
    token = json.loads(made.stdout)["id"]
    told = in_terminal(node, "n\n", "token", "revoke", token, "--data", folder)
    assert told.code == 1 and "nothing was removed" in told.err
    assert token in run("token", "ls", "--data", folder).stdout.decode()
    told = in_terminal(node, "y\n", "token", "revoke", token, "--data", folder)
    assert (told.code, told.out) == (0, f"revoked {token}\n")
    other = str(tmp_path / "other")
    for each in (folder, other):
        assert run("keys", "new", "--data", each).returncode == 0
    public = json.loads(run("keys", "show", "--data", other, "--json").stdout)["id"]
    added = run("peer", "add", "bob", "--data", folder, "--key", public)
    assert added.returncode == 0, added.stderr
    told = in_terminal(node, "n\n", "peer", "rm", "bob", "--data", folder)
    assert told.code == 1 and "Remove the peer 'bob'" in told.err
    removed = run("peer", "rm", "bob", "--data", folder)
    assert removed.returncode == 0 and b"peer 'bob' removed" in removed.stderr
