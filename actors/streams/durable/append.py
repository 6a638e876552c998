"""Appends with the conditions of Durable Streams, and closing
(docs/reference/durable-streams.md)."""

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
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.producers import ProducerCheck, check_producer

_WHY = {
    ProducerCheck.STALE_EPOCH: RefusalReason.STALE_EPOCH,
    ProducerCheck.EPOCH_BEGINS_AT_ZERO: RefusalReason.EPOCH_BEGINS_AT_ZERO,
    ProducerCheck.GAP: RefusalReason.GAP,
}


class DurableAppends:
    """What clients of Durable Streams append to one stream. Checked and done in one step, so
    nothing comes in between."""

    __slots__ = ("_appender", "_extent", "_moment", "_properties", "has_closed")

    def __init__(
        self,
        extent: StreamBounds,
        properties: StreamMetadata,
        appender: StreamAppender,
        moment: Moment,
    ) -> None:
        self._extent = extent
        self._properties = properties
        self._appender = appender
        self._moment = moment
        self.has_closed = False
        """The stream was closed just now."""

    def submit(self, request: DurableAppend, changes: list[Change]) -> StreamReply:
        """Do it, if all conditions hold; the stream is there."""
        notes = self._properties.durable
        if notes.is_closed:
            return self._answer_closed(request)
        declined = self._refusal(request)
        if declined is not None:
            return declined
        if request.bodies:
            reply = self._appender.append(Append(request.number, request.bodies))
            if not isinstance(reply, Appended):
                return reply
        if request.order is not None:
            changes.append(notes.follow(request.order))
        if request.producer is not None:
            changes += notes.advance(request.producer, self._moment.now_ms)
        if request.closes:
            self.close(request.producer, changes)
        return self._accepted(request)

    def close(self, closer: Producer | None, changes: list[Change]) -> None:
        """Nothing comes behind what is there."""
        changes.append(self._properties.durable.close(closer))
        self._extent.is_closed = self._appender.has_terms = self.has_closed = True

    def _refusal(self, request: DurableAppend) -> StreamReply | None:
        notes, number = self._properties.durable, request.number
        tail = self._extent.tail
        if request.bodies and media_type(request.content_type) != media_type(
            self._properties.settings.content_type
        ):
            return DurableRefused(number, RefusalReason.OTHER_TYPE, tail)
        judged = self._judge(request)
        if judged is not None:
            return judged
        if request.order is not None and notes.order is not None:
            if request.order <= notes.order:
                return DurableRefused(number, RefusalReason.OUT_OF_ORDER, tail)
        return None

    def _judge(self, request: DurableAppend) -> StreamReply | None:
        """What is said of the producer's number, unless it is the next one."""
        producer = request.producer
        if producer is None:
            return None
        known = self._properties.durable.producers.get(producer.id)
        verdict = check_producer(known, producer)
        if verdict is ProducerCheck.NEXT:
            return None
        if verdict is ProducerCheck.DUPLICATE:
            return self._accepted(request, is_new=False)
        epoch = 0 if known is None else known.epoch
        expected = 0 if known is None else known.seq + 1
        return DurableRefused(request.number, _WHY[verdict], self._extent.tail, epoch, expected)

    def _answer_closed(self, request: DurableAppend) -> StreamReply:
        """What was done before the stream was closed is a duplicate; nothing else is taken."""
        notes = self._properties.durable
        closed = DurableRefused(request.number, RefusalReason.CLOSED, self._extent.tail)
        if request.producer is None:
            is_repetition = request.closes and not request.bodies
            return self._accepted(request, is_new=False) if is_repetition else closed
        if request.closes and request.producer == notes.closer:
            return self._accepted(request, is_new=False)
        judged = self._judge(request)
        if isinstance(judged, DurableRefused):
            return judged if judged.why is RefusalReason.STALE_EPOCH else closed
        return closed if judged is None or request.closes else judged

    def _accepted(self, request: DurableAppend, *, is_new: bool = True) -> DurableAppended:
        notes, epoch, seq = self._properties.durable, 0, 0
        if request.producer is not None:
            progress = notes.producers[request.producer.id]
            epoch, seq = progress.epoch, progress.seq
        return DurableAppended(
            request.number, self._extent.tail, notes.is_closed, is_new, epoch, seq
        )
