"""The node, as requests for transactions see it, and counters of transactions."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.transactions.locks import WriterLocks
from millpond.transports.server.interface import StreamDirectory


class TransactionCounters(msgspec.Struct):
    """Rows that were staged; batches that were published, whole, and their rows; batches that were
    published before and not again."""

    staged_rows: int = 0
    published: int = 0
    published_rows: int = 0
    duplicates: int = 0


class StagedParts(StreamDirectory, Protocol):
    """Parts that are not published yet, by their cells."""

    @property
    def unwanted(self) -> set[bytes]:
        """Parts that are being removed on request."""


class TransactionNodeServices(S2NodeServices, Protocol):
    """The node, as requests about transactions see it."""

    @property
    def stages(self) -> StagedParts:
        """The cells of all parts that are not published."""

    @property
    def transactions(self) -> TransactionCounters:
        """The counters of batches."""

    @property
    def writer_locks(self) -> WriterLocks:
        """The locks of writers whose batches are being published."""
