"""Statistics of each protocol: connections, requests, bytes, and sampled latencies.

Requests are counted a read at a time. Latencies are sampled, as reading the clock for each request
would cost as much as a part of the request itself.
"""

from __future__ import annotations

from millpond.actors.histogram import SECONDS, Histogram

PROTOCOLS = ("p2p", "ws", "s3p", "rustlog", "http")
SAMPLE_GAP_S = 0.01
"""At most a hundred samples a second for each protocol; below that rate every request is one, but
for those that come while one is timed on their connection."""


class ProtocolStats:
    """The statistics of one protocol.

    A request that comes at or after `sample_at` is timed: `start_sample` is called with the time it
    came, `end_sample` when it is answered. `latency` is in seconds.
    """

    __slots__ = ("bytes_in", "connections", "latency", "requests", "sample_at")

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.bytes_in = 0
        self.latency = Histogram(SECONDS)
        self.sample_at = 0.0

    def start_sample(self, now: float) -> None:
        """A request that is timed has come."""
        self.sample_at = now + SAMPLE_GAP_S

    def end_sample(self, began_at: float, now: float) -> None:
        """The request that came at `began_at` is answered."""
        self.latency.add(now - began_at)


def stats_by_protocol() -> dict[str, ProtocolStats]:
    """The statistics of a node, by protocol."""
    return {name: ProtocolStats() for name in PROTOCOLS}
