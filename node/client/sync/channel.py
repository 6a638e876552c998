"""The client for programs without an event loop: `with connect(url, channel="chat/1") as channel`.

The same surface as `node.client.connect`, `node.client.channel` and `node.client.streams.connect`,
each call blocking until its
result is there. All share one event loop in a thread of its own; any thread may use them, and
`on_event` is called in that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from anyio.from_thread import BlockingPortal

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import Position
from millpond.node.client import channel as asynchronous
from millpond.node.client import connect as client
from millpond.node.client.errors import ChannelClosed
from millpond.node.client.in_flight import Receipt
from millpond.node.client.inbox import Counts
from millpond.node.client.message import Message as AsyncMessage
from millpond.node.client.streams.connect import Streams as AsyncStreams
from millpond.node.client.streams.connect import connect_streams as connect_streams_async
from millpond.node.client.streams.records import Appended, Record, StreamInfo
from millpond.node.client.streams.stream import Entry, OnGap, Start
from millpond.node.client.streams.stream import Stream as AsyncStream
from millpond.node.client.sync.portal import SyncFuture, blocking, iterate, posted

if TYPE_CHECKING:
    from millpond.node.client.state.sync import NodeState

Ids = list[int]


class Message:
    """A pushed message. `with message` acknowledges it on success, gives it back on an error."""

    def __init__(self, message: AsyncMessage, channel: Channel, portal: BlockingPortal) -> None:
        self.id = message.id
        self.data = message.data
        self.attempt = message.attempt
        self.channel = channel
        self._message = message
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._message)

    def ack(self) -> None:
        """See `millpond.node.client.message`."""
        self._portal.call(self._message.ack)

    def nack(self, delay: float | None = None, *, reject: bool = False) -> None:
        """See `millpond.node.client.message`."""
        self._portal.call(partial(self._message.nack, delay, reject=reject))

    def decline(self) -> None:
        """See `millpond.node.client.message`."""
        self._portal.call(self._message.decline)

    @property
    def leased(self) -> bool:
        """See `millpond.node.client.message`."""
        return self._message.leased

    def begin(self, *, at_once: bool = True) -> None:
        """See `millpond.node.client.message`."""
        self._portal.call(partial(self._message.begin, at_once=at_once))

    def touch(self, seconds: float) -> float:
        """See `millpond.node.client.message`."""
        return self._portal.call(self._message.touch, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._message.__aexit__, kind, error, trace)


class Channel:
    """An open channel; every method is that of `millpond.node.client.channel.Channel`, blocking."""

    def __init__(self, channel: asynchronous.Channel, portal: BlockingPortal) -> None:
        self.name = channel.name
        self._channel = channel
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._channel)

    @property
    def mode(self) -> Mode | None:
        return self._channel.mode

    @property
    def durability(self) -> Durability | None:
        return self._channel.durability

    @property
    def window(self) -> int:
        return self._channel.window

    @property
    def connected(self) -> bool:
        return self._channel.connected

    @property
    def closed(self) -> bool:
        return self._channel.closed

    @property
    def counts(self) -> Counts:
        return self._channel.counts

    def put(
        self, data: bytes, *, ttl: int = 0, key: int | None = None, retry_for: float = 0.0
    ) -> Receipt:
        put = partial(self._channel.put, data, ttl=ttl, key=key, retry_for=retry_for)
        return self._portal.call(put)

    def put_nowait(
        self, data: bytes, *, ttl: int = 0, key: int | None = None
    ) -> SyncFuture[Receipt]:
        return posted(partial(self._channel.put_nowait, data, ttl=ttl, key=key), self._portal)

    def receive(self, timeout_s: float | None = None) -> Message:
        message = self._portal.call(self._channel.receive, timeout_s)
        return Message(message, self, self._portal)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except ChannelClosed:
            raise StopIteration from None

    def get(self, message_id: int) -> bytes:
        return self._portal.call(self._channel.get, message_id)

    def list(self, start: int = 0, end: int = 0, limit: int = 0) -> Ids:
        return self._portal.call(self._channel.list, start, end, limit)

    @property
    def streams(self) -> Streams:
        return Streams(self._channel.streams, self._portal)

    def ids(self, start: int = 0, end: int = 0) -> Iterator[int]:
        return iterate(self._channel.ids(start, end), self._portal)

    def ack(self, message_id: int) -> None:
        self._portal.call(self._channel.ack, message_id)

    def credit(self, count: int) -> None:
        self._portal.call(self._channel.credit, count)

    def ping(self) -> float:
        return self._portal.call(self._channel.ping)

    def admin(self, operation: int, body: dict[str, Any]) -> dict[str, Any]:
        return self._portal.call(self._channel.admin, operation, body)

    def peers(self, operation: int, body: dict[str, Any]) -> dict[str, Any]:
        return self._portal.call(self._channel.peers, operation, body)

    def jobs(self, operation: int, body: dict[str, Any]) -> dict[str, Any]:
        return self._portal.call(self._channel.jobs, operation, body)

    def flush(self, timeout_s: float = asynchronous.DRAIN_S) -> None:
        self._portal.call(self._channel.flush, timeout_s)

    def close(self) -> None:
        self._portal.call(self._channel.aclose)


class Streams:
    """The streams of a node; every method is that of `node.client.streams.connect.Streams`,
    blocking."""

    def __init__(self, streams: AsyncStreams, portal: BlockingPortal) -> None:
        self._streams = streams
        self._portal = portal

    @property
    def connected(self) -> bool:
        return self._streams.connected

    @property
    def append_bytes_max(self) -> int:
        return self._streams.append_bytes_max

    def stream(self, name: str | bytes) -> Stream:
        return Stream(self._streams.stream(name), self._portal)

    def partition(self, topic: str | bytes, partition: int = 0) -> Stream:
        return Stream(self._portal.call(self._streams.partition, topic, partition), self._portal)

    def names(self, prefix: str | bytes = b"") -> Iterator[bytes]:
        return iterate(self._streams.names(prefix), self._portal)

    def topics(self) -> Iterator[tuple[bytes, int]]:
        return iterate(self._streams.topics(), self._portal)

    def partitions(self, topic: str | bytes) -> int | None:
        return self._portal.call(self._streams.partitions, topic)

    def create_topic(self, topic: str | bytes, partitions: int = 1) -> None:
        self._portal.call(self._streams.create_topic, topic, partitions)

    def delete_topic(self, topic: str | bytes) -> None:
        self._portal.call(self._streams.delete_topic, topic)


class Stream:
    """One stream; every method is that of `node.client.streams.stream.Stream`, blocking. `twin` is
    that one."""

    def __init__(self, stream: AsyncStream, portal: BlockingPortal) -> None:
        self.name = stream.name
        self.twin = stream
        self.portal = portal

    def __repr__(self) -> str:
        return repr(self.twin)

    @property
    def state(self) -> NodeState:
        from millpond.node.client.state.sync import NodeState  # few need it

        return NodeState(self)

    def create(
        self,
        *,
        age_s: int | None = None,
        bytes_max: int | None = None,
        content_type: bytes | None = None,
        exist_ok: bool = False,
    ) -> None:
        create = partial(
            self.twin.create,
            age_s=age_s,
            bytes_max=bytes_max,
            content_type=content_type,
            exist_ok=exist_ok,
        )
        self.portal.call(create)

    def configure(self, *, age_s: int | None = None, bytes_max: int | None = None) -> None:
        self.portal.call(partial(self.twin.configure, age_s=age_s, bytes_max=bytes_max))

    def append(
        self,
        records: Entry | Sequence[Entry],
        *,
        ms: int | None = None,
        match: int | None = None,
        fence: bytes | None = None,
    ) -> Appended:
        return self.portal.call(partial(self.twin.append, records, ms=ms, match=match, fence=fence))

    def read(self, start: Start = 0, count: int = 100, wait_s: float = 0.0) -> list[Record]:
        return self.portal.call(self.twin.read, start, count, wait_s)

    def tail(self, count: int = 10) -> list[Record]:
        return self.portal.call(self.twin.tail, count)

    def records(self, start: Start = 0, end: int | None = None) -> Iterator[Record]:
        return iterate(self.twin.records(start, end), self.portal)

    def pages(self, start: Start = 0, end: int | None = None) -> Iterator[list[Record]]:
        return iterate(self.twin.pages(start, end), self.portal)

    def follow(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> Iterator[Record]:
        return iterate(self.twin.follow(start, on_gap=on_gap), self.portal)

    def follow_pages(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> Iterator[list[Record]]:
        return iterate(self.twin.follow_pages(start, on_gap=on_gap), self.portal)

    def trim(self, below: int | Position) -> None:
        self.portal.call(self.twin.trim, below)

    def delete(self) -> None:
        self.portal.call(self.twin.delete)

    def info(self) -> StreamInfo:
        return self.portal.call(self.twin.info)

    def commit(self, group: str | bytes, offset: int) -> None:
        self.portal.call(self.twin.commit, group, offset)

    def committed(self, group: str | bytes) -> int | None:
        return self.portal.call(self.twin.committed, group)


connect = blocking(client.connect, Channel)
connect_streams = blocking(connect_streams_async, Streams)
