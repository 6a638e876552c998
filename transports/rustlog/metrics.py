"""Metrics of RustLog on a node: counters, latencies, and consumer lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

TOPIC_CHARACTERS_MAX = 255
"""No topic has a longer name."""
GROUP_PARTITIONS_MAX = 10_000
"""Partitions of which it is remembered that a group reads them."""

_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_VALUE_MAX = 2**42 - 1
_RECENT = 2**17


class Histogram:
    """Durations in ns, at most 73 minutes, each exact to a sixteenth of itself.

    Newer ones count more: after 131,072 all that came before counts half.
    """

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count requests that took this time."""
        value = 0 if ns < 0 else ns if ns < _VALUE_MAX else _VALUE_MAX
        shift = value.bit_length() - _SUB_BITS - 1
        index = value if shift < 0 else (shift << _SUB_BITS) + (value >> shift)
        buckets = self._buckets
        buckets[index] = buckets.get(index, 0) + count
        self.count += count
        if self.count >= _RECENT:
            self._fade()

    def percentile(self, percent: float) -> int:
        """A percentile in ns; 0 without requests."""
        wanted = self.count * percent / 100
        seen = 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= wanted:
                return _longest(index)
        return 0

    def percentiles(self) -> dict[str, int]:
        """The three percentiles of RustLog (RLA-25)."""
        return {f"p{each}": self.percentile(each) for each in (50, 95, 99)}

    def _fade(self) -> None:
        halved = {index: count // 2 for index, count in self._buckets.items() if count > 1}
        self._buckets = halved
        self.count = sum(halved.values())


def _longest(index: int) -> int:
    shift = (index >> _SUB_BITS) - 1
    if shift <= 0:
        return index
    return (((index & (_SUB - 1)) + _SUB + 1) << shift) - 1


class Reclaimed(msgspec.Struct, frozen=True, gc=False):
    """Trims of streams: their number, and the bytes that they freed."""

    trims: int = 0
    bytes: int = 0


class GroupLag(msgspec.Struct, frozen=True, gc=False):
    """The number of records between the committed offset of a group and the end of a partition."""

    topic: str
    partition: int
    group_id: str
    lag: int


class RustlogMetrics:
    """One for all RustLog connections of a node. Bytes are those of records, not of frames.

    `ticks_ns` is a clock that only goes on, finer than the node's: most requests take microseconds.
    """

    __slots__ = (
        "_reclaimed",
        "active_connections",
        "bytes_in",
        "bytes_out",
        "fetch_latency",
        "group_partitions",
        "messages_fetched",
        "messages_produced",
        "produce_latency",
        "slow_consumers",
        "throttled_consumers",
        "ticks_ns",
    )

    def __init__(
        self, ticks_ns: Callable[[], int], reclaimed: Callable[[], Reclaimed] = Reclaimed
    ) -> None:
        self.ticks_ns = ticks_ns
        self._reclaimed = reclaimed
        self.messages_produced = self.messages_fetched = 0
        self.bytes_in = self.bytes_out = 0
        self.active_connections = 0
        self.throttled_consumers = 0
        """Times that reading a connection was paused because it did not read its answers."""

        self.slow_consumers = 0
        """Connections that ended because of that."""

        self.produce_latency = Histogram()
        self.fetch_latency = Histogram()
        self.group_partitions: dict[tuple[str, int], None] = {}
        """Topics and partitions that groups read, the latest last."""

    def fetched(self, count: int, size_bytes: int, took_ns: int) -> None:
        """A Fetch is answered."""
        self.messages_fetched += count
        self.bytes_out += size_bytes
        self.fetch_latency.add(took_ns)

    def group_reads(self, topic: str, partition: int) -> None:
        """A group reads there: its lag is one of the metrics."""
        if len(topic) > TOPIC_CHARACTERS_MAX:
            return
        partitions, key = self.group_partitions, (topic, partition)
        partitions.pop(key, None)
        if len(partitions) >= GROUP_PARTITIONS_MAX:
            del partitions[next(iter(partitions))]
        partitions[key] = None

    def values(self, lags: Iterable[GroupLag]) -> dict[str, Any]:
        """All of them by their names (RLA-25)."""
        return {
            **self._counters(),
            "produce_latency_ns": self.produce_latency.percentiles(),
            "fetch_latency_ns": self.fetch_latency.percentiles(),
            "consumer_lag": list(lags),
        }

    def prometheus(self, lags: Iterable[GroupLag]) -> str:
        """The same in Prometheus's text format (RB-28)."""
        lines = []
        for name, value in self._counters().items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [*_head(name, kind), f"{name} {value}"]
        for request, histogram in (
            ("fetch", self.fetch_latency),
            ("produce", self.produce_latency),
        ):
            for percent in (50, 95, 99):
                name = f"{request}_latency_ns_p{percent}"
                lines += [*_head(name, "gauge"), f"{name} {histogram.percentile(percent)}"]
        lines += _head("consumer_lag", "gauge")
        for each in lags:
            labels = f'topic="{_escaped(each.topic)}",partition="{each.partition}"'
            labels += f',group="{_escaped(each.group_id)}"'
            lines.append(f"consumer_lag{{{labels}}} {each.lag}")
        return "\n".join(lines) + "\n"

    def _counters(self) -> dict[str, int]:
        reclaimed = self._reclaimed()
        return {
            "messages_produced_total": self.messages_produced,
            "messages_fetched_total": self.messages_fetched,
            "bytes_in_total": self.bytes_in,
            "bytes_out_total": self.bytes_out,
            "active_connections": self.active_connections,
            "throttled_consumers_total": self.throttled_consumers,
            "slow_consumers_total": self.slow_consumers,
            "segments_deleted_total": reclaimed.trims,
            "bytes_reclaimed_total": reclaimed.bytes,
            **dict.fromkeys(_COMPACTION, 0),
        }


# Streams are trimmed, never compacted: these are here because clients look for them.
_COMPACTION = (
    "compaction_runs_total",
    "compaction_skipped_segments_total",
    "compaction_segments_rewritten_total",
    "compaction_records_dropped_total",
    "compaction_bytes_rewritten_total",
)


_HELP = {
    "messages_produced_total": "Records produced.",
    "messages_fetched_total": "Records fetched.",
    "bytes_in_total": "Bytes of the records produced.",
    "bytes_out_total": "Bytes of the records fetched.",
    "active_connections": "Open connections.",
    "throttled_consumers_total": "Pauses in reading from clients that do not read their answers.",
    "slow_consumers_total": "Connections ended because the client did not read its answers.",
    "segments_deleted_total": "Trims of streams.",
    "bytes_reclaimed_total": "Bytes of the records trimmed.",
    "consumer_lag": "Records that a group has not read.",
}


def _head(name: str, kind: str) -> list[str]:
    """The lines before the value of a metric."""
    if "_latency_ns_p" in name:
        request, _, percent = name.partition("_latency_ns_p")
        text = f"Latency of {request} requests in ns, percentile {percent}."
    else:
        text = _HELP.get(name, "Always 0: streams are trimmed, never compacted.")
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class ConnectionMetrics:
    """One connection's share of the metrics, told of it as a `pipelined.ConnectionObserver`.

    Latencies are those of runs: requests that were submitted together took equally long.
    """

    __slots__ = ("_metrics", "_produced", "_replied_ns", "_run_end", "_run_ns", "_runs")

    def __init__(self, metrics: RustlogMetrics) -> None:
        self._metrics = metrics
        self._runs: deque[tuple[int, int]] = deque()
        """The number behind the last request of each run, and the time of its submission."""
        self._run_end = self._run_ns = 0
        """The same of the run that is answered now."""
        self._replied_ns = 0
        self._produced = 0

    def submitted(self, end: int) -> None:
        """Requests below the number `end` are submitted."""
        self._runs.append((end, self._metrics.ticks_ns()))

    def produced(self, answered: int, count: int, size_bytes: int) -> None:
        """A Produce is answered; `answered` counts the requests that are, this one included."""
        if answered > self._run_end:
            self._enter_run(answered)
        self._produced += 1
        self._metrics.messages_produced += count
        self._metrics.bytes_in += size_bytes

    def fetched(self, answered: int, count: int, size_bytes: int) -> None:
        """A Fetch is answered."""
        if answered > self._run_end:
            self._enter_run(answered)
        self._metrics.fetched(count, size_bytes, self._replied_ns - self._run_ns)

    def opened(self) -> None:
        self._metrics.active_connections += 1

    def ended(self) -> None:
        self._metrics.active_connections -= 1

    def stalled(self) -> None:
        self._metrics.slow_consumers += 1

    def throttled(self) -> None:
        self._metrics.throttled_consumers += 1

    def before_replies(self) -> None:
        self._replied_ns = self._metrics.ticks_ns()

    def after_replies(self, answered: int) -> None:
        self._count_produced()
        runs = self._runs
        while runs and (runs[0][0] <= answered or answered < 0):
            runs.popleft()

    def _enter_run(self, answered: int) -> None:
        self._count_produced()
        while self._run_end < answered:
            self._run_end, self._run_ns = self._runs.popleft()

    def _count_produced(self) -> None:
        if self._produced:
            took_ns = self._replied_ns - self._run_ns
            self._metrics.produce_latency.add(took_ns, self._produced)
            self._produced = 0
