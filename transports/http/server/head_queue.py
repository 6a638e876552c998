"""A fair queue of HTTP/2 connections whose heads wait to be decoded.

HPACK and the checks of a head take processor time: 27 KB with Huffman codes take 5 ms. One turn of
the event loop decodes so many bytes for all connections together; then everything else has its
turn. The connection that has had the least decoded of late is next, so a client with a small head
does not wait for those that send long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

TURN_BYTES = 2**14
"""Decoded in one turn, and the rest of the head that goes beyond it; about 4 ms."""
BYTES_PER_S = 2**16
"""The decoded bytes counted for a connection decay at this rate."""
HEAD_BYTES = 2**8
"""The cost of a head by itself: its stream, and the pseudo headers."""
FIELD_BYTES = 32
"""The cost of a field by itself, as in the size of a header list (RFC 9113, 6.5.2)."""
EXPANDED_PER_BYTE = 8
"""Bytes that a table expands to take so much less time than a byte with Huffman codes."""


def head_cost(block_bytes: int, fields: int, expanded_bytes: int) -> int:
    """The cost of a head, in bytes with Huffman codes that take as long."""
    list_bytes = expanded_bytes + fields * FIELD_BYTES
    return HEAD_BYTES + block_bytes + list_bytes // EXPANDED_PER_BYTE


class HeadReader(Protocol):
    """A connection that has heads decoded."""

    decoded_until: float
    """The time at which all that it has had decoded is forgotten."""

    def read_on(self) -> bool:
        """Decode one head of the input that waits. True: there is more."""


class HeadQueue:
    """The turns of the connections of one listener."""

    def __init__(
        self, now: Callable[[], float], call_next_turn: Callable[[Callable[[], None]], None]
    ) -> None:
        self._now = now
        self._call_next_turn = call_next_turn
        self._bytes_left = TURN_BYTES
        self._waiting: list[tuple[float, int, HeadReader]] = []
        self._numbers = count()
        self._is_turn_due = False

    @property
    def is_free(self) -> bool:
        """A head may be decoded at once."""
        return self._bytes_left > 0 and not self._waiting

    def spend(self, reader: HeadReader, cost: int) -> None:
        """Count a head that was decoded."""
        self._bytes_left -= cost
        reader.decoded_until = max(reader.decoded_until, self._now()) + cost / BYTES_PER_S
        self._request_turn()

    def wait(self, reader: HeadReader) -> None:
        """Have `read_on` called in a later turn, until nothing more waits."""
        heappush(self._waiting, (reader.decoded_until, next(self._numbers), reader))
        self._request_turn()

    def _request_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._call_next_turn(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._bytes_left = TURN_BYTES
        try:
            while self._waiting and self._bytes_left > 0:
                _, _, reader = heappop(self._waiting)
                if reader.read_on():
                    self.wait(reader)
        finally:
            if self._waiting:
                self._request_turn()
