"""Spans by OpenTelemetry, with the attributes of its conventions for messaging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millpond.node.client.tracing import Name, TextHeaders
from millpond.node.environment import installed_version

NAME = "millpond"
LINKS_MAX = 32
"""The most traces that the span of a read is linked to."""
_PROPAGATOR = TraceContextTextMapPropagator()

Attributes = Mapping[str, Any]


class OpenTelemetrySpan:
    """A span of the SDK, or one that is not recorded."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def carrier(self) -> dict[str, str]:
        found: dict[str, str] = {}
        _PROPAGATOR.inject(found, trace.set_span_in_context(self._span))
        return found

    def sent(self, message_id: int | str) -> None:
        self._span.set_attribute("messaging.message.id", str(message_id))

    def failed(self, error: BaseException | None, text: str) -> None:
        if error is not None:
            self._span.record_exception(error)
            self._span.set_attribute("error.type", type(error).__qualname__)
        self._span.set_status(Status(StatusCode.ERROR, text))


class OpenTelemetryOpenSpan:
    """A span that ends with an answer."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def end(self, message_id: int | str | None, error: BaseException | None) -> None:
        span = OpenTelemetrySpan(self._span)
        if error is not None:
            span.failed(error, str(error))
        elif message_id is not None:
            span.sent(message_id)
        self._span.end()


class OpenTelemetryTracing:
    """Makes spans by a provider; None: the global one of the process, as it is at that time."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(NAME, installed_version(), provider)

    @contextmanager
    def send(self, destination: Name, count: int, size: int) -> Iterator[OpenTelemetrySpan]:
        with self._span("send", "send", SpanKind.PRODUCER, destination, _size(count, size)) as span:
            yield span

    def begin_send(
        self, destination: Name, count: int, size: int, origins: Sequence[object] | None = None
    ) -> OpenTelemetryOpenSpan:
        name, attributes = attributes_of("send", "send", destination, _size(count, size))
        parent, links = None, None
        if origins is not None:
            parent, links = _parent_or_links(origins)
        return OpenTelemetryOpenSpan(
            self._tracer.start_span(name, parent, SpanKind.PRODUCER, attributes, links)
        )

    def origin(self) -> object:
        return trace.get_current_span().get_span_context()

    @contextmanager
    def process(
        self,
        destination: Name,
        message_id: int,
        carrier: TextHeaders,
        task: str,
        attempt: int,
    ) -> Iterator[OpenTelemetrySpan]:
        more: dict[str, Any] = {
            "messaging.message.id": str(message_id),
            "millpond.attempt": attempt,
        }
        if task:
            more["millpond.task"] = task
        parent = context_of(carrier) if carrier else None
        with self._span(
            "process", "process", SpanKind.CONSUMER, destination, more, parent=parent
        ) as span:
            yield span

    @contextmanager
    def settle(
        self, destination: Name, message_id: int, outcome: str
    ) -> Iterator[OpenTelemetrySpan]:
        more = {"messaging.message.id": str(message_id)}
        with self._span(outcome, "settle", SpanKind.CLIENT, destination, more) as span:
            yield span

    def received(self, destination: Name, carriers: Iterable[TextHeaders], count: int) -> None:
        found = (trace.get_current_span(context_of(each)).get_span_context() for each in carriers)
        links = [Link(each) for each in _distinct(found)]
        more = {"messaging.batch.message_count": count}
        with self._span("receive", "receive", SpanKind.CONSUMER, destination, more, links=links):
            pass

    @contextmanager
    def _span(
        self,
        name: str,
        kind: str,
        span_kind: SpanKind,
        destination: Name,
        more: Attributes,
        *,
        parent: otel_context.Context | None = None,
        links: list[Link] | None = None,
    ) -> Iterator[OpenTelemetrySpan]:
        text, attributes = attributes_of(name, kind, destination, more)
        with self._tracer.start_as_current_span(text, parent, span_kind, attributes, links) as span:
            yield OpenTelemetrySpan(span)


def _distinct(contexts: Iterable[object]) -> list[SpanContext]:
    """The first different contexts of these, 32 at most."""
    found: dict[tuple[int, int], SpanContext] = {}
    for each in contexts:
        if isinstance(each, SpanContext) and each.is_valid and len(found) < LINKS_MAX:
            found[each.trace_id, each.span_id] = each
    return list(found.values())


def _parent_or_links(origins: Iterable[object]) -> tuple[otel_context.Context, list[Link]]:
    """The parent of what was made in these spans, if it is one; else a new trace with links."""
    contexts = _distinct(origins)
    if len(contexts) == 1:
        parent = trace.NonRecordingSpan(contexts[0])
        return trace.set_span_in_context(parent, otel_context.Context()), []
    return otel_context.Context(), [Link(each) for each in contexts]


def _size(count: int, size: int) -> dict[str, Any]:
    more = {"messaging.message.body.size": size}
    return more if count == 1 else more | {"messaging.batch.message_count": count}


def attributes_of(
    name: str, kind: str, destination: Name, more: Attributes
) -> tuple[str, dict[str, Any]]:
    """The name of a span, and its attributes."""
    if isinstance(destination, bytes):
        where = destination.decode("utf-8", "backslashreplace")
    else:
        where = destination
    attributes = {
        "messaging.system": NAME,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": where,
    }
    return f"{name} {where}", attributes | dict(more or {})


def context_of(carrier: TextHeaders) -> otel_context.Context:
    """The context of the trace in `carrier`, which may have none."""
    return _PROPAGATOR.extract(dict(carrier), otel_context.Context())
