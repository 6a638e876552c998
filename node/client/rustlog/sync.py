"""The RustLog client for programs without an event loop: `with connect_rustlog() as rustlog`.

The same surface as `node.client.rustlog.client`, each call blocking until its result is there. Any
thread
may use it; `on_event` is called in the event loop's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from anyio.from_thread import BlockingPortal

from millpond.node.client.requests.batching import DEFAULT_BATCHING, BatchSettings
from millpond.node.client.rustlog import client as asynchronous
from millpond.node.client.rustlog import consumer as rustlog_consumer
from millpond.node.client.rustlog import producer as rustlog_producer
from millpond.node.client.rustlog.client import FETCH_BYTES
from millpond.node.client.rustlog.consumer import CONSUMER, ConsumedRecord, ConsumerSettings
from millpond.node.client.rustlog.producer import Place
from millpond.node.client.sync.portal import SyncFuture, blocking, posted
from millpond.transports.rustlog.messages import (
    DescribePartitionResponse,
    FetchResponse,
    MetricsFetchResponse,
    PartitionRow,
)


class Producer:
    """See `millpond.node.client.rustlog.producer.Producer`."""

    def __init__(self, producer: rustlog_producer.Producer, portal: BlockingPortal) -> None:
        self.partitions = producer.partitions
        self._producer = producer
        self._portal = portal

    @property
    def buffered(self) -> int:
        return self._producer.buffered

    def produce(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> Place:
        return self._portal.call(
            partial(self._producer.produce, data, key=key, partition=partition)
        )

    def post(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> SyncFuture[Place]:
        async def post() -> SyncFuture[Place]:
            answer = await self._producer.post(data, key=key, partition=partition)
            return SyncFuture(answer, self._portal)

        return self._portal.call(post)

    def post_nowait(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> SyncFuture[Place]:
        post = partial(self._producer.post_nowait, data, key=key, partition=partition)
        return posted(post, self._portal)

    def flush(self) -> None:
        self._portal.call(self._producer.flush)

    def close(self) -> None:
        self._portal.call(self._producer.aclose)


class Consumer:
    """See `millpond.node.client.rustlog.consumer.Consumer`."""

    def __init__(self, consumer: rustlog_consumer.Consumer, portal: BlockingPortal) -> None:
        self._consumer = consumer
        self._portal = portal

    @property
    def skipped(self) -> int:
        return self._consumer.skipped

    @property
    def positions(self) -> dict[int, int]:
        return self._consumer.positions

    def __iter__(self) -> Iterator[ConsumedRecord]:
        return self

    def __next__(self) -> ConsumedRecord:
        return self._portal.call(self._consumer.__anext__)

    def commit(self) -> None:
        self._portal.call(self._consumer.commit)

    def seek(self, partition: int, offset: int) -> None:
        self._portal.call(self._consumer.seek, partition, offset)


class Rustlog:
    """An open client; every method is that of `node.client.rustlog.client.Rustlog`, blocking."""

    def __init__(self, rustlog: asynchronous.Rustlog, portal: BlockingPortal) -> None:
        self._rustlog = rustlog
        self._portal = portal

    @property
    def connected(self) -> bool:
        return self._rustlog.connected

    @property
    def closed(self) -> bool:
        return self._rustlog.closed

    def produce(self, topic: str, records: bytes | Sequence[bytes], *, partition: int = 0) -> int:
        return self._portal.call(
            partial(self._rustlog.produce, topic, records, partition=partition)
        )

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_bytes: int = FETCH_BYTES,
        group: str = "",
    ) -> FetchResponse:
        fetch = partial(self._rustlog.fetch, topic, offset, partition=partition)
        return self._portal.call(partial(fetch, max_bytes=max_bytes, group=group))

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._portal.call(self._rustlog.commit, group, topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        return self._portal.call(self._rustlog.committed, group, topic, partition)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._portal.call(self._rustlog.create_topic, topic, partitions)

    def topics(self) -> dict[str, int]:
        return self._portal.call(self._rustlog.topics)

    def describe(self, topic: str) -> list[PartitionRow]:
        return self._portal.call(self._rustlog.describe, topic)

    def describe_partition(self, topic: str, partition: int = 0) -> DescribePartitionResponse:
        return self._portal.call(self._rustlog.describe_partition, topic, partition)

    def metrics(self) -> MetricsFetchResponse:
        return self._portal.call(self._rustlog.metrics)

    def ping(self) -> None:
        self._portal.call(self._rustlog.ping)

    @contextmanager
    def producer(
        self, topic: str, settings: BatchSettings = DEFAULT_BATCHING
    ) -> Generator[Producer]:
        opening = self._rustlog.producer(topic, settings)
        with self._portal.wrap_async_context_manager(opening) as producer:
            yield Producer(producer, self._portal)

    @contextmanager
    def consumer(
        self,
        group: str,
        topic: str,
        partitions: Iterable[int] | None = None,
        settings: ConsumerSettings = CONSUMER,
    ) -> Generator[Consumer]:
        opening = self._rustlog.consumer(group, topic, partitions, settings)
        with self._portal.wrap_async_context_manager(opening) as consumer:
            yield Consumer(consumer, self._portal)

    def close(self) -> None:
        self._portal.call(self._rustlog.aclose)


connect_rustlog = blocking(asynchronous.connect_rustlog, Rustlog)
