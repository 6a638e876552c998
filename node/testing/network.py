"""The network of a world: a link between every two names, and its faults."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.runtime.supervisor import contain
from millpond.node.testing.trace import Trace
from millpond.transports.io.interface import Listener, Session, SessionFactory, Wire
from millpond.transports.io.memory import Network

Link = frozenset[str]
"""The two names at the ends of a link."""


def common_names(a: str | None, b: str | None) -> frozenset[str]:
    """The names that every link of a call has: both, one, or none for all links.

    Raises ValueError for a second name without a first.
    """
    if a is None and b is not None:
        raise ValueError("a second name without a first")
    return frozenset(name for name in (a, b) if name is not None)


class LinkFaults:
    """Faults of links as a test has set them.

    Each fault ends only by the call with the same names: healing all links of a name leaves a
    partition between two names.
    """

    def __init__(self) -> None:
        self._partitions: dict[frozenset[str], None] = {}
        self._latencies: dict[frozenset[str], float] = {}
        self._refusals: set[tuple[str, str | None]] = set()

    def partition(self, names: frozenset[str]) -> None:
        self._partitions[names] = None

    def heal(self, names: frozenset[str]) -> None:
        self._partitions.pop(names, None)

    def is_partitioned(self, link: Link) -> bool:
        return any(names <= link for names in self._partitions)

    def delay(self, names: frozenset[str], seconds: float) -> None:
        """Set the latency of links; it replaces latencies of some of them."""
        kept = {old: s for old, s in self._latencies.items() if not names <= old}
        self._latencies = {**kept, names: seconds}

    def latency_s(self, link: Link) -> float:
        """The latency that was set last."""
        found = [seconds for names, seconds in self._latencies.items() if names <= link]
        return found[-1] if found else 0.0

    def refuse(self, host: str, source: str | None, *, on: bool) -> None:
        if on:
            self._refusals.add((host, source))
        else:
            self._refusals.discard((host, source))

    def is_refused(self, host: str, source: str) -> bool:
        return not self._refusals.isdisjoint({(host, None), (host, source)})


P2P_PORT, S3P_PORT, RUSTLOG_PORT = 7400, 7402, 7403
PORTS = {P2P_PORT: "p2p", S3P_PORT: "s3p", RUSTLOG_PORT: "rustlog"}
"""Protocols by port, as on a node with the default settings."""


class WorldDialer(Protocol):
    """A dialer that opens a wire to a node for any session."""

    async def __call__(
        self, tasks: TaskGroup, host: str, port: int, session: Session, /
    ) -> None: ...


class _NodeListeners(msgspec.Struct):
    """The listeners of a node, and the task group of its connections."""

    factories: dict[str, SessionFactory]
    tasks: TaskGroup


class Links:
    """The links between the names of nodes and programs; each exists from its first use."""

    def __init__(self, seed: int) -> None:
        self.trace: Trace | None = None
        self._seed = seed
        self._faults = LinkFaults()
        self._healed = anyio.Event()
        self._dialling: list[float] = []
        self._split = False
        self._nodes: dict[str, _NodeListeners] = {}
        self._networks: dict[frozenset[str], Network] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self._stalled: set[str] = set()

    def between(self, a: str, b: str) -> Network:
        """The link of two names."""
        key = frozenset((a, b))
        network = self._networks.get(key)
        if network is None:
            # Its random numbers depend on the names alone, not on the order of use.
            rng = Random(f"{self._seed} {' '.join(sorted(key))}")
            network = Network(
                rng,
                latency_s=self._faults.latency_s(key),
                split=self._split,
                guard=partial(contain, f"connection/{'-'.join(sorted(key))}"),
            )
            self._networks[key] = network
            for name in sorted(key):
                self._listen(name, network)
                if name in self._stalled:
                    _each(network.stall, name)
            self._apply_partition(key, network)
        return network

    def next_due(self) -> float:
        """The time at which the next bytes arrive, by the loop's clock; inf: none are under way.

        Bytes that a partition holds back are not under way.
        """
        now = anyio.current_time()
        dues = [due for due in self._dialling if due > now]
        return min(dues + [each.next_due() for each in self._networks.values()], default=inf)

    # Nodes and programs.

    def listen(self, name: str, factories: dict[str, SessionFactory], tasks: TaskGroup) -> None:
        """Add the listeners of a node; `factories` by protocol."""
        traced = {protocol: self._traced(make, name) for protocol, make in factories.items()}
        self._nodes[name] = _NodeListeners(traced, tasks)
        for key, network in self._networks.items():
            if name in key:
                self._listen(name, network)

    async def stop_listening(self, name: str) -> None:
        """Remove the listeners of a node; its connections stay."""
        self._nodes.pop(name, None)
        for listener in self._listeners.pop(name, []):
            await listener.aclose()

    def dialer(self, source: str) -> WorldDialer:
        """A dialer from a name; the host is a node's name, and the port is that of the protocol."""

        async def dial(tasks: TaskGroup, host: str, port: int, session: Session) -> None:
            protocol = PORTS.get(port)
            if protocol is None:
                raise ConnectionRefusedError(f"port {port}: a world has {[*PORTS]}")
            await self._connect(tasks, source, host, protocol, session)

        return dial

    async def _connect(
        self, tasks: TaskGroup, source: str, host: str, protocol: str, session: Session
    ) -> None:
        """Connect, or raise ConnectionRefusedError; across a partition, wait until cancelled."""
        network, address = self.between(source, host), _address(host, protocol)
        if self.trace is not None:
            self.trace.note(f"{source} > {address}: dials")
        traced = _Traced(session, self, source)
        while True:
            while self._faults.is_partitioned(frozenset((source, host))):
                await self._healed.wait()
            if self._faults.is_refused(host, source):
                raise ConnectionRefusedError(f"{host} refuses connections from {source}")
            due = anyio.current_time() + network.latency_s
            self._dialling.append(due)
            try:
                return await network.connect(tasks, address, traced, source=source)
            except OSError as exc:
                if exc.errno != errno.EHOSTUNREACH:  # else there is a partition since just now
                    raise
            finally:
                self._dialling.remove(due)

    # Faults.

    def partition(self, a: str, b: str | None = None) -> None:
        """Hold back bytes between two names, or between one and all others, also later ones."""
        self._faults.partition(common_names(a, b))
        self._apply_partitions()

    def heal(self, a: str, b: str | None = None) -> None:
        """End the partition of these names; bytes that another one holds back still wait."""
        self._faults.heal(common_names(a, b))
        self._apply_partitions()
        self._healed.set()
        self._healed = anyio.Event()

    def refuse(self, host: str, source: str | None = None, *, on: bool) -> None:
        """Refuse new connections to a node, from one name or from all, or stop refusing."""
        self._faults.refuse(host, source, on=on)

    def reset(self, a: str, b: str | None = None) -> None:
        """Break the connections of a name, or between two names, at both ends."""
        for _, network in self._of(a) if b is None else [(None, self.between(a, b))]:
            _each(network.reset, a)

    def stall(self, name: str) -> None:
        """Stop all reading of a name."""
        self._stalled.add(name)
        for _, network in self._of(name):
            _each(network.stall, name)

    def unstall(self, name: str) -> None:
        """Resume reading of a name."""
        self._stalled.discard(name)
        for _, network in self._of(name):
            _each(network.unstall, name)

    def set_latency(self, seconds: float, a: str | None = None, b: str | None = None) -> None:
        """Set the delay of bytes on one link, on those of a name, or everywhere."""
        self._faults.delay(common_names(a, b), seconds)
        for key, network in self._networks.items():
            network.latency_s = self._faults.latency_s(key)

    def set_split(self, split: bool) -> None:
        """Cut written bytes into pieces at random places, or stop cutting."""
        self._split = split
        for network in self._networks.values():
            network.split = split

    def _apply_partitions(self) -> None:
        for key, network in self._networks.items():
            self._apply_partition(key, network)

    def _apply_partition(self, key: frozenset[str], network: Network) -> None:
        do = network.partition if self._faults.is_partitioned(key) else network.heal
        names = sorted(key)
        for source, target in ((names[0], names[-1]), (names[-1], names[0])):
            for protocol in PORTS.values():
                do(source, _address(target, protocol))

    def _of(self, name: str) -> list[tuple[frozenset[str], Network]]:
        return [(key, network) for key, network in self._networks.items() if name in key]

    def _listen(self, name: str, network: Network) -> None:
        node = self._nodes.get(name)
        if node is not None:
            listeners = self._listeners.setdefault(name, [])
            for protocol, factory in node.factories.items():
                address = _address(name, protocol)
                listeners.append(network.listen(address, factory, node.tasks))

    def _traced(self, make: SessionFactory, name: str) -> SessionFactory:
        return lambda: _Traced(make(), self, name)


class _Traced:
    """A session whose received bytes and events are traced, at the end of `name`."""

    def __init__(self, session: Session, links: Links, name: str) -> None:
        self._session = session
        self._links = links
        self._place = name

    def opened(self, wire: Wire) -> None:
        self._place = f"{self._place} < {wire.peer}"
        self._trace("opened")
        self._session.opened(wire)

    def received(self, data: bytes) -> None:
        if self._links.trace is not None:
            self._links.trace.note_bytes(self._place, data)
        self._session.received(data)

    def uncongested(self) -> None:
        self._session.uncongested()

    def eof(self) -> None:
        self._trace("eof")
        self._session.eof()

    def ended(self) -> None:
        self._trace("ended")
        self._session.ended()

    def _trace(self, what: str) -> None:
        if self._links.trace is not None:
            self._links.trace.note(f"{self._place}: {what}")


def _address(name: str, protocol: str) -> str:
    """The address of a protocol of a node; that of P2P is its name."""
    return name if protocol == "p2p" else f"{name}:{protocol}"


def _each(do: Callable[[str], None], name: str) -> None:
    for protocol in PORTS.values():
        do(_address(name, protocol))
