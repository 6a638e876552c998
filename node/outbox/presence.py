"""Presence: peers with a live connection, in either direction (docs/internals/peers.md)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from millpond.actors.messages import Attach, Port
from millpond.actors.runtime.scheduler import Scheduler

ONLINE_S = 30.0
"""A peer is away when its connections have been silent for longer."""
SEEN_MAX = 10_000
"""The number of peers whose last activity is remembered, the latest ones."""

AttachCallback = Callable[[bytes, Port, Attach, float], bool]
DetachCallback = Callable[[bytes, Port], None]


class LastSeen(msgspec.Struct, frozen=True):
    """The presence of a peer: online, or seen at `seen_at` (seconds since 1970, None: not in this
    run)."""

    is_online: bool
    seen_at: float | None


class Presence:
    """The peers that are connected, as told by connections.

    `on_change` is called with the public key of a peer when its first connection opens and when
    its last one closes; `on_fetching` when its first consumer of a channel attaches and when its
    last one detaches.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.on_change: list[Callable[[bytes], None]] = []
        self.on_fetching: list[Callable[[bytes], None]] = []
        self._now = now
        self._connections: dict[bytes, dict[object, Callable[[], float]]] = {}
        self._fetching: dict[tuple[bytes, bytes], set[Port]] = {}
        self._attached: dict[tuple[bytes, Port], Attach] = {}
        self._seen: dict[bytes, float] = {}

    def last_seen(self, peer: bytes) -> LastSeen:
        """The presence of a peer now."""
        active_at = max(
            (activity() for activity in self._connections.get(peer, {}).values()), default=-inf
        )
        if active_at > self._now() - ONLINE_S:
            return LastSeen(True, active_at)
        seen_at = max(active_at, self._seen.get(peer, -inf))
        return LastSeen(False, None if seen_at == -inf else seen_at)

    def is_fetching(self, peer: bytes, channel: bytes) -> bool:
        """True while the peer consumes a channel of this node on its own connection."""
        return bool(self._fetching.get((peer, channel)))

    # Connections that peers have opened, from the listeners.

    def attached(self, channel: bytes, port: Port, request: Attach) -> None:
        """A connection with a proved identity has attached to a channel."""
        peer = request.identity
        if peer is None or (channel, port) in self._attached:
            return
        self._attached[channel, port] = request
        if request.push and request.role.consumes:
            self._fetching.setdefault((peer, channel), set()).add(port)
            self._notify(self.on_fetching, peer)
        self.connected(peer, (channel, port), lambda: port.received_at)

    def detached(self, channel: bytes, port: Port) -> None:
        """A connection has detached from a channel."""
        request = self._attached.pop((channel, port), None)
        if request is None or request.identity is None:
            return
        peer = request.identity
        fetchers = self._fetching.get((peer, channel))
        if fetchers is not None:
            fetchers.discard(port)
            if not fetchers:
                del self._fetching[peer, channel]
            self._notify(self.on_fetching, peer)
        self.disconnected(peer, (channel, port))

    def watch(self, scheduler: Scheduler) -> tuple[AttachCallback, DetachCallback]:
        """The `attach` and `detach` of the scheduler, with a notice to this object."""

        def attach(channel: bytes, port: Port, request: Attach, now: float) -> bool:
            if request.identity is not None:
                self.attached(channel, port, request)
            return scheduler.attach(channel, port, request, now)

        def detach(channel: bytes, port: Port) -> None:
            scheduler.detach(channel, port)
            self.detached(channel, port)

        return attach, detach

    # Connections that this node has opened, and the common part.

    def connected(self, peer: bytes, connection: object, active_at: Callable[[], float]) -> None:
        """A connection with a peer has opened; `active_at` gives the time of its last activity."""
        connections = self._connections.setdefault(peer, {})
        connections[connection] = active_at
        if len(connections) == 1:
            self._notify(self.on_change, peer)

    def disconnected(self, peer: bytes, connection: object) -> None:
        """A connection with a peer has closed."""
        connections = self._connections.get(peer, {})
        activity = connections.pop(connection, None)
        if activity is None:
            return
        self._seen[peer] = max(activity(), self._seen.pop(peer, -inf))
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        if not connections:
            del self._connections[peer]
            self._notify(self.on_change, peer)

    @staticmethod
    def _notify(callbacks: list[Callable[[bytes], None]], peer: bytes) -> None:
        for callback in callbacks:
            callback(peer)
