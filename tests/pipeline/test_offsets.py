"""Offsets have one form, and a trigger takes its share of every partition."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.pipeline.errors import BadOption
from millpond.pipeline.spark.offsets import (
    Offsets,
    TopicPartition,
    decode,
    encode,
    end_of_batch,
    from_nested,
    lag,
    to_nested,
)

places = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 1200))
offsets = st.dictionaries(places, st.integers(0, 2**63 - 1), max_size=8)
counts = st.dictionaries(places, st.integers(0, 10_000), max_size=8)


@settings(deadline=None)
@given(offsets, st.randoms())
def test_the_same_offsets_are_the_same_bytes(found: Offsets, rng: object) -> None:
    rows = list(found.items())
    rng.shuffle(rows)  # type: ignore[attr-defined]
    assert encode(dict(rows)) == encode(found)
    assert json.dumps(to_nested(dict(rows))) == json.dumps(to_nested(found))
    assert decode(encode(found)) == found
    assert from_nested(to_nested(found)) == found


def test_the_form_is_that_of_the_kafka_source() -> None:
    found = {TopicPartition("b", 0): 7, TopicPartition("a", 10): 1, TopicPartition("a", 2): 2}
    assert encode(found) == '{"a":{"10":1,"2":2},"b":{"0":7}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "[]", '{"a":7}', '{"a":{"x":1}}', '{"a":{"0":-1}}', '{"a":{"0":true}}'),
        *("[" * 9999, '{"a":{"0":"1"}}', '{"a":{"-1":1}}', '{"a":{"0":9223372036854775808}}'),
    ],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        decode(text)


@settings(deadline=None)
@given(counts, counts, st.integers(1, 5000))
def test_a_limit_is_kept_and_nobody_starves(begin: Offsets, sizes: Offsets, most: int) -> None:
    end = {each: begin.get(each, 0) + size for each, size in sizes.items()}
    found = end_of_batch(begin, end, most)
    assert lag(begin, found) <= max(most, 0) + len(end)
    for each in end:
        assert begin.get(each, 0) <= found[each] <= end[each]
        assert (found[each] > begin.get(each, 0)) == (end[each] > begin.get(each, 0))


@settings(deadline=None)
@given(counts, st.integers(1, 5000))
@example({TopicPartition("t", 0): 3000, TopicPartition("t", 1): 3000}, 3)
def test_batch_after_batch_everything_is_taken(end: Offsets, most: int) -> None:
    begin: Offsets = {}
    # Shares are whole records, rounded down, so a batch may have half of what it might.
    for _ in range(2 * sum(end.values()) // most + len(end) * 12 + 1):
        begin = end_of_batch(begin, end, most)
    assert lag(begin, end) == 0
