"""Spans of a node by OpenTelemetry: requests from their arrival to the answer, pushes to the ack.

A request has a span where a job or record of it carries a context, and the span is below that: the
client decides what is traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from millpond.actors.jobs.messages import FinishJob, PutFlow, PutJob, PutJobs, RejectJob
from millpond.actors.messages import (
    Ack,
    CellMessage,
    Failed,
    JobReply,
    Msg,
    Nack,
    Put,
    PutAck,
    Reply,
    StreamReply,
)
from millpond.actors.streams.messages import Append, StreamFailed
from millpond.actors.streams.names import stream_of
from millpond.node.client.otel import NAME, attributes_of, context_of
from millpond.node.client.tracing import TextHeaders, trace_of
from millpond.node.environment import installed_version
from millpond.node.jobs.payload import job_headers
from millpond.transports.server.tracing import TRACE_PARENT, ConnectionSpans, NodeTracing

OPEN_SPANS_MAX = 1024
"""The most requests, and the most pushes, of a connection with an open span. More requests have
none; a further push ends the span of the oldest, which may never be answered: its lease is over."""

Key = tuple[str, int]


class OpenTelemetryConnectionSpans(ConnectionSpans):
    """The open spans of a connection: requests by kind and number, pushes by id."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._requests: dict[Key, Span] = {}
        self._pushes: dict[int, Span] = {}

    def accepted(self, cell: bytes, messages: Sequence[CellMessage]) -> None:
        for message in messages:
            if isinstance(message, Ack):
                self._end_push(message.id, "ack")
            elif isinstance(message, Nack):
                self._end_push(message.id, message.reason.name.lower())
            elif isinstance(message, FinishJob | RejectJob):
                is_reject = isinstance(message, RejectJob)
                self._end_push(message.id, "reject" if is_reject else "ack")
            if len(self._requests) < OPEN_SPANS_MAX:
                self._begin(cell, message)

    def sent(self, channel: bytes, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, Msg):
                self._begin_push(channel, reply)
            elif self._requests:
                self._answered(reply)

    def ended(self) -> None:
        for span in (*self._requests.values(), *self._pushes.values()):
            _fail(span, "connection lost")
        self._requests.clear()
        self._pushes.clear()

    def _begin(self, cell: bytes, message: CellMessage) -> None:
        key = _key(message)
        if key is None or key in self._requests:
            return
        carrier = next(_carriers(message), None)
        if carrier is not None:
            name = stream_of(cell) or cell
            self._requests[key] = self._span("accept", "receive", name, carrier, {})

    def _answered(self, reply: Reply) -> None:
        key = _key(reply.request) if isinstance(reply, Failed) else _answer_key(reply)
        span = None if key is None else self._requests.pop(key, None)
        if span is None:
            return
        if isinstance(reply, Failed | StreamFailed):
            _fail(span, reply.code.name.lower())
            return
        if isinstance(reply, PutAck):
            span.set_attribute("messaging.message.id", str(reply.id))
        span.end()

    def _begin_push(self, channel: bytes, message: Msg) -> None:
        before = self._pushes.pop(message.id, None)
        if before is not None:
            _fail(before, "lease over")
        carrier = _of_job(message.data)
        if carrier and _is_trace(carrier):
            if len(self._pushes) >= OPEN_SPANS_MAX:
                _fail(self._pushes.pop(next(iter(self._pushes))), "not answered")
            more = {"messaging.message.id": str(message.id), "millpond.attempt": message.attempt}
            self._pushes[message.id] = self._span("push", "send", channel, carrier, more)

    def _end_push(self, number: int, outcome: str) -> None:
        span = self._pushes.pop(number, None)
        if span is not None:
            span.set_attribute("millpond.outcome", outcome)
            span.end()

    def _span(
        self, name: str, kind: str, destination: bytes, carrier: TextHeaders, more: dict[str, Any]
    ) -> Span:
        text, attributes = attributes_of(name, kind, destination, more)
        context = context_of(carrier)
        return self._tracer.start_span(text, context, SpanKind.SERVER, attributes)


class OpenTelemetryRequestSpan:
    """A span of a request of HTTP, by the conventions for HTTP."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, status: int) -> None:
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if status >= 500 or not status:
            self._span.set_status(Status(StatusCode.ERROR, "" if status else "no response"))
        self._span.end()


class OpenTelemetryNodeTracing(NodeTracing):
    """Makes spans by a provider; None: the global one of the process."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(f"{NAME}.node", installed_version(), provider)

    def connection(self) -> ConnectionSpans:
        return OpenTelemetryConnectionSpans(self._tracer)

    def request(
        self, api: str, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> OpenTelemetryRequestSpan | None:
        carrier = trace_of(list(headers))
        if not _is_trace(carrier):
            return None
        # Exporters take UTF-8 alone, and one wrong path would cost a whole batch of spans.
        shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        attributes = {"http.request.method": method, "url.path": shown, "millpond.api": api}
        context = context_of(carrier)
        span = self._tracer.start_span(f"{method} {api}", context, SpanKind.SERVER, attributes)
        return OpenTelemetryRequestSpan(span)


def _key(message: object) -> Key | None:
    """The kind and number of a request that may have a span."""
    match message:
        case Put(key=key):
            return "put", key
        case PutJob() | PutJobs() | PutFlow():
            return "job", message.number
        case Append():
            return "stream", message.number
        case _:
            return None


def _answer_key(reply: Reply) -> Key | None:
    match reply:
        case PutAck(key=key):
            return "put", key
        case JobReply(number=number):
            return "job", number
        case StreamReply(number=number):
            return "stream", number
        case _:
            return None


def _carriers(message: object) -> Iterator[TextHeaders]:
    """The contexts of what a request brings."""
    found: Iterable[TextHeaders]
    match message:
        case Append(headers=list(rows)):
            found = (trace_of(headers) for headers in rows)
        case Put(data=data) | PutJob(data=data):
            found = (_of_job(each) for each in (data,))
        case PutJobs(jobs=jobs):
            found = (_of_job(each) for each in jobs[:1])
        case PutFlow(steps=steps):
            found = (_of_job(each.data) for each in steps[:1])
        case _:
            return
    yield from filter(_is_trace, found)


def _of_job(data: bytes) -> TextHeaders:
    # A quick look first: most messages are no jobs with a trace.
    return job_headers(data) if TRACE_PARENT in data else {}


def _is_trace(carrier: TextHeaders) -> bool:
    return trace.get_current_span(context_of(carrier)).get_span_context().is_valid


def _fail(span: Span, text: str) -> None:
    span.set_status(Status(StatusCode.ERROR, text))
    span.end()
