"""Redis servers of tests: real ones on a socket in a folder, or in a cluster on loopback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port

STARTED_S = 30.0
INFO = ("cluster", "info")
REDIS = shutil.which("redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(REDIS is None, reason="no redis-server here")


class RedisServer:
    """A server whose data is in `folder`; it may be killed and started again."""

    def __init__(self, folder: Path, *words: str) -> None:
        # A socket's path has at most 107 bytes, and folders of tests are long.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="mp-redis-"))
        self.socket = self._socket_folder / "s"
        self.url = f"unix://{self.socket}"
        self._words = (
            *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "always", *words),
        )
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert REDIS is not None
        self.process = subprocess.Popen([REDIS, *self._words], stdout=subprocess.DEVNULL)
        end = time.monotonic() + STARTED_S
        while self.command("PING") != "PONG":
            assert self.process.poll() is None and time.monotonic() < end
            time.sleep(0.01)

    def command(self, *words: str) -> str:
        """The answer of the server to a command; empty where there is none."""
        done = subprocess.run(
            ["redis-cli", "-s", str(self.socket), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    def pause(self) -> None:
        """Stop the process where it is."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, and remove its socket."""
        self.kill()
        shutil.rmtree(self._socket_folder)


@contextmanager
def redis_server(folder: Path, *words: str) -> Iterator[RedisServer]:
    """A server while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RedisServer(folder, *words)
    try:
        yield server
    finally:
        server.close()


def _output(words: list[str]) -> bytes:
    return subprocess.run(words, capture_output=True, check=False).stdout


@contextmanager
def redis_cluster(folder: Path) -> Iterator[str]:
    """Three servers that share all slots; the URL of one of them."""
    assert REDIS is not None
    ports = [free_port() for _ in range(3)]
    processes = []
    try:
        for port in ports:
            own = folder / str(port)
            own.mkdir(parents=True)
            words = (
                *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(own), "--save", ""),
                *("--cluster-enabled", "yes", "--cluster-port", str(port + 10_000)),
                *("--appendonly", "yes", "--appendfsync", "always"),
            )
            processes.append(subprocess.Popen([REDIS, *words], stdout=subprocess.DEVNULL))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        end = time.monotonic() + STARTED_S
        make = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        while b"All 16384 slots covered" not in _output(make):
            assert time.monotonic() < end
            time.sleep(0.1)
        for port in ports:
            while b"cluster_state:ok" not in _output(["redis-cli", "-p", f"{port}", *INFO]):
                assert time.monotonic() < end
                time.sleep(0.05)
        yield f"redis+cluster://{addresses[0]}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
