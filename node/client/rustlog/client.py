"""A client of RustLog: `async with connect_rustlog("127.0.0.1:7403") as rustlog`.

It works with any server of the protocol, in its JSON form or its binary one. Requests of many tasks
are pipelined on one connection; the server answers them one after the other.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from random import Random
from typing import Literal, Self, TypeVar

import anyio
import msgspec

from millpond.actors.errors import DataTooLarge, OutcomeUnknown, RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.events import Event
from millpond.node.client.openable import Client
from millpond.node.client.payload import as_bodies
from millpond.node.client.requests.batching import DEFAULT_BATCHING, Batcher, BatchSettings
from millpond.node.client.requests.errors import (
    BadReply,
    InvalidRequest,
    NoSpace,
    NotDone,
    OffsetOutOfRange,
    RecordTooLarge,
    RustlogRefused,
    ServerFailed,
    StoreFailed,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.requests.failover import Failover
from millpond.node.client.requests.reconnecting import (
    REQUESTS_MAX,
    ReconnectingConnection,
    ReconnectSettings,
    open_connection,
)
from millpond.node.client.rustlog.forms import FORMS, Form, FormName, Wire
from millpond.node.client.rustlog.producer import PartitionOffset, RustlogProducer
from millpond.node.client.tracing import hook
from millpond.transports.rustlog import messages as m
from millpond.transports.rustlog.binary_messages import ErrorCode

ADDRESS = "127.0.0.1:7403"
FETCH_BYTES = 2**20

T = TypeVar("T")

REFUSALS: dict[int, type[RustlogRefused]] = {
    m.TOPIC_NOT_FOUND: UnknownTopic,
    m.PARTITION_NOT_FOUND: UnknownPartition,
    m.RECORD_TOO_LARGE: RecordTooLarge,
    m.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    m.STORAGE_ERROR: StoreFailed,
    m.INSUFFICIENT_SPACE: NoSpace,
    ErrorCode.FETCH_FAILED: OffsetOutOfRange,
    ErrorCode.COMMIT_FAILED: NoSpace,
    ErrorCode.NOT_FOUND: UnknownPartition,
    ErrorCode.DESCRIBE_TOPIC_FAILED: UnknownTopic,
    ErrorCode.DESCRIBE_PARTITION_FAILED: UnknownPartition,
}
"""By the codes of both forms; 500 means the same in both."""
TOO_LARGE = "Failed to write record: record too large"
"""The binary form has no code of its own for that (RB-14)."""


RETRY_S = 0.2
IDLE_S_MIN = 0.005
LEAVE_S = 2.0


class ConsumerSettings(msgspec.Struct, frozen=True):
    """Settings of a consumer. `start`: the offset of a group that committed none.

    `on_trimmed`: for records that were trimmed before they were read, raise OffsetOutOfRange, or
    skip them and count them in `skipped`. `commit_ms`: the interval of automatic commits; None:
    only `commit` does. `fetch_bytes`: the approximate size of a fetch. `idle_ms`: the longest pause
    without new records; RustLog has no fetch that waits.
    """

    start: Literal["earliest", "latest"] = "earliest"
    on_trimmed: Literal["raise", "skip"] = "raise"
    commit_ms: int | None = 1000
    fetch_bytes: int = 2**20
    idle_ms: int = 100


CONSUMER = ConsumerSettings()


class ConsumedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a partition; `timestamp` in microseconds since the Unix epoch, 0 in the binary
    form, which has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    data: bytes


class RustlogConsumer:
    """An iterator over partitions, for one task at a time. Each record comes at least once.

    A record counts as processed once the next one is asked for, or the block ends without an error.
    `skipped` records were trimmed before they were read.
    """

    skipped: int

    def __init__(
        self,
        rustlog: Rustlog,
        group: str,
        topic: str,
        offsets: dict[int, int],
        settings: ConsumerSettings,
    ) -> None:
        self.skipped = 0
        self._rustlog = rustlog
        self._group = group
        self._topic = topic
        self._settings = settings
        self._fetch_at = dict(offsets)
        self._processed = dict(offsets)
        self._committed = dict(offsets)
        self._ready: deque[ConsumedRecord] = deque()
        self._current: ConsumedRecord | None = None
        self._commit_at = 0.0
        self._idle_s = IDLE_S_MIN
        self._errors: list[Exception] = []

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset of the next record to process."""
        return dict(self._processed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """The next record of any partition. Raises RequestErrors and ConnectionLost."""
        self._finish_current()
        while True:
            await self._commit_if_due()
            if self._ready:
                self._current = self._ready.popleft()
                return self._current
            await self._fetch_all()

    async def commit(self) -> None:
        """Commit the offsets of processed records; the current record is not."""
        for partition, offset in self._processed.items():
            if self._committed[partition] != offset:
                await self._commit(partition, offset)
                self._committed[partition] = offset

    def seek(self, partition: int, offset: int) -> None:
        """Continue at `offset`, forwards or backwards. Raises KeyError for other partitions."""
        if partition not in self._processed:
            raise KeyError(partition)
        self._processed[partition] = self._fetch_at[partition] = offset
        self._ready = deque(one for one in self._ready if one.partition != partition)
        if self._current is not None and self._current.partition == partition:
            self._current = None

    @asynccontextmanager
    async def committing(self) -> AsyncIterator[None]:
        """Commit at the end of the block, with automatic commits."""
        is_clean = False
        try:
            yield
            is_clean = True
        finally:
            if is_clean:
                self._finish_current()
            if self._settings.commit_ms is not None and not self._rustlog.closed:
                with anyio.move_on_after(LEAVE_S, shield=True):
                    await self.commit()

    def _finish_current(self) -> None:
        if self._current is not None:
            self._processed[self._current.partition] = self._current.offset + 1
            self._current = None

    async def _commit_if_due(self) -> None:
        commit_ms = self._settings.commit_ms
        if commit_ms is None or anyio.current_time() < self._commit_at:
            return
        await self.commit()
        self._commit_at = anyio.current_time() + commit_ms / 1000

    async def _commit(self, partition: int, offset: int) -> None:
        """Commit until there is a reply: the same commit twice is one."""
        while True:
            try:
                return await self._rustlog.commit(self._group, self._topic, partition, offset)
            except (NotDone, OutcomeUnknown) as error:
                if self._rustlog.closed or isinstance(error, ServerFailed):
                    raise
            await anyio.sleep(RETRY_S)

    async def _fetch_all(self) -> None:
        """Fetch the next records of every partition; pause where none has any."""
        self._errors.clear()
        async with anyio.create_task_group() as tasks:
            for partition in self._fetch_at:
                tasks.start_soon(self._fetch, partition)
        if self._ready:
            self._idle_s = IDLE_S_MIN
            return
        for error in self._errors:
            if self._rustlog.closed or not isinstance(error, NotDone):
                raise error
        await anyio.sleep(RETRY_S if self._errors else self._idle_s)
        self._idle_s = min(2 * self._idle_s, self._settings.idle_ms / 1000)

    async def _fetch(self, partition: int) -> None:
        offset = self._fetch_at[partition]
        try:
            fetched = await self._rustlog.fetch(
                self._topic,
                offset,
                partition=partition,
                max_bytes=self._settings.fetch_bytes,
                group=self._group,
            )
        except OffsetOutOfRange as error:
            self._trimmed(partition, offset, error)
            return
        except (RequestError, ConnectionLost) as error:
            self._errors.append(error)
            return
        self._fetch_at[partition] = fetched.next_offset
        self._ready.extend(
            ConsumedRecord(self._topic, partition, one.offset, one.timestamp, one.data)
            for one in fetched.records
        )

    def _trimmed(self, partition: int, offset: int, error: OffsetOutOfRange) -> None:
        if self._settings.on_trimmed == "raise" or error.start is None or error.start <= offset:
            self._errors.append(error)
        else:
            self.skipped += error.start - offset
            self._fetch_at[partition] = error.start


async def first_offsets(
    rustlog: Rustlog,
    group: str,
    topic: str,
    partitions: Iterable[int] | None,
    settings: ConsumerSettings,
) -> dict[int, int]:
    """The first offset by partition. Raises UnknownTopic and UnknownPartition."""
    rows = {row.partition: row for row in await rustlog.describe(topic)}
    chosen = sorted(rows) if partitions is None else list(partitions)
    offsets: dict[int, int] = {}
    for partition in chosen:
        offset = await rustlog.committed(group, topic, partition)
        if offset is None:
            row = rows.get(partition) or await rustlog.describe_partition(topic, partition)
            is_first = settings.start == "earliest"
            offset = row.log_start_offset if is_first else row.high_watermark
        offsets[partition] = offset
    return offsets


class Rustlog(Client[ReconnectingConnection[Wire]]):
    """An open client; see `connect_rustlog`. Tasks may share it.

    Methods raise RustlogRefused for what the server refuses. After a lost connection they raise
    NotDone for a request without effect, and OutcomeUnknown for one that may have had one.
    """

    _connection: ReconnectingConnection[Wire]
    _of_connection = frozenset({"_connection"})

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[ReconnectingConnection[Wire]]],
        form: Form,
    ) -> None:
        super().__init__(connect)
        self._form = form

    def _use(self, connection: ReconnectingConnection[Wire]) -> None:
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

    async def produce(
        self, topic: str, records: bytes | Sequence[bytes], *, partition: int = 0
    ) -> int:
        """Append one record or several to a partition, all or none; the offset of the first."""
        bodies = as_bodies(records)
        if not bodies:
            raise ValueError("no records")
        request = m.Produce(topic, partition, bodies)
        if hook.active is None:
            return (await self._ask(request, m.ProduceResponse, has_effect=True)).base_offset
        with hook.active.send(topic, len(bodies), sum(map(len, bodies))) as span:
            first = (await self._ask(request, m.ProduceResponse, has_effect=True)).base_offset
            span.sent(f"{partition}:{first}")
        return first

    async def fetch(
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
        request = m.Fetch(topic, partition, offset, max_bytes, group)
        found = await self._ask(request, m.FetchResponse)
        if hook.active is not None and found.records:
            hook.active.received(topic, (), len(found.records))
        return found

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit the offset of a consumer group: the next one that it will process.

        Raises UnknownPartition where there is no such partition.
        """
        request = m.OffsetCommit(group, topic, partition, offset)
        if not (await self._ask(request, m.OffsetCommitResponse, has_effect=True)).success:
            raise UnknownPartition(m.PARTITION_NOT_FOUND, f"there is no {topic}/{partition}")

    async def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The committed offset of a consumer group; None: it committed none."""
        request = m.OffsetFetch(group, topic, partition)
        return (await self._ask(request, m.OffsetFetchResponse)).offset

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. Raises TopicExists."""
        request = m.CreateTopic(topic, partitions)
        if not (await self._ask(request, m.CreateTopicResponse, has_effect=True)).success:
            raise TopicExists(f"there is a topic {topic!r}")

    async def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, by name."""
        listed = await self._ask(m.ListTopics(), m.ListTopicsResponse)
        return {row.name: row.partition_count for row in listed.topics}

    async def describe(self, topic: str) -> list[m.PartitionRow]:
        """The offsets and sizes of each partition; of these the binary form has the high watermark
        alone, and 0 for the others."""
        return (await self._ask(m.DescribeTopic(topic), m.DescribeTopicResponse)).partitions

    async def describe_partition(
        self, topic: str, partition: int = 0
    ) -> m.DescribePartitionResponse:
        """The offsets and sizes of one partition; see `describe`."""
        return await self._ask(m.DescribePartition(topic, partition), m.DescribePartitionResponse)

    async def metrics(self) -> m.MetricsFetchResponse:
        """The server's metrics; in the binary form those that are one number each, and the text."""
        return await self._ask(m.MetricsFetch(), m.MetricsFetchResponse)

    async def ping(self) -> None:
        """Wait until the server has answered all requests before."""
        await self._ask(m.Ping(), m.Pong)

    @asynccontextmanager
    async def producer(
        self, topic: str, settings: BatchSettings = DEFAULT_BATCHING
    ) -> AsyncIterator[RustlogProducer]:
        """Produce single records in batches, over all partitions; flushed at the block's end."""
        partitions = len(await self.describe(topic))
        form = self._form

        def request(partition: int, bodies: list[bytes]) -> bytes:
            return _encode(form, m.Produce(topic, partition, bodies))

        def read(response: Wire, partition: int, count: int) -> list[PartitionOffset]:
            return _read_offsets(form.read(None, response), partition, count)

        batcher = Batcher(self._connection, request, read, settings, topic, _shown_offset)
        async with batcher.running():
            yield RustlogProducer(batcher, partitions)

    @asynccontextmanager
    async def consumer(
        self,
        group: str,
        topic: str,
        partitions: Iterable[int] | None = None,
        settings: ConsumerSettings = CONSUMER,
    ) -> AsyncIterator[RustlogConsumer]:
        """Follow partitions (None: all) from the group's committed offsets, and commit new ones.

        Partitions are not distributed within a group: each consumer names its own.
        """
        offsets = await first_offsets(self, group, topic, partitions, settings)
        consumer = RustlogConsumer(self, group, topic, offsets, settings)
        async with consumer.committing():
            yield consumer

    async def _ask(self, request: m.Request, kind: type[T], *, has_effect: bool = False) -> T:
        form = self._form

        def read(found: Wire) -> T:
            response = form.read(request, found)
            if isinstance(response, kind):
                return response
            raise _refusal(response)

        frame = _encode(form, request)
        return await self._connection.request(frame, read, has_effect=has_effect)


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
    spoken = FORMS.get(form)
    if spoken is None:
        raise ValueError(f"form: json or binary, not {form!r}")

    settings = ReconnectSettings(
        dial=Failover(address, tls).dial,
        replies=spoken.decoder,
        closing_error=closing_error(spoken),
        reconnect=reconnect,
        wait_s=wait_s,
        answer_s=answer_s,
        requests_max=requests_max,
        on_event=on_event,
    )
    return Rustlog(partial(open_connection, settings, rng), spoken)


def _encode(form: Form, request: m.Request) -> bytes:
    frame = form.encode(request)
    if len(frame) - 4 > m.FRAME_BYTES_MAX:
        raise DataTooLarge(f"a frame holds {m.FRAME_BYTES_MAX} bytes, not {len(frame) - 4}")
    return frame


def closing_error(form: Form) -> Callable[[Wire, bool], RequestError | None]:
    """Tells the error of a closed connection: an Error response without a request."""

    def read(found: Wire, is_waiting: bool) -> RequestError | None:
        response = None if is_waiting else form.read(None, found)
        return _refused(response) if isinstance(response, m.Error) else None

    return read


def _refusal(response: m.Response) -> RequestError | BadReply:
    if isinstance(response, m.Error):
        return _refused(response)
    return BadReply(f"the server answers with {type(response).__name__}")


def _refused(error: m.Error) -> RequestError:
    rest = ServerFailed if error.code >= m.INTERNAL_SERVER_ERROR else InvalidRequest
    kind = REFUSALS.get(error.code, rest)
    if error.message.startswith(TOO_LARGE):
        kind = RecordTooLarge
    return kind(error.code, error.message, error.details)


def _shown_offset(place: PartitionOffset) -> str:
    return f"{place.partition}:{place.offset}"


def _read_offsets(response: m.Response, partition: int, count: int) -> list[PartitionOffset]:
    if not isinstance(response, m.ProduceResponse):
        raise _refusal(response)
    if response.record_count != count:
        raise BadReply(f"the server kept {response.record_count} of {count} records")
    first = response.base_offset
    return [PartitionOffset(partition, offset) for offset in range(first, first + count)]
