"""The cell of a catalog: what the catalogs of topics, basins and access tokens have in common.

A catalog is a log without records: each of its entries is a key of the log's metadata. It changes
in one cell, and tells the rest of the node in memory which entries there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Port,
    Reply,
    StreamRequest,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.streams.messages import CancelRead

DELETE_RETRY_S = 30.0
"""Streams that are to be deleted with their topic or basin are told again after this time."""

T = TypeVar("T")


class Catalog(Protocol):
    """The entries of one catalog."""

    deadline: float
    """The time at which `wake` has work to do; infinity: never."""

    @property
    def is_empty(self) -> bool:
        """True: there are no entries."""

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        """The reply to a request; None: there is none, or another cell replies."""

    def wake(self, now: float, effects: Effects) -> None:
        """The deadline passed."""


class CatalogCell:
    """The behaviour of a catalog's cell."""

    __slots__ = ("_catalog", "deadline")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.deadline = catalog.deadline

    @property
    def is_empty(self) -> bool:
        return self._catalog.is_empty

    @property
    def can_passivate(self) -> bool:
        return True

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return ()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            if isinstance(message, Drain | Detach | CancelRead):
                continue
            reply = self._catalog.answer(batch.port, message, now, effects)
            if reply is not None and batch.port is not None:
                effects.batch_replies.append(reply)
        self.deadline = self._catalog.deadline
        return effects

    def wake(self, now: float) -> Effects:
        effects = Effects()
        self._catalog.wake(now, effects)
        self.deadline = self._catalog.deadline
        return effects


def entries_of(
    snapshot: LogSnapshot, prefix: bytes, decode: Callable[[bytes], T]
) -> dict[bytes, T]:
    """The entries whose keys begin with a prefix, by the rest of their keys."""
    return {
        key[len(prefix) :]: decode(value)
        for key, value in snapshot.metadata.items()
        if key.startswith(prefix)
    }
