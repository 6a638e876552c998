"""`--traces`: the spans of a node, to an exporter of OpenTelemetry that is installed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from threading import Thread

from millpond import tracing
from millpond.node.cli.exit_codes import usage_error

GROUP = "opentelemetry_traces_exporter"
"""The entry points by which packages of exporters are found."""
FLUSH_S = 5.0


def add_traces_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traces",
        metavar="EXPORTER",
        help="continue traces of clients, with spans to this exporter of OpenTelemetry: `console`, "
        "`otlp_proto_http` ... (extra `otel`; docs/guides/monitoring.md)",
    )


def make_spans(exporter: str) -> Callable[[], None]:
    """Make spans from now on. Gives a function that exports what is left, for 5 s at most."""
    from importlib.metadata import entry_points  # it takes 10 ms to load

    found = {each.name: each for each in entry_points(group=GROUP)}
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise usage_error("--traces needs OpenTelemetry: pip install 'millpond[otel]'") from exc
    if exporter not in found:
        names = ", ".join(sorted(found)) or "none"
        raise usage_error(f"--traces {exporter}: not installed; exporters that are: {names}")
    provider = TracerProvider(shutdown_on_exit=False)
    try:
        provider.add_span_processor(BatchSpanProcessor(found[exporter].load()()))
    except Exception as exc:  # the border to code that is not ours: an exporter of any package
        raise usage_error(f"--traces {exporter}: {exc}") from exc
    tracing.instrument(provider)

    def flush() -> None:
        # A collector that does not answer must not keep the process.
        ending = Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(FLUSH_S)

    return flush
