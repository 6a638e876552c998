"""Many connections at once to a node in a process of its own: all are served; what each costs."""

from __future__ import annotations

import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance import packets as p

NODE = """
import anyio
from millpond.node.config import OFF, Config
from millpond.node.node import Node

async def main():
    listeners = {"p2p": "127.0.0.1:0", "ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF}
    config = Config(**listeners, connections_max=20_000)
    async with Node(config) as node:
        print(node.listeners["p2p"], flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend_options={"use_uvloop": True})
"""
BYTES_EACH_MAX = 16 * 1024
DESCRIPTORS_SPARE = 200


@contextmanager
def _node() -> Iterator[tuple[tuple[str, int], int]]:
    """A node's address, and its process id."""
    with subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            host, _, port = process.stdout.readline().decode().strip().rpartition(":")
            yield (host, int(port)), process.pid
        finally:
            process.kill()


def _rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += (chunk := connection.recv(size - len(data)))
        assert chunk, "the node closed the connection"
    return data


def _packet(connection: socket.socket) -> bytes:
    return _receive(connection, int.from_bytes(_receive(connection, 4), "big"))


def _greet(address: tuple[str, int], channel: bytes, role: bytes) -> socket.socket:
    connection = socket.create_connection(address, timeout=10)
    connection.sendall(p.framed(p.hello(channel, {p.ROLE: role})))
    assert _packet(connection)[0] == 0x83
    return connection


def _put(address: tuple[str, int], channel: bytes) -> None:
    with _greet(address, channel, p.PRODUCER) as producer:
        producer.sendall(p.framed(p.put(1, b"for " + channel)))
        assert _packet(producer)[0] == 7


def _serve_many(count: int, record: pytest.FixtureRequest) -> int:
    """Connections each with a channel and a push of its own; gives the bytes that each costs."""
    with _node() as (address, pid):
        names = [b"load/%d" % number for number in range(count)]
        _put(address, b"warm-up")
        before = _rss_bytes(pid)
        for name in names:
            _put(address, name)
        stored = _rss_bytes(pid)
        connections = [_greet(address, name, p.CONSUMER) for name in names]
        for name, connection in zip(names, connections, strict=True):
            assert _packet(connection)[9:] == b"for " + name
        connected = _rss_bytes(pid)
        for connection in connections:
            connection.sendall(p.framed(p.PING))
        for connection in connections:
            assert _packet(connection) == p.PONG
        quiet, _, _ = select.select(connections[:500], [], [], 0)
        assert not quiet
        for connection in connections:
            connection.close()
    each = (connected - stored) // count
    record.node.user_properties.append(("bytes_per_connection", each))
    print(f"{count} connections: {each} bytes each, {(stored - before) // count} for its channel")
    return each


def test_1000_connections_each_get_their_push(request: pytest.FixtureRequest) -> None:
    assert _serve_many(1000, request) < BYTES_EACH_MAX


def test_an_announced_length_costs_nothing_until_its_bytes_come() -> None:
    with _node() as (address, pid):
        connections = [_greet(address, b"load", p.PRODUCER) for _ in range(200)]
        before = _rss_bytes(pid)
        for connection in connections:
            connection.sendall(p.u32(2**20) + p.put(1, b"the rest never comes"))
        _put(address, b"others are served")
        assert _rss_bytes(pid) - before < len(connections) * BYTES_EACH_MAX
        for connection in connections:
            connection.close()


@pytest.mark.full
def test_10000_connections_each_get_their_push(request: pytest.FixtureRequest) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10_000 + DESCRIPTORS_SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} descriptors, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    assert _serve_many(10_000, request) < BYTES_EACH_MAX
