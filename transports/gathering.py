"""What several connections ask of one cell in one pass of the loop, handed over as one batch.

Fifty clients that append to one stream cost it one chunk, one record of the journal and one turn
instead of fifty. Nobody waits for it: it is what the same pass brought (`Wire.soon`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from actors.messages import Batch, Mail, Port


class Gathered(Port, Protocol):
    """A connection whose requests are gathered."""

    def must_wait(self, cell: bytes) -> None:
        """The cell's mailbox is full: ask for nothing more until it has room."""


class _Heap:
    """What one cell is to be given."""

    __slots__ = ("messages", "ports", "size_bytes")

    def __init__(self) -> None:
        self.ports: list[Gathered] = []
        self.messages: list[Mail] = []
        self.size_bytes = 0


class Gathering:
    """One for all connections of a node. `submit` gives a batch to a cell; False: it is full."""

    __slots__ = ("_heaps", "_now", "_submit")

    def __init__(
        self, submit: Callable[[bytes, Batch, float], bool], now: Callable[[], float]
    ) -> None:
        self._submit = submit
        self._now = now
        self._heaps: dict[bytes, _Heap] = {}

    def add(
        self,
        cell: bytes,
        port: Gathered,
        messages: Sequence[Mail],
        size_bytes: int,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Take messages of a connection; `soon` calls back at the end of this pass of the loop."""
        heap = self._heaps.get(cell)
        if heap is None:
            heap = self._heaps[cell] = _Heap()
        heap.ports += [port] * len(messages)
        heap.messages += messages
        heap.size_bytes += size_bytes
        if len(self._heaps) == 1 and len(heap.messages) == len(messages):
            soon(self.hand_over)

    def hand_over(self) -> None:
        """Everything that was gathered goes to its cell."""
        while self._heaps:
            cell, heap = self._heaps.popitem()
            self._give(cell, heap)

    def hand_over_to(self, cell: bytes) -> None:
        """What this cell is to be given goes there now: something comes behind it."""
        heap = self._heaps.pop(cell, None)
        if heap is not None:
            self._give(cell, heap)

    def _give(self, cell: bytes, heap: _Heap) -> None:
        ports = heap.ports
        is_one = ports[0] is ports[-1] and ports.count(ports[0]) == len(ports)
        batch = (
            Batch(ports[0], heap.messages, heap.size_bytes)
            if is_one
            else Batch(None, heap.messages, heap.size_bytes, ports)
        )
        if not self._submit(cell, batch, self._now()):
            for port in dict.fromkeys(ports):
                port.must_wait(cell)
