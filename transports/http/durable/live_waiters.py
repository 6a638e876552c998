"""Waiters of live reads: reads that wait for the same records share one wait, and the response is
encoded once for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from millpond.actors.streams.messages import RecordColumns, Records
from millpond.transports.http.durable.errors import DurableError

Key = tuple[bytes, int, int]
"""A cell, the incarnation of its stream, and a sequence."""


class _Wait:
    """A read that one follower awaits, for all of them."""

    __slots__ = ("done", "records", "refusal")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.records: Records | None = None
        self.refusal: DurableError | None = None


class LiveWaiters:
    """The waiters of all streams of a node."""

    __slots__ = ("_cursor", "_piece", "_spans", "_waits")

    def __init__(self) -> None:
        self._waits: dict[Key, _Wait] = {}
        self._spans: Sequence[RecordColumns] = ()
        self._cursor = b""
        self._piece = b""

    async def wait(self, key: Key, read: Callable[[], Awaitable[Records]]) -> Records:
        """The records that `read` finds. A caller with the key of another one waits with it; if
        that one leaves, one of the others reads. Raises DurableError."""
        while True:
            wait = self._waits.get(key)
            if wait is None:
                return await self._read(key, read)
            await wait.done.wait()
            if wait.refusal is not None:
                raise DurableError(wait.refusal.status, wait.refusal.code, str(wait.refusal))
            if wait.records is not None:
                return wait.records

    async def _read(self, key: Key, read: Callable[[], Awaitable[Records]]) -> Records:
        wait = self._waits[key] = _Wait()
        try:
            wait.records = await read()
        except DurableError as refusal:
            wait.refusal = refusal
            raise
        finally:
            del self._waits[key]
            wait.done.set()
        return wait.records

    def written(self, spans: Sequence[RecordColumns], cursor: bytes) -> bytes | None:
        """The piece that was encoded last, if it was of these records; else None."""
        return self._piece if spans is self._spans and cursor == self._cursor else None

    def keep(self, spans: Sequence[RecordColumns], cursor: bytes, piece: bytes) -> bytes:
        """Keep the encoded piece of these records for the next reader."""
        self._spans, self._cursor, self._piece = spans, cursor, piece
        return piece
