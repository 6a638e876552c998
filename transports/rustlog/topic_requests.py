"""Requests about topics and about many streams, of one connection and of both its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from millpond.actors.messages import Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS
from millpond.transports.rustlog.decoder import DecodedRequest
from millpond.transports.rustlog.messages import DescribeTopic, MetricsFetch
from millpond.transports.rustlog.metrics import GroupLag, RustlogMetrics
from millpond.transports.rustlog.responses import lags_of
from millpond.transports.rustlog.scatter import Answers, ScatterGather
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import PipelinedConnection, ReadyAnswer

GATHERED = (DescribeTopic, MetricsFetch)
"""Requests that many streams answer together."""
LAG_PARTITIONS_MAX = 1000
"""MetricsFetch asks so many partitions for consumer lag, those used latest."""


class TopicRequests:
    """The topics of a node as one client sees them, and what it has in flight about them.

    `is_exclusive`: a request is in flight that those behind it wait for, CreateTopic or a Fetch
    whose start is not known yet. `has_large`: one is whose answer may be large; there is one at a
    time.
    """

    __slots__ = ("_connection", "_metrics", "_node", "has_large", "is_exclusive")

    def __init__(
        self,
        connection: PipelinedConnection[DecodedRequest],
        node: NodeServices,
        metrics: RustlogMetrics,
    ) -> None:
        self._connection = connection
        self._node = node
        self._metrics = metrics
        self.is_exclusive = False
        self.has_large = False

    def visible(self) -> Iterable[tuple[bytes, int]]:
        """The topics whose names this client may see, with their numbers of partitions."""
        topics, connection = self._node.directory.topics(), self._connection
        return (each for each in topics if connection.may(Rights.LIST, each[0]))

    def stream(self, topic: str, partition: int) -> bytes | None:
        """The name of a partition's stream; None: there is no such topic or partition."""
        name = topic.encode()
        count = self._node.directory.partitions(name)
        return None if count is None or partition >= count else stream_of(name, count, partition)

    @property
    def awaits_early_offset(self) -> bool:
        """A request in flight may be the commit of an early offset, which is not known before it is
        durable: what is about early offsets waits for its answer."""
        return self._connection.answered != self._connection.next_number

    def early_offset(self, group: str, topic: str, partition: int) -> int | None:
        """The offset that a group committed to a partition before it existed; None: none."""
        offsets = self._node.directory.early_offsets(topic.encode(), partition)
        return offsets.get(group.encode())

    def create(self, request: DecodedRequest, topic: str, partitions: int) -> None:
        """Create a topic."""
        self.is_exclusive = True
        connection = self._connection
        create = m.CreateTopic(connection.next_number, topic.encode(), partitions)
        connection.submit(TOPICS, (request,), [create])

    def describe(
        self,
        request: DecodedRequest,
        topic: bytes,
        count: int,
        encode: Callable[[Sequence[int], Answers], bytes],
    ) -> None:
        """Ask the partitions of a topic that were ever used; the others have no stream (3h)."""
        self._node.batcher.submit_all()
        directory = self._node.directory
        names = [stream_of(topic, count, each) for each in range(count)]
        used = [each for each in range(count) if directory.is_created(names[each])]
        self._gather(request, [names[each] for each in used], lambda found: encode(used, found))

    def fetch_lags(
        self, request: DecodedRequest, encode: Callable[[list[GroupLag]], bytes]
    ) -> None:
        """Ask the partitions that groups read for the lag of these."""
        self._node.batcher.submit_all()
        latest = [*islice(reversed(self._metrics.group_partitions), LAG_PARTITIONS_MAX)]
        streams = [(each, self.stream(*each)) for each in latest]
        partitions = [each for each, name in streams if name is not None]
        names = [name for _, name in streams if name is not None]
        self._gather(request, names, lambda found: encode(lags_of(partitions, found)))

    def _gather(
        self,
        request: DecodedRequest,
        names: Sequence[bytes],
        encode: Callable[[Answers], bytes],
    ) -> None:
        connection = self._connection
        if not names:
            connection.respond(request, encode({}))
            return
        number = connection.respond_later(request)
        self.has_large = True

        def finish(answers: Answers) -> None:
            if number < connection.answered:
                return  # nobody waits any more: it was refused, as the disk did not answer
            self.has_large = False
            connection.send((ReadyAnswer(number, connection.count_large(encode(answers))),))
            connection.flush()

        ScatterGather(connection.number, names, finish).start(self._node.submit, connection.now)


def stream_of(topic: bytes, count: int, partition: int) -> bytes:
    """The stream of a partition of a topic that has `count`."""
    return topic if count == 1 else b"%b/%d" % (topic, partition)
