"""A producer of RustLog: single records in batches, each in the partition of its key."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple
from zlib import crc32

from millpond.node.client.payload import as_bytes
from millpond.node.client.requests.batching import Batcher, RecordFuture
from millpond.node.client.rustlog.forms import Wire


class PartitionOffset(NamedTuple):
    """The place of a record in a topic."""

    partition: int
    offset: int


class RustlogProducer:
    """Appends records to a topic. Those of one partition keep the order of the calls.

    A record with a `key` goes where all with this key go (CRC-32 modulo the partitions), one with
    a `partition` there, others to one partition after the other. Where the outcome of a batch is
    unknown, its records fail with OutcomeUnknown and are not sent again.
    """

    partitions: int

    def __init__(self, batcher: Batcher[Wire, PartitionOffset], partitions: int) -> None:
        self.partitions = partitions
        self._batcher = batcher
        self._turn = count()

    @property
    def buffered(self) -> int:
        """The number of records that have no result yet."""
        return self._batcher.buffered

    async def produce(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> PartitionOffset:
        """Take a record and wait until it is kept; its partition and offset."""
        return await (await self.send(data, key=key, partition=partition))

    async def send(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> RecordFuture[PartitionOffset]:
        """Take a record, waiting for room in the buffer; the future of its offset."""
        return await self._batcher.send(self._partition(key, partition), as_bytes(data))

    def send_nowait(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> RecordFuture[PartitionOffset]:
        """`send` without waiting; anyio.WouldBlock when the buffer is full."""
        return self._batcher.send_nowait(self._partition(key, partition), as_bytes(data))

    async def flush(self) -> None:
        """Send what waits, and wait for the results of all that was taken so far.

        Raises the first error of a record whose result nobody awaited.
        """
        await self._batcher.flush()

    async def aclose(self) -> None:
        """`flush`, and take no more."""
        await self._batcher.close()

    def _partition(self, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            if not 0 <= partition < self.partitions:
                raise ValueError(f"the topic has the partitions 0 to {self.partitions - 1}")
            return partition
        if key is not None:
            return crc32(key) % self.partitions
        return next(self._turn) % self.partitions
