"""What the reads of one pass of the loop brought, handled together, then written together.

Reading fifty sockets first, then running the same code fifty times, then writing fifty times keeps
the processor's caches warm: measured against a call for each read, twice the requests a second at
one request per read, and replies to several connections leave in one write each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

BYTES_MAX = 2**20


class LoopPassWire(Protocol):
    """A wire whose reads and writes may wait for the turn."""

    def take(self, data: bytes) -> None:
        """Hand `data` to the session."""

    def write_out(self) -> None:
        """Write what `write` left waiting."""

    def abort(self) -> None: ...


class LoopPass:
    """Collects reads until the loop's next pass, at most BYTES_MAX of them."""

    __slots__ = ("_arrivals", "_arrived_bytes", "_dirty", "_endings", "_loop", "is_running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrivals: deque[tuple[LoopPassWire, bytes]] = deque()
        self._arrived_bytes = 0
        self._dirty: deque[LoopPassWire] = deque()
        self._endings: deque[Callable[[], None]] = deque()
        self.is_running = False

    def arrived(self, wire: LoopPassWire, data: bytes) -> None:
        if not self._arrivals:
            self._loop.call_soon(self.run)
        self._arrivals.append((wire, data))
        self._arrived_bytes += len(data)
        if self._arrived_bytes > BYTES_MAX:
            self.run()

    def has_written(self, wire: LoopPassWire) -> None:
        """`wire` has something to write at the end of this turn."""
        self._dirty.append(wire)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call back when all reads of this turn are handled, before anything is written."""
        self._endings.append(callback)

    def run(self) -> None:
        """Handle what arrived. What raises ends its own wire, and the loop reports it; what was to
        come behind it comes in the loop's next pass."""
        arrivals = self._arrivals
        if self.is_running or not (arrivals or self._endings or self._dirty):
            return
        self.is_running = True
        self._arrived_bytes = 0
        in_hand: LoopPassWire | None = None
        try:
            while arrivals:
                in_hand, data = arrivals.popleft()
                in_hand.take(data)
            in_hand = None
        finally:
            try:
                while self._endings:
                    self._endings.popleft()()
            finally:
                self._finish(in_hand)

    def _finish(self, broken: LoopPassWire | None) -> None:
        self.is_running = False
        dirty = self._dirty
        in_hand: LoopPassWire | None = None
        try:
            while dirty:
                in_hand = dirty.popleft()
                in_hand.write_out()
            in_hand = None
        finally:
            if self._arrivals or self._endings or dirty:
                self._loop.call_soon(self.run)
            for wire in (in_hand, broken):
                if wire is not None:
                    wire.abort()
