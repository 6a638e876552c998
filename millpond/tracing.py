"""Traces by OpenTelemetry, for programs with the extra `otel` (docs/guides/monitoring.md).

`instrument()` has the clients and workers of this process make spans: send, process and settle of
messages and jobs, send and receive of records. Nodes of this process make spans of requests that
carry a context. Without it nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millpond.node.client.tracing import hook, trace_of
from millpond.transports.server.tracing import node_hook

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

__all__ = ["context_of", "instrument", "is_instrumented", "uninstrument"]


def instrument(provider: TracerProvider | None = None) -> None:
    """Make spans from now on, by this provider; None: by the global one.

    A second call replaces the provider. Raises ImportError without the extra `otel`.
    """
    try:
        from millpond.node.client.otel import OpenTelemetryTracing
        from millpond.node.node_spans import OpenTelemetryNodeTracing
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.startswith("opentelemetry"):
            raise ImportError("traces need OpenTelemetry: pip install 'millpond[otel]'") from exc
        raise
    hook.active = OpenTelemetryTracing(provider)
    node_hook.active = OpenTelemetryNodeTracing(provider)


def uninstrument() -> None:
    """Make no more spans."""
    hook.active = node_hook.active = None


def is_instrumented() -> bool:
    """True: `instrument` was called."""
    return hook.active is not None


def context_of(headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]]) -> Context:
    """The context of the trace that wrote a record or put a job, by its headers, as a parent of
    spans of your own; an empty one if they have none. Raises ImportError without the extra."""
    from millpond.node.client.otel import context_of as found

    return found(headers if isinstance(headers, Mapping) else trace_of(list(headers)))
