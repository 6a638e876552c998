"""Who is here: peers with which a connection stands, either way, that showed life (wire.md 3f)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from millpond.actors.messages import Attach, Port
from millpond.actors.runtime.scheduler import Scheduler

ONLINE_S = 30.0
"""A connection that was silent for longer does not say that its peer is here."""
SEEN_MAX = 10_000
"""So many peers are remembered as seen, the latest ones."""

AttachCallback = Callable[[bytes, Port, Attach, float], bool]
DetachCallback = Callable[[bytes, Port], None]


class LastSeen(msgspec.Struct, frozen=True):
    """`here`, or not since `seen_at` (seconds since the Unix epoch; None: not in this run)."""

    here: bool
    seen_at: float | None


class Presence:
    """Hears of connections as they come and go.

    `on_change` is called with a peer's public key when its first connection stands and when its
    last one ended; `on_fetching` when its first or last consumer of a channel of ours did.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.on_change: list[Callable[[bytes], None]] = []
        self.on_fetching: list[Callable[[bytes], None]] = []
        self._now = now
        self._lives: dict[bytes, dict[object, Callable[[], float]]] = {}
        self._fetching: dict[tuple[bytes, bytes], set[Port]] = {}
        self._joins: dict[tuple[bytes, Port], Attach] = {}
        self._seen: dict[bytes, float] = {}

    def last_seen(self, peer: bytes) -> LastSeen:
        """What is known of a peer now."""
        heard_at = max((life() for life in self._lives.get(peer, {}).values()), default=-inf)
        if heard_at > self._now() - ONLINE_S:
            return LastSeen(True, heard_at)
        seen_at = max(heard_at, self._seen.get(peer, -inf))
        return LastSeen(False, None if seen_at == -inf else seen_at)

    def is_fetching(self, peer: bytes, channel: bytes) -> bool:
        """Does the peer itself take messages out of a channel here, on a connection of its own?"""
        return bool(self._fetching.get((peer, channel)))

    # Connections to us, from the listeners.

    def joined(self, channel: bytes, port: Port, join: Attach) -> None:
        """An identity proved by its key entered a channel."""
        peer = join.identity
        if peer is None or (channel, port) in self._joins:
            return
        self._joins[channel, port] = join
        if join.push and join.role.consumes:
            self._fetching.setdefault((peer, channel), set()).add(port)
            self._tell(self.on_fetching, peer)
        self.met(peer, (channel, port), lambda: port.received_at)

    def left(self, channel: bytes, port: Port) -> None:
        """A connection left a channel, if it was one of an identity."""
        join = self._joins.pop((channel, port), None)
        if join is None or join.identity is None:
            return
        peer = join.identity
        fetchers = self._fetching.get((peer, channel))
        if fetchers is not None:
            fetchers.discard(port)
            if not fetchers:
                del self._fetching[peer, channel]
            self._tell(self.on_fetching, peer)
        self.parted(peer, (channel, port))

    def watch(self, scheduler: Scheduler) -> tuple[AttachCallback, DetachCallback]:
        """The scheduler's `attach` and `detach` for connections, such that we hear of them."""

        def attach(channel: bytes, port: Port, join: Attach, now: float) -> bool:
            if join.identity is not None:
                self.joined(channel, port, join)
            return scheduler.attach(channel, port, join, now)

        def detach(channel: bytes, port: Port) -> None:
            scheduler.detach(channel, port)
            self.left(channel, port)

        return attach, detach

    # Connections of ours, and what both have in common.

    def met(self, peer: bytes, connection: object, heard_at: Callable[[], float]) -> None:
        """A connection with the peer stands; `received_at` tells when it last showed life."""
        lives = self._lives.setdefault(peer, {})
        lives[connection] = heard_at
        if len(lives) == 1:
            self._tell(self.on_change, peer)

    def parted(self, peer: bytes, connection: object) -> None:
        """The connection ended."""
        lives = self._lives.get(peer, {})
        life = lives.pop(connection, None)
        if life is None:
            return
        self._seen[peer] = max(life(), self._seen.pop(peer, -inf))
        while len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        if not lives:
            del self._lives[peer]
            self._tell(self.on_change, peer)

    @staticmethod
    def _tell(hearers: list[Callable[[bytes], None]], peer: bytes) -> None:
        for hear in hearers:
            hear(peer)
