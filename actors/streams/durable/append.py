"""Appends with the conditions of Durable Streams, and the closing of streams.

docs/reference/durable-streams.md has the rules.
"""

from __future__ import annotations

from millpond.actors.messages import StreamReply
from millpond.actors.store.changes import Change
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.durable.messages import (
    DurableAppend,
    DurableAppended,
    DurableRefused,
    Producer,
    RefusalReason,
    media_type,
)
from millpond.actors.streams.messages import Append, Appended
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.producers import ProducerCheck, check_producer
from millpond.actors.streams.takeovers import Takeovers

_REASONS = {
    ProducerCheck.STALE_EPOCH: RefusalReason.STALE_EPOCH,
    ProducerCheck.EPOCH_BEGINS_AT_ZERO: RefusalReason.EPOCH_BEGINS_AT_ZERO,
    ProducerCheck.GAP: RefusalReason.GAP,
}


class DurableAppends:
    """The appends of Durable Streams to one stream. An append is checked and done in one step, so
    nothing comes in between."""

    __slots__ = ("_appender", "_bounds", "_metadata", "_name", "_takeovers", "was_closed")

    def __init__(
        self,
        name: bytes,
        bounds: StreamBounds,
        metadata: StreamMetadata,
        appender: StreamAppender,
        takeovers: Takeovers,
    ) -> None:
        self._name = name
        self._takeovers = takeovers
        self._bounds = bounds
        self._metadata = metadata
        self._appender = appender
        self.was_closed = False
        """An append has closed the stream, and its readers do not know it."""

    def append(self, request: DurableAppend, now_ms: int, changes: list[Change]) -> StreamReply:
        """Append to a stream that exists, if all conditions hold."""
        durable = self._metadata.durable
        if durable.is_closed:
            return self._reply_closed(request)
        refused = self._check(request)
        if refused is not None:
            return refused
        if request.bodies:
            reply = self._appender.append(Append(request.number, request.bodies))
            if not isinstance(reply, Appended):
                return reply
        if request.stream_seq is not None:
            changes.append(durable.set_stream_seq(request.stream_seq))
        if request.producer is not None:
            known = durable.producers.get(request.producer.id)
            if known is not None and request.producer.epoch > known.epoch:
                self._takeovers.record("producer", self._name, now_ms / 1000)
            changes += durable.advance_producer(request.producer, now_ms)
        if request.closes:
            self.close(request.producer, changes)
        return self._appended(request)

    def close(self, closer: Producer | None, changes: list[Change]) -> None:
        """Close the stream: nothing is appended after this."""
        changes.append(self._metadata.durable.close(closer))
        self._bounds.set_closed(is_closed=True)
        self._appender.close()
        self.was_closed = True

    def _check(self, request: DurableAppend) -> StreamReply | None:
        """The reply to a request that is not to be done; None: it is."""
        durable, number = self._metadata.durable, request.number
        tail = self._bounds.tail
        if request.bodies and media_type(request.content_type) != media_type(
            self._metadata.content_type
        ):
            return DurableRefused(number, RefusalReason.CONTENT_TYPE_MISMATCH, tail)
        if request.producer is not None:
            checked = self._check_producer(request)
            if checked is not None:
                return checked
        if request.stream_seq is not None and durable.stream_seq is not None:
            if request.stream_seq <= durable.stream_seq:
                return DurableRefused(number, RefusalReason.OUT_OF_ORDER, tail)
        return None

    def _check_producer(self, request: DurableAppend) -> StreamReply | None:
        """The reply to a duplicate, or to a wrong number; None: the number is the next one."""
        producer = request.producer
        if producer is None:
            return None
        known = self._metadata.durable.producers.get(producer.id)
        check = check_producer(known, producer)
        if check is ProducerCheck.NEXT:
            return None
        if check is ProducerCheck.DUPLICATE:
            return self._appended(request, is_new=False)
        epoch = 0 if known is None else known.epoch
        expected = 0 if known is None else known.seq + 1
        return DurableRefused(request.number, _REASONS[check], self._bounds.tail, epoch, expected)

    def _reply_closed(self, request: DurableAppend) -> StreamReply:
        """The reply to an append to a closed stream: a duplicate if it was done before, else
        refused."""
        durable = self._metadata.durable
        closed = DurableRefused(request.number, RefusalReason.CLOSED, self._bounds.tail)
        if request.producer is None:
            is_repetition = request.closes and not request.bodies
            return self._appended(request, is_new=False) if is_repetition else closed
        if request.closes and request.producer == durable.closer:
            return self._appended(request, is_new=False)
        checked = self._check_producer(request)
        if isinstance(checked, DurableRefused):
            return checked if checked.reason is RefusalReason.STALE_EPOCH else closed
        return closed if checked is None or request.closes else checked

    def _appended(self, request: DurableAppend, *, is_new: bool = True) -> DurableAppended:
        durable, epoch, seq = self._metadata.durable, 0, 0
        if request.producer is not None:
            state = durable.producers[request.producer.id]
            epoch, seq = state.epoch, state.seq
        tail = self._bounds.tail
        return DurableAppended(request.number, tail, durable.is_closed, is_new, epoch, seq)
