"""What followers of a stream have in common: those who wait for the same records wait together, and
what comes is written once for all of them."""

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
    """Of all streams of a node."""

    __slots__ = ("_cursor", "_piece", "_spans", "_waits")

    def __init__(self) -> None:
        self._waits: dict[Key, _Wait] = {}
        self._spans: Sequence[RecordColumns] = ()
        self._cursor = b""
        self._piece = b""

    async def wait(self, key: Key, read: Callable[[], Awaitable[Records]]) -> Records:
        """What `read` finds. Who asks for what somebody else waits for already waits with it; if
        that one leaves, one of the others asks. Raises Refusal."""
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
        """What was written last, if it was of these very records; else None."""
        return self._piece if spans is self._spans and cursor == self._cursor else None

    def keep(self, spans: Sequence[RecordColumns], cursor: bytes, piece: bytes) -> bytes:
        """What was written of records, for the next one who is shown them."""
        self._spans, self._cursor, self._piece = spans, cursor, piece
        return piece
