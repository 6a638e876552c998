"""The requests of RustLog's binary form on one connection: to streams, and their replies to bytes.

Topics, offsets and commits are those of the JSON form; docs/reference/compatibility.md has the
differences (RB-11 to RB-33).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import assert_never

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, StreamReply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, stream_cell
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import (
    FETCH_RECORD_BYTES,
    MEASURE,
    encode_packed_run,
    encode_produced,
    encode_response,
    fits_frame,
    record_run,
)
from millpond.transports.rustlog.binary_messages import (
    BinaryError,
    BinaryRequest,
    ErrorCode,
    MetricsText,
    PartitionWatermark,
    RecordRun,
    TopicCreated,
    TopicWatermarks,
)
from millpond.transports.rustlog.decoder import NO_MEMORY_IN_BINARY, DecodedRequest
from millpond.transports.rustlog.group_fetch import GroupFetch
from millpond.transports.rustlog.metrics import ConnectionMetrics, GroupLag
from millpond.transports.rustlog.responses import error_of
from millpond.transports.rustlog.rights import is_allowed
from millpond.transports.rustlog.scatter import Answers
from millpond.transports.rustlog.settings import RustlogNodeServices, RustlogSettings
from millpond.transports.rustlog.topic_requests import GATHERED, TopicRequests
from millpond.transports.server.pipelined import PipelinedConnection, ReadyAnswer
from millpond.transports.server.refusals import Refusal

TOPIC_ROW_BYTES = 6
"""Bytes of a row of the answer to ListTopics besides the name."""
NAME_SHOWN_MAX = 80
"""So much of a name is in the message of an error."""

PONG = encode_response(r.Pong())
COMMITTED = encode_response(r.OffsetCommitResponse(True))
CREATED = encode_response(TopicCreated(True))
NOTHING = encode_response(RecordRun([], 0))
"""The answer to a Fetch of a group that committed nothing (RB-16)."""
REFUSED = encode_response(BinaryError(ErrorCode.INTERNAL, "access refused"))
NAMES_LOST = encode_response(BinaryError(ErrorCode.INTERNAL, "storage failed"))
"""The store lost names, so that none can be said to be unknown."""


class BinaryRequests:
    """Of a connection, those requests that came in the binary form."""

    __slots__ = ("_connection", "_filter", "_metrics", "_node", "_settings", "_topics")

    def __init__(
        self,
        connection: PipelinedConnection[DecodedRequest],
        node: RustlogNodeServices,
        settings: RustlogSettings,
        metrics: ConnectionMetrics,
        topics: TopicRequests,
        record_filter: m.RecordFilter,
    ) -> None:
        self._connection = connection
        self._node = node
        self._settings = settings
        self._metrics = metrics
        self._topics = topics
        self._filter = record_filter

    def dispatch(self, requests: list[DecodedRequest], start: int, framed: BinaryRequest) -> int:
        """`PipelinedProtocol.dispatch`, where `framed` is the request at `start`."""
        request, connection = framed.request, self._connection
        if type(request) is BinaryError:
            if framed is not NO_MEMORY_IN_BINARY:
                connection.count_malformed()
            connection.respond(framed, encode_response(request))
        elif not is_allowed(request, connection.may):
            connection.count_refused(Refusal.NOT_ALLOWED)
            connection.respond(framed, REFUSED)
        elif self._node.directory.is_incomplete and self._is_unknown(request):
            connection.respond(framed, NAMES_LOST)
        elif type(request) is r.Produce or type(request) is r.PackedProduce:
            return self._produce(requests, start, request)
        elif not self._dispatch_one(framed, request):
            return start
        return start + 1

    def _is_unknown(self, request: r.Request | r.PackedProduce) -> bool:
        """True: the request is about a topic that is not there, or about all of them."""
        match request:
            case r.ListTopics():
                return True
            case r.CreateTopic() | r.MetricsFetch() | r.Ping():
                return False
            case _:
                return self._node.directory.partitions(request.topic.encode()) is None

    def _dispatch_one(
        self, framed: BinaryRequest, request: r.Request | r.PackedProduce | BinaryError
    ) -> bool:
        """False: the request has to wait for an answer in flight."""
        connection, topics = self._connection, self._topics
        match request:
            case r.Fetch(group_id=str(group)) if group:
                return self._fetch_of_group(framed, request, group)
            case r.Fetch():
                return self._fetch(framed, request)
            case r.OffsetCommit():
                self._commit(framed, request)
            case r.OffsetFetch():
                return self._fetch_offset(framed, request)
            case r.DescribePartition(topic=topic, partition=partition):
                describe = m.Describe(connection.next_number)
                if not self._submit(framed, topic, partition, describe):
                    connection.respond(framed, encode_response(_not_described(topic, partition)))
            case r.Ping():
                connection.respond(framed, PONG)
            case r.ListTopics():
                connection.respond(framed, self._all_topics())
            case r.CreateTopic(topic=topic, partition_count=count):
                topics.create(framed, topic, count)
            case r.DescribeTopic() | r.MetricsFetch() if topics.has_large:
                return False
            case r.DescribeTopic(topic=topic):
                self._describe_topic(framed, topic)
            case r.MetricsFetch():
                topics.fetch_lags(framed, self._encode_metrics)
            case r.Produce() | r.PackedProduce() | BinaryError():
                raise AssertionError(f"{request} is handled before")
            case _:
                assert_never(request)
        return True

    def _submit(
        self, framed: BinaryRequest, topic: str, partition: int, message: CellMessage
    ) -> bool:
        """Give a message to a partition's stream. False: there is no such partition."""
        name = self._topics.stream(topic, partition)
        if name is None:
            return False
        self._connection.submit(stream_cell(name), (framed,), [message], batched=True)
        return True

    def _produce(
        self, requests: list[DecodedRequest], start: int, first: r.Produce | r.PackedProduce
    ) -> int:
        """Consecutive ones to one partition go to its stream together."""
        connection = self._connection
        topic, partition = first.topic, first.partition
        name = self._topics.stream(topic, partition)
        if name is None:
            connection.respond(requests[start], encode_response(_not_found(topic, partition)))
            return start + 1
        number = connection.next_number
        messages: list[CellMessage] = []
        for framed in requests[start:]:
            each = framed.request if type(framed) is BinaryRequest else None
            if not isinstance(each, r.Produce | r.PackedProduce):
                break
            if each.topic != topic or each.partition != partition:
                break
            # RB-13: without records it asks for the high watermark.
            records = each.records
            messages.append(m.Append(number, records) if records else m.Describe(number))
            number += 1
        end = start + len(messages)
        self._metrics.submitted(number)
        connection.submit(stream_cell(name), requests[start:end], messages, batched=True)
        return end

    def _fetch(self, framed: BinaryRequest, fetch: r.Fetch) -> bool:
        topics, connection = self._topics, self._connection
        name = topics.stream(fetch.topic, fetch.partition)
        if name is None:
            error = _not_found(fetch.topic, fetch.partition)
            connection.respond(framed, encode_response(error))
            return True
        if topics.has_large or not connection.may_answer(self._answer_bytes(fetch)):
            return False
        topics.has_large = True
        number = connection.next_number
        self._metrics.submitted(number + 1)
        is_packed = fits_frame(self._max_bytes(fetch), self._settings.limits)
        measure = MEASURE if is_packed else None
        read = self._read(number, fetch, fetch.offset, measure)
        connection.submit(stream_cell(name), (framed,), [read])
        return True

    def _fetch_of_group(self, framed: BinaryRequest, fetch: r.Fetch, group: str) -> bool:
        """RB-16: from the group's offset on, alone, so that nothing comes between the two."""
        topics, connection = self._topics, self._connection
        topic, partition = fetch.topic, fetch.partition
        name = topics.stream(topic, partition)
        if name is None:
            if topics.awaits_early_offset:
                return False
            is_committed = topics.early_offset(group, topic, partition) is not None
            error = encode_response(_not_found(topic, partition))
            connection.respond(framed, error if is_committed else NOTHING)
            return True
        if connection.answered != connection.next_number:
            return False
        if not connection.may_answer(self._answer_bytes(fetch)):
            return False
        metrics = self._node.rustlog_metrics
        metrics.group_reads(topic, partition)
        number, started_ns = connection.respond_later(framed), metrics.ticks_ns()
        topics.is_exclusive = True

        def finish(start: int | None, reply: StreamReply | Failed) -> None:
            if number < connection.answered:
                return  # it was refused, as the disk did not answer; the flags are of a later one
            topics.is_exclusive = False
            connection.forget_answer()
            run = self._group_run(fetch, start, reply)
            if type(run) is RecordRun:
                took_ns = metrics.ticks_ns() - started_ns
                metrics.fetched(len(run.records), sum(map(len, run.records)), took_ns)
            data = connection.count_large(encode_response(run))
            connection.send((ReadyAnswer(number, data),))
            connection.flush()

        submit, read = self._node.submit, partial(self._read, 0, fetch)
        GroupFetch(connection.number, stream_cell(name), submit, read, finish).start(
            group.encode(), connection.now
        )
        return True

    def _group_run(
        self, fetch: r.Fetch, start: int | None, reply: StreamReply | Failed
    ) -> RecordRun | BinaryError:
        if isinstance(reply, m.Records) and start is not None:
            return self._run(fetch, start, reply)
        if isinstance(reply, m.StreamFailed | Failed):
            if start is None and reply.code is Code.UNKNOWN_STREAM:
                return RecordRun([], 0)  # it was deleted just now, and its commits with it
            return self._failure(fetch, reply, start)
        return RecordRun([], 0)

    def _read(
        self, number: int, fetch: r.Fetch, start: int, measure: m.MeasureBodies | None = None
    ) -> m.Read:
        records_max = max(self._max_bytes(fetch) // FETCH_RECORD_BYTES, 1)
        return m.Read(
            number,
            Seek(SeekBy.SEQUENCE, start),
            min(records_max, self._settings.fetch_records_max),
            self._fetch_bytes(fetch),
            record_filter=self._filter,
            from_start=True,
            measure=measure,
        )

    def _max_bytes(self, fetch: r.Fetch) -> int:
        assert type(fetch.max_bytes) is int, "this form always has it"
        return fetch.max_bytes

    def _fetch_bytes(self, fetch: r.Fetch) -> int:
        return min(self._max_bytes(fetch), self._settings.limits.frame_bytes_max)

    def _answer_bytes(self, fetch: r.Fetch) -> int:
        """The bytes that the answer may take in memory: its records, and once more in a frame."""
        return self._fetch_bytes(fetch) * 2

    def _run(self, fetch: r.Fetch, start: int, found: m.Records) -> RecordRun:
        frame_bytes = self._settings.limits.frame_bytes_max
        return record_run(found.spans, start, found.next, self._max_bytes(fetch), frame_bytes)

    def _commit(self, framed: BinaryRequest, commit: r.OffsetCommit) -> None:
        """RB-22: also where there is no such partition yet."""
        connection = self._connection
        number, group = connection.next_number, commit.group.encode()
        self._node.rustlog_metrics.group_reads(commit.topic, commit.partition)
        message = m.CommitOffset(number, group, commit.offset)
        if not self._submit(framed, commit.topic, commit.partition, message):
            topic = commit.topic.encode()
            early = m.CommitEarlyOffset(number, topic, commit.partition, group, commit.offset)
            connection.submit(TOPICS, (framed,), [early])

    def _fetch_offset(self, framed: BinaryRequest, fetch: r.OffsetFetch) -> bool:
        connection, (group, topic, partition) = self._connection, _place(fetch)
        self._node.rustlog_metrics.group_reads(topic, partition)
        message = m.GetGroupOffset(connection.next_number, group.encode())
        if self._submit(framed, topic, partition, message):
            return True
        if self._topics.awaits_early_offset:
            return False
        connection.respond(framed, self._early_offset(fetch))
        return True

    def _early_offset(self, fetch: r.OffsetFetch) -> bytes:
        return encode_response(r.OffsetFetchResponse(self._topics.early_offset(*_place(fetch))))

    def _all_topics(self) -> bytes:
        """RB-25: as many as fit into a frame."""
        left = self._settings.limits.frame_bytes_max - TOPIC_ROW_BYTES
        rows = []
        for name, count in self._topics.visible():
            left -= len(name) + TOPIC_ROW_BYTES
            if left < 0:
                break
            rows.append(r.TopicRow(name.decode(), count))
        return encode_response(r.ListTopicsResponse(rows))

    def _describe_topic(self, framed: BinaryRequest, topic: str) -> None:
        name = topic.encode()
        count = self._node.directory.partitions(name)
        if count is None:
            text = f"DescribeTopic failed: topic '{_shown(topic)}' does not exist"
            error = BinaryError(ErrorCode.DESCRIBE_TOPIC_FAILED, text)
            self._connection.respond(framed, encode_response(error))
            return
        self._topics.describe(framed, name, count, partial(_watermarks, topic, count))

    def _encode_metrics(self, lags: list[GroupLag]) -> bytes:
        """RB-28."""
        return encode_response(MetricsText(self._node.rustlog_metrics.prometheus(lags)))

    # Answers.

    def answer(self, framed: BinaryRequest, reply: StreamReply | Failed) -> bytes:
        """The answer to a request, from the reply of its stream or catalog."""
        request, connection = framed.request, self._connection
        if type(reply) is ReadyAnswer:
            return reply.data
        if type(request) is r.Fetch:
            self._topics.has_large = self._topics.is_exclusive = False
            connection.forget_answer()
        elif type(request) is r.CreateTopic:
            self._topics.is_exclusive = False
        elif type(request) in GATHERED:
            self._topics.has_large = False
        match request, reply:
            case r.Produce(records=records), m.Appended(first=first, count=count):
                self._metrics.produced(connection.answered, count, sum(map(len, records)))
                return encode_produced(first, count)
            case r.PackedProduce(records=packed), m.Appended(first=first, count=count):
                self._metrics.produced(connection.answered, count, packed.size)
                return encode_produced(first, count)
            case r.Produce(), m.StreamDescription(info=info):
                return encode_produced(info.tail, 0)
            case r.Fetch(offset=offset), m.Records(packed=slices) if slices:
                data, count, size = encode_packed_run(slices, offset, reply.next)
                self._metrics.fetched(connection.answered, count, size)
                return connection.count_large(data)
            case r.Fetch(offset=offset), m.Records():
                run = self._run(request, offset, reply)
                size = sum(map(len, run.records))
                self._metrics.fetched(connection.answered, len(run.records), size)
                return connection.count_large(encode_response(run))
            case r.OffsetCommit(), m.Done():
                return COMMITTED
            case r.OffsetFetch(), m.GroupOffset(offset=offset):
                return encode_response(r.OffsetFetchResponse(offset))
            case r.CreateTopic(), m.Done():
                return CREATED
            case r.DescribePartition(topic=topic, partition=partition), m.StreamDescription():
                row = PartitionWatermark(topic, partition, reply.info.tail)
                return encode_response(row)
            case r.OffsetFetch(), m.StreamFailed(code=Code.UNKNOWN_STREAM):
                return self._early_offset(request)  # it was deleted just now
            case _, m.StreamFailed() | Failed():
                start = request.offset if type(request) is r.Fetch else None
                return encode_response(self._failure(request, reply, start))
            case _:
                raise AssertionError(f"{reply} answers no request")

    def _failure(
        self,
        request: r.Request | r.PackedProduce | BinaryError,
        failed: m.StreamFailed | Failed,
        start: int | None,
    ) -> BinaryError:
        """The error of a request that its stream refuses. `start`: that of a Fetch."""
        code = failed.code
        match request:
            case r.CreateTopic(topic=topic) if code is Code.STREAM_EXISTS:
                text = f"topic '{_shown(topic)}' already exists"
                return BinaryError(ErrorCode.TOPIC_EXISTS, text)
            case r.Fetch() if code is Code.TRIMMED and isinstance(failed, m.StreamFailed):
                kept = failed.trim_point
                text = f"Fetch failed: offset {start} is below the first one kept, {kept}"
                return BinaryError(ErrorCode.FETCH_FAILED, text)  # RB-21
            case r.Produce() | r.PackedProduce() | r.Fetch() if code is Code.UNKNOWN_STREAM:
                return _not_found(request.topic, request.partition)
            case r.DescribePartition(topic=topic, partition=partition) if (
                code is Code.UNKNOWN_STREAM
            ):
                return _not_described(topic, partition)
        self._connection.count_failed()
        text = error_of(code).message
        if isinstance(request, r.OffsetCommit) and code in _COMMIT_FAILED:
            return BinaryError(ErrorCode.COMMIT_FAILED, f"Commit failed: {text}")  # RB-22
        return BinaryError(ErrorCode.INTERNAL, text)


_COMMIT_FAILED = (Code.GROUPS_FULL, Code.MALFORMED, Code.UNKNOWN_STREAM)


def encode_refused(framed: BinaryRequest) -> bytes:
    """The answer to a request that is refused."""
    error = framed.request
    assert type(error) is BinaryError
    return encode_response(error)


def _place(request: r.OffsetFetch) -> tuple[str, str, int]:
    return request.group, request.topic, request.partition


def _watermarks(topic: str, count: int, used: Sequence[int], answers: Answers) -> bytes:
    """RB-26: `used` are the partitions that were asked, in the order of `answers`; the others have
    never had a record."""
    rows = [(each, 0) for each in range(count)]
    for index, found in answers.items():
        if isinstance(found, m.StreamDescription):
            rows[used[index]] = (used[index], found.info.tail)
        elif found is not Code.UNKNOWN_STREAM:
            return encode_response(BinaryError(ErrorCode.INTERNAL, error_of(found).message))
    return encode_response(TopicWatermarks(topic, rows))


def _not_found(topic: str, partition: int) -> BinaryError:
    """RB-12, RB-16."""
    text = f"partition {partition} of topic '{_shown(topic)}' does not exist"
    return BinaryError(ErrorCode.NOT_FOUND, text)


def _not_described(topic: str, partition: int) -> BinaryError:
    """RB-27."""
    where = f"partition {partition} of topic '{_shown(topic)}'"
    text = f"DescribePartition failed: {where} does not exist"
    return BinaryError(ErrorCode.DESCRIBE_PARTITION_FAILED, text)


def _shown(name: str) -> str:
    """A name in a message: one line of ASCII."""
    return ascii(name[:NAME_SHOWN_MAX])[1:-1][:NAME_SHOWN_MAX]
