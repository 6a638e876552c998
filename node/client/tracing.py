"""The place where traces hook into the clients: nothing, unless `millpond.tracing` was asked.

Clients look at `hook.active`, and go on without a span where it is None. This module imports
nothing of OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Name = str | bytes
"""The name of a channel or stream."""
TextHeaders = Mapping[str, str]
"""Trace context as text: `traceparent` and `tracestate` (W3C Trace Context)."""


class Span(Protocol):
    """A span that is open."""

    @property
    def carrier(self) -> dict[str, str]:
        """The headers that carry this span to others."""

    def sent(self, message_id: int | str) -> None:
        """The sent message or job has this id."""

    def failed(self, error: BaseException | None, text: str) -> None:
        """The work did not succeed; the span goes on."""


class OpenSpan(Protocol):
    """A span of what is sent, which is not the current one of any task."""

    def end(self, message_id: int | str | None, error: BaseException | None) -> None:
        """The sent message or job has this id, or the request failed."""


class Tracing(Protocol):
    """Makes spans, each a context in which it is the current one. An error that leaves it is
    recorded."""

    def send(self, destination: Name, count: int, size: int) -> AbstractContextManager[Span]:
        """So many messages, jobs or records of so many bytes are sent to a channel or stream."""

    def begin_send(
        self, destination: Name, count: int, size: int, origins: Sequence[object] | None = None
    ) -> OpenSpan:
        """The same where nothing waits for the reply. `origins`: of a batch, the spans in which its
        records were taken. If they are one it is the parent, else the span has links to them."""

    def origin(self) -> object:
        """The current span of this task, for `begin_send`."""

    def process(
        self,
        destination: Name,
        message_id: int,
        carrier: TextHeaders,
        task: str,
        attempt: int,
    ) -> AbstractContextManager[Span]:
        """A message or job is worked on, as a part of the trace in `carrier` if it has one."""

    def settle(
        self, destination: Name, message_id: int, outcome: str
    ) -> AbstractContextManager[Span]:
        """A message or job is acknowledged or returned."""

    def received(self, destination: Name, carriers: Iterable[TextHeaders], count: int) -> None:
        """So many records were read, which these traces wrote."""


class Hook:
    """The tracing of this process; None: there is none."""

    def __init__(self) -> None:
        self.active: Tracing | None = None


hook = Hook()

TRACE_HEADERS = (b"traceparent", b"tracestate")


def with_trace(
    headers: Sequence[tuple[bytes, bytes]], carrier: TextHeaders
) -> list[tuple[bytes, bytes]]:
    """The headers of a record with a trace context, unless they have one."""
    if any(name in TRACE_HEADERS for name, _ in headers):
        return list(headers)
    return [*headers, *((name.encode(), value.encode()) for name, value in carrier.items())]


def trace_of(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """The trace context in the headers of a record; empty: there is none."""
    return {
        name.decode(): value.decode("ascii", "replace")
        for name, value in headers
        if name in TRACE_HEADERS
    }
