"""A request whose answer is timed: which packets have one that can be told from all others."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.transports.p2p import packets as p
from millpond.transports.p2p.streams.operations import Operation

_APPEND = bytes((Operation.APPEND,))
_CORRELATION_BYTES = {p.PUT: 4, p.GET: 8, p.JOBS: 4, p.STREAM: 4}
"""What follows the type, comes back in the answer, and behind type and code in a NACK."""


class LatencySample:
    """By type and correlation. `received_at`: when it came."""

    __slots__ = ("_correlation", "_packet_type", "received_at")

    def __init__(self, packet_type: int, correlation: bytes, heard_at: float) -> None:
        self._packet_type = packet_type
        self._correlation = correlation
        self.received_at = heard_at

    def is_answer(self, packet: bytes) -> bool:
        """Is that the answer, or the refusal?"""
        if packet[0] == p.NACK:
            is_about_such = packet[1] == self._packet_type
            return is_about_such and packet.startswith(self._correlation, 3)
        # Every answer has the type that follows its request's.
        return packet[0] == self._packet_type + 1 and packet.startswith(self._correlation, 1)


def first_watched(packets: Iterable[bytes], heard_at: float) -> LatencySample | None:
    """The first of the packets that can be timed; None: there is none."""
    for packet in packets:
        size = _CORRELATION_BYTES.get(packet[0], 0)
        if not 0 < size < len(packet):
            continue
        # Reads of streams may wait for what is still to come.
        if packet[0] != p.STREAM or packet[5:6] == _APPEND:
            return LatencySample(packet[0], packet[1 : 1 + size], heard_at)
    return None
