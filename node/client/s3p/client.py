"""A client of S3P v0.2.0: `async with connect_s3p("127.0.0.1:7402") as s3p`.

It works with any server of the protocol. Requests of many tasks are pipelined on one connection; a
read that waits has a dedicated one, because replies come in the order of the commands.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Self, TypeVar

import anyio

from millpond.actors.errors import EmptyData
from millpond.node.client.events import Event
from millpond.node.client.openable import Client
from millpond.node.client.payload import as_bodies, as_bytes
from millpond.node.client.requests.batching import (
    DEFAULT_BATCHING,
    Batcher,
    BatchSettings,
    RecordFuture,
)
from millpond.node.client.requests.errors import NotDone
from millpond.node.client.requests.failover import Failover
from millpond.node.client.requests.reconnecting import (
    REQUESTS_MAX,
    ReconnectingConnection,
    ReconnectSettings,
    open_connection,
)
from millpond.node.client.s3p.records import (
    FIRST,
    U64_MAX,
    IdLike,
    RecordId,
    S3pRecord,
    closing_error,
    position_of,
    read_id,
    read_ids,
    read_ok,
    read_records,
)
from millpond.node.client.tracing import hook
from millpond.transports.s3p import client_codec as wire
from millpond.transports.s3p.client_codec import Reply, ReplyDecoder, ReplyLimits

ADDRESS = "127.0.0.1:7402"
FOLLOW_MS = 5_000
RETRY_S = 0.2

REPLY_LIMITS = ReplyLimits(
    records_max=100_000, record_bytes_max=64 * 2**20, reply_bytes_max=64 * 2**20
)
"""Other servers may be configured to allow more than ours."""

T = TypeVar("T")


class S3p(Client[ReconnectingConnection[Reply]]):
    """An open client; see `connect_s3p`. Tasks may share it.

    Methods raise RequestErrors for what the server refuses. After a lost connection they raise
    NotDone for a request without effect, and OutcomeUnknown for one that may have had one.
    `Malformed` and `LimitExceeded` end the connection: requests behind fail with NotDone.
    """

    _connection: ReconnectingConnection[Reply]
    _of_connection = frozenset({"_connection"})

    def _use(self, connection: ReconnectingConnection[Reply]) -> None:
        self._connection = connection

    async def _end(self) -> None:
        await self._connection.stop()

    @property
    def connected(self) -> bool:
        """Whether a connection is live now; the next request dials if none is."""
        return not self.closed and self._connection.current is not None

    @property
    def closed(self) -> bool:
        """Not open yet, closed here, or lost for good."""
        return "_connection" not in self.__dict__ or self._connection.error is not None

    async def create(self, stream: str | bytes) -> None:
        """Create a stream. Raises StreamExists."""
        await self._connection.request(wire.encode_create(_name(stream)), read_ok, has_effect=True)

    async def append(
        self, stream: str | bytes, records: bytes | Sequence[bytes], *, ms: int | None = None
    ) -> RecordId:
        """Append one record or several, all or none; the id of the last one.

        `ms`: the milliseconds of their ids, else the server's clock. Raises NonMonotonicId when
        the stream has later ids already.
        """
        bodies = as_bodies(records)
        if not bodies:
            raise ValueError("no records")
        if not all(bodies):
            raise EmptyData
        request = wire.encode_append(_name(stream), bodies, _u64(ms, "ms"))
        if hook.active is None:
            return await self._connection.request(request, read_id, has_effect=True)
        with hook.active.send(stream, len(bodies), sum(map(len, bodies))) as span:
            last = await self._connection.request(request, read_id, has_effect=True)
            span.sent(str(last))
        return last

    async def read(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = 0,
    ) -> list[S3pRecord]:
        """Records from `min_id` (inclusive) on, at most `count` (None: the server's default).

        Without one, waits for it for `block_ms` milliseconds.
        """
        if count is not None and count < 1:
            raise ValueError("count must be 1 or more")
        block_ms = _u64(block_ms, "block_ms") or 0
        request = wire.encode_read(
            _name(stream), count=count, block_ms=block_ms, min_id=position_of(min_id)
        )
        if block_ms:
            wait_s = block_ms / 1000
            found = await self._connection.request_dedicated(request, read_records, wait_s)
        else:
            found = await self._connection.request(request, read_records, has_effect=False)
        if hook.active is not None and found:
            hook.active.received(stream, (), len(found))
        return found

    def follow(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = FOLLOW_MS,
    ) -> AsyncIterator[S3pRecord]:
        """Records from `min_id` on, without end: each once, also over lost connections.

        `count`: how many are read at once at most; `block_ms`: how long one read waits, which the
        server must allow.
        """
        return FollowIterator(self, stream, min_id, count, block_ms)

    async def trim(self, stream: str | bytes, min_id: IdLike) -> None:
        """Remove the records below `min_id`."""
        request = wire.encode_trim(_name(stream), position_of(min_id))
        await self._connection.request(request, read_ok, has_effect=True)

    async def delete(self, stream: str | bytes) -> None:
        """Remove a stream with all its records. Raises UnknownStream."""
        await self._connection.request(wire.encode_delete(_name(stream)), read_ok, has_effect=True)

    @asynccontextmanager
    async def producer(
        self, stream: str | bytes, settings: BatchSettings = DEFAULT_BATCHING
    ) -> AsyncIterator[S3pProducer]:
        """Append single records in batches; flushed at the end of the block."""
        name = _name(stream)

        def request(_: int, bodies: list[bytes]) -> bytes:
            return wire.encode_append(name, bodies)

        batcher = Batcher(self._connection, request, read_ids, settings, stream)
        async with batcher.running():
            yield S3pProducer(batcher)


class FollowIterator:
    """An iterator over a stream, for one task at a time. A cancelled step loses no record."""

    def __init__(
        self, s3p: S3p, stream: str | bytes, min_id: IdLike, count: int | None, block_ms: int
    ) -> None:
        if block_ms < 1:
            raise ValueError("block_ms must be 1 or more")
        self._read = partial(s3p.read, stream, count=count, block_ms=block_ms)
        self._s3p = s3p
        self._start = min_id
        self._ready: deque[S3pRecord] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> S3pRecord:
        """The next record. Raises UnknownStream once the stream is deleted."""
        while not self._ready:
            try:
                self._ready.extend(await self._read(self._start))
            except NotDone:
                if self._s3p.closed:
                    raise
                await anyio.sleep(RETRY_S)
        record = self._ready.popleft()
        self._start = record.id.next
        return record


class S3pProducer:
    """Appends records to one stream, in the order of the calls. See `BatchSettings`.

    Where the outcome of a batch is unknown, its records fail with OutcomeUnknown and are not sent
    again: in S3P the server could not know that they are the same.
    """

    def __init__(self, batcher: Batcher[Reply, RecordId]) -> None:
        self._batcher = batcher

    @property
    def buffered(self) -> int:
        """The number of records that have no result yet."""
        return self._batcher.buffered

    async def append(self, data: bytes) -> RecordId:
        """Take a record and wait until it is kept; its id."""
        return await (await self.send(data))

    async def send(self, data: bytes) -> RecordFuture[RecordId]:
        """Take a record, waiting for room in the buffer; the future of its id."""
        return await self._batcher.send(0, _body(data))

    def send_nowait(self, data: bytes) -> RecordFuture[RecordId]:
        """`send` without waiting; anyio.WouldBlock when the buffer is full."""
        return self._batcher.send_nowait(0, _body(data))

    async def flush(self) -> None:
        """Send what waits, and wait for the results of all that was taken so far.

        Raises the first error of a record whose result nobody awaited.
        """
        await self._batcher.flush()

    async def aclose(self) -> None:
        """`flush`, and take no more."""
        await self._batcher.close()


def connect_s3p(
    address: str = ADDRESS,
    *,
    tls: ssl.SSLContext | None = None,
    reconnect: bool = True,
    wait_s: float = 0.0,
    answer_s: float = 30.0,
    requests_max: int = REQUESTS_MAX,
    waiting_max: int = 64,
    on_event: Callable[[Event], None] | None = None,
    rng: Random | None = None,
) -> S3p:
    """Connect to the server at `address` (host:port), and close with the block.

    `address` may be several, separated by commas: a connection that is lost or refused is followed
    by one to the next.

    `tls`: the context for a server with TLS; `millpond.client_context` makes one. `wait_s`: keep
    trying for so long when the server is not there yet. After a loss, the next request reconnects,
    with backoff, unless `reconnect` is off; `on_event` is called with each change. `answer_s`: a
    server that is silent for so long while requests are under way counts as lost.
    `requests_max`: requests under way; `waiting_max`: reads that wait. More of them wait.

    Raises ConnectionLost, and ValueError for arguments.
    """

    settings = ReconnectSettings(
        dial=Failover(address, tls).dial,
        replies=partial(ReplyDecoder, REPLY_LIMITS),
        closing_error=closing_error,
        reconnect=reconnect,
        wait_s=wait_s,
        answer_s=answer_s,
        requests_max=requests_max,
        dedicated_max=waiting_max,
        on_event=on_event,
    )
    return S3p(partial(open_connection, settings, rng))


def _name(stream: str | bytes) -> bytes:
    name = stream.encode() if isinstance(stream, str) else stream
    if not name:
        raise ValueError("a stream's name has at least one byte")
    return name


def _body(data: bytes) -> bytes:
    data = as_bytes(data)
    if not data:
        raise EmptyData
    return data


def _u64(value: int | None, what: str) -> int | None:
    if value is not None and not 0 <= value <= U64_MAX:
        raise ValueError(f"{what} must be within 0..2^64-1")
    return value
