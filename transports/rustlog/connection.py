"""A RustLog client's connection: frames in, requests to streams, responses in order (RL-11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, Rights, StreamReply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, stream_cell
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.codec import (
    NO_MEMORY,
    Decoder,
    RustlogLimits,
    encode_fetched,
    encode_produced,
    encode_response,
)
from millpond.transports.rustlog.json_fallback import DecodedRequest
from millpond.transports.rustlog.metrics import ConnectionMetrics, RustlogMetrics
from millpond.transports.rustlog.responses import (
    NOT_CREATED,
    TO_STREAM,
    ToStream,
    absent,
    all_topics,
    error_of,
    lags_of,
    out_of_range,
    small_answer,
    topic_described,
)
from millpond.transports.rustlog.scatter import Answers, ScatterGather
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import (
    ConnectionRefusal,
    FlowSettings,
    PipelinedConnection,
    ReadyAnswer,
)
from millpond.transports.server.refusals import Refusal

TOPICS_NAMED_MAX = 100
"""An Error for a missing topic names so many others."""

TOPIC_NAMES_AGE_S = 1.0
"""Those names may be so old."""

LAG_PARTITIONS_MAX = 1000
"""MetricsFetch asks so many partitions for consumer lag, those used latest."""


PONG = encode_response(r.Pong())
NAMES_LOST = r.Error(r.STORAGE_ERROR, "storage failed")
"""The store lost names, so that none can be said to be unknown."""
REFUSED = encode_response(r.Error(r.INVALID_REQUEST, "access refused"))
"""The connection stays open. The answer does not tell whether there is such a topic (RLA-33)."""


class RustlogSettings(msgspec.Struct, frozen=True):
    """Limits of a RustLog connection; docs/reference/limits.md.

    A Fetch gives at most `fetch_records_max`, and about `fetch_bytes` where it does not say.
    """

    limits: RustlogLimits = RustlogLimits()
    flow: FlowSettings = FlowSettings()
    fetch_records_max: int = 16_384
    fetch_bytes: int = 2**20


class RustlogNodeServices(NodeServices, Protocol):
    """The services for RustLog besides `NodeServices`."""

    rustlog_metrics: RustlogMetrics


def rustlog_connection(
    number: int, node: RustlogNodeServices, settings: RustlogSettings
) -> PipelinedConnection[DecodedRequest]:
    """A connection that speaks RustLog."""
    metrics = ConnectionMetrics(node.rustlog_metrics)
    return PipelinedConnection(
        number,
        node,
        settings.flow,
        lambda each: RustlogProtocol(each, node, settings, metrics),
        observer=metrics,
    )


class RustlogProtocol:
    """RustLog on one connection: frames to requests of streams, their replies to bytes."""

    listener = "rustlog"

    __slots__ = (
        "_connection",
        "_creates_topic",
        "_filter",
        "_has_large_request",
        "_metrics",
        "_node",
        "_settings",
        "_topic_names",
        "_topic_names_until",
        "decoder",
    )

    def __init__(
        self,
        connection: PipelinedConnection[DecodedRequest],
        node: RustlogNodeServices,
        settings: RustlogSettings,
        metrics: ConnectionMetrics,
    ) -> None:
        self._connection = connection
        self._node = node
        self._settings = settings
        self._metrics = metrics
        self.decoder = Decoder(settings.limits)
        # A command record has a header, which RustLog has no field for.
        size = settings.limits.record_bytes_max
        self._filter = m.RecordFilter(commands=False, body_bytes_max=size)
        self._creates_topic = False
        """A CreateTopic is in flight: requests behind it may be about that topic."""
        self._has_large_request = False
        """A request is in flight whose answer may be large: one at a time."""
        self._topic_names: list[str] = []
        self._topic_names_until = 0.0

    def error_bytes(self) -> bytes:
        error = self.decoder.error
        assert error is not None
        return encode_response(error)

    def refusal_bytes(self, reason: ConnectionRefusal) -> bytes:
        is_full = reason is ConnectionRefusal.TOO_MANY
        return encode_response(
            r.Error(r.STORAGE_ERROR if is_full else r.INVALID_REQUEST, reason.value)
        )

    # Requests.

    def dispatch_run(self, data: bytes) -> bool:
        """Every request needs a look."""
        return False

    def dispatch(self, requests: list[DecodedRequest], start: int) -> int:
        """Consecutive requests for one partition go to its stream together."""
        request = requests[start]
        connection = self._connection
        if self._creates_topic:
            return start
        if not is_allowed(request, connection.may):
            connection.count_refused(Refusal.NOT_ALLOWED)
            connection.respond(request, REFUSED)
            return start + 1
        if isinstance(request, TO_STREAM):
            return self._dispatch_to_stream(requests, start, request)
        match request:
            case r.Ping():
                connection.respond(request, PONG)
            case r.Error():
                if request is not NO_MEMORY:
                    connection.count_malformed()
                connection.respond(request, encode_response(request))
            case r.ListTopics():
                limit = self._settings.limits.frame_bytes_max
                if self._node.directory.is_incomplete:
                    connection.respond(request, encode_response(NAMES_LOST))
                else:
                    connection.respond(request, all_topics(self._topics(), limit))
            case r.CreateTopic(topic=topic, partition_count=count):
                self._creates_topic = True
                create = m.CreateTopic(connection.next_number, topic.encode(), count)
                connection.submit(TOPICS, (request,), [create])
            case r.DescribeTopic() | r.MetricsFetch() if self._has_large_request:
                return start
            case r.DescribeTopic():
                self._describe_topic(request)
            case r.MetricsFetch():
                self._fetch_metrics(request)
            case _:
                assert_never(request)
        return start + 1

    def _dispatch_to_stream(
        self, requests: list[DecodedRequest], start: int, request: ToStream
    ) -> int:
        connection = self._connection
        topic, partition = request.topic, request.partition
        name = self._stream(topic, partition)
        if isinstance(name, r.Error):
            connection.respond(request, absent(request, name))
            return start + 1
        is_free = connection.is_free_in(topic.encode())
        number = connection.next_number
        messages: list[CellMessage] = []
        batched = True
        end = start
        for end in range(start, len(requests)):
            each = requests[end]
            if not (is_free or is_allowed(each, connection.may)):
                break
            if isinstance(each, (r.Produce, r.PackedProduce)):
                if each.topic != topic or each.partition != partition:
                    break
                messages.append(m.Append(number, each.records))
            elif not isinstance(each, TO_STREAM) or each.topic != topic:
                break
            elif each.partition != partition:
                break
            elif not isinstance(each, r.Fetch):
                messages.append(self._small(number, each))
            elif self._has_large_request or not connection.may_answer(self._answer_bytes(each)):
                break
            else:
                messages.append(self._fetch(number, each))
                batched = False
                end += 1
                break
            number += 1
        else:
            end += 1
        if messages:
            self._metrics.submitted(connection.next_number + len(messages))
            connection.submit(stream_cell(name), requests[start:end], messages, batched=batched)
        return end

    def _stream(self, topic: str, partition: int) -> bytes | r.Error:
        """The stream of a partition, or the error of one that does not exist (RL-14)."""
        name = topic.encode()
        count = self._node.directory.partitions(name)
        if count is None:
            return self._no_topic(topic)
        if partition >= count:
            text = f"Partition {partition} of topic '{topic}' not found"
            return r.Error(r.PARTITION_NOT_FOUND, text, {"partition_count": count})
        return _stream_of(name, count, partition)

    def _no_topic(self, topic: str) -> r.Error:
        if self._node.directory.is_incomplete:
            return NAMES_LOST
        now = self._connection.now
        if now >= self._topic_names_until:
            # To name ten thousand topics takes longer than all else that a request costs.
            topics = islice(self._topics(), TOPICS_NAMED_MAX)
            self._topic_names = [name.decode() for name, _ in topics]
            self._topic_names_until = now + TOPIC_NAMES_AGE_S
        text = f"Topic '{topic[:255]}' not found"
        return r.Error(r.TOPIC_NOT_FOUND, text, {"available_topics": self._topic_names})

    def _topics(self) -> Iterable[tuple[bytes, int]]:
        """The topics whose names this client may see."""
        topics, connection = self._node.directory.topics(), self._connection
        return (each for each in topics if connection.may(Rights.LIST, each[0]))

    def _fetch(self, number: int, fetch: r.Fetch) -> m.Read:
        self._has_large_request = True
        settings = self._settings
        if fetch.group_id is not msgspec.UNSET and fetch.group_id:
            self._node.rustlog_metrics.watch(fetch.topic, fetch.partition)
        return m.Read(
            number,
            Seek(SeekBy.SEQUENCE, fetch.offset),
            settings.fetch_records_max,
            self._fetch_bytes(fetch),
            record_filter=self._filter,
            from_start=True,
        )

    def _fetch_bytes(self, fetch: r.Fetch) -> int:
        """The bytes of records that the answer has at most."""
        wanted, settings = fetch.max_bytes, self._settings
        if wanted is msgspec.UNSET:
            wanted = settings.fetch_bytes
        return min(wanted, settings.limits.record_bytes_max)

    def _answer_bytes(self, fetch: r.Fetch) -> int:
        """The bytes that the answer may take in memory: its records, and once more in Base64."""
        return self._fetch_bytes(fetch) * 7 // 3

    def _small(
        self, number: int, request: r.OffsetCommit | r.OffsetFetch | r.DescribePartition
    ) -> CellMessage:
        metrics = self._node.rustlog_metrics
        match request:
            case r.OffsetCommit(group=group, offset=offset):
                metrics.watch(request.topic, request.partition)
                return m.CommitOffset(number, group.encode(), offset)
            case r.OffsetFetch(group=group):
                metrics.watch(request.topic, request.partition)
                return m.GetGroupOffset(number, group.encode())
            case r.DescribePartition():
                return m.Describe(number)
            case _:
                assert_never(request)

    # Requests to many streams.

    def _describe_topic(self, request: r.DescribeTopic) -> None:
        """Partitions that were never used have no stream to be asked (3h)."""
        self._node.batcher.submit_all()
        name = request.topic.encode()
        directory = self._node.directory
        count = directory.partitions(name)
        if count is None:
            response = encode_response(self._no_topic(request.topic))
            self._connection.respond(request, response)
            return
        names = [_stream_of(name, count, each) for each in range(count)]
        used = [each for each in range(count) if directory.is_created(names[each])]
        encode = partial(topic_described, request.topic, count, used)
        self._gather(request, [names[each] for each in used], encode)

    def _fetch_metrics(self, request: r.MetricsFetch) -> None:
        self._node.batcher.submit_all()
        metrics = self._node.rustlog_metrics
        partitions = []
        names = []
        for topic, partition in islice(reversed(metrics.watched), LAG_PARTITIONS_MAX):
            name = topic.encode()
            count = self._node.directory.partitions(name)
            if count is not None and partition < count:
                partitions.append((topic, partition))
                names.append(_stream_of(name, count, partition))

        def encode(answers: Answers) -> bytes:
            lags = lags_of(partitions, answers)
            return encode_response(
                r.MetricsFetchResponse(metrics.figures(lags), metrics.prometheus(lags))
            )

        self._gather(request, names, encode)

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
        self._has_large_request = True

        def finish(answers: Answers) -> None:
            self._has_large_request = False
            connection.send((ReadyAnswer(number, connection.count_large(encode(answers))),))
            connection.flush()

        ScatterGather(connection.number, names, finish).start(self._node.submit, connection.now)

    # Answers.

    def answer(self, request: DecodedRequest, reply: StreamReply | Failed) -> bytes:
        if type(reply) is m.Appended and isinstance(request, r.Produce | r.PackedProduce):
            records = request.records
            size = sum(map(len, records)) if isinstance(records, list) else records.size
            self._metrics.produced(self._connection.answered, reply.count, size)
            return encode_produced(reply.first, reply.count)
        if type(reply) is ReadyAnswer:
            return reply.data
        if type(request) is r.Fetch:
            self._has_large_request = False
            self._connection.forget_answer()
            if isinstance(reply, m.Records):
                return self._answer_fetch(request, reply)
        elif type(request) is r.CreateTopic:
            self._creates_topic = False
        if isinstance(reply, m.StreamFailed | Failed):
            return self._answer_failure(request, reply)
        return small_answer(request, reply)

    def _answer_fetch(self, fetch: r.Fetch, found: m.Records) -> bytes:
        """RLA-03: beyond the end there is nothing, and the client goes on from its offset."""
        next_offset = max(found.next, fetch.offset)
        limit = self._settings.limits.frame_bytes_max
        data, count, size = encode_fetched(found.spans, next_offset, limit, found.slices)
        self._metrics.fetched(self._connection.answered, count, size)
        return self._connection.count_large(data)

    def _answer_failure(self, request: DecodedRequest, failed: m.StreamFailed | Failed) -> bytes:
        if failed.code is Code.UNKNOWN_STREAM and isinstance(request, TO_STREAM):
            return absent(request, self._no_topic(request.topic))  # it was deleted just now
        if type(request) is r.CreateTopic and failed.code is Code.STREAM_EXISTS:
            return NOT_CREATED
        if type(request) is r.Fetch and isinstance(failed, m.StreamFailed):
            if failed.code is Code.TRIMMED:
                return encode_response(out_of_range(request.offset, failed))
        self._connection.count_failed()
        return encode_response(error_of(failed.code))


def _stream_of(topic: bytes, count: int, partition: int) -> bytes:
    return topic if count == 1 else b"%b/%d" % (topic, partition)


MayDo = Callable[[Rights, bytes], bool]
"""Has the client one of these rights in a topic? The empty name: in all of them."""


def is_allowed(request: DecodedRequest, may: MayDo) -> bool:
    """Has the client the right that the request takes (docs/guides/access.md)?

    A reader may also commit the offsets of groups.
    """
    match request:
        case r.Produce() | r.PackedProduce() | r.CreateTopic():
            return may(Rights.PUT, request.topic.encode())
        case r.Fetch() | r.OffsetCommit() | r.OffsetFetch():
            return may(Rights.GET, request.topic.encode())
        case r.DescribeTopic() | r.DescribePartition():
            return may(Rights.GET | Rights.LIST, request.topic.encode())
        case r.MetricsFetch():
            return may(Rights.LIST, b"")
        case r.ListTopics() | r.Ping() | r.Error():
            return True
        case _:
            assert_never(request)
