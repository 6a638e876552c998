"""A RustLog client's connection: frames in, requests to streams, responses in order (RL-11)."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, StreamReply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.p2p.framing import LENGTH_BYTES
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import encode_response as encode_binary
from millpond.transports.rustlog.binary_codec import speaks_binary
from millpond.transports.rustlog.binary_messages import BinaryError, BinaryRequest, ErrorCode
from millpond.transports.rustlog.binary_requests import BinaryRequests, encode_refused
from millpond.transports.rustlog.codec import (
    MEASURE,
    encode_fetched,
    encode_packed,
    encode_produced,
    encode_response,
    fits_frame,
)
from millpond.transports.rustlog.decoder import NO_MEMORY, DecodedRequest, Decoder
from millpond.transports.rustlog.json_fallback import DecodedJson
from millpond.transports.rustlog.metrics import ConnectionMetrics, GroupLag
from millpond.transports.rustlog.responses import (
    NOT_CREATED,
    TO_STREAM,
    ToStream,
    absent,
    all_topics,
    error_of,
    out_of_range,
    small_answer,
    topic_described,
)
from millpond.transports.rustlog.rights import is_allowed
from millpond.transports.rustlog.settings import RustlogNodeServices, RustlogSettings
from millpond.transports.rustlog.topic_requests import GATHERED, TopicRequests
from millpond.transports.server.pipelined import (
    ConnectionRefusal,
    PipelinedConnection,
    ReadyAnswer,
)
from millpond.transports.server.refusals import Refusal

TOPICS_NAMED_MAX = 100
"""An Error for a missing topic names so many others."""

TOPIC_NAMES_AGE_S = 1.0
"""Those names may be so old."""

PONG = encode_response(r.Pong())
NAMES_LOST = r.Error(r.STORAGE_ERROR, "storage failed")
"""The store lost names, so that none can be said to be unknown."""
REFUSED = encode_response(r.Error(r.INVALID_REQUEST, "access refused"))
"""The connection stays open. The answer does not tell whether there is such a topic (RLA-33)."""


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
        "_binary",
        "_connection",
        "_filter",
        "_metrics",
        "_node",
        "_settings",
        "_topic_names",
        "_topic_names_until",
        "_topics",
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
        self._topics = TopicRequests(connection, node, node.rustlog_metrics)
        self._binary = BinaryRequests(
            connection, node, settings, metrics, self._topics, self._filter
        )
        self._topic_names: list[str] = []
        self._topic_names_until = 0.0

    def error_bytes(self) -> bytes:
        error = self.decoder.error
        assert error is not None
        if type(error) is BinaryRequest:
            return encode_refused(error)
        return encode_response(error)

    def refusal_bytes(self, reason: ConnectionRefusal, data: bytes) -> bytes:
        if len(data) > LENGTH_BYTES and speaks_binary(data[LENGTH_BYTES:]):
            return encode_binary(BinaryError(ErrorCode.INTERNAL, reason.value))
        is_full = reason is ConnectionRefusal.TOO_MANY
        return encode_response(
            r.Error(r.STORAGE_ERROR if is_full else r.INVALID_REQUEST, reason.value)
        )

    # Requests.

    def dispatch_run(self, data: bytes) -> bool:
        """The next Produce or Fetch of a client that repeats itself: the straight way to its
        stream."""
        topics, connection = self._topics, self._connection
        if topics.is_exclusive or topics.has_large:
            return False
        request = self.decoder.feed_one(data)
        if request is None or not is_allowed(request, connection.may):
            return False
        name = topics.stream(request.topic, request.partition)
        if name is None:
            return False
        number, is_fetch = connection.next_number, isinstance(request, r.Fetch)
        message: CellMessage
        if isinstance(request, r.PackedProduce):
            message = m.Append(number, request.records)
        elif connection.may_answer(self._answer_bytes(request)):
            message = self._fetch(number, request)
        else:
            return False
        self._metrics.submitted(number + 1)
        cell, size = stream_cell(name), len(data)
        connection.submit_run(cell, [request], [message], size, batched=not is_fetch)
        return True

    def dispatch(self, requests: list[DecodedRequest], start: int) -> int:
        """Consecutive requests for one partition go to its stream together."""
        request = requests[start]
        connection = self._connection
        if self._topics.is_exclusive:
            return start
        if type(request) is BinaryRequest:
            return self._binary.dispatch(requests, start, request)
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
                    connection.respond(request, all_topics(self._topics.visible(), limit))
            case r.CreateTopic(topic=topic, partition_count=count):
                self._topics.create(request, topic, count)
            case r.DescribeTopic() | r.MetricsFetch() if self._topics.has_large:
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
        name = self._topics.stream(topic, partition)
        if name is None:
            if type(request) is r.OffsetFetch and self._topics.awaits_early_offset:
                return start
            error = self._no_partition(topic, partition)
            connection.respond(request, self._absent(request, error))
            return start + 1
        is_free = connection.is_free_in(topic.encode())
        number = connection.next_number
        messages: list[CellMessage] = []
        batched = True
        end = start
        for end in range(start, len(requests)):
            each = requests[end]
            if type(each) is BinaryRequest or not (is_free or is_allowed(each, connection.may)):
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
            elif self._topics.has_large or not connection.may_answer(self._answer_bytes(each)):
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

    def _no_partition(self, topic: str, partition: int) -> r.Error:
        """The error of a partition that does not exist (RL-14)."""
        count = self._node.directory.partitions(topic.encode())
        if count is None:
            return self._no_topic(topic)
        text = f"Partition {partition} of topic '{topic}' not found"
        return r.Error(r.PARTITION_NOT_FOUND, text, {"partition_count": count})

    def _absent(self, request: ToStream, error: r.Error) -> bytes:
        early = None
        if isinstance(request, r.OffsetFetch):
            early = self._topics.early_offset(request.group, request.topic, request.partition)
        return absent(request, error, early)

    def _no_topic(self, topic: str) -> r.Error:
        if self._node.directory.is_incomplete:
            return NAMES_LOST
        now = self._connection.now
        if now >= self._topic_names_until:
            # To name ten thousand topics takes longer than all else that a request costs.
            topics = islice(self._topics.visible(), TOPICS_NAMED_MAX)
            self._topic_names = [name.decode() for name, _ in topics]
            self._topic_names_until = now + TOPIC_NAMES_AGE_S
        text = f"Topic '{topic[:255]}' not found"
        return r.Error(r.TOPIC_NOT_FOUND, text, {"available_topics": self._topic_names})

    def _fetch(self, number: int, fetch: r.Fetch) -> m.Read:
        self._topics.has_large = True
        settings = self._settings
        if fetch.group_id is not msgspec.UNSET and fetch.group_id:
            self._node.rustlog_metrics.group_reads(fetch.topic, fetch.partition)
        records_max, bytes_max = settings.fetch_records_max, self._fetch_bytes(fetch)
        fits = fits_frame(records_max, bytes_max, settings.limits.frame_bytes_max)
        return m.Read(
            number,
            Seek(SeekBy.SEQUENCE, fetch.offset),
            records_max,
            bytes_max,
            record_filter=self._filter,
            from_start=True,
            measure=MEASURE if fits else None,
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
                metrics.group_reads(request.topic, request.partition)
                return m.CommitOffset(number, group.encode(), offset)
            case r.OffsetFetch(group=group):
                metrics.group_reads(request.topic, request.partition)
                return m.GetGroupOffset(number, group.encode())
            case r.DescribePartition():
                return m.Describe(number)
            case _:
                assert_never(request)

    # Requests to many streams.

    def _describe_topic(self, request: r.DescribeTopic) -> None:
        name = request.topic.encode()
        count = self._node.directory.partitions(name)
        if count is None:
            response = encode_response(self._no_topic(request.topic))
            self._connection.respond(request, response)
            return
        encode = partial(topic_described, request.topic, count)
        self._topics.describe(request, name, count, encode)

    def _fetch_metrics(self, request: r.MetricsFetch) -> None:
        metrics = self._node.rustlog_metrics

        def encode(lags: list[GroupLag]) -> bytes:
            return encode_response(
                r.MetricsFetchResponse(metrics.values(lags), metrics.prometheus(lags))
            )

        self._topics.fetch_lags(request, encode)

    # Answers.

    def answer(self, request: DecodedRequest, reply: StreamReply | Failed) -> bytes:
        if type(request) is BinaryRequest:
            return self._binary.answer(request, reply)
        if type(reply) is m.Appended and isinstance(request, r.Produce | r.PackedProduce):
            records = request.records
            size = sum(map(len, records)) if isinstance(records, list) else records.size
            self._metrics.produced(self._connection.answered, reply.count, size)
            return encode_produced(reply.first, reply.count)
        if type(reply) is ReadyAnswer:
            return reply.data
        if type(request) is r.Fetch:
            self._topics.has_large = False
            self._connection.forget_answer()
            if isinstance(reply, m.Records):
                return self._answer_fetch(request, reply)
        elif type(request) is r.CreateTopic:
            self._topics.is_exclusive = False
        elif type(request) in GATHERED:
            self._topics.has_large = False
        if isinstance(reply, m.StreamFailed | Failed):
            return self._answer_failure(request, reply)
        return small_answer(request, reply)

    def _answer_fetch(self, fetch: r.Fetch, found: m.Records) -> bytes:
        """RLA-03: beyond the end there is nothing, and the client goes on from its offset."""
        next_offset = max(found.next, fetch.offset)
        if found.packed:
            data, count, size = encode_packed(found.packed, next_offset)
        else:
            limit = self._settings.limits.frame_bytes_max
            data, count, size = encode_fetched(found.spans, next_offset, limit, found.slices)
        self._metrics.fetched(self._connection.answered, count, size)
        return self._connection.count_large(data)

    def _answer_failure(self, request: DecodedJson, failed: m.StreamFailed | Failed) -> bytes:
        if failed.code is Code.UNKNOWN_STREAM and isinstance(request, TO_STREAM):
            # It was deleted just now.
            return self._absent(request, self._no_topic(request.topic))
        if type(request) is r.CreateTopic and failed.code is Code.STREAM_EXISTS:
            return NOT_CREATED
        if type(request) is r.Fetch and isinstance(failed, m.StreamFailed):
            if failed.code is Code.TRIMMED:
                return encode_response(out_of_range(request.offset, failed))
        self._connection.count_failed()
        return encode_response(error_of(failed.code))
