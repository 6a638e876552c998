"""The `millpond` command as people type it, for the demonstrations: commands that end by
themselves, and processes that go on until they are stopped, or killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
MILLPOND = (sys.executable, "-m", "millpond")
NODE = "node"
P2P_ALONE = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")
PATIENCE_S = 60.0
COMMAND_S = 30.0
LOOK_S = 0.1


class Failed(Exception):
    """Something is not as it has to be."""


class Processes:
    """Those of one user, in a folder of their own, with the node at `address`.

    Logs are in the folder, the node's data in its `pond`. `whose` stands before the names of
    processes where more than one user has such.
    """

    def __init__(self, folder: Path, whose: str = "") -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{_free_port()}"
        self._whose = whose
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        plain = {key: value for key, value in os.environ.items() if "MILLPOND" not in key}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "MILLPOND_CONNECT": f"tcp://{self.address}",
            "MILLPOND_DATA": str(folder / "pond"),
        }

    def do(self, *words: str, typed: str = "") -> str:
        """A command, and its input; what it prints. Raises Failed."""
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
        """Start the node, and wait until it says that it is ready. Raises Failed."""
        node = self.start(NODE, "serve", "--p2p", self.address, *P2P_ALONE, *options)
        assert node.stdout is not None
        if not node.stdout.readline():
            raise Failed(f"{self._whose}{NODE} does not start:\n{self._log(NODE).read_text()}")

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on."""
        tell(f"{self._whose}{name} starts")
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
        """End a process, as Ctrl-C or as a power cut does. Raises Failed."""
        process = self._running.pop(name)
        tell(f"{self._whose}{name} {'is killed (kill -9)' if by_force else 'stops'}")
        if by_force:
            process.kill()
        else:
            process.terminate()
        assert process.stdout is not None
        code = process.wait(COMMAND_S)
        process.stdout.close()
        if code and not by_force:
            log = self._log(name).read_text()
            raise Failed(f"{self._whose}{name} ended with {code}\n{log}")

    def close(self) -> None:
        """Stop whatever runs; the node last."""
        for name in sorted(self._running, key=lambda each: each == NODE):
            self.stop(name)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def perform(play: Callable[[Path], str], keep: Path | None) -> int:
    """Play in a folder that goes away, or in `keep`, a new one; then say what `play` gives.

    Gives the exit code: 1 if it raised Failed, or something could not be done in time.
    """
    began_at = time.monotonic()
    try:
        if keep is not None:
            keep.mkdir(parents=True)
            what = play(keep.resolve())
        else:
            with TemporaryDirectory(prefix="millpond-demo-") as folder:
                what = play(Path(folder))
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"ok: {what} ({time.monotonic() - began_at:.0f} s)")
    return 0


def until(what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for it. Raises Failed."""
    give_up_at = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > give_up_at:
            raise Failed(f"not within {patience_s:g} s: {what}")
        time.sleep(LOOK_S)
    tell(what)


def tell(text: str) -> None:
    """Say what happens."""
    print(f"  {text}", flush=True)


def _free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
