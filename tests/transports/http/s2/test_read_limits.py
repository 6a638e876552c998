"""Records come within a read's limits, in batches that have limits of their own
(docs/reference/s2.md)."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.streams.messages import MeasureBodies, RecordColumns, RecordFormat
from millpond.transports.http.s2.codecs.protobuf import MEASURE, RECORDS, encode_batch
from millpond.transports.http.s2.codecs.sse import EventId
from millpond.transports.http.s2.errors import StreamPosition
from millpond.transports.http.s2.model import RecordBatch
from millpond.transports.http.s2.read_limits import ReadBudget
from tests.actors.streams.harness import streams_in
from tests.transports.http.s2.samples import Record, metered_of, records_of, span_of

MIB = 2**20


class Shared:
    """The bytes that were encoded for an earlier reader."""

    def __init__(self, span: RecordColumns) -> None:
        self._span = span
        self.times = 0

    def encoded(self, form: RecordFormat) -> bytes:
        self.times += 1
        return form.encode(self._span)


def shown(batches: list[RecordBatch]) -> list[Record]:
    return [each for batch in batches for span in batch.spans for each in records_of(span)]


@st.composite
def runs(draw: st.DrawFn) -> list[RecordColumns]:
    """Spans one behind the other, with ascending timestamps."""
    found: list[RecordColumns] = []
    first, timestamp = draw(st.integers(0, 9)), 1
    for count in draw(st.lists(st.integers(1, 5), max_size=4)):
        bodies = [b"x" * draw(st.integers(0, 9)) for _ in range(count)]
        steps = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        times = [timestamp := timestamp + step for step in steps]
        plain = span_of(bodies, first, times[0])
        pairs = draw(st.none() | st.just([[(b"k", b"v")]] * count))
        has_times = len(set(times)) > 1
        found.append(
            RecordColumns(
                first, bodies, times[0], plain.id, times if has_times else None, None, pairs
            )
        )
        first += count
    return found


limits = st.none() | st.integers(0, 120)


@given(st.lists(runs(), max_size=3), limits, limits, st.none() | st.integers(0, 12))
def test_what_is_shown_is_what_fits_in_order(
    batches: list[list[RecordColumns]], count: int | None, size: int | None, until: int | None
) -> None:
    """Nothing comes behind the first record that breaks a limit, in this batch or a later one."""
    budget = ReadBudget(count, size, until)
    expected: list[Record] = []
    got: list[Record] = []
    for spans in batches:
        expected += [each for span in spans for each in records_of(span)]
        if not budget.is_over:
            got += shown(list(budget.batches(spans)))
    used = 0

    def fits(record: Record) -> bool:
        nonlocal used
        used += metered_of(record)
        return (until is None or record[1] < until) and (size is None or used <= size)

    fitting = list(takewhile(fits, expected[: count if count is not None else None]))
    assert got == fitting
    assert budget.count == len(got) and budget.metered == sum(map(metered_of, got))
    if got:
        assert budget.event_id == EventId(got[-1][0], budget.count, budget.metered)
    if len(fitting) < len(expected) or len(fitting) == count:
        assert budget.is_over
    if not budget.is_over:
        assert budget.count_left > 0 and budget.bytes_left > 0


@pytest.mark.parametrize("budget", [ReadBudget(0), ReadBudget(None, 7), ReadBudget(until=0)])
def test_limits_that_no_record_can_meet_are_over_at_once(budget: ReadBudget) -> None:
    assert budget.is_over and list(budget.batches([span_of([b""])])) == []


def test_a_batch_has_at_most_1000_records() -> None:
    spans = [span_of([b"x"] * 700, at * 700) for at in range(3)]
    budget = ReadBudget()
    batches = list(budget.batches(spans, tail=StreamPosition(2100, 9)))
    sizes = [sum(len(span.bodies) for span in batch.spans) for batch in batches]
    assert sizes == [1000, 1000, 100]
    assert shown(batches) == [each for span in spans for each in records_of(span)]
    assert {batch.tail for batch in batches} == {StreamPosition(2100, 9)}


def test_a_batch_has_at_most_1_mib_metered() -> None:
    half = MIB // 2 - 8
    spans = [span_of([bytes(half)] * 5), span_of([bytes(half + 1)] * 2, 5)]
    batches = list(ReadBudget().batches(spans))
    assert [len(shown([batch])) for batch in batches] == [2, 2, 1, 1, 1]
    assert [each[0] for each in shown(batches)] == list(range(7))


def test_where_a_session_is_when_each_of_its_batches_leaves() -> None:
    budget = ReadBudget()
    places = [
        (budget.event_id, len(shown([batch])))
        for batch in budget.batches([span_of([b"x"] * 1001, 5)])
    ]
    assert places == [(EventId(1004, 1000, 9000), 1000), (EventId(1005, 1001, 9009), 1)]


def test_a_record_that_is_too_large_comes_alone() -> None:
    spans = [span_of([b"a", bytes(MIB), b"b"])]
    assert [len(shown([batch])) for batch in ReadBudget().batches(spans)] == [1, 1, 1]


def test_whole_spans_are_sent_as_they_were_written_for_others() -> None:
    spans = [span_of([b"a", b"b"]), span_of([b"c", b"d"], 2)]
    shared = [Shared(span) for span in spans]
    (batch,) = ReadBudget(3).batches(spans, shared)
    assert encode_batch(batch) == RECORDS.encode(spans[0]) + RECORDS.encode(span_of([b"c"], 2))
    assert [each.times for each in shared] == [1, 0]


@pytest.mark.skipif(MEASURE is None, reason="records are packed by the native codecs")
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20), min_size=1, max_size=8),
    st.none() | st.integers(0, 90),
    st.none() | st.integers(0, 900),
    st.integers(1, 400),
)
def test_packed_records_are_those_that_a_budget_admits(
    appends: list[list[int]], count: int | None, size: int | None, step: int
) -> None:
    """`step`: a read asks for so many bytes at most."""
    with streams_in(None) as streams:
        streams.create()
        for sizes in appends:
            streams.append(*[b"x" * each for each in sizes])
        tail = sum(map(len, appends))

        def batches(measure: MeasureBodies | None) -> tuple[bytes, EventId]:
            budget, at, found = ReadBudget(count, size), 0, b""
            while not budget.is_over and at < tail:
                bytes_max = max(min(budget.bytes_left, step), 1)
                records = streams.read(
                    at, count=budget.count_left, bytes_max=bytes_max, measure=measure
                )
                at = records.next
                if records.packed:
                    found += encode_batch(budget.packed_batch(records.packed))
                else:
                    found += b"".join(map(encode_batch, budget.batches(records.spans)))
            return found, budget.event_id

        assert batches(MEASURE) == batches(None)
