"""Blocking streams: `with connect_streams(url) as streams`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from millpond.actors.state.messages import StateInfo as StateInfo
from millpond.actors.store.changes import Position
from millpond.node.client.events import Event
from millpond.node.client.settings import DEFAULT_SETTINGS, ConnectSettings
from millpond.node.client.state.remote import NodeState as AsyncNodeState
from millpond.node.client.state.remote import Row
from millpond.node.client.streams.connect import connect_streams as connect_streams_async
from millpond.node.client.streams.records import Appended, Record, StreamInfo
from millpond.node.client.streams.stream import Entry, OnGap, Start
from millpond.node.client.streams.stream import Stream as AsyncStream
from millpond.node.client.streams.streams import Streams as AsyncStreams
from millpond.node.client.sync.portal import Blocking, BlockingContext
from millpond.transports.p2p.handshake import Signer


class NodeState(Blocking[AsyncNodeState]):
    """The state of one stream. Every reply has all records of the time of the request.

    The first request makes the node read the stream from its beginning, and waits for that.
    Raises UnknownStream, and StateTooLarge above the node's limit.
    """

    @property
    def name(self) -> bytes:
        return self._async.name

    def get(self, kind: str, key: str) -> Row | None:
        """One value; None: there is none."""
        return self._await(self._async.get, kind, key)

    def info(self) -> StateInfo:
        """The counts and positions of the state, without values."""
        return self._await(self._async.info)

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        """All values, or those of a type, in the order of types and keys. They are read page by
        page: changes in the meantime may be in it or not.
        """
        return self._iterate(self._async.rows(kind))

    def pages(self, kind: str | None = None) -> Iterator[tuple[int, list[Row]]]:
        """The values page by page, each page with its position. Records from the position of the
        first page on complete the state at the position of the last.
        """
        return self._iterate(self._async.pages(kind))


class Stream(Blocking[AsyncStream]):
    """One stream of a node, by name. It need not be closed."""

    @property
    def name(self) -> bytes:
        return self._async.name

    @property
    def state(self) -> NodeState:
        """The state of its events, materialized by the node (docs/reference/state.md)."""
        return NodeState(self._async.state, self._portal)

    def create(
        self,
        *,
        age_s: int | None = None,
        bytes_max: int | None = None,
        content_type: bytes | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create the stream. Records are removed once they are older than `age_s` seconds, and the
        oldest ones above `bytes_max` bytes. Raises StreamExists.
        """
        self._await(
            self._async.create,
            age_s=age_s,
            bytes_max=bytes_max,
            content_type=content_type,
            exist_ok=exist_ok,
        )

    def configure(self, *, age_s: int | None = None, bytes_max: int | None = None) -> None:
        """Change the limits; None: as the node is configured. Records keep the age they have."""
        self._await(self._async.configure, age_s=age_s, bytes_max=bytes_max)

    def append(
        self,
        records: Entry | Sequence[Entry],
        *,
        ms: int | None = None,
        match: int | None = None,
        fence: bytes | None = None,
    ) -> Appended:
        """Add records at the end, all or none.

        `ms`: the first part of their ids (NonMonotonicId if it is below the last one). `match`: the
        expected tail (SequenceMismatch). `fence`: the stream's fencing token (Fenced).
        Raises UnknownStream; DataTooLarge above 1000 records or a packet of the node.
        """
        return self._await(self._async.append, records, ms=ms, match=match, fence=fence)

    def read(self, start: Start = 0, count: int = 100, wait_s: float = 0.0) -> list[Record]:
        """At most `count` records from `start` on, or fewer: as many as fit about 256 KiB.

        Trimmed records are left out. Without a record, waits for one for so many seconds.
        """
        return self._await(self._async.read, start, count, wait_s)

    def tail(self, count: int = 10) -> list[Record]:
        """The last `count` records."""
        return self._await(self._async.tail, count)

    def records(self, start: Start = 0, end: int | None = None) -> Iterator[Record]:
        """Records from `start` to before sequence `end`; None: the present tail."""
        return self._iterate(self._async.records(start, end))

    def pages(self, start: Start = 0, end: int | None = None) -> Iterator[list[Record]]:
        """The same, page by page."""
        return self._iterate(self._async.pages(start, end))

    def follow(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> Iterator[Record]:
        """Records from `start` on (None: from the tail), and then those to come, for ever.

        It reconnects after a lost connection: every record comes once, in order. For records that
        were trimmed before they were read `on_gap` (first, end) is called; without it Trimmed is
        raised. Raises SequenceMismatch if the stream was created again, UnknownStream if deleted.
        """
        return self._iterate(self._async.follow(start, on_gap=on_gap))

    def follow_pages(
        self, start: Start | None = None, *, on_gap: OnGap | None = None
    ) -> Iterator[list[Record]]:
        """The same, page by page."""
        return self._iterate(self._async.follow_pages(start, on_gap=on_gap))

    def trim(self, below: int | Position) -> None:
        """Remove the records below a sequence or an id."""
        self._await(self._async.trim, below)

    def delete(self) -> None:
        """Remove the stream with all its records."""
        self._await(self._async.delete)

    def info(self) -> StreamInfo:
        """The stream's tail, trim point, settings and counts. Raises UnknownStream."""
        return self._await(self._async.info)

    def commit(self, group: str | bytes, offset: int) -> None:
        """Commit the offset of a consumer group: the next sequence that it will process."""
        self._await(self._async.commit, group, offset)

    def committed(self, group: str | bytes) -> int | None:
        """The committed offset of a group; None: it committed none."""
        return self._await(self._async.committed, group)


class Streams(BlockingContext[AsyncStreams]):
    """The streams and topics of a node. Tasks may share it. 64 requests are under way at once, a
    waiting read among them; further ones wait.

    It is open within `with`, or from `open` to `close`. Methods raise RequestErrors,
    ConnectionLost, ClientClosed, and OutcomeUnknown where the connection was lost after a request
    that must not be done twice.
    """

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return self._async.connected

    @property
    def append_bytes_max(self) -> int:
        """The size that the records of one append may have: data, names and values of headers, and
        16 bytes for each of them.
        """
        return self._async.append_bytes_max

    def stream(self, name: str | bytes) -> Stream:
        """One stream, which need not exist."""
        return Stream(self._call(self._async.stream, name), self._portal)

    def partition(self, topic: str | bytes, partition: int = 0) -> Stream:
        """The stream of a topic's partition. Raises UnknownStream."""
        return Stream(self._await(self._async.partition, topic, partition), self._portal)

    def names(self, prefix: str | bytes = b"") -> Iterator[bytes]:
        """The names of all streams that begin so, in order."""
        return self._iterate(self._async.names(prefix))

    def topics(self) -> Iterator[tuple[bytes, int]]:
        """All topics with the number of their partitions, in the order of their names."""
        return self._iterate(self._async.topics())

    def partitions(self, topic: str | bytes) -> int | None:
        """The number of partitions of a topic; None: there is no such topic."""
        return self._await(self._async.partitions, topic)

    def create_topic(self, topic: str | bytes, partitions: int = 1) -> None:
        """Create a topic. Raises StreamExists if it, or a stream of its partitions, exists."""
        self._await(self._async.create_topic, topic, partitions)

    def delete_topic(self, topic: str | bytes) -> None:
        """Remove a topic with all its records. Raises UnknownStream."""
        self._await(self._async.delete_topic, topic)


def connect_streams(
    url: str,
    *,
    token: str | bytes | None = None,
    identity: Signer | None = None,
    peer: bytes | None = None,
    on_peer: Callable[[bytes], None] | None = None,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    reconnect: bool = True,
    wait_s: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
    settings: ConnectSettings = DEFAULT_SETTINGS,
) -> Streams:
    """The streams of the node at `url`, for the block; see `node.client.connect.connect`."""
    return Streams(
        partial(
            connect_streams_async,
            url,
            token=token,
            identity=identity,
            peer=peer,
            on_peer=on_peer,
            tls=tls,
            allow_plain=allow_plain,
            reconnect=reconnect,
            wait_s=wait_s,
            on_event=on_event,
            settings=settings,
        )
    )
