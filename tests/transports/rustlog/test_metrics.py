"""RustLog's values: percentiles within a sixteenth, bounded memory, known names."""

from __future__ import annotations

from random import Random

import pytest

from millpond.transports.rustlog.metrics import (
    GROUP_PARTITIONS_MAX,
    GroupLag,
    Histogram,
    Reclaimed,
    RustlogMetrics,
)


@pytest.mark.parametrize("spread", [10, 1_000, 1_000_000, 10**12])
def test_a_percentile_is_right_within_a_sixteenth(spread: int) -> None:
    rng = Random(spread)
    values = sorted(rng.randrange(spread) for _ in range(2000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for percent in (0, 1, 50, 95, 99, 100):
        exact = values[max(0, len(values) * percent // 100 - 1)]
        assert exact <= histogram.percentile(percent) <= exact * 17 / 16 + 1


def test_nothing_took_no_time() -> None:
    assert Histogram().percentiles() == {"p50": 0, "p95": 0, "p99": 0}


def test_durations_above_the_limit_count_as_the_limit() -> None:
    histogram = Histogram()
    histogram.add(10**18)
    histogram.add(-5)
    assert 3600 * 10**9 < histogram.percentile(100) < 5000 * 10**9
    assert histogram.percentile(50) == 0


def test_new_samples_count_more_than_old_ones() -> None:
    histogram = Histogram()
    for _ in range(131_072):
        histogram.add(10**9)
    for _ in range(100_000):
        histogram.add(1000)
    assert histogram.percentile(50) < 2000
    assert histogram.count < 131_072 * 2


def test_rla_25_figures_and_their_text_agree() -> None:
    metrics = RustlogMetrics(int, lambda: Reclaimed(3, 4096))
    metrics.messages_produced = 7
    metrics.produce_latency.add(1000)
    lags = [GroupLag("logs", 0, 'a"b\\c\nd', 12)]
    values = metrics.values(lags)
    assert values["messages_produced_total"] == 7
    assert (values["segments_deleted_total"], values["bytes_reclaimed_total"]) == (3, 4096)
    assert values["produce_latency_ns"].keys() == {"p50", "p95", "p99"}
    text = metrics.prometheus(lags)
    assert text.endswith("\n")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name, value in values.items():
        if isinstance(value, int):
            assert samples[name] == str(value)
    for name in samples:
        bare = name.partition("{")[0]
        assert f"# TYPE {bare} " in text and f"# HELP {bare} " in text
    for percent, value in values["produce_latency_ns"].items():
        assert samples[f"produce_latency_ns_{percent}"] == str(value)
    label = r'consumer_lag{topic="logs",partition="0",group="a\"b\\c\nd"}'
    assert samples[label] == "12"


def test_only_so_many_partitions_are_watched_the_latest_ones() -> None:
    metrics = RustlogMetrics(int)
    for number in range(GROUP_PARTITIONS_MAX + 10):
        metrics.group_reads("t", number)
        metrics.group_reads("t", number)
    assert len(metrics.group_partitions) == GROUP_PARTITIONS_MAX
    assert ("t", 9) not in metrics.group_partitions
    assert ("t", GROUP_PARTITIONS_MAX + 9) in metrics.group_partitions
    metrics.group_reads("t", 10)
    metrics.group_reads("u", 0)
    latest = [*metrics.group_partitions][-2:]
    assert latest == [("t", 10), ("u", 0)], "one that is used again is the latest"
    assert ("t", 11) not in metrics.group_partitions


def test_a_name_that_no_topic_has_is_not_remembered() -> None:
    """The binary form has names of 65,535 bytes."""
    metrics = RustlogMetrics(int)
    metrics.group_reads("t" * 255, 0)
    metrics.group_reads("t" * 256, 0)
    assert [*metrics.group_partitions] == [("t" * 255, 0)]
