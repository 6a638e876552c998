"""Batching of requests: those of several connections for one cell, in one pass of the loop.

Fifty clients that append to one stream cost it one chunk, one record of the journal and one run
instead of fifty. No request waits for that: all came in the same pass (`Wire.soon`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millpond.actors.messages import Batch, CellMessage, Port


class BatchedPort(Port, Protocol):
    """A connection whose requests are batched."""

    def must_wait(self, cell: bytes) -> None:
        """The mailbox of the cell is full: give it nothing more until it has room."""


Share = tuple[BatchedPort, list[CellMessage], int]
"""The messages of one connection, and their size in bytes."""


class CellBatcher:
    """The batches of all connections of a node. `submit` gives one to a cell; False: it is full."""

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
        """Add messages of a connection; `soon` calls back at the end of this pass of the loop."""
        shares = self._shares.get(cell)
        if shares is not None:
            shares.append((port, messages, size_bytes))
            return
        is_first = not self._shares
        self._shares[cell] = [(port, messages, size_bytes)]
        if is_first:
            soon(self.submit_all)

    def submit_all(self) -> None:
        """Submit all batches, also if one of the cells raises."""
        # One at a time: `submit_now` may take a batch out meanwhile.
        waiting, now = self._shares, self._now()
        try:
            while waiting:
                cell, shares = waiting.popitem()
                self._submit_shares(cell, shares, now)
        finally:
            if waiting:  # nothing else submits these
                self.submit_all()

    def submit_now(self, cell: bytes) -> None:
        """Submit the batch of one cell: a request that is not batched follows."""
        shares = self._shares.pop(cell, None)
        if shares is not None:
            self._submit_shares(cell, shares, self._now())

    def _submit_shares(self, cell: bytes, shares: list[Share], now: float) -> None:
        if len(shares) == 1:
            port, messages, size_bytes = shares[0]
            batch = Batch(port, messages, size_bytes)
        else:
            batch = _merged(shares)
        if not self._submit(cell, batch, now):
            for port in dict.fromkeys(port for port, _, _ in shares):
                port.must_wait(cell)


def _merged(shares: list[Share]) -> Batch:
    ports: list[Port] = []
    mail: list[CellMessage] = []
    for port, messages, _ in shares:
        ports += [port] * len(messages)
        mail += messages
    return Batch(None, mail, sum(size for _, _, size in shares), ports)
