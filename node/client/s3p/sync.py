"""The S3P client for programs without an event loop: `with connect_s3p(address) as s3p`.

The same surface as `node.client.s3p.client`, each call blocking until its result is there. Any
thread may
use it; `on_event` is called in the event loop's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from anyio.from_thread import BlockingPortal

from millpond.node.client.requests.batching import DEFAULT_BATCHING, BatchSettings
from millpond.node.client.s3p import client as asynchronous
from millpond.node.client.s3p.client import FOLLOW_MS
from millpond.node.client.s3p.records import FIRST, IdLike, Record, RecordId
from millpond.node.client.sync.portal import SyncFuture, blocking, iterate, posted


class Producer:
    """See `millpond.node.client.s3p.client.Producer`."""

    def __init__(self, producer: asynchronous.Producer, portal: BlockingPortal) -> None:
        self._producer = producer
        self._portal = portal

    @property
    def buffered(self) -> int:
        return self._producer.buffered

    def append(self, data: bytes) -> RecordId:
        return self._portal.call(self._producer.append, data)

    def post(self, data: bytes) -> SyncFuture[RecordId]:
        async def post() -> SyncFuture[RecordId]:
            return SyncFuture(await self._producer.post(data), self._portal)

        return self._portal.call(post)

    def post_nowait(self, data: bytes) -> SyncFuture[RecordId]:
        return posted(partial(self._producer.post_nowait, data), self._portal)

    def flush(self) -> None:
        self._portal.call(self._producer.flush)

    def close(self) -> None:
        self._portal.call(self._producer.aclose)


class S3p:
    """An open client; every method is that of `millpond.node.client.s3p.client.S3p`, blocking."""

    def __init__(self, s3p: asynchronous.S3p, portal: BlockingPortal) -> None:
        self._s3p = s3p
        self._portal = portal

    @property
    def connected(self) -> bool:
        return self._s3p.connected

    @property
    def closed(self) -> bool:
        return self._s3p.closed

    def create(self, stream: str | bytes) -> None:
        self._portal.call(self._s3p.create, stream)

    def append(
        self, stream: str | bytes, records: bytes | Sequence[bytes], *, ms: int | None = None
    ) -> RecordId:
        return self._portal.call(partial(self._s3p.append, stream, records, ms=ms))

    def read(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = 0,
    ) -> list[Record]:
        read = partial(self._s3p.read, stream, min_id, count=count, block_ms=block_ms)
        return self._portal.call(read)

    def follow(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = FOLLOW_MS,
    ) -> Iterator[Record]:
        records = self._s3p.follow(stream, min_id, count=count, block_ms=block_ms)
        return iterate(records, self._portal)

    def trim(self, stream: str | bytes, min_id: IdLike) -> None:
        self._portal.call(self._s3p.trim, stream, min_id)

    def delete(self, stream: str | bytes) -> None:
        self._portal.call(self._s3p.delete, stream)

    @contextmanager
    def producer(
        self, stream: str | bytes, settings: BatchSettings = DEFAULT_BATCHING
    ) -> Generator[Producer]:
        opening = self._s3p.producer(stream, settings)
        with self._portal.wrap_async_context_manager(opening) as producer:
            yield Producer(producer, self._portal)

    def close(self) -> None:
        self._portal.call(self._s3p.aclose)


connect_s3p = blocking(asynchronous.connect_s3p, S3p)
