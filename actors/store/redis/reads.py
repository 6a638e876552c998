"""Reads of partitions in Redis; they block, in the thread of the store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

from millpond.actors.messages import Mode
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.store.changes import Chunk, LogSnapshot, Snapshot
from millpond.actors.store.reads import select_chunks
from millpond.actors.store.redis.commands import Command
from millpond.actors.store.redis.connection import RedisConnection
from millpond.actors.store.redis.errors import RedisMoving, RedisRefused
from millpond.actors.store.redis.layout import (
    ACKS,
    ATTRIBUTES,
    BOUNDS,
    DATA,
    KEYS,
    MESSAGES,
    METADATA,
    SEQUENCE_MAX,
    SUBSCRIBERS,
    ChunkBounds,
    LogBounds,
    PartitionKeys,
    QueueContent,
    read_bounds,
)

ENTRIES_MAX = 256
"""The most entries of `bounds` that one command asks for."""


def load_queue(connection: RedisConnection, keys: PartitionKeys, mode: Mode | None) -> Snapshot:
    """All of a queue. Raises RedisAway, RedisMoving, RedisRefused, BadChange."""
    parts = (MESSAGES, KEYS, ATTRIBUTES, SUBSCRIBERS, ACKS)
    snapshot = QueueContent(*(connection.scan(keys[part]) for part in parts)).snapshot()
    if snapshot.rows or snapshot.keys or snapshot.subscribers is not None:
        snapshot.mode = mode
    return snapshot


def load_log(
    connection: RedisConnection, keys: PartitionKeys, bounds: LogBounds, size: int
) -> LogSnapshot:
    """The bounds and metadata of a log. Raises RedisAway, RedisMoving, RedisRefused."""
    return LogSnapshot(
        bounds.trim_point,
        bounds.tail,
        bounds.last_id,
        bounds.last_timestamp,
        connection.scan(keys[METADATA]),
        size,
    )


def read_log(
    connection: RedisConnection, keys: PartitionKeys, seek: Seek, trim_point: int
) -> list[Chunk]:
    """The chunks that a seek asks for. Raises RedisAway, RedisMoving, RedisRefused, BadChange."""
    log = _Log(connection, keys)
    first = log.start(seek, max(seek.sequence, trim_point))
    if first is None:
        return []
    found: list[ChunkBounds] = []
    bytes_left, count_left, at = seek.bytes_max, seek.count_max, first.first
    while True:
        entries = log.entries(at, min(ENTRIES_MAX, max(count_left, 1)))
        for each in entries:
            bytes_left -= each.size
            if found:
                if bytes_left < 0 or count_left <= 0:
                    return select_chunks((log.chunks(found),), seek, trim_point)
                count_left -= each.count
            found.append(each)
        if not entries:
            return select_chunks((log.chunks(found),), seek, trim_point)
        at = entries[-1].first + 1


class _Log:
    """The chunks of one log."""

    def __init__(self, connection: RedisConnection, keys: PartitionKeys) -> None:
        self._connection = connection
        self._keys = keys

    def start(self, seek: Seek, sequence: int) -> ChunkBounds | None:
        """The first chunk that a seek asks for; None: there is none."""
        first = self._holding(sequence)
        if first is None or first.end <= sequence:
            first = next(iter(self.entries(sequence, 1)), None)
        last = self._holding(SEQUENCE_MAX)
        if first is None or last is None:
            return None
        match seek.by:
            case SeekBy.SEQUENCE:
                return first
            case SeekBy.TIMESTAMP:
                is_before = partial(_ends_before_timestamp, seek)
            case SeekBy.ID:
                is_before = partial(_ends_before_id, seek)
            case _:
                assert_never(seek.by)
        if is_before(last):
            return None
        low, high = first.first, last.first
        while low < high:
            half = (low + high) // 2
            middle = self._holding(half)
            if middle is None or is_before(middle):
                low = half + 1 if middle is None else max(middle.end, half + 1)
            else:
                high = middle.first
        return next(iter(self.entries(low, 1)), None)

    def _holding(self, sequence: int) -> ChunkBounds | None:
        """The last chunk that begins at or below a sequence."""
        above = f"{sequence}-{SEQUENCE_MAX}"
        found = self._run(("XREVRANGE", self._keys[BOUNDS], above, "-", "COUNT", 1))
        return read_bounds(found[0]) if found else None

    def entries(self, sequence: int, count: int) -> list[ChunkBounds]:
        """Chunks that begin at or above a sequence, in order."""
        found = self._run(("XRANGE", self._keys[BOUNDS], f"{sequence}-0", "+", "COUNT", count))
        return [read_bounds(each) for each in found]

    def chunks(self, bounds: Sequence[ChunkBounds]) -> list[Chunk]:
        """Chunks with their data; one whose data is gone says that its records are lost."""
        if not bounds:
            return []
        found = self._run(("HMGET", self._keys[DATA], *(str(each.first) for each in bounds)))
        return [each.chunk(data or b"") for each, data in zip(bounds, found, strict=True)]

    def _run(self, command: Command) -> Any:
        (reply,) = self._connection.run([command])
        if isinstance(reply, RedisRefused | RedisMoving):
            raise reply
        return reply


def _ends_before_timestamp(seek: Seek, chunk: ChunkBounds) -> bool:
    return chunk.last_timestamp < seek.timestamp


def _ends_before_id(seek: Seek, chunk: ChunkBounds) -> bool:
    return chunk.last_id < seek.id
