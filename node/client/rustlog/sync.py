"""The blocking RustLog client: `with connect_rustlog("127.0.0.1:7403") as rustlog`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Self

from millpond.node.client.events import Event
from millpond.node.client.requests.batching import DEFAULT_BATCHING, BatchSettings
from millpond.node.client.requests.reconnecting import REQUESTS_MAX
from millpond.node.client.rustlog.client import (
    ADDRESS,
    CONSUMER,
    FETCH_BYTES,
    ConsumedRecord,
    ConsumerSettings,
)
from millpond.node.client.rustlog.client import Rustlog as AsyncRustlog
from millpond.node.client.rustlog.client import RustlogConsumer as AsyncRustlogConsumer
from millpond.node.client.rustlog.client import connect_rustlog as connect_rustlog_async
from millpond.node.client.rustlog.forms import FormName
from millpond.node.client.rustlog.producer import PartitionOffset
from millpond.node.client.rustlog.producer import RustlogProducer as AsyncRustlogProducer
from millpond.node.client.sync.portal import Blocking, BlockingContext, SyncFuture
from millpond.transports.rustlog import messages as m


class RustlogProducer(Blocking[AsyncRustlogProducer]):
    """Appends records to a topic. Those of one partition keep the order of the calls.

    A record with a `key` goes where all with this key go (CRC-32 modulo the partitions), one with
    a `partition` there, others to one partition after the other. Where the outcome of a batch is
    unknown, its records fail with OutcomeUnknown and are not sent again.
    """

    @property
    def partitions(self) -> int:
        return self._async.partitions

    @property
    def buffered(self) -> int:
        """The number of records that have no result yet."""
        return self._async.buffered

    def produce(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> PartitionOffset:
        """Take a record and wait until it is kept; its partition and offset."""
        return self._await(self._async.produce, data, key=key, partition=partition)

    def send(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> SyncFuture[PartitionOffset]:
        """Take a record, waiting for room in the buffer; the future of its offset."""
        return self._await_send(self._async.send, data, key=key, partition=partition)

    def send_nowait(
        self, data: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> SyncFuture[PartitionOffset]:
        """`send` without waiting; anyio.WouldBlock when the buffer is full."""
        return self._send(self._async.send_nowait, data, key=key, partition=partition)

    def flush(self) -> None:
        """Send what waits, and wait for the results of all that was taken so far.

        Raises the first error of a record whose result nobody awaited.
        """
        self._await(self._async.flush)

    def close(self) -> None:
        """`flush`, and take no more."""
        self._await(self._async.aclose)


class RustlogConsumer(Blocking[AsyncRustlogConsumer]):
    """An iterator over partitions, for one task at a time. Each record comes at least once.

    A record counts as processed once the next one is asked for, or the block ends without an error.
    `skipped` records were trimmed before they were read.
    """

    @property
    def skipped(self) -> int:
        return self._async.skipped

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset of the next record to process."""
        return self._async.positions

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        """The next record of any partition. Raises RequestErrors and ConnectionLost."""
        return self._next(self._async.__anext__)

    def commit(self) -> None:
        """Commit the offsets of processed records; the current record is not."""
        self._await(self._async.commit)

    def seek(self, partition: int, offset: int) -> None:
        """Continue at `offset`, forwards or backwards. Raises KeyError for other partitions."""
        self._call(self._async.seek, partition, offset)


class Rustlog(BlockingContext[AsyncRustlog]):
    """An open client; see `connect_rustlog`. Tasks may share it.

    Methods raise RustlogRefused for what the server refuses. After a lost connection they raise
    NotDone for a request without effect, and OutcomeUnknown for one that may have had one.
    """

    @property
    def connected(self) -> bool:
        """Whether a connection is live now; the next request dials if none is."""
        return self._async.connected

    @property
    def closed(self) -> bool:
        """Not open yet, closed here, or lost for good."""
        return self._async.closed

    def produce(self, topic: str, records: bytes | Sequence[bytes], *, partition: int = 0) -> int:
        """Append one record or several to a partition, all or none; the offset of the first."""
        return self._await(self._async.produce, topic, records, partition=partition)

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_bytes: int = FETCH_BYTES,
        group: str = "",
    ) -> m.FetchResponse:
        """Records from `offset` (inclusive) on, about `max_bytes` of them; none at the end.

        `group` is for the server's metrics alone, and not sent in the binary form, which has no
        timestamps either (0). Raises OffsetOutOfRange below the first record that is kept.
        """
        return self._await(
            self._async.fetch, topic, offset, partition=partition, max_bytes=max_bytes, group=group
        )

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit the offset of a consumer group: the next one that it will process.

        Raises UnknownPartition where there is no such partition.
        """
        self._await(self._async.commit, group, topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The committed offset of a consumer group; None: it committed none."""
        return self._await(self._async.committed, group, topic, partition)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. Raises TopicExists."""
        self._await(self._async.create_topic, topic, partitions)

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, by name."""
        return self._await(self._async.topics)

    def describe(self, topic: str) -> list[m.PartitionRow]:
        """The offsets and sizes of each partition; of these the binary form has the high watermark
        alone, and 0 for the others.
        """
        return self._await(self._async.describe, topic)

    def describe_partition(self, topic: str, partition: int = 0) -> m.DescribePartitionResponse:
        """The offsets and sizes of one partition; see `describe`."""
        return self._await(self._async.describe_partition, topic, partition)

    def metrics(self) -> m.MetricsFetchResponse:
        """The server's metrics; in the binary form those that are one number each, and the text."""
        return self._await(self._async.metrics)

    def ping(self) -> None:
        """Wait until the server has answered all requests before."""
        self._await(self._async.ping)

    @contextmanager
    def producer(
        self, topic: str, settings: BatchSettings = DEFAULT_BATCHING
    ) -> Generator[RustlogProducer]:
        """Produce single records in batches, over all partitions; flushed at the block's end."""
        with self._enter(self._async.producer(topic, settings)) as opened:
            yield RustlogProducer(opened, self._portal)

    @contextmanager
    def consumer(
        self,
        group: str,
        topic: str,
        partitions: Iterable[int] | None = None,
        settings: ConsumerSettings = CONSUMER,
    ) -> Generator[RustlogConsumer]:
        """Follow partitions (None: all) from the group's committed offsets, and commit new ones.

        Partitions are not distributed within a group: each consumer names its own.
        """
        with self._enter(self._async.consumer(group, topic, partitions, settings)) as opened:
            yield RustlogConsumer(opened, self._portal)


def connect_rustlog(
    address: str = ADDRESS,
    *,
    form: FormName = "json",
    tls: ssl.SSLContext | None = None,
    reconnect: bool = True,
    wait_s: float = 0.0,
    answer_s: float = 30.0,
    requests_max: int = REQUESTS_MAX,
    on_event: Callable[[Event], None] | None = None,
    rng: Random | None = None,
) -> Rustlog:
    """Connect to the server at `address` (host:port), and close with the block.

    `address` may be several, separated by commas: a connection that is lost or refused is followed
    by one to the next.

    `form`: `json` or `binary`; a node speaks both on one port. `tls`: the context for a server with
    TLS; `millpond.client_context` makes one. `wait_s`: keep trying for so long when the server is
    not there yet. After a loss, the next request reconnects, with backoff, unless `reconnect` is
    off; `on_event` is called with each change. `answer_s`: a server that is silent for so long
    while requests are under way counts as lost. `requests_max`: requests under way; more of them
    wait.

    Raises ConnectionLost, and ValueError for arguments.
    """
    return Rustlog(
        partial(
            connect_rustlog_async,
            address,
            form=form,
            tls=tls,
            reconnect=reconnect,
            wait_s=wait_s,
            answer_s=answer_s,
            requests_max=requests_max,
            on_event=on_event,
            rng=rng,
        )
    )
