"""The metrics of a worker for Prometheus: attempts and their durations, by queue and task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from millpond.actors.histogram import Histogram
from millpond.node.jobs.worker.outcome import OUTCOMES
from millpond.node.jobs.worker.worker import Worker


@contextmanager
def worker_metrics(worker: Worker, host: str, port: int) -> Iterator[int]:
    """Serve `/metrics` of a worker from a thread, for the block; gives the port. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker))
    server, thread = start_http_server(port, host, registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class WorkerCollector(Collector):
    """Counts of a worker. They are read in another thread, which changes nothing."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        stats = self._worker.stats
        label = ("queue", "task")
        yield GaugeMetricFamily(
            "millpond_worker_running", "Jobs that the worker runs now.", value=stats.running
        )
        yield GaugeMetricFamily(
            "millpond_worker_oldest_seconds",
            "Age in seconds of the longest running job (0 = none runs).",
            value=self._worker.oldest_s,
        )
        attempts = CounterMetricFamily(
            "millpond_worker_attempts", "Attempts of jobs that ended.", labels=(*label, "outcome")
        )
        seconds = HistogramMetricFamily(
            "millpond_worker_attempt_seconds", "Seconds of an attempt of a job.", labels=label
        )
        for key, task in dict(stats.tasks).items():
            for outcome in OUTCOMES:
                attempts.add_metric((*key, outcome), getattr(task, outcome))
            seconds.add_metric(key, _buckets(task.seconds), task.seconds.total)
        yield attempts
        yield seconds


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
