"""Servers under load: a node of the benchmark's own, and other servers to compare it with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Protocol, cast

import msgspec

import millpond
from millpond.node.bench.drivers.interface import Driver, RustlogDriver, S3pDriver
from millpond.node.bench.drivers.s2 import S2Driver
from millpond.node.bench.own_node import on_disk, own_node
from millpond.node.bench.scenarios import StreamKind
from millpond.node.bench.stream_load import StreamTarget
from millpond.node.client.rustlog.forms import BINARY
from millpond.transports.io.address import parse_address

DRIVERS: dict[str, Callable[[StreamKind], Driver]] = {
    "s3p": lambda _kind: S3pDriver(),
    "rustlog": lambda _kind: RustlogDriver(),
    "rustlog-binary": lambda _kind: RustlogDriver(BINARY),
    "s2": S2Driver,
}
"""The driver of each protocol, for rows of a kind."""
LISTENERS = {"s2": "http", "rustlog-binary": "rustlog"}
"""Listeners that are not named like their protocol."""
UNLIMITED = {"stream_bytes_max": str(2**40), "node_stream_bytes_max": str(2**40)}
"""A row appends as much as it can: the usual limits would refuse it on a fast machine."""
PEERS = ("redis", "nats")
PEERS_MODULE = "tests.bench.peers"


class ServerMissing(Exception):
    """A server cannot be measured here; the text is the reason."""


class MeasuredServer(msgspec.Struct, frozen=True):
    """A running server, and its CPU time in seconds (None: unknown)."""

    target: StreamTarget
    cpu: Callable[[], float] | None


class PeerServers(Protocol):
    """The module of other servers."""

    def own_peer_server(
        self, name: str, prefix: str, folder: Path | None, durability: str
    ) -> AbstractContextManager[MeasuredServer]:
        """A server on a free port, which keeps its data below `folder` as durably."""


@contextmanager
def own_stream_node(
    protocol: str, kind: StreamKind, prefix: str, folder: Path | None, durability: str
) -> Iterator[MeasuredServer]:
    """A new node with this protocol's listener, its data below `folder` (None: in memory).

    Raises NodeNotReady.
    """
    listener, driver = LISTENERS.get(protocol, protocol), partial(DRIVERS[protocol], kind)
    store = () if folder is None else on_disk(folder, durability)
    with own_node(*store, listener=listener, **UNLIMITED) as node:
        if listener not in node.listeners:
            raise ServerMissing(f"the node has no listener for {protocol}")
        host, port = parse_address(node.listeners[listener])
        target = StreamTarget("node", host, port, prefix, driver, rss_of(node.pid), folder)
        yield MeasuredServer(target, node.cpu)


def peer_servers() -> PeerServers:
    """The module of other servers, which only a checkout has. Raises ServerMissing."""
    module = sys.modules.get(PEERS_MODULE)
    if module is None:
        path = Path(millpond.__file__).resolve().parents[1] / "tests" / "bench" / "peers.py"
        spec = spec_from_file_location(PEERS_MODULE, path)
        if not path.exists() or spec is None or spec.loader is None:
            raise ServerMissing("only a checkout of the repository can measure other servers")
        module = module_from_spec(spec)
        sys.modules[PEERS_MODULE] = module
        spec.loader.exec_module(module)
    return cast(PeerServers, module)


def rss_of(pid: int) -> Callable[[], int] | None:
    """The memory of a process in bytes, read from Linux; None on other systems."""
    statm = Path(f"/proc/{pid}/statm")
    if not statm.exists():
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(statm.read_text().split()[1]) * page
