"""A batching producer: it gathers single records into batches, and has a result for each record.

Batches of one partition leave in order; several may be under way. A batch that was sent is never
sent again: where its outcome is unknown its records fail with OutcomeUnknown. Records that were not
sent wait for the next connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
import msgspec

from millpond.actors.errors import RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.future import ReplyFuture
from millpond.node.client.requests.errors import BadReply, NotSent
from millpond.node.client.requests.pipeline import (
    LostOutcome,
    PipelinedClientConnection,
    lost_error,
)
from millpond.node.client.requests.reconnecting import ReconnectingConnection
from millpond.node.client.tracing import Name, OpenSpan, hook
from millpond.node.error_groups import single_errors
from millpond.transports.errors import WireError

RECORD_OVERHEAD = 32

R = TypeVar("R")
T = TypeVar("T")


class BatchSettings(msgspec.Struct, frozen=True):
    """Settings of batches.

    A batch leaves when it is `linger_ms` old, or has `records_max` records, or `bytes_max` bytes (a
    larger record goes alone). `in_flight_max`: batches of a partition under way. `buffer_records`
    and `buffer_bytes` bound the records that have no result yet.
    """

    linger_ms: float = 5.0
    records_max: int = 500
    bytes_max: int = 2**20
    in_flight_max: int = 4
    buffer_records: int = 10_000
    buffer_bytes: int = 32 * 2**20

    def check(self) -> None:
        """Raises ValueError for what cannot work."""
        counts = (self.records_max, self.bytes_max, self.in_flight_max, self.buffer_records)
        if self.linger_ms < 0 or min(counts) < 1:
            raise ValueError("linger_ms must be 0 or more, the limits of a batch 1 or more")


DEFAULT_BATCHING = BatchSettings()


class RecordFuture(ReplyFuture[T]):
    """The future of one record: its result, or the error of its batch."""

    __slots__ = ("is_claimed",)

    def __init__(self) -> None:
        super().__init__()
        self.is_claimed = False

    async def wait(self) -> T:
        self.is_claimed = True
        return await super().wait()


class _FlushGroup:
    """The records between two flushes."""

    __slots__ = ("event", "left")

    def __init__(self) -> None:
        self.left = 0
        self.event = anyio.Event()


class _Record(Generic[T]):
    __slots__ = ("data", "future", "group", "origin")

    def __init__(self, data: bytes, group: _FlushGroup) -> None:
        self.origin = None if hook.active is None else hook.active.origin()
        self.data = data
        self.future: RecordFuture[T] = RecordFuture()
        self.group = group


class _Partition(Generic[T]):
    __slots__ = ("due_at", "in_flight", "number", "size", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[_Record[T]] = deque()
        self.size = 0
        self.due_at = 0.0
        self.in_flight = 0


class _Batch(Generic[R, T]):
    """A request with the records of one batch, and their results."""

    def __init__(
        self,
        batcher: Batcher[R, T],
        partition: _Partition[T],
        records: list[_Record[T]],
        results: Results[R, T],
        span: OpenSpan | None,
    ) -> None:
        self._batcher = batcher
        self._partition = partition
        self._records = records
        self._results = results
        self._span = span

    def answered(self, reply: R) -> WireError | None:
        self._partition.in_flight -= 1
        try:
            values = self._results(reply, self._partition.number, len(self._records))
        except RequestError as error:
            self._settle(error)
        except BadReply as error:
            self._settle(lost_error(LostOutcome.UNKNOWN, str(error), True))
            return error
        else:
            self._settle(values)
        return None

    def lost(self, outcome: LostOutcome, reason: str) -> None:
        self._partition.in_flight -= 1
        self._settle(lost_error(outcome, reason, True))

    def _settle(self, results: Sequence[T] | Exception) -> None:
        if self._span is not None:
            if isinstance(results, Exception):
                self._span.end(None, results)
            else:
                self._span.end(self._batcher.shown_id(results[-1]), None)
        self._batcher.settle(self._records, results)


Request = Callable[[int, list[bytes]], bytes]
"""The request that appends these records to a partition."""

Results = Callable[[R, int, int], Sequence[T]]
"""The result of each of so many records of a partition; raises RequestErrors and BadReply."""


class Batcher(Generic[R, T]):
    """A batcher of records for any number of partitions."""

    def __init__(
        self,
        connection: ReconnectingConnection[R],
        request: Request,
        results: Results[R, T],
        settings: BatchSettings,
        destination: Name,
        shown_id: Callable[[T], str] = str,
    ) -> None:
        """`destination` and `shown_id`, which makes the text of a result, are for traces."""
        settings.check()
        self._destination = destination
        self.shown_id = shown_id
        self._connection = connection
        self._request = request
        self._results = results
        self._settings = settings
        self._limit = FlowLimit(settings.buffer_records, settings.buffer_bytes)
        self._partitions: dict[int, _Partition[T]] = {}
        self._busy: dict[int, _Partition[T]] = {}
        self._open_group = _FlushGroup()
        self._flushing: list[_FlushGroup] = []
        self._unclaimed: list[tuple[RecordFuture[T], Exception]] = []
        self._wake = anyio.Event()
        self._error: Exception | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run beside the block. Its end flushes; an error in it drops what was not sent."""
        with single_errors():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run)
                try:
                    yield
                    await self.flush()
                finally:
                    self.stop(ConnectionLost("the producer is closed"))
                    tasks.cancel_scope.cancel()

    @property
    def buffered(self) -> int:
        """The number of records that have no result yet."""
        return self._limit.count

    async def send(self, partition: int, data: bytes) -> RecordFuture[T]:
        """Take a record; waits while the buffer is full."""
        self._check_open()
        size = len(data) + RECORD_OVERHEAD
        if not self._limit.acquire_nowait(size):
            await self._limit.acquire(size)
        return self._take(partition, data, size)

    def send_nowait(self, partition: int, data: bytes) -> RecordFuture[T]:
        """Take a record; anyio.WouldBlock when the buffer is full."""
        self._check_open()
        size = len(data) + RECORD_OVERHEAD
        if not self._limit.acquire_nowait(size):
            raise anyio.WouldBlock
        return self._take(partition, data, size)

    async def flush(self) -> None:
        """Send all records, and wait until they have their results.

        Raises the first error of a record whose future was not awaited.
        """
        if self._open_group.left:
            self._flushing.append(self._open_group)
            self._open_group = _FlushGroup()
        for partition in self._busy.values():
            partition.due_at = 0.0
        self._wake.set()
        for group in list(self._flushing):
            await group.event.wait()
        unclaimed, self._unclaimed = self._unclaimed, []
        for future, error in unclaimed:
            if not future.is_claimed:
                raise error.with_traceback(None)

    async def _run(self) -> None:
        """Send batches as they are due, until the client gives up or is closed."""
        while True:
            if not self._busy:
                await self._sleep(None)
                continue
            try:
                await self._connection.live()
            except ConnectionLost as error:
                self.stop(error)
                return
            await self._sleep(self._send_due())

    async def close(self) -> None:
        """`flush`, and take no more records."""
        try:
            await self.flush()
        finally:
            self.stop(ConnectionLost("the producer is closed"))

    def stop(self, error: Exception) -> None:
        """Take no more; records that were not sent fail."""
        self._error = self._error or error
        for partition in self._busy.values():
            records, partition.waiting = list(partition.waiting), deque()
            self.settle(records, NotSent(str(error)))
        self._busy.clear()

    def settle(self, records: list[_Record[T]], results: Sequence[T] | Exception) -> None:
        """Give every record its result, and release its size."""
        for index, record in enumerate(records):
            future = record.future
            if isinstance(results, Exception):
                future.fail(results)
                self._remember(future, results)
            else:
                future.resolve(results[index])
            self._count_down(record.group)
            self._limit.release(len(record.data) + RECORD_OVERHEAD)
        self._wake.set()

    def _count_down(self, group: _FlushGroup) -> None:
        group.left -= 1
        if not group.left and group is not self._open_group:
            self._flushing.remove(group)
            group.event.set()

    def _remember(self, future: RecordFuture[T], error: Exception) -> None:
        """For `flush`, which raises one error; the number of errors does not matter."""
        self._unclaimed = [pair for pair in self._unclaimed if not pair[0].is_claimed]
        if not self._unclaimed and not future.is_claimed:
            self._unclaimed.append((future, error))

    def _take(self, number: int, data: bytes, size: int) -> RecordFuture[T]:
        if self._error is not None:
            self._limit.release(size)
            self._check_open()
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _Partition(number)
        record: _Record[T] = _Record(data, self._open_group)
        self._open_group.left += 1
        if not partition.waiting:
            partition.due_at = anyio.current_time() + self._settings.linger_ms / 1000
            self._busy[number] = partition
            self._wake.set()
        partition.waiting.append(record)
        partition.size += len(data)
        if self._is_full(partition):
            self._wake.set()
        return record.future

    def _is_full(self, partition: _Partition[T]) -> bool:
        settings = self._settings
        return (
            len(partition.waiting) >= settings.records_max or partition.size >= settings.bytes_max
        )

    def _send_due(self) -> float | None:
        """Send the batches that are due. Returns the seconds until the next one, if any."""
        connection = self._connection.current
        if connection is None:
            return 0.0
        now = anyio.current_time()
        next_at: float | None = None
        in_flight_max = self._settings.in_flight_max
        for partition in list(self._busy.values()):
            while partition.waiting and partition.in_flight < in_flight_max:
                if partition.due_at > now and not self._is_full(partition):
                    next_at = min(next_at or partition.due_at, partition.due_at)
                    break
                self._send(connection, partition)
            if not partition.waiting:
                del self._busy[partition.number]
        return None if next_at is None else next_at - now

    def _send(self, connection: PipelinedClientConnection[R], partition: _Partition[T]) -> None:
        records = [partition.waiting.popleft()]
        size = len(records[0].data)
        records_max, bytes_max = self._settings.records_max, self._settings.bytes_max
        while partition.waiting and len(records) < records_max:
            size += len(partition.waiting[0].data)
            if size > bytes_max:
                size -= len(partition.waiting[0].data)
                break
            records.append(partition.waiting.popleft())
        partition.size -= size
        partition.in_flight += 1
        request = self._request(partition.number, [record.data for record in records])
        span = None
        if hook.active is not None:
            origins = [record.origin for record in records]
            span = hook.active.begin_send(self._destination, len(records), size, origins)
        batch = _Batch(self, partition, records, self._results, span)
        connection.send(batch, request, at_once=True)

    async def _sleep(self, delay_s: float | None) -> None:
        if not self._wake.is_set():
            with anyio.move_on_after(delay_s):
                await self._wake.wait()
        self._wake = anyio.Event()

    def _check_open(self) -> None:
        if self._error is not None:
            raise NotSent(str(self._error))
