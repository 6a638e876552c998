"""Histograms: every value is in one place, and nothing is lost above the last bound."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.histogram import AMOUNTS, SECONDS, Histogram

VALUES = st.floats(min_value=0, max_value=1e9, allow_nan=False)


@given(st.lists(VALUES | st.sampled_from(SECONDS)), st.sampled_from([SECONDS, AMOUNTS]))
def test_a_bound_has_all_that_is_no_larger(values: list[float], bounds: tuple[float, ...]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    for at, bound in enumerate(bounds):
        assert sum(histogram.counts[: at + 1]) == sum(value <= bound for value in values)
    assert histogram.count == len(values) and abs(histogram.total - sum(values)) <= 1e-3
    assert list(bounds) == sorted(set(bounds))


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    histogram = Histogram(SECONDS)
    histogram.add(0.5)
    histogram.add(-3600.0)
    assert histogram.total == 0.5 and histogram.counts[0] == 1
    assert histogram.counts[bisect_left(SECONDS, 0.5)] == 1
