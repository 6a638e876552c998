"""Is the other end of a connection still there? Pings after silence (PA-28)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from math import inf

from millpond.actors.messages import Hangup, Port, Probe, Reply

PROBES_MAX = 2
SURVEY_GAP_S_PER_GUEST = 1e-4


class HeartbeatResult(Enum):
    ALIVE = auto()
    PROBE = auto()
    DEAD = auto()


class Heartbeat:
    """Silence of `keep_alive_s` earns a ping, half of that a second one, half again the end.

    With the default of 20 s: pings after 20 and 30 s, the end after 40. Any byte counts as life.
    """

    __slots__ = ("_keep_alive_s", "_probed_at", "_probes")

    def __init__(self, keep_alive_s: float) -> None:
        self._keep_alive_s = keep_alive_s
        self._probes = 0
        self._probed_at = 0.0

    def due_at(self, heard_at: float) -> float:
        """When `check` has something to say, if nothing is heard until then."""
        if self._probes == 0 or heard_at >= self._probed_at:
            return heard_at + self._keep_alive_s
        return self._probed_at + self._keep_alive_s / 2

    def check(self, heard_at: float, now: float) -> HeartbeatResult:
        """What the silence since `received_at` means at `now`; PROBE asks the caller to ping."""
        if now < self.due_at(heard_at):
            return HeartbeatResult.ALIVE
        # An answer within the clock's grain came at the moment of its ping, and counts.
        if heard_at >= self._probed_at:
            self._probes = 0
        self._probed_at = now  # who hangs up takes its time, and is asked again only after a while
        if self._probes >= PROBES_MAX:
            return HeartbeatResult.DEAD
        self._probes += 1
        return HeartbeatResult.PROBE


def check_heartbeats(
    consumers: Iterable[tuple[Port, Heartbeat]], now: float
) -> tuple[list[tuple[Port, Reply]], float]:
    """Check all connections of a channel: whom to ping or hang up on, and when to look again."""
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
    # Surveys of many connections keep a distance, or each one's deadline would survey them all.
    return replies, max(earliest, now + count * SURVEY_GAP_S_PER_GUEST) if count else earliest
