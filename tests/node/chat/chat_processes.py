"""Two people with nodes as processes of their own, who know each other; and a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.node.processes import ROOT, Serving, command_here, environment, serving
from tests.ports import free_port

PATIENCE_S = 60.0
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class ChatProcess:
    """A person: a data folder, an address, and a node that runs or does not."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.name = name
        self.options = options
        self.folder = folder / name
        self.address = f"127.0.0.1:{free_port()}"
        self.env = environment(
            MILLPOND_CONNECT=f"tcp://{self.address}", MILLPOND_DATA=str(self.folder)
        )
        self.do("keys", "new")

    def do(self, *words: str, typed: bytes = b"", code: int = 0) -> str:
        """A command of theirs; what it prints."""
        done = command_here(*words, input=typed, env=self.env)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return (done.stdout or done.stderr).decode()

    def meet(self, other: ChatProcess, *where: str, dials: bool = True) -> None:
        """Take its card, which says where it is."""
        if not where and dials:
            where = ("--address", f"tcp://{other.address}")
        card = other.do("keys", "show", "--card", *where).strip()
        self.do("peer", "add", other.name, "--card", card, "--allow-local-addresses")

    @contextmanager
    def serving(self) -> Iterator[Serving]:
        words = ("--data", str(self.folder), "--p2p", self.address, "--ws", "off")
        with serving(*words, *self.options, env=self.env, limit_s=150.0) as node:
            yield node
            node.process.send_signal(signal.SIGTERM)
            node.process.wait(10)

    def history(self, other: ChatProcess, count: int = 1000) -> list[dict[str, Any]]:
        words = ("chat", other.name, "--json", "--history", str(count))
        return [json.loads(line) for line in self.do(*words).splitlines()]


@contextmanager
def chat_processes(folder: Path) -> Iterator[tuple[ChatProcess, ChatProcess]]:
    """Alice and Bob, whose nodes run; Alice's serves the page."""
    alice, bob = ChatProcess(folder, "alice", "--ws", "127.0.0.1:0"), ChatProcess(folder, "bob")
    alice.meet(bob)
    bob.meet(alice)
    with ExitStack() as stack:
        for each in (alice, bob):
            stack.enter_context(each.serving())
        yield alice, bob


class Terminal:
    """`millpond` on a terminal of its own; killed at the end if it is still there."""

    def __init__(self, friend: ChatProcess, *words: str, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        self.seen = ""
        self.raw = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millpond", *words],
            cwd=ROOT,
            env={**friend.env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def modes(self) -> list[Any]:
        """The current settings of the terminal."""
        return termios.tcgetattr(self._theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def expect(self, *texts: str) -> None:
        """Wait until they were shown, in any order, and forget what was before the last one."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not all(text in self.seen for text in texts):
            left_s = give_up_at - time.monotonic()
            assert left_s > 0, f"not shown: {texts!r}; shown was: {self.seen!r}"
            if select.select([self._ours], [], [], left_s)[0]:
                data = os.read(self._ours, 65_536)
                self.raw += data
                self.seen = STYLES.sub("", self.seen + data.decode("utf-8", "replace"))
        self.seen = self.seen[max(self.seen.index(text) + len(text) for text in texts) :]

    def settle(self, quiet_s: float = 0.3) -> None:
        """Read until nothing more is shown for a while."""
        while select.select([self._ours], [], [], quiet_s)[0]:
            self.raw += os.read(self._ours, 65_536)

    def left(self) -> int:
        """The exit code, and the terminal is as it was."""
        code = self.process.wait(PATIENCE_S)
        assert self.modes == self.before
        return code
