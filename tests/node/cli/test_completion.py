"""Completion: what a shell is offered, with names of a real node."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
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


def test_fish_completes(node: Serving, tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("no fish here")
    code = tmp_path / "code"
    code.write_bytes(command("completion", "fish").stdout)
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    here = environment(MILLPOND_CONNECT=node.urls["tcp"], PATH=path, HOME=str(tmp_path))
    script = f'source {code}; complete -C "millpond get orders/"; complete -C "millpond str"'
    done = subprocess.run(
        [fish, "--no-config", "-c", script], env=here, capture_output=True, text=True, timeout=60
    )
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("orders/1", "orders/2"), done.stderr
    assert third.startswith("stream\t")


def test_zsh_completes(node: Serving, tmp_path: Path) -> None:
    """In a terminal, as zsh completes nowhere else."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh here")
    (tmp_path / ".zshrc").write_text(
        "autoload -U compinit; compinit -u -D\n"
        f"source {tmp_path}/code\nbindkey '^I' complete-word\nPS1='ready>'\n"
    )
    (tmp_path / "code").write_bytes(command("completion", "zsh").stdout)
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    here = environment(MILLPOND_CONNECT=node.urls["tcp"], PATH=path, TERM="vt100")
    here |= {"ZDOTDIR": str(tmp_path), "HOME": str(tmp_path)}
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(
            [zsh, "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=here,
            start_new_session=True,
        ) as shell:
            try:
                _read_until(ours, b"ready>")
                os.write(ours, b"millpond get orders/\t\t")
                _read_until(ours, b"orders/2")
            finally:
                shell.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def _read_until(terminal: int, text: bytes) -> None:
    end, seen = time.monotonic() + 60, b""
    while text not in seen:
        left = end - time.monotonic()
        assert left > 0 and select.select([terminal], [], [], left)[0], seen
        seen += os.read(terminal, 4096)
