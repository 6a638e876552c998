"""The streams and topics of a node, over a link."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from millpond.actors.errors import UnknownStream
from millpond.node.client.link import Link
from millpond.node.client.openable import Client
from millpond.node.client.streams.requests import StreamRequests
from millpond.node.client.streams.stream import Stream, stream_name
from millpond.transports.p2p.streams import bodies as b
from millpond.transports.p2p.streams.operations import Operation

APPEND_OVERHEAD_BYTES = 2048
"""The largest part of an append's packet besides its records and their headers."""


class Streams(Client[Link]):
    """The streams and topics of a node. Tasks may share it. 64 requests are under way at once, a
    waiting read among them; further ones wait.

    It is open within `async with`, or from `open` to `close`. Methods raise RequestErrors,
    ConnectionLost, ClientClosed, and OutcomeUnknown where the connection was lost after a request
    that must not be done twice.
    """

    _requests: StreamRequests
    _of_connection = frozenset({"_requests"})

    def _use(self, connection: Link) -> None:
        self._requests = StreamRequests(connection)

    async def _end(self) -> None:
        await self._requests.link.stop()

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return "_requests" in self.__dict__ and self._requests.link.session is not None

    @property
    def append_bytes_max(self) -> int:
        """The size that the records of one append may have: data, names and values of headers, and
        16 bytes for each of them."""
        return self._requests.link.packet_max - APPEND_OVERHEAD_BYTES

    def stream(self, name: str | bytes) -> Stream:
        """One stream, which need not exist."""
        return Stream(stream_name(name), self._requests)

    async def partition(self, topic: str | bytes, partition: int = 0) -> Stream:
        """The stream of a topic's partition. Raises UnknownStream."""
        name = stream_name(topic)
        count = await self.partitions(name)
        if count is None:
            raise UnknownStream("there is no topic of this name")
        if not 0 <= partition < count:
            raise UnknownStream(f"the topic has the partitions 0 to {count - 1}")
        return self.stream(name if count == 1 else b"%b/%d" % (name, partition))

    async def names(self, prefix: str | bytes = b"") -> AsyncIterator[bytes]:
        """The names of all streams that begin so, in order."""
        wanted = os.fsencode(prefix)
        after, more = b"", True
        while more:
            request = b.ListBody(wanted, after)
            page = await self._requests.ask(Operation.LIST, request, b.NamesBody)
            for name in page.names:
                yield name
            more = page.more and bool(page.names)
            after = page.names[-1] if page.names else after

    async def topics(self) -> AsyncIterator[tuple[bytes, int]]:
        """All topics with the number of their partitions, in the order of their names."""
        after, more = b"", True
        while more:
            request = b.ListTopicsBody(after=after)
            page = await self._requests.ask(Operation.LIST_TOPICS, request, b.TopicsBody)
            for topic in page.topics:
                yield topic
            more = page.more and bool(page.topics)
            after = page.topics[-1][0] if page.topics else after

    async def partitions(self, topic: str | bytes) -> int | None:
        """The number of partitions of a topic; None: there is no such topic."""
        request = b.ListTopicsBody(stream_name(topic))
        page = await self._requests.ask(Operation.LIST_TOPICS, request, b.TopicsBody)
        return page.topics[0][1] if page.topics else None

    async def create_topic(self, topic: str | bytes, partitions: int = 1) -> None:
        """Create a topic. Raises StreamExists if it, or a stream of its partitions, exists."""
        request = b.CreateTopicBody(stream_name(topic), partitions)
        await self._requests.ask(Operation.CREATE_TOPIC, request, dict)

    async def delete_topic(self, topic: str | bytes) -> None:
        """Remove a topic with all its records. Raises UnknownStream."""
        request = b.DeleteTopicBody(stream_name(topic))
        await self._requests.ask(Operation.DELETE_TOPIC, request, dict)
