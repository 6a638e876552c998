"""Runs what README.md shows, section by section, and compares what it shows.

In a `console` block lines behind `$ ` are commands, the others what they print. A `console
terminal` block is a program that stays, a terminal of its own: lines behind `> ` are typed. A
`python` block that begins with `# NAME.py` is a file, any other is run.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.readme

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
LIMIT_S = 30.0
FENCE = re.compile(r"^```(\w+)([ \w]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"127\.0\.0\.1:(\d{4})\b")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
SERVES = re.compile(r"\$ (scripts/run|millpond serve)")
VARIES = (
    (re.compile(r"\b\d{18,19}\b"), "ID"),
    (re.compile(r"\b\d{13}\b"), "MS"),
    (re.compile(r"in \d+\.\d\ds"), "in TIME"),
    (re.compile(r"/\S+/(?=\.local/share/)"), "~/"),
)


class Block(NamedTuple):
    language: str
    stays: bool
    text: str


def sections() -> dict[str, list[Block]]:
    """The blocks that can be run, by heading."""
    found = {}
    for section in README.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        blocks = [Block(kind, "terminal" in rest, body) for kind, rest, body in FENCE.findall(text)]
        if blocks:
            found[title] = blocks
    return found


SECTIONS = sections()


def comparable(text: str) -> str:
    """The text without what is different each time."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return text.rstrip()


class Place:
    """A folder, an environment and free ports, in which blocks are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[str, str] = {}
        commands = folder / ".commands"
        commands.mkdir()
        python = shlex.quote(sys.executable)
        for name, words in (("python", ""), ("millpond", "-m millpond")):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            command.chmod(0o755)
        ours = ("MILLPOND", "PYTEST", "XDG_DATA_HOME")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self._environment = plain | {
            "HOME": str(folder),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            # Who reads has pytest and the package. Hypothesis, of which our own tests make use,
            # would be imported by its plugin at the end of each run, in the time that is shown.
            "PYTEST_ADDOPTS": "-p no:hypothesispytest",
            "MILLPOND_P2P": self.here("127.0.0.1:7400"),
            "MILLPOND_WS": self.here("127.0.0.1:7401"),
            "MILLPOND_S3P": self.here("127.0.0.1:7402"),
            "MILLPOND_RUSTLOG": self.here("127.0.0.1:7403"),
            "MILLPOND_HTTP": self.here("127.0.0.1:7404"),
            "MILLPOND_CONNECT": self.here("tcp://127.0.0.1:7400"),
        }

    def here(self, text: str) -> str:
        """The text with free ports for those it names, and the project's own scripts."""
        text = PORT.sub(lambda found: f"127.0.0.1:{self._port(found[1])}", text)
        is_installed = Path(sys.prefix) == ROOT / ".venv"
        script = str(ROOT / "scripts/run") if is_installed else "millpond serve"
        return text.replace("scripts/run", script)

    def _port(self, shown: str) -> str:
        if shown not in self._ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._ports[shown] = str(free.getsockname()[1])
        return self._ports[shown]

    def start(self, command: str, **options: object) -> subprocess.Popen[str]:
        """A command in a shell; ended with what it started by `stop`."""
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )

    def run(self, command: str) -> str:
        """What a command prints; a failure fails the test."""
        with self.start(command, stdin=subprocess.DEVNULL) as process:
            try:
                printed, _ = process.communicate(timeout=LIMIT_S)
            finally:
                stop(process)
        assert process.returncode == 0, f"$ {command}\n{printed}"
        return str(printed)


def stop(process: subprocess.Popen[str]) -> None:
    """End a command as Ctrl-C does, and by force if that is not enough."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


class Terminal:
    """A program that stays, in a dialogue that goes its own pace."""

    def __init__(self, place: Place, text: str) -> None:
        self._shown = text
        command, *self._script = place.here(text).splitlines()
        self.command = command.removeprefix("$ ")
        self._process = place.start(self.command, stdin=subprocess.PIPE)
        self._lines: queue.Queue[str] = queue.Queue()
        self._failure = ""
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._dialogue = Thread(target=self._converse, daemon=True)
        self._dialogue.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not LOGGED.match(line):
                self._lines.put(line)

    def _converse(self) -> None:
        assert self._process.stdin is not None
        for line in self._script:
            if line.startswith("> "):
                print(line.removeprefix("> "), file=self._process.stdin, flush=True)
                continue
            try:
                printed = self._lines.get(timeout=LIMIT_S)
            except queue.Empty:
                printed = "nothing"
            if comparable(printed) != comparable(line):
                self._failure = f"$ {self.command}\nshown:   {line}\nprinted: {printed}"
                return

    def await_ready(self) -> None:
        """A node has to be ready before the next command."""
        if SERVES.match(self._shown):
            self._dialogue.join(LIMIT_S)

    def finish(self) -> None:
        """Wait for the end of the dialogue."""
        self._dialogue.join(2 * LIMIT_S)
        assert not self._failure, self._failure

    def interrupt(self) -> None:
        """Ctrl-C, once the dialogue is over: the program ends though it could read on."""
        self.finish()
        os.killpg(self._process.pid, signal.SIGINT)
        self._listener.join(5)
        assert not self._listener.is_alive(), f"{self.command} does not end"

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        stop(self._process)
        self._listener.join()
        self._process.stdout.close()


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it is shown to print."""
    for part in ("\n" + text).split("\n$ ")[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def run_console(place: Place, block: Block) -> None:
    ids: dict[str, str] = {}
    for command, shown in commands_of(block.text):
        for known, real in ids.items():
            command = command.replace(known, real)
        printed = place.run(place.here(command))
        assert comparable(printed) == comparable(place.here(shown)), f"$ {command}"
        if re.fullmatch(r"\d{18,19}", shown.strip()):
            ids[shown.strip()] = printed.strip()


def run_python(place: Place, block: Block) -> None:
    code = place.here(block.text)
    named = re.match(r"# (\w+\.py)\n", code)
    name = named[1] if named else "block.py"
    (place.folder / name).write_text(code)
    if not named:
        place.run(f"python {name}")


def has_node(blocks: list[Block]) -> bool:
    return any(SERVES.match(block.text) for block in blocks if block.stays)


@pytest.mark.parametrize("title", SECTIONS)
def test_what_is_shown_is_what_happens(title: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    blocks = SECTIONS[title]
    if not has_node(blocks):
        blocks = [SECTIONS["First message"][0], *blocks]
    opened: list[Terminal] = []
    with ExitStack() as stack:
        for block in blocks:
            if block.stays:
                terminal = Terminal(place, block.text)
                stack.callback(terminal.close)
                opened.append(terminal)
                terminal.await_ready()
            elif block.language == "console":
                run_console(place, block)
            else:
                run_python(place, block)
        for terminal in opened:
            terminal.finish()


def test_the_chat_ends_on_ctrl_c(tmp_path: Path) -> None:
    place = Place(tmp_path)
    opened: list[Terminal] = []
    with ExitStack() as stack:
        for block in SECTIONS["Chat between two nodes"]:
            if block.stays:
                opened.append(Terminal(place, block.text))
                stack.callback(opened[-1].close)
                opened[-1].await_ready()
            else:
                run_console(place, block)
        *_, bob, alice = opened
        bob.finish()
        alice.interrupt()


def test_the_sections_are_found() -> None:
    assert len(SECTIONS) >= 5


@pytest.mark.parametrize("path", [README, ROOT / "CHANGELOG.md", *DOCS], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert missing == []
