"""Histograms of a node as Prometheus's: how long requests and the disk take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from millpond.actors.histogram import Histogram
from millpond.actors.store.timings import JournalStats
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.request import LISTENER
from millpond.transports.server.protocol_stats import ProtocolStats


def of_protocols(traffic: Mapping[str, ProtocolStats], http: HttpCounters) -> Iterator[Metric]:
    """Rates and latencies, by protocol."""
    label = ("protocol",)
    connections = CounterMetricFamily("millpond_connections", "Accepted.", labels=label)
    requests = CounterMetricFamily(
        "millpond_requests", "Packets, commands and requests received.", labels=label
    )
    received = CounterMetricFamily(
        "millpond_received_bytes", "Received; of HTTP, the bodies.", labels=label
    )
    latency = HistogramMetricFamily(
        "millpond_request_seconds",
        "From what was heard to its answer; sampled, at most 100 a second of each protocol.",
        labels=label,
    )
    for name, each in traffic.items():
        if name == LISTENER:
            requests.add_metric((name,), http.requests)
            received.add_metric((name,), http.bytes_in)
        else:
            connections.add_metric((name,), each.connections)
            requests.add_metric((name,), each.requests)
            received.add_metric((name,), each.bytes_in)
        latency.add_metric((name,), _buckets(each.latency), each.latency.total)
    yield from (connections, requests, received, latency)


def of_journal(timings: JournalStats) -> Iterator[Metric]:
    """What the journal takes of those who wait for it."""
    for name, text, histogram in (
        ("commit_seconds", "To write a group of changes, and to sync it.", timings.commit_s),
        ("sync_seconds", "To sync, alone.", timings.sync_s),
        ("commit_records", "What went to the disk together.", timings.records),
    ):
        family = HistogramMetricFamily(f"millpond_journal_{name}", text)
        family.add_metric((), _buckets(histogram), histogram.total)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Each counts what is in those below as well."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
