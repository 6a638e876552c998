"""What comes by each protocol, and how long its requests take.

Requests are counted where a read is taken apart, whole reads at once. Latencies are sampled: a look
at the clock for each request would cost as much as a part of the request itself.
"""

from __future__ import annotations

from millpond.actors.histogram import SECONDS, Histogram

PROTOCOLS = ("p2p", "ws", "s3p", "rustlog", "http")
SAMPLE_GAP_S = 0.01
"""At most a hundred samples a second for each protocol; below that rate every request is one, but
of those that come while one is under way on their connection."""


class ProtocolStats:
    """Of one protocol. Who hears something at or after `sample_at` takes a sample: `begin` says
    when it was heard, `end` when it was answered. `latency`: in seconds."""

    __slots__ = ("bytes_in", "connections", "latency", "requests", "sample_at")

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.bytes_in = 0
        self.latency = Histogram(SECONDS)
        self.sample_at = 0.0

    def begin(self, now: float) -> None:
        """A sample begins."""
        self.sample_at = now + SAMPLE_GAP_S

    def end(self, began_at: float, now: float) -> None:
        """What began then is answered."""
        self.latency.add(now - began_at)


def stats_by_protocol() -> dict[str, ProtocolStats]:
    """For a node: one for each protocol."""
    return {name: ProtocolStats() for name in PROTOCOLS}
