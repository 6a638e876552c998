"""Heartbeats: pings to silent connections, and the end of those that stay silent (PA-28)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from math import inf

from millpond.actors.messages import Hangup, Port, Probe, Reply

PROBES_MAX = 2
CHECK_GAP_S_PER_CONNECTION = 1e-4


class HeartbeatResult(Enum):
    ALIVE = auto()
    PROBE = auto()
    DEAD = auto()


class Heartbeat:
    """The heartbeat of one connection: silence of `keep_alive_s` leads to a ping, half of that to a
    second one, half again to the end.

    With the default of 20 s: pings after 20 and 30 s, the end after 40. Any byte counts as life.
    """

    __slots__ = ("_keep_alive_s", "_probed_at", "_probes")

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._probes = 0
        self._probed_at = 0.0

    def due_at(self, received_at: float) -> float:
        """The time of the next ping, or of the end, if nothing is received until then."""
        if self._probes == 0 or received_at >= self._probed_at:
            return received_at + self._keep_alive_s
        return self._probed_at + self._keep_alive_s / 2

    def check(self, received_at: float, now: float) -> HeartbeatResult:
        """The result of silence since `received_at`; PROBE: the caller sends a ping."""
        if now < self.due_at(received_at):
            return HeartbeatResult.ALIVE
        # An answer within the clock's grain came at the moment of its ping, and counts.
        if received_at >= self._probed_at:
            self._probes = 0
        self._probed_at = now  # closing takes its time, and is asked for again only after a while
        if self._probes >= PROBES_MAX:
            return HeartbeatResult.DEAD
        self._probes += 1
        return HeartbeatResult.PROBE


def check_heartbeats(
    consumers: Iterable[tuple[Port, Heartbeat]], now: float
) -> tuple[list[tuple[Port, Reply]], float]:
    """Check all connections of a channel. Gives pings and hang-ups, and the time of the next
    check."""
    replies: list[tuple[Port, Reply]] = []
    earliest = inf
    count = 0
    for port, heartbeat in consumers:
        count += 1
        match heartbeat.check(port.received_at, now):
            case HeartbeatResult.PROBE:
                replies.append((port, Probe()))
            case HeartbeatResult.DEAD:
                replies.append((port, Hangup()))
            case HeartbeatResult.ALIVE:
                pass
        earliest = min(earliest, heartbeat.due_at(port.received_at))
    # Checks of many connections keep a distance, or the deadline of each would check them all.
    return replies, max(earliest, now + count * CHECK_GAP_S_PER_CONNECTION) if count else earliest
