"""Locks of writers: one request at a time decides on the parts of a writer's batches.

A publication that has checked its parts must not lose one before the stream has the decision, and a
repeated publication waits for the first one instead of doing its work again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class WriterLocks:
    """The locks that are held or waited for, by the stream's cell and the writer."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[tuple[bytes, bytes], tuple[anyio.Lock, int]] = {}

    def is_held(self, target: bytes, writer: bytes) -> bool:
        """True: a request publishes batches of the writer, or drops parts of them."""
        return (target, writer) in self._locks

    @asynccontextmanager
    async def hold(self, target: bytes, writer: bytes) -> AsyncIterator[None]:
        """Hold the lock of a writer for a block."""
        key = target, writer
        lock, users = self._locks.get(key) or (anyio.Lock(), 0)
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1
