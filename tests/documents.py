"""Pages of documentation as programs: their blocks are run in order, and their output is compared.

A `console` block has commands behind `$ ` and the output of each. A `console terminal` block is a
program that keeps running, in a terminal of its own: lines behind `> ` are typed into it.
In output `...` stands for any text. A `python` block that begins with `# NAME.py` is a file, any
other is run, and a `text` block right behind it is its output. Other blocks are not run.

A page is one story in one folder. A node that is started on the address of an earlier one takes
its place: the earlier one is stopped first.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SPARK = ROOT / "docs" / "tutorial" / "spark.md"
TUTORIALS = [path for path in sorted(SPARK.parent.glob("*.md")) if path != SPARK]
GUIDES = [
    ROOT / "docs" / "guides" / name
    for name in ("clients.md", "command-line.md", "subscriptions.md", "tls.md")
]
"""The guides that are run; others show parts of programs."""
LIMIT_S = 120.0
FENCE = re.compile(r"^```(\w+)([ \w]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"127\.0\.0\.1:(\d{4})\b")
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
SERVES = re.compile(r"\$ (?:scripts/run|millpond serve)\b.*\n.* p2p=(\S+)")
NAMED = re.compile(r"# ([\w/]+\.py)\n")
ANY_TEXT = "..."
VARIES = (
    (re.compile(r"\b\d{18,19}\b"), "ID"),
    (re.compile(r"\b\d{13}\b"), "MS"),
    (re.compile(r"in \d+\.\d\ds"), "in TIME"),
    (re.compile(r"/\S+/(?=\.local/share/)"), "~/"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "HASH"),
    (re.compile(r"\b20\d\d-\d\d-\d\d( \d\d:\d\d UTC)?"), "DAY"),
    (re.compile(r"\b36[45] days"), "DAYS"),
)
"""Text that differs from run to run, and the text that is compared in its place."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    """A fenced block: `info` is what follows the language."""

    language: str
    info: str
    text: str

    @property
    def stays(self) -> bool:
        return "terminal" in self.info

    @property
    def address(self) -> str | None:
        """The addresses of the node that the block starts, if it does."""
        found = SERVES.match(self.text)
        return found[1] if found else None


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(kind, info.strip(), body) for kind, info, body in FENCE.findall(text)]


def comparable(text: str) -> str:
    """The text without what is different each time."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return text.rstrip()


def matches(printed: str, shown: str) -> bool:
    """Whether that is the output a page shows."""
    pattern = re.escape(comparable(shown)).replace(re.escape(ANY_TEXT), ".*")
    return re.fullmatch(pattern, comparable(printed), re.DOTALL) is not None


class Workspace:
    """A folder, an environment and free ports, in which blocks are run."""

    def __init__(self, folder: Path, limit_s: float = LIMIT_S) -> None:
        self.folder = folder
        self.limit_s = limit_s
        self._ports: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        commands = folder / ".commands"
        commands.mkdir()
        python = shlex.quote(sys.executable)
        for name, words in (("python", ""), ("millpond", "-m millpond")):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            command.chmod(0o755)
        ours = ("MILLPOND", "PYTEST", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self._environment = plain | {
            "HOME": str(folder),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            # A reader has pytest and the package. Hypothesis, which our own tests use, would be
            # imported by its plugin at the end of each run, in the time that is shown.
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
            self._ports[shown] = str(free_port())
        return self._ports[shown]

    def start(self, command: str, **options: object) -> subprocess.Popen[str]:
        """A command in a shell; `stop` ends it with everything it started."""
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
        """The output of a command; a failure fails the test."""
        with self.start(command, stdin=subprocess.DEVNULL) as process:
            try:
                printed, _ = process.communicate(timeout=self.limit_s)
            finally:
                stop(process)
        assert process.returncode == 0, f"$ {command}\n{printed}"
        return str(printed)

    def run_console(self, block: Block) -> None:
        """Run the commands of a block. Ids that were shown stand for the real ones later on."""
        for command, shown in commands_of(block.text):
            for known, real in self._ids.items():
                command = command.replace(known, real)
            printed = self.run(self.here(command))
            assert matches(printed, self.here(shown)), (
                f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"
            )
            if re.fullmatch(r"\d{18,19}", shown.strip()):
                self._ids[shown.strip()] = printed.strip()

    def run_python(self, block: Block, shown: str | None = None) -> None:
        """Write a block that is a file, run any other."""
        code = self.here(block.text)
        named = NAMED.match(code)
        path = self.folder / (named[1] if named else "block.py")
        path.write_text(code)
        if named:
            return
        printed = self.run("python block.py")
        assert shown is None or matches(printed, shown), f"shown:\n{shown}\nprinted:\n{printed}"


def stop(process: subprocess.Popen[str]) -> None:
    """End a command as Ctrl-C does, and by force if that is not enough."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue


class Terminal:
    """A program that keeps running, in a dialogue that goes at its own pace."""

    def __init__(self, workspace: Workspace, block: Block) -> None:
        self._block = block
        self._limit_s = workspace.limit_s
        command, *self._script = workspace.here(block.text).splitlines()
        self.command = command.removeprefix("$ ")
        self._process = workspace.start(self.command, stdin=subprocess.PIPE)
        self._lines: queue.Queue[str] = queue.Queue()
        self._failure = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self._dialogue = Thread(target=self._converse, daemon=True)
        self._dialogue.start()

    def _read(self) -> None:
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
                printed = self._lines.get(timeout=self._limit_s)
            except queue.Empty:
                printed = "nothing"
            if not matches(printed, line):
                self._failure = f"$ {self.command}\nshown:   {line}\nprinted: {printed}"
                return

    def await_ready(self) -> None:
        """A node has to be ready before the next command; a node that is not fails the test."""
        if self._block.address:
            self._dialogue.join(self._limit_s)
            assert not self._failure, self._failure

    def finish(self) -> None:
        """Wait for the end of the dialogue."""
        self._dialogue.join(2 * self._limit_s)
        assert not self._failure, self._failure

    def interrupt(self) -> None:
        """Ctrl-C, once the dialogue is over: the program ends though it could read on."""
        self.finish()
        os.killpg(self._process.pid, signal.SIGINT)
        self._reader.join(5)
        assert not self._reader.is_alive(), f"{self.command} does not end"

    def close(self) -> None:
        """End the program; a second call does nothing."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
            stop(self._process)
            self._reader.join()
            self._process.stdout.close()


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and the output that is shown."""
    for part in ("\n" + text).split("\n$ ")[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command[:-1]}{more.strip()}"
        yield command, shown


def run_page(
    text: str, folder: Path, limit_s: float = LIMIT_S, *, interrupts_last: bool = False
) -> None:
    """Run all blocks of a page in order; fails where one does not do what is shown.

    `interrupts_last`: the last terminal has to end on Ctrl-C, with its input still open.
    """
    workspace = Workspace(folder, limit_s)
    blocks = blocks_of(text)
    nodes: dict[str, Terminal] = {}
    terminals: list[Terminal] = []
    with ExitStack() as stack:
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            match block.language:
                case "console" if block.stays:
                    if block.address in nodes:
                        nodes[block.address].finish()
                        nodes[block.address].close()
                    terminal = Terminal(workspace, block)
                    stack.callback(terminal.close)
                    terminals.append(terminal)
                    if block.address:
                        nodes[block.address] = terminal
                    terminal.await_ready()
                case "console":
                    workspace.run_console(block)
                case "python":
                    is_output = after is not None and after.language == "text"
                    workspace.run_python(block, after.text if after and is_output else None)
                case _:
                    pass
        for terminal in terminals:
            terminal.finish()
        if interrupts_last:
            terminals[-1].interrupt()
