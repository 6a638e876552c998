"""A RustLog client's connection: frames in, requests to streams, responses in order (RL-11)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, Reply, Rights, StreamReply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, stream_cell
from millpond.transports.io.interface import Wire
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.codec import (
    Decoder,
    RustlogLimits,
    encode_fetched,
    encode_produced,
    encode_response,
)
from millpond.transports.rustlog.json_fallback import DecodedRequest
from millpond.transports.rustlog.metrics import RustlogMetrics
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
from millpond.transports.rustlog.rustlog_rights import REFUSED, may_ask
from millpond.transports.rustlog.scatter import Answers, ScatterGather
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import FlowSettings, ReadyAnswer, StreamConnection, Turned
from millpond.transports.server.refusals import Refusal

NAMES_TOLD = 100
"""So many topics an Error tells of that says that one is not there."""
NAMES_KEPT_S = 1.0
"""It may tell what there was so long ago."""
SURVEYED_MAX = 1000
"""So many partitions MetricsFetch looks at for consumer lag, those of the latest news."""

PONG = encode_response(r.Pong())


class RustlogSettings(msgspec.Struct, frozen=True):
    """Limits of a RustLog connection; docs/reference/limits.md.

    A Fetch gives at most `fetch_records_max`, and about `fetch_bytes` where it does not say.
    """

    limits: RustlogLimits = RustlogLimits()
    flow: FlowSettings = FlowSettings()
    fetch_records_max: int = 16_384
    fetch_bytes: int = 2**20


class RustlogNodeServices(NodeServices, Protocol):
    """What a RustLog connection uses besides `NodeServices`."""

    rustlog_metrics: RustlogMetrics


class RustlogConnection(StreamConnection[DecodedRequest]):
    """One client of RustLog."""

    LISTENER = "rustlog"

    __slots__ = (
        "_answered_ns",
        "_decoder",
        "_is_creating",
        "_is_heavy",
        "_metrics",
        "_named",
        "_named_until",
        "_produced",
        "_run_end",
        "_run_ns",
        "_runs",
        "_settings",
        "_view",
    )

    def __init__(self, number: int, host: RustlogNodeServices, settings: RustlogSettings) -> None:
        super().__init__(number, host, settings.flow)
        self._host: RustlogNodeServices
        self._settings = settings
        self._decoder = Decoder(settings.limits)
        self._metrics = host.rustlog_metrics
        # A command is told by its header, which RustLog has no word for.
        self._view = m.RecordFilter(commands=False, body_bytes_max=settings.limits.record_bytes_max)
        self._is_creating = False
        """A topic is being made: what is behind that may be about it."""
        self._is_heavy = False
        """An answer is under way whose size is not known: one at a time."""
        self._named: list[str] = []
        self._named_until = 0.0
        self._runs: deque[tuple[int, int]] = deque()
        """Until which number requests were handed over together, and when."""
        self._run_end = self._run_ns = 0
        """The same of those that are answered now."""
        self._answered_ns = self._produced = 0

    def opened(self, wire: Wire) -> None:
        self._metrics.active_connections += 1
        super().opened(wire)

    def ended(self) -> None:
        self._metrics.active_connections -= 1
        super().ended()

    def wake(self, now: float) -> None:
        stalled = self._host.counters.stalled
        super().wake(now)
        self._metrics.slow_consumers += self._host.counters.stalled - stalled

    def _look_at_wire(self) -> None:
        was_paused = self._paused
        super()._look_at_wire()
        if self._paused and not was_paused and self._wire.congested:
            self._metrics.throttled_consumers += 1

    def _decode(self, data: bytes) -> list[DecodedRequest]:
        requests = self._decoder.feed(data)
        error = self._decoder.error
        if error is not None:
            self._is_malformed()
            self._end(encode_response(error))
        return requests

    def _turning_away(self, why: Turned) -> bytes:
        code = r.STORAGE_ERROR if why is Turned.TOO_MANY else r.INVALID_REQUEST
        return encode_response(r.Error(code, why.value))

    # Requests.

    def _hand_over(self, requests: list[DecodedRequest], at: int) -> int:
        """Consecutive requests for one partition go to its stream together."""
        request = requests[at]
        if self._is_creating:
            return at
        if not (self._is_free or may_ask(request, self._may)):
            self._refused(Refusal.NOT_ALLOWED)
            self._say(request, REFUSED)
            return at + 1
        if isinstance(request, TO_STREAM):
            return self._hand_over_run(requests, at, request)
        match request:
            case r.Ping():
                self._say(request, PONG)
            case r.Error():
                self._is_malformed()
                self._say(request, encode_response(request))
            case r.ListTopics():
                limit = self._settings.limits.frame_bytes_max
                self._say(request, all_topics(self._topics(), limit))
            case r.CreateTopic(topic=topic, partition_count=count):
                self._is_creating = True
                create = m.CreateTopic(self._next_number, topic.encode(), count)
                self._submit(TOPICS, (request,), [create])
            case r.DescribeTopic() | r.MetricsFetch() if self._is_heavy:
                return at
            case r.DescribeTopic():
                self._describe_topic(request)
            case r.MetricsFetch():
                self._tell_metrics(request)
            case _:
                assert_never(request)
        return at + 1

    def _hand_over_run(self, requests: list[DecodedRequest], at: int, request: ToStream) -> int:
        topic, partition = request.topic, request.partition
        name = self._stream(topic, partition)
        if isinstance(name, r.Error):
            self._say(request, absent(request, name))
            return at + 1
        number = self._next_number
        messages: list[CellMessage] = []
        may_gather = True
        end = at
        for end in range(at, len(requests)):
            each = requests[end]
            if not (self._is_free or may_ask(each, self._may)):
                break
            if isinstance(each, r.Produce):
                if each.topic != topic or each.partition != partition:
                    break
                messages.append(m.Append(number, each.records))
            elif not isinstance(each, TO_STREAM) or each.topic != topic:
                break
            elif each.partition != partition:
                break
            elif not isinstance(each, r.Fetch):
                messages.append(self._small(number, each))
            elif self._is_heavy:
                break
            else:
                messages.append(self._fetch(number, each))
                may_gather = False
                end += 1
                break
            number += 1
        else:
            end += 1
        if messages:
            self._runs.append((self._next_number + len(messages), self._metrics.ticks_ns()))
            self._submit(stream_cell(name), requests[at:end], messages, gather=may_gather)
        return end

    def _stream(self, topic: str, partition: int) -> bytes | r.Error:
        """The stream of a partition, or what there is to say of one that is not there (RL-14)."""
        name = topic.encode()
        count = self._host.directory.partitions(name)
        if count is None:
            return self._no_topic(topic)
        if partition >= count:
            text = f"Partition {partition} of topic '{topic}' not found"
            return r.Error(r.PARTITION_NOT_FOUND, text, {"partition_count": count})
        return _stream_of(name, count, partition)

    def _no_topic(self, topic: str) -> r.Error:
        if self._now >= self._named_until:
            # To name ten thousand topics takes longer than all else that a request costs.
            topics = islice(self._topics(), NAMES_TOLD)
            self._named = [name.decode() for name, _ in topics]
            self._named_until = self._now + NAMES_KEPT_S
        text = f"Topic '{topic[:255]}' not found"
        return r.Error(r.TOPIC_NOT_FOUND, text, {"available_topics": self._named})

    def _topics(self) -> Iterable[tuple[bytes, int]]:
        """The topics that this client may be told of."""
        topics = self._host.directory.topics()
        if self._is_free:
            return topics
        return (each for each in topics if self._may(Rights.LIST, each[0]))

    def _fetch(self, number: int, fetch: r.Fetch) -> m.Read:
        self._is_heavy = True
        settings = self._settings
        if fetch.group_id is not msgspec.UNSET and fetch.group_id:
            self._metrics.watch(fetch.topic, fetch.partition)
        wanted = fetch.max_bytes
        if wanted is msgspec.UNSET:
            wanted = settings.fetch_bytes
        return m.Read(
            number,
            Seek(SeekBy.SEQUENCE, fetch.offset),
            settings.fetch_records_max,
            min(wanted, settings.limits.record_bytes_max),
            view=self._view,
            from_start=True,
        )

    def _small(
        self, number: int, request: r.OffsetCommit | r.OffsetFetch | r.DescribePartition
    ) -> CellMessage:
        match request:
            case r.OffsetCommit(group=group, offset=offset):
                self._metrics.watch(request.topic, request.partition)
                return m.CommitOffset(number, group.encode(), offset)
            case r.OffsetFetch(group=group):
                self._metrics.watch(request.topic, request.partition)
                return m.GetGroupOffset(number, group.encode())
            case r.DescribePartition():
                return m.Describe(number)
            case _:
                assert_never(request)

    # What many streams are asked for.

    def _describe_topic(self, request: r.DescribeTopic) -> None:
        """Partitions that were never used have no stream to be asked (3h)."""
        self._host.batcher.submit_all()
        name = request.topic.encode()
        topics = self._host.directory
        count = topics.partitions(name)
        if count is None:
            self._say(request, encode_response(self._no_topic(request.topic)))
            return
        names = [_stream_of(name, count, each) for each in range(count)]
        used = [each for each in range(count) if topics.is_created(names[each])]
        told = partial(topic_described, request.topic, count, used)
        self._survey(request, [names[each] for each in used], told)

    def _tell_metrics(self, request: r.MetricsFetch) -> None:
        self._host.batcher.submit_all()
        places = []
        names = []
        for topic, partition in islice(reversed(self._metrics.watched), SURVEYED_MAX):
            name = topic.encode()
            count = self._host.directory.partitions(name)
            if count is not None and partition < count:
                places.append((topic, partition))
                names.append(_stream_of(name, count, partition))

        def told(answers: Answers) -> bytes:
            lags = lags_of(places, answers)
            metrics = self._metrics
            return encode_response(
                r.MetricsFetchResponse(metrics.figures(lags), metrics.prometheus(lags))
            )

        self._survey(request, names, told)

    def _survey(
        self, request: DecodedRequest, names: Sequence[bytes], told: Callable[[Answers], bytes]
    ) -> None:
        if not names:
            self._say(request, told({}))
            return
        number = self._next_number

        def finish(answers: Answers) -> None:
            self._is_heavy = False
            self.send((ReadyAnswer(number, self._large(told(answers))),))
            self.flush()

        self._is_heavy = True
        self._owed.append(request)
        self._next_number = number + 1
        ScatterGather(self.number, names, finish).ask(self._host.submit, self._now)

    # Answers.

    def send(self, replies: Sequence[Reply]) -> None:
        self._answered_ns = self._metrics.ticks_ns()
        super().send(replies)
        self._count_produced()
        runs, turn = self._runs, self._turn
        while runs and (runs[0][0] <= turn or turn < 0):
            runs.popleft()

    def _answer(self, request: DecodedRequest, reply: StreamReply | Failed) -> bytes:
        if type(reply) is m.Appended and type(request) is r.Produce:
            if self._turn > self._run_end:
                self._enter_run()
            self._produced += 1
            metrics = self._metrics
            metrics.messages_produced += reply.count
            metrics.bytes_in += sum(map(len, request.records))
            return encode_produced(reply.first, reply.count)
        if type(reply) is ReadyAnswer:
            return reply.data
        if type(request) is r.Fetch:
            self._is_heavy = False
            if isinstance(reply, m.Records):
                return self._tell_records(request, reply)
        elif type(request) is r.CreateTopic:
            self._is_creating = False
        if isinstance(reply, m.StreamFailed | Failed):
            return self._tell_failure(request, reply)
        return small_answer(request, reply)

    def _tell_records(self, fetch: r.Fetch, found: m.Records) -> bytes:
        """RLA-03: beyond the end there is nothing, and the client goes on where it was."""
        next_offset = max(found.next, fetch.offset)
        limit = self._settings.limits.frame_bytes_max
        data, count, size = encode_fetched(found.spans, next_offset, limit, found.slices)
        metrics = self._metrics
        metrics.messages_fetched += count
        metrics.bytes_out += size
        if self._turn > self._run_end:
            self._enter_run()
        metrics.fetch_latency.add(self._answered_ns - self._run_ns)
        return self._large(data)

    def _enter_run(self) -> None:
        """The answer in hand is to a request that was handed over later than those before."""
        self._count_produced()
        runs, turn = self._runs, self._turn
        while self._run_end < turn:
            self._run_end, self._run_ns = runs.popleft()

    def _count_produced(self) -> None:
        """What was handed over together and is answered together took equally long."""
        if self._produced:
            took_ns = self._answered_ns - self._run_ns
            self._metrics.produce_latency.add(took_ns, self._produced)
            self._produced = 0

    def _tell_failure(self, request: DecodedRequest, failed: m.StreamFailed | Failed) -> bytes:
        if failed.code is Code.UNKNOWN_STREAM and isinstance(request, TO_STREAM):
            return absent(request, self._no_topic(request.topic))  # it went just now
        if type(request) is r.CreateTopic and failed.code is Code.STREAM_EXISTS:
            return NOT_CREATED
        if type(request) is r.Fetch and isinstance(failed, m.StreamFailed):
            if failed.code is Code.TRIMMED:
                return encode_response(out_of_range(request.offset, failed))
        self._host.counters.refused += 1
        return encode_response(error_of(failed.code))


def _stream_of(topic: bytes, count: int, partition: int) -> bytes:
    return topic if count == 1 else b"%b/%d" % (topic, partition)
