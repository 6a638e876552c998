"""What several connections ask of one cell in one pass of the loop, handed over as one batch.

Fifty clients that append to one stream cost it one chunk, one record of the journal and one turn
instead of fifty. Nobody waits for it: it is what the same pass brought (`Wire.soon`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millpond.actors.messages import Batch, CellMessage, Port


class BatchedPort(Port, Protocol):
    """A connection whose requests are gathered."""

    def must_wait(self, cell: bytes) -> None:
        """The cell's mailbox is full: ask for nothing more until it has room."""


Share = tuple[BatchedPort, list[CellMessage], int]
"""What one connection gives, and its size in bytes."""


class CellBatcher:
    """One for all connections of a node. `submit` gives a batch to a cell; False: it is full."""

    __slots__ = ("_now", "_shares", "_submit")

    def __init__(
        self, submit: Callable[[bytes, Batch, float], bool], now: Callable[[], float]
    ) -> None:
        self._submit = submit
        self._now = now
        self._shares: dict[bytes, list[Share]] = {}

    def add(
        self,
        cell: bytes,
        port: BatchedPort,
        messages: list[CellMessage],
        size_bytes: int,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """Take messages of a connection; `soon` calls back at the end of this pass of the loop."""
        shares = self._shares.get(cell)
        if shares is not None:
            shares.append((port, messages, size_bytes))
            return
        is_first = not self._shares
        self._shares[cell] = [(port, messages, size_bytes)]
        if is_first:
            soon(self.submit_all)

    def submit_all(self) -> None:
        """Everything that was gathered goes to its cell, also if one of them raises."""
        # One at a time: what is still to be given may be asked for meanwhile (`submit_now`).
        waiting, now = self._shares, self._now()
        try:
            while waiting:
                cell, shares = waiting.popitem()
                self._give(cell, shares, now)
        finally:
            if waiting:  # nobody else gives these
                self.submit_all()

    def submit_now(self, cell: bytes) -> None:
        """What this cell is to be given goes there now: something comes behind it."""
        shares = self._shares.pop(cell, None)
        if shares is not None:
            self._give(cell, shares, self._now())

    def _give(self, cell: bytes, shares: list[Share], now: float) -> None:
        if len(shares) == 1:
            port, messages, size_bytes = shares[0]
            batch = Batch(port, messages, size_bytes)
        else:
            batch = _together(shares)
        if not self._submit(cell, batch, now):
            for port in dict.fromkeys(port for port, _, _ in shares):
                port.must_wait(cell)


def _together(shares: list[Share]) -> Batch:
    ports: list[Port] = []
    mail: list[CellMessage] = []
    for port, messages, _ in shares:
        ports += [port] * len(messages)
        mail += messages
    return Batch(None, mail, sum(size for _, _, size in shares), ports)
