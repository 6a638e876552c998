"""Commands in a terminal of a given size, which a test reads like a person does."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.node.cli.test_completion import PROGRAM
from tests.node.processes import environment

LIMIT_S = 60.0


class Terminal:
    """A command whose standard streams are a terminal, and all that it has written."""

    def __init__(self, process: subprocess.Popen[bytes], control: int) -> None:
        self.process = process
        self.written = ""
        self._control = control

    def wait_for(self, text: str) -> None:
        """Read until this text was written since the start."""
        end = time.monotonic() + LIMIT_S
        while text not in self.written:
            assert time.monotonic() < end, f"{text!r} did not come in {self.written!r}"
            if not self._read(1.0):
                raise AssertionError(f"the command ended without {text!r}: {self.written!r}")

    def poll(self, seconds: float) -> None:
        """Read what comes within a time."""
        self._read(seconds)

    def interrupt(self) -> int:
        """Press Ctrl-C, and read to the end; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + LIMIT_S
        while self._read(1.0):
            assert time.monotonic() < end, "the command does not end"
        return self.process.wait(LIMIT_S)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._control], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._control, 65536)
        except OSError:  # the other end of a terminal is closed
            return False
        self.written += data.decode()
        return bool(data)


@contextmanager
def in_terminal(
    *words: str,
    rows: int = 24,
    columns: int = 80,
    stdout: int | None = None,
    variables: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> Iterator[Terminal]:
    """Run `millpond` with these words in a terminal; killed if it is still there at the end."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = environment(TERM="xterm", **(variables or {}))
    env.pop("NO_COLOR", None)
    if variables and "NO_COLOR" in variables:
        env["NO_COLOR"] = variables["NO_COLOR"]
    process = subprocess.Popen(
        [PROGRAM, *words],
        env=env,
        stdin=terminal if stdin is None else stdin,
        stdout=terminal if stdout is None else stdout,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        yield Terminal(process, control)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(LIMIT_S)
        os.close(control)
