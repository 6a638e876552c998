"""Processes of the demonstrations: the `millpond` command as people type it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
MILLPOND = (sys.executable, "-m", "millpond")
NODE = "node"
P2P_ALONE = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")
TIMEOUT_S = 60.0
COMMAND_S = 30.0
POLL_S = 0.1


class Failed(Exception):
    """The demonstration found a mistake."""


class Processes:
    """The processes of one user, in a folder of their own, with the node at `address`.

    Logs are in the folder, the node's data in `pond` below it. `prefix` stands before the names of
    processes where there is more than one user.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{_free_port()}"
        self._prefix = prefix
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        plain = {key: value for key, value in os.environ.items() if "MILLPOND" not in key}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "MILLPOND_CONNECT": f"tcp://{self.address}",
            "MILLPOND_DATA": str(folder / "pond"),
        }

    def run(self, *words: str, typed: str = "") -> str:
        """Run a command with this input, and return its output. Raises Failed."""
        done = subprocess.run(
            [*MILLPOND, *words],
            input=typed.encode(),
            capture_output=True,
            env=self._environment,
            cwd=self.folder,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{self.folder.name}$ millpond {' '.join(words)}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def start_node(self, *options: str) -> None:
        """Start the node, and wait until it is ready. Raises Failed."""
        node = self.start(NODE, "serve", "--p2p", self.address, *P2P_ALONE, *options)
        assert node.stdout is not None
        if not node.stdout.readline():
            raise Failed(f"{self._prefix}{NODE} does not start:\n{self._log(NODE).read_text()}")

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command that runs until it is stopped."""
        report(f"{self._prefix}{name} starts")
        with self._log(name).open("ab") as log:
            process = self._running[name] = subprocess.Popen(
                [*MILLPOND, *words],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return process

    def stop(self, name: str = NODE, *, by_force: bool = False) -> None:
        """Stop a process with SIGTERM, or with SIGKILL by force. Raises Failed."""
        process = self._running.pop(name)
        report(f"{self._prefix}{name} {'is killed (kill -9)' if by_force else 'stops'}")
        if by_force:
            process.kill()
        else:
            process.terminate()
        assert process.stdout is not None
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failed(f"{self._prefix}{name} did not stop within {COMMAND_S:g} s") from None
        finally:
            process.stdout.close()
        if code and not by_force:
            log = self._log(name).read_text()
            raise Failed(f"{self._prefix}{name} ended with {code}\n{log}")

    def close(self) -> None:
        """Stop all processes, the node last, also when one of them fails.

        Raises Failed for that one, unless the demonstration has failed before.
        """
        failures = []
        for name in sorted(self._running, key=lambda each: each == NODE):
            try:
                self.stop(name)
            except Failed as error:
                failures.append(error)
        if failures and sys.exception() is None:
            raise failures[0]

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def run_demo(demo: Callable[[Path], str], keep: Path | None) -> int:
    """Run a demonstration in a temporary folder, or in `keep`, a new one, and print its result.

    Returns the exit code: 1 after Failed, OSError, or a command that took too long.
    """
    began_at = time.monotonic()
    try:
        if keep is not None:
            keep.mkdir(parents=True)
            result = demo(keep.resolve())
        else:
            with TemporaryDirectory(prefix="millpond-demo-") as folder:
                result = demo(Path(folder))
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"ok: {result} ({time.monotonic() - began_at:.0f} s)")
    return 0


def wait_until(text: str, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
    """Wait for a condition, at most `TIMEOUT_S` unless told, then print the text. Raises Failed."""
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= give_up_at:
            raise Failed(f"not within {timeout_s:g} s: {text}")
        time.sleep(POLL_S)
    report(text)


def report(text: str) -> None:
    """Print a line of progress."""
    print(f"  {text}", flush=True)


def _free_port() -> int:
    """A TCP port without a listener, below those that the system gives to connections."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
