"""Spans of the node: the calls by which connections tell of requests and pushes.

The node continues traces whose context a job, a record or a request of HTTP carries, and begins
none itself. Without `millpond.tracing.instrument` a connection has no spans, and looks at one
attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from millpond.actors.messages import CellMessage, Reply


class ConnectionSpans(Protocol):
    """The spans of one connection. None of these raise."""

    def accepted(self, cell: bytes, messages: Sequence[CellMessage]) -> None:
        """These requests were given to a cell: a channel or a stream."""

    def sent(self, channel: bytes, replies: Sequence[Reply]) -> None:
        """These replies and pushes leave; pushes are of this channel."""

    def ended(self) -> None:
        """The connection left its channel: nothing is answered any more."""


class RequestSpan(Protocol):
    """The span of a request of HTTP."""

    def end(self, status: int) -> None:
        """The response has this status; 0: there was none."""


class NodeTracing(Protocol):
    """Makes the spans of a node."""

    def connection(self) -> ConnectionSpans:
        """The spans of a connection that was opened."""

    def request(
        self, api: str, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> RequestSpan | None:
        """The span of a request; None: its headers carry no context."""


class NodeHook:
    """The tracing of the nodes of this process; None: there is none."""

    def __init__(self) -> None:
        self.active: NodeTracing | None = None


node_hook = NodeHook()

TRACE_PARENT = b"traceparent"


def has_trace(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Do these headers carry a context?"""
    return any(name == TRACE_PARENT for name, _ in headers)
