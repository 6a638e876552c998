"""Servers of the benchmark's own: the node, and peers where they are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from millpond.node.bench.drivers.interface import Driver, RustlogDriver, S3pDriver
from millpond.node.bench.drivers.peers import NatsDriver, RedisDriver
from millpond.node.bench.drivers.s2 import S2Driver
from millpond.node.bench.own_node import cpu_of, end, on_disk, own_node
from millpond.node.bench.scratch import ending_like_ctrl_c
from millpond.node.bench.stream_load import StreamTarget
from millpond.node.bench.stream_rows import StreamKind
from millpond.transports.io.address import parse_address

HOST = "127.0.0.1"
READY_S, POLL_S = 10.0, 0.02
DRIVERS: dict[str, Callable[[StreamKind], Driver]] = {
    "s3p": lambda _kind: S3pDriver(),
    "rustlog": lambda _kind: RustlogDriver(),
    "s2": S2Driver,
}
"""How a node is spoken to in each protocol, in rows of a kind."""
LISTENERS = {"s2": "http"}
"""Of protocols that have no listener of their own name."""
UNLIMITED = {"stream_bytes_max": str(2**40), "node_stream_bytes_max": str(2**40)}
"""A row appends as much as it can: the usual limits would refuse it on a fast machine."""


class ServerMissing(Exception):
    """A server cannot be measured here, and why."""


class MeasuredServer(msgspec.Struct, frozen=True):
    """A server that runs, and how much processor time it has taken, if that can be seen."""

    target: StreamTarget
    cpu: Callable[[], float] | None


@contextmanager
def own_stream_node(
    protocol: str, kind: StreamKind, prefix: str, folder: Path | None, durability: str
) -> Iterator[MeasuredServer]:
    """A fresh node with this protocol's listener, its data below `folder` (None: in memory).

    Raises NodeNotReady.
    """
    listener, speech = LISTENERS.get(protocol, protocol), partial(DRIVERS[protocol], kind)
    store = () if folder is None else on_disk(folder, durability)
    with own_node(*store, listener=listener, **UNLIMITED) as found:
        if listener not in found.listeners:
            raise ServerMissing(f"the node has no listener for {protocol}")
        host, port = parse_address(found.listeners[listener])
        target = StreamTarget("node", host, port, prefix, speech, rss_of(found.pid), folder)
        yield MeasuredServer(target, found.cpu)


@contextmanager
def own_peer_server(
    name: str, prefix: str, folder: Path | None, durability: str
) -> Iterator[MeasuredServer]:
    """Redis or NATS on a free port, keeping its data as durably below `folder`. Raises Missing."""
    if shutil.which(PROGRAMS[name]) is None:
        raise ServerMissing(f"{PROGRAMS[name]} is not installed")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=folder) as data:
        port = _free_port()
        command, speech = COMMANDS[name](port, data, durability)
        environment = {**os.environ, "GOMAXPROCS": "1"}
        with (
            ending_like_ctrl_c(),
            subprocess.Popen(
                [PROGRAMS[name], *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process,
        ):
            try:
                _wait(process, port, name)
                kept = None if durability == "memory" else Path(data)
                rss = rss_of(process.pid)
                target = StreamTarget(name, HOST, port, prefix, speech, rss, kept)
                yield MeasuredServer(target, cpu_of(process.pid))
            finally:
                end(process)


def rss_of(pid: int) -> Callable[[], int] | None:
    """The memory of a process in bytes, by Linux's account; None elsewhere."""
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(statm.read_text().split()[1]) * page


def _redis(port: int, data: str, durability: str) -> tuple[list[str], Callable[[], Driver]]:
    kept = ["--appendonly", "no" if durability == "memory" else "yes"]
    sync = ["--appendfsync", "always" if durability == "disk" else "everysec"]
    where = ["--bind", HOST, "--port", str(port), "--dir", data]
    return [*where, "--save", "", *kept, *sync, "--daemonize", "no"], RedisDriver


def _nats(port: int, data: str, durability: str) -> tuple[list[str], Callable[[], Driver]]:
    where = ["--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", data]
    return where, partial(NatsDriver, "memory" if durability == "memory" else "file")


PROGRAMS = {"redis": "redis-server", "nats": "nats-server"}
COMMANDS = {"redis": _redis, "nats": _nats}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(POLL_S)
    raise ServerMissing(f"{PROGRAMS[name]} did not come up")
