"""Completion: what a shell is offered, with names of a real node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.sync import connect, connect_streams
from tests.node.processes import Serving, command, environment, serving

PROGRAM = Path(sys.executable).parent / "millpond"
SCRIPT = """
source {code}
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
read -ra COMP_WORDS <<< "$COMP_LINE"
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
function_of=$(complete -p millpond | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function_of" millpond "${{COMP_WORDS[COMP_CWORD]}}" ''
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--memory", "--ws", "off") as opened:
        url = opened.urls["tcp"]
        for name in ("orders/1", "orders/2", "notes"):
            with connect(url, name, role="producer") as channel:
                channel.put(b"x")
        with connect(url, "jobs/mail", role="producer", mode="queue") as queue:
            queue.put(b"x")
        with connect_streams(url) as streams:
            streams.stream("weather").create()
        assert command("topic", "create", "clicks", "--connect", url).returncode == 0
        yield opened


def offered(line: str, url: str) -> list[str]:
    """The words for a line with the cursor at its end, as the shell's function asks for them."""
    return offered_in(line, {"MILLPOND_CONNECT": url})


def offered_in(line: str, variables: dict[str, str]) -> list[str]:
    """The same in an environment."""
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "fish",
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [PROGRAM], env=environment(**asked, **variables), capture_output=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [each.split("\t")[0].strip() for each in done.stdout.decode().splitlines()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("millpond pu", ["put"]),
        ("millpond recv or", ["orders/1", "orders/2"]),
        ("millpond recv --ti", ["--timeout"]),
        ("millpond jobs counts ", ["jobs/mail"]),
        ("millpond stream tail we", ["weather"]),
        ("millpond topic describe ", ["clicks", "weather"]),
        ("millpond recv nothing", []),
    ],
)
def test_words_that_may_follow(node: Serving, line: str, words: list[str]) -> None:
    assert offered(line, node.urls["tcp"]) == words


def test_the_node_in_the_line_is_asked(node: Serving) -> None:
    line = f"millpond recv --connect {node.urls['tcp']} no"
    assert offered(line, "tcp://127.0.0.1:1") == ["notes"]


def test_without_a_node_commands_and_options_are_offered_all_the_same() -> None:
    assert offered("millpond recv or", "tcp://127.0.0.1:1") == []
    assert "--timeout" in offered("millpond recv --", "tcp://127.0.0.1:1")


def test_peers_are_those_of_the_address_book(tmp_path: Path) -> None:
    folder, other = str(tmp_path / "own"), str(tmp_path / "other")
    for each in (folder, other):
        assert command("keys", "new", "--data", each).returncode == 0
    key = command("keys", "show", "--data", other).stdout.split()[1].decode()
    words = ("peer", "add", "bob", "--data", folder, "--key", key)
    added = command(*words, "--address", "tcp://192.0.2.1:7400")
    assert added.returncode == 0, added.stderr
    for line in (f"millpond peer rm --data {folder} ", f"millpond keys trust --data {folder} b"):
        assert offered(line, "tcp://127.0.0.1:1") == ["bob"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_the_code(shell: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    done = command("completion", shell)
    assert done.returncode == 0
    code.write_bytes(done.stdout)
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([program, "-n", code], timeout=60, check=True)


def test_bash_completes(node: Serving, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    code = tmp_path / "code"
    code.write_bytes(command("completion", "bash").stdout)
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    here = environment(MILLPOND_CONNECT=node.urls["tcp"], PATH=path)
    script = SCRIPT.format(code=code, line="millpond get orders/")
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=here, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["orders/1", "orders/2"], done.stderr
