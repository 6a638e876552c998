"""A node's figures as Prometheus's metrics.

Names and units follow its conventions: base units, `_total` for what only grows.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from millpond.actors.channels.context import DeliveryCounters
from millpond.actors.histogram import Histogram
from millpond.actors.runtime.scheduler import RuntimeCounters
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.stats import JournalStats
from millpond.node.http.metric_sources import CellTotals, MetricSources
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.request import LISTENER
from millpond.transports.server.protocol_stats import ProtocolStats

Amount = int | float
Rows = Iterable[tuple[str, str, Amount]]
"""Name without prefix, what it is, how much."""


def expose(figures: MetricSources, totals: CellTotals, accept: str) -> tuple[str, bytes]:
    """Content type and text, in the form that the header `accept` asks for."""
    registry = CollectorRegistry()
    registry.register(_Reading(figures, totals))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


class _Reading(Collector):
    """One look at everything."""

    def __init__(self, figures: MetricSources, totals: CellTotals) -> None:
        self._figures = figures
        self._sources = figures.sources()
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        yield from _families(GaugeMetricFamily, self._gauges())
        yield from _families(CounterMetricFamily, self._counters())
        yield from self._labelled()
        yield from of_protocols(self._sources.protocol_stats, self._figures.http)
        if isinstance(self._sources.store, DurableStore):
            yield from of_journal(self._sources.store.journal_stats)

    def _gauges(self) -> Iterator[tuple[str, str, Amount]]:
        sources, totals, config = self._sources, self._totals, self._figures.config
        usage, health, behind = sources.store.usage, sources.store.health, totals.subscriber_lag
        yield "uptime_seconds", "Since the node started.", sources.uptime_s
        yield "cells", "Channels and streams that are in memory.", len(sources.scheduler.cells)
        yield "channels", "Channels that are in use.", totals.channels
        yield "channel_messages", "Messages kept in all channels.", usage.messages
        yield "channel_bytes", "Data of these messages.", usage.bytes
        yield "channel_keys", "Idempotency keys whose message is gone.", usage.keys
        yield "channel_guests", "Places that connections have in channels.", totals.guests
        yield "channel_leased_messages", "Messages pushed and not acknowledged.", totals.leased
        yield "channel_credit_messages", "Pushes that receivers allow.", totals.credit
        yield "channel_subscribers", "Identities that fanout channels serve.", totals.subscribers
        yield "subscriber_lag_messages", "Not acknowledged yet (fanout).", behind.total
        yield "subscriber_lag_max_messages", "The same, of the one furthest behind.", behind.most
        yield "cells_quarantined", "Cells that are set aside now.", totals.quarantined
        yield "cells_unreadable", "Cells that could not be read.", totals.unreadable
        yield "streams", "Streams that exist.", sources.streams
        yield "stream_bytes", "What all streams weigh.", usage.log_bytes
        yield "stream_groups", "Consumer groups of streams in use.", self._figures.groups()
        lag = totals.group_lag
        yield "group_lag_records", "Records that these did not commit yet.", lag.total
        yield "group_lag_max_records", "The same, of the one furthest behind.", lag.most
        parts = self._figures.stages.count
        yield "transaction_parts", "Parts of batches that are not published.", parts
        states = self._figures.states
        yield "states", "States of streams that hold values.", states.count
        yield "state_bytes", "What all of them take.", states.bytes
        yield "store_writable", "1 if changes can be kept now.", int(health.is_writable)
        yield "limit_messages", "What all channels may hold.", config.node_messages_max
        yield "limit_channel_bytes", "The same, data.", config.node_bytes_max
        yield "limit_stream_bytes", "What all streams may weigh.", config.node_stream_bytes_max
        yield "limit_state_bytes", "What all states may take.", config.node_state_bytes_max
        yield "limit_connections", "Connections at once.", config.connections_max
        store = sources.store
        if isinstance(store, DurableStore):
            kept = store.stats
            busy_s = store.journal_stats.busy_s(sources.now)
            yield "journal_busy_seconds", "Since when the disk is waited for; 0: not.", busy_s
            yield "journal_bytes", "What the journal takes on the disk.", kept.journal_bytes
            yield "journal_segments", "Files of the journal.", kept.segments
            yield "partition_files", "Files of channels and streams.", kept.files
            yield "damaged_partitions", "Partitions that are not served.", kept.damaged

    def _counters(self) -> Iterator[tuple[str, str, Amount]]:
        sources, figures = self._sources, self._figures
        wire, http = sources.wire, figures.http
        yield "malformed_requests", "Requests that could not be read.", wire.malformed
        yield "aborted_connections", "Connections ended by us for what came.", wire.aborted
        yield "stalled_connections", "Connections reset as nobody read.", wire.stalled
        yield "slowed_requests", "Requests put off by a rate limit.", wire.slowed
        yield "identified_clients", "Clients that proved a key.", wire.identified
        yield from _deliveries(sources.delivery)
        yield from _cells(sources.scheduler.counters)
        yield "stream_records_appended", "Records appended.", figures.streams.appended
        yield "stream_records_skipped", "Records no view could show.", figures.streams.skipped
        yield "stream_trims", "How often the oldest records went.", figures.streams.trims
        yield "stream_trimmed_bytes", "What went then.", figures.streams.trimmed_bytes
        yield from _transactions(figures)
        rustlog = figures.rustlog
        yield "rustlog_records_produced", "Records produced.", rustlog.messages_produced
        yield "rustlog_records_fetched", "Records fetched.", rustlog.messages_fetched
        yield "http_sent_bytes", "Bodies of answers.", http.bytes_out
        yield "http_clients_gone", "Clients that left before the answer.", http.gone
        yield "http_crashes", "Requests that failed by a mistake of ours.", http.crashed
        yield "store_failures", "Attempts to write that failed.", sources.store.health.failures
        store = sources.store
        if isinstance(store, DurableStore):
            kept = store.stats
            yield "journal_commits", "Groups of changes written at once.", kept.groups
            yield "journal_syncs", "Times the disk was waited for.", kept.syncs
            yield "journal_written_bytes", "Bytes written to it.", store.journal_stats.bytes
            yield "partition_flushes", "Partitions brought to files.", kept.flushes
            yield "partition_carries", "Partitions written to the journal again.", kept.carries
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield "process_cpu_seconds", "Time on the CPU.", used.ru_utime + used.ru_stime

    def _labelled(self) -> Iterator[Metric]:
        figures, sources = self._figures, self._sources
        about = GaugeMetricFamily("millpond_node_info", "1.", labels=("version", "durability"))
        about.add_metric((sources.version, sources.durability.name.lower()), 1)
        yield about
        open_now = Counter(map(figures.listener_of, figures.visitors()))
        name, text = "millpond_open_connections", "Connections now; with HTTP, requests."
        connections = GaugeMetricFamily(name, text, labels=("listener",))
        for listener, count in sorted(open_now.items()):
            connections.add_metric((listener,), count)
        yield connections
        refusals = CounterMetricFamily(
            "millpond_refusals", "Who was turned away or refused something.", labels=("reason",)
        )
        for reason, count in sorted(sources.wire.reasons.items()):
            refusals.add_metric((reason.replace(" ", "_"),), count)
        yield refusals
        answers = CounterMetricFamily(
            "millpond_http_answers", "Answers to HTTP requests.", labels=("api", "status")
        )
        for (api, status), count in sorted(figures.http.answers.items()):
            answers.add_metric((api, str(status)), count)
        yield answers
        yield from _families(GaugeMetricFamily, _process(sources.rss_bytes), prefix="process_")


def _transactions(figures: MetricSources) -> Iterator[tuple[str, str, Amount]]:
    counters, expired = figures.transactions, figures.stages.expired
    yield "transaction_rows_staged", "Rows taken in for batches.", counters.staged_rows
    yield "transactions_published", "Batches published, whole.", counters.published
    yield "transaction_rows_published", "Their rows.", counters.published_rows
    yield "transactions_duplicate", "Batches that were published before.", counters.duplicates
    yield "transaction_parts_expired", "Parts that nobody published in a day.", expired


def _deliveries(counters: DeliveryCounters) -> Iterator[tuple[str, str, Amount]]:
    yield "messages_kept", "Messages taken in; dead letters count again.", counters.kept
    yield "pushes", "Messages handed out to a connection.", counters.pushes
    yield "redeliveries", "Of these, those after a failed attempt.", counters.redeliveries
    yield "acks", "Messages acknowledged by a connection.", counters.acks
    yield "nacks", "Pushes that were given back or rejected.", counters.nacks
    yield "push_timeouts", "Pushes not acknowledged in time.", counters.timeouts
    yield "pushes_lost", "Pushes not acknowledged when the connection went.", counters.lost
    yield "late_acks", "Acks of messages that were not there.", counters.late_acks
    yield "messages_expired", "Messages that reached their deadline.", counters.expired
    yield "dead_letters", "Messages given up for a dead-letter channel.", counters.dead_letters
    yield "teed", "Messages of channels that were appended to a stream by a tee.", counters.teed
    yield "tee_refusals", "Times that the stream of a tee took nothing.", counters.tee_refusals
    yield "tee_missed", "Messages that left before such a stream took them.", counters.tee_missed


def _cells(counters: RuntimeCounters) -> Iterator[tuple[str, str, Amount]]:
    restarts = counters.crashes - counters.quarantines
    yield "mailbox_batches", "Batches that had to wait for a cell.", counters.queued
    yield "cell_crashes", "Crashes of channels and streams.", counters.crashes
    yield "cell_restarts", "Crashes after which the cell was to go on soon.", restarts
    yield "cell_quarantines", "Cells set aside as they kept crashing.", counters.quarantines
    yield "cell_passivations", "Idle cells put out of memory.", counters.passivations


def _process(rss_bytes: int) -> Iterator[tuple[str, str, Amount]]:
    """By the names that all exporters use."""
    yield "resident_memory_bytes", "Memory held.", rss_bytes
    yield "max_fds", "Files that may be open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    folder = Path("/proc/self/fd")
    if folder.exists():
        yield "open_fds", "Files that are open.", sum(1 for _ in folder.iterdir())


def _families(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], rows: Rows, prefix: str = "millpond_"
) -> Iterator[Metric]:
    for name, text, amount in rows:
        full = name if name.startswith("process_") else prefix + name
        yield kind(full, text, value=amount)


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
