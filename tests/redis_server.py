"""Redis servers of tests: real ones on a socket in a folder, or in a cluster on loopback."""

from __future__ import annotations

import shutil
import signal
import socket
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


def _free_pair() -> int:
    """A free port, where the one of its bus is free as well."""
    while True:
        port = free_port()
        with socket.socket() as bus:
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


class ClusterServer:
    """One server of a cluster."""

    def __init__(self, folder: Path, *words: str) -> None:
        assert REDIS is not None
        self.port = _free_pair()
        folder.mkdir(parents=True)
        self._words = (
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""),
            *("--cluster-enabled", "yes", "--cluster-port", str(self.port + 10_000)),
            *("--appendonly", "yes", "--appendfsync", "always"),
            *("--repl-diskless-sync-delay", "0", *words),
        )
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and do not wait."""
        assert REDIS is not None
        self.process = subprocess.Popen([REDIS, *self._words], stdout=subprocess.DEVNULL)

    def command(self, *words: str) -> str:
        """The answer to a command; empty where there is none."""
        return _output(["redis-cli", "-p", str(self.port), *words]).decode().strip()

    @property
    def id(self) -> str:
        return self.command("CLUSTER", "MYID")

    @property
    def is_joined(self) -> bool:
        """It knows all slots, and a replica has the content of its master."""
        role = self.command("ROLE").split()
        is_synced = bool(role) and (role[0] == "master" or "connected" in role)
        return is_synced and "cluster_state:ok" in self.command(*INFO)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


class ClusterServers:
    """Three servers that share all slots, each with some replicas."""

    def __init__(self, folder: Path, replicas: int, *words: str) -> None:
        self.servers: list[ClusterServer] = []
        try:
            for number in range(3 * (1 + replicas)):
                self.servers.append(ClusterServer(folder / str(number), *words))
            self._join(replicas)
        except BaseException:
            self.close()
            raise

    def _join(self, replicas: int) -> None:
        addresses = [each.address for each in self.servers]
        end = time.monotonic() + STARTED_S
        make = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        make += ["--cluster-replicas", str(replicas)]
        for server in self.servers:
            while server.command("PING") != "PONG":
                assert server.process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
        made = _output(make)  # once: servers that were joined by half are not taken again
        assert b"All 16384 slots covered" in made, made[-2000:]
        for server in self.servers:
            while not server.is_joined:
                assert time.monotonic() < end
                time.sleep(0.05)

    @property
    def url(self) -> str:
        """It names all servers."""
        first, *others = (each.address for each in self.servers)
        return f"redis+cluster://{first}?nodes={','.join(others)}"

    @property
    def masters(self) -> list[ClusterServer]:
        """Those that run, and take writes."""
        running = (each for each in self.servers if each.process.poll() is None)
        return [each for each in running if each.command("ROLE").startswith("master")]

    def slot(self, key: str) -> int:
        """The slot of a key."""
        return int(self.masters[0].command("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> ClusterServer:
        """The master that has a slot."""
        for server in self.masters:
            (own,) = (
                each for each in server.command("CLUSTER", "NODES").splitlines() if "myself" in each
            )
            for part in own.split()[8:]:
                first, _, last = part.partition("-")
                if not part.startswith("[") and int(first) <= slot <= int(last or first):
                    return server
        raise AssertionError(f"nobody has slot {slot}")

    def begin_move(self, slot: int) -> tuple[ClusterServer, ClusterServer]:
        """Begin to move a slot; gives its server, and the one to which it goes."""
        source = self.owner(slot)
        target = next(each for each in self.masters if each is not source)
        assert target.command("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.id) == "OK"
        assert source.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.id) == "OK"
        return source, target

    def move_keys(self, slot: int, source: ClusterServer, target: ClusterServer, most: int) -> None:
        """Move some keys of a slot."""
        keys = source.command("CLUSTER", "GETKEYSINSLOT", str(slot), str(most)).splitlines()
        if keys:
            words = ("MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *keys)
            assert source.command(*words) == "OK"

    def end_move(self, slot: int, source: ClusterServer, target: ClusterServer) -> None:
        """Move the other keys of a slot, and then the slot."""
        self.move_keys(slot, source, target, 1000)
        for server in (target, source):
            assert server.command("CLUSTER", "SETSLOT", str(slot), "NODE", target.id) == "OK"

    def close(self) -> None:
        """Kill all."""
        for server in self.servers:
            server.kill()


@contextmanager
def redis_cluster(folder: Path, replicas: int = 0, *words: str) -> Iterator[ClusterServers]:
    """A cluster while the block runs."""
    cluster = ClusterServers(folder, replicas, *words)
    try:
        yield cluster
    finally:
        cluster.close()
