"""A client of RustLog: `async with connect_rustlog("127.0.0.1:7403") as rustlog`.

It speaks to any server of the protocol. Calls of many tasks share a connection and are pipelined;
the server answers them one after the other.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from anyio.abc import TaskGroup

from millpond.actors.errors import DataTooLarge, RequestError
from millpond.node.client.events import Event
from millpond.node.client.requests.batching import DEFAULT_BATCHING, Batcher, BatchSettings
from millpond.node.client.requests.errors import (
    BadReply,
    InvalidRequest,
    NoSpace,
    OffsetOutOfRange,
    RecordTooLarge,
    RustlogRefused,
    ServerFailed,
    StoreFailed,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.requests.reconnecting import (
    REQUESTS_MAX,
    ReconnectingConnection,
    ReconnectSettings,
    open_connection,
)
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.rustlog.consumer import (
    CONSUMER,
    ConsumerSettings,
    RustlogConsumer,
    first_offsets,
)
from millpond.node.client.rustlog.producer import PartitionOffset, RustlogProducer
from millpond.node.environment import current_environment
from millpond.transports.io import tcp
from millpond.transports.io.address import parse_address
from millpond.transports.io.interface import Session
from millpond.transports.rustlog import messages as m
from millpond.transports.rustlog.client_codec import ResponseDecoder, encode_request

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
}


class Rustlog:
    """An open client; see `connect_rustlog`. Tasks may share it.

    Every call raises RustlogRefused for what the server refuses, NotDone when the connection was
    lost and the call had no effect, OutcomeUnknown when it was lost and nobody knows.
    """

    def __init__(self, connection: ReconnectingConnection[m.Response]) -> None:
        self._connection = connection

    @property
    def connected(self) -> bool:
        """Whether a connection stands now; the next request dials if none does."""
        return self._connection.current is not None

    @property
    def closed(self) -> bool:
        """Closed here, or lost for good."""
        return self._connection.error is not None

    async def produce(
        self, topic: str, records: bytes | Sequence[bytes], *, partition: int = 0
    ) -> int:
        """Add one record or several to a partition, all or none; the offset of the first."""
        bodies = [records] if isinstance(records, bytes) else list(records)
        if not bodies:
            raise ValueError("no records")
        request = m.Produce(topic, partition, bodies)
        return (await self._ask(request, m.ProduceResponse, has_effect=True)).base_offset

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

        `group` is for the server's figures alone. Raises OffsetOutOfRange below the first record
        that is kept.
        """
        request = m.Fetch(topic, partition, offset, max_bytes, group)
        return await self._ask(request, m.FetchResponse)

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """A consumer group got as far as `offset`, the next one it will process.

        Raises UnknownPartition where there is no such partition.
        """
        request = m.OffsetCommit(group, topic, partition, offset)
        if not (await self._ask(request, m.OffsetCommitResponse, has_effect=True)).success:
            raise UnknownPartition(m.PARTITION_NOT_FOUND, f"there is no {topic}/{partition}")

    async def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """How far a consumer group got; None: it committed nothing there."""
        request = m.OffsetFetch(group, topic, partition)
        return (await self._ask(request, m.OffsetFetchResponse)).offset

    async def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Make a topic; TopicExists if there is one."""
        request = m.CreateTopic(topic, partitions)
        if not (await self._ask(request, m.CreateTopicResponse, has_effect=True)).success:
            raise TopicExists(f"there is a topic {topic!r}")

    async def topics(self) -> dict[str, int]:
        """How many partitions each topic has, by name."""
        listed = await self._ask(m.ListTopics(), m.ListTopicsResponse)
        return {row.name: row.partition_count for row in listed.topics}

    async def describe(self, topic: str) -> list[m.PartitionRow]:
        """What each partition holds."""
        return (await self._ask(m.DescribeTopic(topic), m.DescribeTopicResponse)).partitions

    async def describe_partition(
        self, topic: str, partition: int = 0
    ) -> m.DescribePartitionResponse:
        """What one partition holds."""
        return await self._ask(m.DescribePartition(topic, partition), m.DescribePartitionResponse)

    async def metrics(self) -> m.MetricsFetchResponse:
        """The server's figures."""
        return await self._ask(m.MetricsFetch(), m.MetricsFetchResponse)

    async def ping(self) -> None:
        """Return when the server has answered all before."""
        await self._ask(m.Ping(), m.Pong)

    @asynccontextmanager
    async def producer(
        self, topic: str, settings: BatchSettings = DEFAULT_BATCHING
    ) -> AsyncIterator[RustlogProducer]:
        """Produce single records in batches, over all partitions; flushed at the block's end."""
        partitions = len(await self.describe(topic))

        def request(partition: int, bodies: list[bytes]) -> bytes:
            return _encode(m.Produce(topic, partition, bodies))

        batcher = Batcher(self._connection, request, _read_offsets, settings)
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
        """Follow partitions (None: all) from where the group got to, and commit how far it gets.

        Groups do not share partitions out: who is to have which is the program's to say.
        """
        offsets = await first_offsets(self, group, topic, partitions, settings)
        consumer = RustlogConsumer(self, group, topic, offsets, settings)
        async with consumer.committing():
            yield consumer

    async def aclose(self) -> None:
        """Close; requests under way fail, later ones with NotDone."""
        await self._connection.stop()

    async def _ask(self, request: m.Request, kind: type[T], *, has_effect: bool = False) -> T:
        def read(response: m.Response) -> T:
            if isinstance(response, kind):
                return response
            raise _refusal(response)

        return await self._connection.request(_encode(request), read, has_effect=has_effect)


@asynccontextmanager
async def connect_rustlog(
    address: str = ADDRESS,
    *,
    tls: ssl.SSLContext | None = None,
    reconnect: bool = True,
    wait_s: float = 0.0,
    answer_s: float = 30.0,
    requests_max: int = REQUESTS_MAX,
    on_event: Callable[[Event], None] | None = None,
    rng: Random | None = None,
) -> AsyncIterator[Rustlog]:
    """Connect to the server at `address` (host:port), and close with the block.

    `tls`: what a server is asked for that speaks TLS; `node.tls.contexts.client_context` makes one.
    `wait_s`: keep trying for so long when the server is not there yet. Later losses are mended when
    a request needs it, with backoff, unless `reconnect` is off; `on_event` hears of them.
    `answer_s`: a server that is silent for so long while requests are under way counts as lost.
    `requests_max`: requests under way; more of them wait their turn.

    Raises ConnectionLost, and ValueError for arguments.
    """
    host, port = parse_address(address)

    async def dial(tasks: TaskGroup, session: Session) -> None:
        await tcp.dial(tasks, host, port, session, tls=tls)

    settings = ReconnectSettings(
        dial=dial,
        replies=ResponseDecoder,
        closing_error=closing_error,
        reconnect=reconnect,
        wait_s=wait_s,
        answer_s=answer_s,
        requests_max=requests_max,
        on_event=on_event,
    )
    async with open_connection(
        settings, ReconnectBackoff(rng or current_environment().rng())
    ) as connection:
        yield Rustlog(connection)


def _encode(request: m.Request) -> bytes:
    frame = encode_request(request)
    if len(frame) - 4 > m.FRAME_BYTES_MAX:
        raise DataTooLarge(f"a frame holds {m.FRAME_BYTES_MAX} bytes, not {len(frame) - 4}")
    return frame


def closing_error(response: m.Response, is_waiting: bool) -> RequestError | None:
    """An Error that answers nothing says why the connection is closed."""
    if isinstance(response, m.Error) and not is_waiting:
        return _refused(response)
    return None


def _refusal(response: m.Response) -> RequestError | BadReply:
    if isinstance(response, m.Error):
        return _refused(response)
    return BadReply(f"the server answers with {type(response).__name__}")


def _refused(error: m.Error) -> RequestError:
    rest = ServerFailed if error.code >= m.INTERNAL_SERVER_ERROR else InvalidRequest
    kind = REFUSALS.get(error.code, rest)
    return kind(error.code, error.message, error.details)


def _read_offsets(response: m.Response, partition: int, count: int) -> list[PartitionOffset]:
    if not isinstance(response, m.ProduceResponse):
        raise _refusal(response)
    if response.record_count != count:
        raise BadReply(f"the server kept {response.record_count} of {count} records")
    first = response.base_offset
    return [PartitionOffset(partition, offset) for offset in range(first, first + count)]
