"""Prometheus metrics of a node.

Names and units follow Prometheus's conventions: base units, and `_total` for counters.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from millpond.actors.channels.context import DeliveryCounters
from millpond.actors.histogram import Histogram
from millpond.actors.jobs.flows import Flows
from millpond.actors.jobs.schedule_counters import ScheduleCounters
from millpond.actors.jobs.schedules import Schedules, ScheduleTotals
from millpond.actors.runtime.scheduler import RuntimeCounters
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import server_stats
from millpond.actors.store.stats import JournalStats
from millpond.actors.streams.names import FLOWS, SCHEDULES
from millpond.actors.subscriptions.context import SubscriptionCounters
from millpond.node.admin import StatusSources
from millpond.node.clock import ClockStatus
from millpond.node.config import Config
from millpond.node.environment import installed_version
from millpond.node.http.metric_sources import CellTotals, LagTotals, MetricSources
from millpond.node.http.named_metrics import ChannelRow, NamedMetrics, QueueRow
from millpond.node.log_handler import dropped_records
from millpond.node.replica.interface import ColdInfo, ReplicaInfo
from millpond.node.webhooks.services import SubscriptionServices
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.request import LISTENER
from millpond.transports.server.memory_budget import MemoryBudget, MemoryStats
from millpond.transports.server.protocol_stats import ProtocolStats

SAMPLES_PER_PASS = 200
"""After so many samples the event loop handles other events: they take about a millisecond."""
END = b"# EOF\n"
"""The last line of OpenMetrics."""
Amount = int | float
Value = tuple[str, str, Amount]
"""The name of a metric without its prefix, its help text, its value."""
Rows = Iterable[Value]


async def expose(
    sources: MetricSources, totals: CellTotals, named: NamedMetrics, accept: str
) -> tuple[str, bytes]:
    """Content type and text of `/metrics`, in the format that the header `accept` asks for,
    encoded in steps."""
    encode, content_type = choose_encoder(accept)
    text, waiting, samples = bytearray(), list[Metric](), 0
    # The values without names are of one moment.
    for family in [*_Snapshot(sources, totals).collect(), *of_names(named)]:
        waiting.append(family)
        samples += len(family.samples)
        if samples >= SAMPLES_PER_PASS:
            text += encode(_Families(waiting)).removesuffix(END)
            waiting, samples = [], 0
            await checkpoint()
    text += encode(_Families(waiting))
    return content_type, bytes(text)


class _Families(CollectorRegistry):
    """Families to encode."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class _Snapshot:
    """The values of one moment."""

    def __init__(self, sources: MetricSources, totals: CellTotals) -> None:
        self._sources = sources
        self._status = sources.status()
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        yield from _families(GaugeMetricFamily, self._gauges())
        yield from _families(CounterMetricFamily, self._counters())
        yield from self._labelled()
        yield from of_protocols(self._status.protocol_stats, self._sources.http)
        if isinstance(self._status.store, DurableStore):
            yield from of_journal(self._status.store.journal_stats)

    def _gauges(self) -> Iterator[Value]:
        status, totals, sources = self._status, self._totals, self._sources
        yield "uptime_seconds", "Seconds since the node started.", status.uptime_s
        yield from _channel_gauges(status, totals)
        yield from _stream_gauges(status, sources, totals.group_lag)
        yield from _job_gauges(status, totals)
        yield from _subscription_gauges(sources.subscriptions)
        yield (
            "store_writable",
            "1 if the store accepts writes, otherwise 0.",
            int(status.store.health.is_writable),
        )
        yield from _clock_gauges(status.clock)
        yield from _replica_gauges(status.replica)
        yield from _limits(sources.config)
        yield from _peer_gauges(status)
        yield "limit_connections", "Limit of open connections.", sources.config.connections_max
        if isinstance(status.store, DurableStore):
            yield from _store_gauges(status.store, status.now)
        if (redis := server_stats(status.store)) is not None:
            yield "redis_waiting_bytes", "Bytes on their way to Redis.", redis.waiting_bytes
            yield "redis_partitions", "Channels and streams kept in Redis.", redis.partitions

    def _counters(self) -> Iterator[Value]:
        status, sources = self._status, self._sources
        wire, http = status.wire, sources.http
        yield "malformed_requests", "Requests that could not be parsed.", wire.malformed
        yield "aborted_connections", "Connections closed by the node for bad input.", wire.aborted
        yield (
            "stalled_connections",
            "Connections closed because the client did not read.",
            wire.stalled,
        )
        yield (
            "overloaded_connections",
            "Connections closed because a stream took no more of their requests for 28 s.",
            wire.overloaded,
        )
        yield "slowed_requests", "Requests delayed or denied by a rate limit.", wire.slowed
        yield (
            "identified_clients",
            "Clients that authenticated with an identity key.",
            wire.identified,
        )
        yield from _deliveries(status.delivery)
        yield from _cells(status.scheduler.counters)
        yield "stream_records_appended", "Records appended to streams.", sources.streams.appended
        yield (
            "stream_records_skipped",
            "Records skipped because an API cannot represent them.",
            sources.streams.skipped,
        )
        yield "stream_trims", "Trims of streams.", sources.streams.trims
        yield "stream_trimmed_bytes", "Bytes removed by trims.", sources.streams.trimmed_bytes
        yield from _transactions(sources)
        yield from _schedules(sources.schedules)
        yield from _subscriptions(sources.subscriptions.counters)
        rustlog = sources.rustlog
        yield (
            "rustlog_records_produced",
            "Records produced over RustLog.",
            rustlog.messages_produced,
        )
        yield "rustlog_records_fetched", "Records fetched over RustLog.", rustlog.messages_fetched
        yield "http_sent_bytes", "Bytes of HTTP response bodies.", http.bytes_out
        yield "http_clients_gone", "HTTP clients that disconnected before the response.", http.gone
        yield "http_crashes", "HTTP requests that failed with an internal error.", http.crashed
        yield (
            "log_dropped_records",
            "Log records dropped because nobody read the log.",
            dropped_records(),
        )
        replica = status.replica
        yield (
            "replica_objects",
            "Journal objects made in the replica.",
            0 if replica is None else replica.objects,
        )
        yield (
            "replica_shipped_bytes",
            "Bytes of journal objects made in the replica.",
            0 if replica is None else replica.bytes,
        )
        yield (
            "replica_breaks",
            "Histories that began in the replica, because the one before could not go on.",
            0 if replica is None else replica.breaks,
        )
        yield from _cold_counters(None if replica is None else replica.cold)
        yield "store_failures", "Failed disk writes.", status.store.health.failures
        store = status.store
        if isinstance(store, DurableStore):
            kept = store.stats
            yield "journal_commits", "Group commits.", kept.groups
            yield "journal_syncs", "Disk syncs.", kept.syncs
            yield (
                "journal_written_bytes",
                "Bytes written to the journal.",
                store.journal_stats.bytes,
            )
            yield "partition_flushes", "Partitions flushed to files.", kept.flushes
            yield (
                "partition_carries",
                "Partitions rewritten to the journal by compaction.",
                kept.carries,
            )
            yield "scrub_read_bytes", "Bytes read by the scrub.", kept.scrub_bytes
            yield "scrub_passes", "Full passes of the scrub.", kept.scrub_passes
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield (
            "process_cpu_seconds",
            "CPU time of the process in seconds.",
            used.ru_utime + used.ru_stime,
        )

    def _labelled(self) -> Iterator[Metric]:
        sources, status = self._sources, self._status
        about = GaugeMetricFamily(
            "millpond_node_info",
            "Version and durability; always 1.",
            labels=("version", "durability"),
        )
        about.add_metric((installed_version(), status.durability.name.lower()), 1)
        yield about
        open_now = Counter(map(sources.listener_of, sources.connections()))
        name, text = (
            "millpond_open_connections",
            "Open connections; for HTTP, requests in progress.",
        )
        connections = GaugeMetricFamily(name, text, labels=("listener",))
        for listener, count in sorted(open_now.items()):
            connections.add_metric((listener,), count)
        yield connections
        refusals = CounterMetricFamily(
            "millpond_refusals", "Denied connections and requests.", labels=("reason",)
        )
        for reason, count in sorted(status.wire.reasons.items()):
            refusals.add_metric((reason.replace(" ", "_"),), count)
        yield refusals
        answers = CounterMetricFamily(
            "millpond_http_answers", "HTTP responses.", labels=("api", "status")
        )
        for (api, code), count in sorted(sources.http.answers.items()):
            answers.add_metric((api, str(code)), count)
        yield answers
        deliveries = CounterMetricFamily(
            "millpond_webhook_deliveries", "Calls of webhooks.", labels=("outcome",)
        )
        counters = sources.subscriptions.counters
        deliveries.add_metric(("delivered",), counters.delivered)
        deliveries.add_metric(("failed",), counters.undelivered)
        yield deliveries
        yield from _families(CounterMetricFamily, _memory_work(sources.memory.stats))
        yield from _families(GaugeMetricFamily, _memory(sources.memory))
        yield from _families(GaugeMetricFamily, _process(status.rss_bytes), prefix="process_")


def _channel_gauges(status: StatusSources, totals: CellTotals) -> Iterator[Value]:
    """Channels: what is in memory, and what they store."""
    usage, behind = status.store.usage, totals.subscriber_lag
    yield "cells", "Channels and streams in memory.", len(status.scheduler.cells)
    yield "channels", "Channels in memory.", totals.channels
    yield "channel_messages", "Messages stored in all channels.", usage.messages
    yield "channel_bytes", "Bytes of data stored in all channels.", usage.bytes
    yield "channel_keys", "Idempotency keys kept for messages that are gone.", usage.keys
    yield "channel_guests", "Consumers and producers attached to channels.", totals.consumers
    yield "channel_leased_messages", "Messages pushed and not acknowledged yet.", totals.leased
    yield "channel_credit_messages", "Pushes that consumers accept now.", totals.credit
    yield "channel_subscribers", "Subscribers of fanout channels.", totals.subscribers
    yield (
        "subscriber_lag_messages",
        "Messages that fanout subscribers have not acknowledged yet.",
        behind.total,
    )
    yield "subscriber_lag_max_messages", "Lag of the slowest fanout subscriber.", behind.most
    yield (
        "cells_quarantined",
        "Channels and streams quarantined after repeated crashes.",
        totals.quarantined,
    )
    yield (
        "cells_unreadable",
        "Channels and streams whose data cannot be read.",
        totals.unreadable,
    )


def _stream_gauges(
    status: StatusSources, sources: MetricSources, lag: LagTotals
) -> Iterator[Value]:
    """Streams, consumer groups, staged parts and materialized states."""
    yield "streams", "Streams.", status.streams
    yield "stream_bytes", "Bytes kept in all streams.", status.store.usage.log_bytes
    yield "stream_groups", "Consumer groups of streams.", sources.groups()
    yield "group_lag_records", "Records that consumer groups have not committed yet.", lag.total
    yield "group_lag_max_records", "Lag of the slowest consumer group.", lag.most
    parts = sources.stages.count
    yield "transaction_parts", "Staged parts of batches that are not published yet.", parts
    states = sources.states
    yield "states", "Materialized states with values.", states.count
    yield "state_bytes", "Bytes of all materialized states.", states.bytes


def _job_gauges(status: StatusSources, totals: CellTotals) -> Iterator[Value]:
    """Schedules, flows and kept results of jobs."""
    schedules = _schedule_totals(status)
    yield "schedules", "Schedules of job queues.", schedules.schedules
    yield "schedules_paused", "Schedules that are paused.", schedules.paused
    yield (
        "schedule_wait_seconds",
        "Age of the oldest moment of a schedule whose job is not stored (0 = none).",
        schedules.waits_s,
    )
    flows = status.scheduler.view(FLOWS)
    running, ended, size = flows.counts if isinstance(flows, Flows) else (0, 0, 0)
    yield "flows", "Flows of jobs that have not ended.", running
    yield "flows_ended", "Flows that have ended and are kept.", ended
    yield "flow_bytes", "Bytes of all flows, with the results of their steps.", size
    yield "job_records", "Results and progress of jobs that are kept.", totals.job_records
    yield "job_record_bytes", "Bytes of these.", totals.job_record_bytes


def _subscription_gauges(subscriptions: SubscriptionServices) -> Iterator[Value]:
    """Subscriptions and webhooks."""
    yield "subscriptions", "Subscriptions.", len(subscriptions.index.cells)
    yield (
        "subscriptions_failed",
        "Subscriptions whose last webhook or event failed.",
        len(subscriptions.counters.failed),
    )
    yield (
        "webhook_deliveries_waiting",
        "Webhooks that wait because too many are called.",
        subscriptions.sender.waiting,
    )


def _clock_gauges(clock: ClockStatus) -> Iterator[Value]:
    """The wall clock beside the time of the node."""
    yield (
        "clock_jump_seconds",
        "Jump of the wall clock that is not confirmed, which holds expiry (0 = none).",
        clock.jump_s,
    )
    yield (
        "clock_behind_seconds",
        "Seconds that the wall clock is behind the node's time (0 = it is not).",
        clock.behind_s,
    )
    yield (
        "ids_ahead_seconds",
        "Seconds that the last message id is ahead of the node's time (0 = it is not).",
        clock.ids_ahead_s,
    )


def _cold_counters(cold: ColdInfo | None) -> Iterator[Value]:
    """Cold streams; zeros where there are none."""
    yield (
        "replica_cold_objects",
        "Cold objects that were uploaded to the replica.",
        0 if cold is None else cold.objects,
    )
    yield (
        "replica_cold_moved_bytes",
        "Bytes of records that were moved to the replica, out of their streams' files.",
        0 if cold is None else cold.moved_bytes,
    )
    yield (
        "replica_cold_fetches",
        "Cold objects that were fetched from the replica.",
        0 if cold is None else cold.fetches,
    )
    yield (
        "replica_cold_fetched_bytes",
        "Bytes of cold objects that were fetched from the replica.",
        0 if cold is None else cold.fetched_bytes,
    )
    yield (
        "replica_cold_errors",
        "Fetches of cold objects that failed.",
        0 if cold is None else cold.errors,
    )
    yield (
        "replica_cold_cache_hits",
        "Reads of cold records whose object was in the cache.",
        0 if cold is None else cold.hits,
    )
    yield (
        "replica_cold_cache_misses",
        "Reads of cold records whose object was not in the cache.",
        0 if cold is None else cold.misses,
    )


def _cold_gauges(cold: ColdInfo | None) -> Iterator[Value]:
    yield (
        "replica_cold_bytes",
        "Bytes of records in the replica alone, of the streams looked at since the start.",
        0 if cold is None else cold.bytes,
    )
    yield (
        "replica_cold_cache_bytes",
        "Bytes of the cache of cold objects.",
        0 if cold is None else cold.cache_bytes,
    )
    yield (
        "replica_cold_damaged",
        "Cold objects that are damaged or not there.",
        0 if cold is None else len(cold.damaged),
    )


def _replica_gauges(replica: ReplicaInfo | None) -> Iterator[Value]:
    """The replica; zeros where there is none."""
    yield from _cold_gauges(None if replica is None else replica.cold)
    yield (
        "replica_away",
        "1 if the object store of the replica does not answer or refuses, otherwise 0.",
        int(replica is not None and replica.is_away),
    )
    yield (
        "replica_refusing",
        "1 if what has to be replicated is refused, otherwise 0.",
        int(replica is not None and replica.is_refusing),
    )
    yield (
        "replica_lag_bytes",
        "Bytes of the journal that are not in the replica yet.",
        0 if replica is None else replica.lag_bytes,
    )
    yield (
        "replica_lag_seconds",
        "Age of the oldest record that is not in the replica yet.",
        0 if replica is None else replica.lag_s,
    )
    yield (
        "replica_snapshot_timestamp_seconds",
        "Time of the last snapshot in the replica (0 = none).",
        0 if replica is None else replica.snapshot_at,
    )


def _limits(config: Config) -> Iterator[Value]:
    """Limits of the node, to be compared with what is stored."""
    yield "limit_messages", "Limit of messages in all channels.", config.node_messages_max
    yield "limit_channel_bytes", "Limit of bytes in all channels.", config.node_bytes_max
    yield "limit_stream_bytes", "Limit of bytes in all streams.", config.node_stream_bytes_max
    yield (
        "limit_state_bytes",
        "Limit of bytes of all materialized states.",
        config.node_state_bytes_max,
    )


def _peer_gauges(status: StatusSources) -> Iterator[Value]:
    """Senders and keys of the node's own peers."""
    yield (
        "message_requests",
        "Unknown senders whose messages wait to be accepted or refused.",
        status.message_requests,
    )
    yield (
        "one_time_prekeys",
        "One-time prekeys of this node that it and its relays can hand out.",
        status.one_time_prekeys,
    )
    yield (
        "discovered_nodes",
        "Nodes of the local network that have proved their keys (0 without `discover`).",
        status.discovered_nodes,
    )


def _store_gauges(store: DurableStore, now: float) -> Iterator[Value]:
    """The store on disk."""
    kept = store.stats
    busy_s = store.journal_stats.busy_s(now)
    yield (
        "journal_busy_seconds",
        "Age in seconds of the disk write in progress (0 = none).",
        busy_s,
    )
    yield "journal_bytes", "Bytes of the journal on disk.", kept.journal_bytes
    yield "journal_segments", "Journal files.", kept.segments
    yield "partition_files", "Partition files.", kept.files
    yield "damaged_partitions", "Damaged partitions, which are not served.", kept.damaged
    yield (
        "damages",
        "Known damages of the data folder (0 = none); `millpond doctor` lists them.",
        kept.damages,
    )
    yield (
        "scrub_last_pass_timestamp_seconds",
        "Time of the end of the last full pass of the scrub (0 = none since the start).",
        kept.scrubbed_at,
    )
    yield (
        "scrub_progress_ratio",
        "Part of the scrub's pass in progress that is done, 0 to 1.",
        kept.scrub_progress,
    )


def _transactions(sources: MetricSources) -> Iterator[Value]:
    counters, expired = sources.transactions, sources.stages.expired
    yield "transaction_rows_staged", "Rows staged for batches.", counters.staged_rows
    yield "transactions_published", "Batches published.", counters.published
    yield "transaction_rows_published", "Rows published in batches.", counters.published_rows
    yield (
        "transactions_duplicate",
        "Batches not published again, as duplicates.",
        counters.duplicates,
    )
    yield (
        "transaction_parts_expired",
        "Staged parts that expired before they were published.",
        expired,
    )


def _schedule_totals(status: StatusSources) -> ScheduleTotals:
    behaviour = status.scheduler.view(SCHEDULES)
    return behaviour.totals(status.now) if isinstance(behaviour, Schedules) else ScheduleTotals()


def _schedules(counters: ScheduleCounters) -> Iterator[Value]:
    yield "schedule_jobs", "Jobs that schedules put.", counters.jobs
    yield (
        "schedule_moments_missed",
        "Moments of schedules that were missed and put no job.",
        counters.missed,
    )
    yield "schedule_jobs_refused", "Jobs of schedules that their queue refused.", counters.refused


def _subscriptions(counters: SubscriptionCounters) -> Iterator[Value]:
    yield "subscription_wakes", "Wakes of subscriptions.", counters.wakes
    yield "subscription_claims", "Leases that workers claimed.", counters.claims
    yield "subscription_events", "Events appended to wake streams.", counters.events
    yield (
        "subscription_events_failed",
        "Events that a wake stream did not take.",
        counters.events_failed,
    )
    yield "subscription_leases_expired", "Leases that ran out.", counters.leases_expired
    yield (
        "subscription_fenced",
        "Acknowledgements refused because their wake had ended.",
        counters.fenced,
    )
    yield (
        "subscription_streams_refused",
        "Appends that woke nobody because a subscription has too many streams.",
        counters.unlinked,
    )


def _deliveries(counters: DeliveryCounters) -> Iterator[Value]:
    yield "messages_kept", "Messages accepted; dead letters count again.", counters.kept
    yield "pushes", "Messages pushed to consumers.", counters.pushes
    yield "redeliveries", "Pushes of messages after a failed attempt.", counters.redeliveries
    yield "acks", "Messages acknowledged.", counters.acks
    yield "nacks", "Pushes that consumers returned or rejected.", counters.nacks
    yield "push_timeouts", "Pushes not acknowledged before their timeout.", counters.timeouts
    yield "pushes_lost", "Pushes not acknowledged when the connection closed.", counters.lost
    yield "late_acks", "Acknowledgements of messages that no longer exist.", counters.late_acks
    yield "messages_expired", "Messages that expired.", counters.expired
    yield "dead_letters", "Messages moved to dead-letter channels.", counters.dead_letters
    yield "teed", "Messages that a tee appended to a stream.", counters.teed
    yield "tee_refusals", "Refused appends of tees.", counters.tee_refusals
    yield "tee_missed", "Messages removed before the tee appended them.", counters.tee_missed


def _cells(counters: RuntimeCounters) -> Iterator[Value]:
    restarts = counters.crashes - counters.quarantines
    yield "mailbox_batches", "Batches that waited in a mailbox.", counters.queued
    yield "cell_crashes", "Crashes of channels and streams.", counters.crashes
    yield "cell_restarts", "Restarts of channels and streams after a crash.", restarts
    yield (
        "cell_quarantines",
        "Channels and streams quarantined after repeated crashes.",
        counters.quarantines,
    )
    yield (
        "cell_passivations",
        "Idle channels and streams unloaded from memory.",
        counters.passivations,
    )


def _memory(memory: MemoryBudget) -> Iterator[Value]:
    """The memory that connections hold."""
    yield "memory_limit_bytes", "Limit of memory_used_bytes.", memory.settings.bytes_max
    yield (
        "memory_used_bytes",
        "Bytes of requests under way and of answers not read, in all connections.",
        memory.used_bytes + memory.promised_bytes + memory.connections_bytes,
    )
    yield "memory_waiting", "Connections and requests that wait for memory.", memory.waiting


def _memory_work(stats: MemoryStats) -> Iterator[Value]:
    yield "memory_waits", "Times that a connection or request waited for memory.", stats.waited
    yield "memory_refused", "Requests refused for lack of memory.", stats.refused
    yield "memory_closed", "Connections closed for lack of memory.", stats.closed


def _process(rss_bytes: int) -> Iterator[Value]:
    """Metrics of the process, by the names that all exporters use."""
    yield "resident_memory_bytes", "Resident memory in bytes.", rss_bytes
    yield (
        "max_fds",
        "Limit of open file descriptors.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    folder = Path("/proc/self/fd")
    if folder.exists():
        yield "open_fds", "Open file descriptors.", sum(1 for _ in folder.iterdir())


def _families(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], rows: Rows, prefix: str = "millpond_"
) -> Iterator[Metric]:
    for name, text, amount in rows:
        full = name if name.startswith("process_") else prefix + name
        yield kind(full, text, value=amount)


def of_protocols(stats: Mapping[str, ProtocolStats], http: HttpCounters) -> Iterator[Metric]:
    """Requests, bytes and latencies by protocol."""
    label = ("protocol",)
    connections = CounterMetricFamily("millpond_connections", "Accepted connections.", labels=label)
    requests = CounterMetricFamily(
        "millpond_requests", "Packets, commands and requests received.", labels=label
    )
    received = CounterMetricFamily(
        "millpond_received_bytes",
        "Bytes received; for HTTP, bytes of request bodies.",
        labels=label,
    )
    latency = HistogramMetricFamily(
        "millpond_request_seconds",
        "Seconds from a request to its response; sampled, at most 100 a second per protocol.",
        labels=label,
    )
    for name, each in stats.items():
        if name == LISTENER:
            requests.add_metric((name,), http.requests)
            received.add_metric((name,), http.bytes_in)
        else:
            connections.add_metric((name,), each.connections)
            requests.add_metric((name,), each.requests)
            received.add_metric((name,), each.bytes_in)
        latency.add_metric((name,), _buckets(each.latency), each.latency.total)
    yield from (connections, requests, received, latency)


def of_names(named: NamedMetrics) -> Iterator[Metric]:
    """Channels, queues, streams, groups and peers by name."""
    channels, queues, jobs = named.channels, named.queues, named.jobs
    for name, text, field in (
        ("channel_messages", "Messages stored in a channel.", "messages"),
        ("channel_bytes", "Bytes of data stored in a channel.", "bytes"),
        ("channel_leased_messages", "Messages of a channel that were pushed, unacked.", "leased"),
        ("channel_clients", "Connections of consumers and producers to a channel.", "consumers"),
        ("channel_lag_messages", "Messages that subscribers of a fanout have not acked.", "lag"),
        ("channel_oldest_seconds", "Age of the oldest message of a channel.", "oldest_s"),
    ):
        yield _by_label(name, text, ("channel",), _of_field(channels, field))
    for name, text, field in (
        ("jobs_waiting", "Jobs of a queue that are ready and wait for a worker.", "ready"),
        ("jobs_delayed", "Jobs of a queue that are not due yet.", "delayed"),
        ("jobs_running", "Jobs of a queue that a worker has a lease of.", "running"),
        ("jobs_dead", "Dead letters of a queue.", "dead"),
        ("job_workers", "Connections of workers that take jobs of a queue.", "workers"),
        ("job_oldest_seconds", "Age of the oldest job of a queue that waits.", "oldest_s"),
        ("jobs_limited", "Jobs of a queue that are ready and wait for a limit.", "limited"),
        ("job_queue_paused", "1 if a queue is paused, 0 if not; of _other the number.", "paused"),
    ):
        yield _by_label(name, text, ("queue",), _of_field(queues, field))
    for name, text, field in (
        ("jobs_put", "Jobs put into a queue since the start of the node.", "put"),
        ("jobs_done", "Jobs of a queue that were done since the start of the node.", "done"),
        ("jobs_failed", "Attempts of jobs of a queue that failed or were lost.", "failed"),
        ("jobs_died", "Jobs of a queue that became dead letters.", "dead"),
    ):
        counter = CounterMetricFamily(f"millpond_detailed_{name}", text, labels=("queue",))
        for queue, counts in jobs.items():
            counter.add_metric((queue,), getattr(counts, field))
        yield counter
    label = ("stream", "topic")
    sizes = ((key, row.bytes) for key, row in named.streams.items())
    yield _by_label("stream_bytes", "Bytes kept in a stream.", label, sizes)
    tails = CounterMetricFamily(
        "millpond_detailed_stream_records",
        "Records appended to a stream since it was created.",
        labels=label,
    )
    for key, row in named.streams.items():
        if row.tail is not None:
            tails.add_metric(key, row.tail)
    yield tails
    yield _by_label(
        "group_lag_records",
        "Records of a stream that a consumer group has not committed yet.",
        ("stream", "topic", "group"),
        named.groups.items(),
    )
    peers = [((name,), row) for name, row in named.peers.items()]
    for name, text, field in (
        ("peer_online", "1 if a contact is online, otherwise 0.", "is_online"),
        ("peer_waiting_messages", "Sealed messages that wait for a contact.", "queued"),
        ("peer_unconfirmed_messages", "Messages to a contact without receipt.", "unconfirmed"),
    ):
        rows = ((key, int(getattr(row, field))) for key, row in peers)
        yield _by_label(name, text, ("peer",), rows)


def _of_field(
    rows: Mapping[str, ChannelRow] | Mapping[str, QueueRow], field: str
) -> Iterator[tuple[tuple[str], Amount]]:
    """The rows with a value, by their label."""
    for name, row in rows.items():
        value: Amount | None = getattr(row, field)
        if value is not None:
            yield (name,), value


def _by_label(
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], Amount]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"millpond_detailed_{name}", text, labels=labels)
    for values, amount in rows:
        family.add_metric(values, amount)
    return family


def of_journal(timings: JournalStats) -> Iterator[Metric]:
    """Latencies of the journal."""
    for name, text, histogram in (
        ("commit_seconds", "Seconds to write and sync a group commit.", timings.commit_s),
        ("sync_seconds", "Seconds of a disk sync.", timings.sync_s),
        ("commit_records", "Journal records in a group commit.", timings.records),
    ):
        family = HistogramMetricFamily(f"millpond_journal_{name}", text)
        family.add_metric((), _buckets(histogram), histogram.total)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative buckets: each counts the values of those below as well."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
