"""Reads of what others read before: the same records, in every protocol's form, within a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millpond.actors.errors import Code
from millpond.actors.store.changes import Position
from millpond.actors.streams import messages as m
from millpond.actors.streams.chunks import ChunkBuilder, join_columns
from millpond.actors.streams.record_cache import RecordCache, StreamCache
from millpond.transports.rustlog.codec import encode_fetched
from millpond.transports.rustlog.codec import encode_packed as encode_packed_rows
from millpond.transports.s3p.decoder import MEASURE, PAIRS, encode_packed, encode_records
from tests.actors.streams.harness import StreamHarness, bodies_of, read_of, rows_of, streams_in

S3P = m.RecordFilter(empty=False, commands=False)

Append = tuple[list[bytes], bool, int]
appends = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=12), min_size=1, max_size=12),
        st.booleans(),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=30,
)


def fill(streams: StreamHarness, appends: list[Append]) -> None:
    """Single records and many, with and without headers, at few or many milliseconds."""
    streams.create()
    for bodies, has_headers, wait_ms in appends:
        headers = [[(b"n", b"v")]] * len(bodies) if has_headers else None
        streams.append(*bodies, headers=headers)
        streams.advance(wait_ms / 1000)


def is_alike(found: m.Records) -> bool:
    """Is what was written for others the same as what is written anew?"""
    end = found.next
    return encode_records(found.spans, found.slices) == encode_records(found.spans) and (
        encode_fetched(found.spans, end, slices=found.slices) == encode_fetched(found.spans, end)
    )


@given(appends, st.data())
def test_any_reads_of_others_leave_a_read_as_it_is(
    appends: list[Append], data: st.DataObject
) -> None:
    """S3P-32, S3P-33, S3P-35, RL-19, RL-20: whoever read before, a reader sees the same."""
    with streams_in(None) as streams:
        fill(streams, appends)
        every = list(rows_of(streams.read()))
        places = st.integers(0, len(every) - 1)
        for _ in range(8):
            start, count = data.draw(places), data.draw(st.integers(1, 40))
            found = streams.read(start, count=count)
            assert list(rows_of(found)) == every[start : start + count]
            assert found.next == min(start + count, len(every)) and is_alike(found)
            by_id = streams.read(every[start][2], count=count)
            assert list(rows_of(by_id)) == every[start : start + count] and is_alike(by_id)
            seen = [row for row in every[start:] if row[3]][:count]
            shown = streams.read(start, count=count, record_filter=m.RecordFilter(empty=False))
            rows = list(rows_of(shown))
            assert rows == seen[: len(rows)] and bool(rows) is bool(seen) and is_alike(shown)


@pytest.mark.skipif(MEASURE is None, reason="records are packed by the native codecs")
@given(appends, st.data())
def test_packed_records_are_those_of_a_read_by_columns(
    appends: list[Append], data: st.DataObject
) -> None:
    """S3P-32, S3P-33, RL-19: with any start, count and size."""
    with streams_in(None) as streams:
        fill(streams, appends)
        every = list(rows_of(streams.read()))
        for _ in range(8):
            at = data.draw(st.integers(0, len(every) - 1))
            position = every[at][2]
            if data.draw(st.booleans()):
                seq = data.draw(st.sampled_from((0, position.seq + 1, 2**63, 2**64 - 1)))
                position = Position(position.ms, seq)
            start = data.draw(st.sampled_from((position, at)))
            limits = {
                "count": data.draw(st.integers(1, 40)),
                "bytes_max": data.draw(st.sampled_from((1, 60, 2**40))),
                "record_filter": S3P,
            }
            shown = streams.read(start, **limits)
            found = streams.read(start, measure=MEASURE, **limits)
            assert found.next == shown.next
            if found.packed:
                assert not found.spans and found.size_bytes == shown.size_bytes
                assert encode_packed(found.packed) == encode_records(shown.spans)
                assert encode_packed_rows(found.packed, 7) == encode_fetched(shown.spans, 7)
            else:
                assert list(rows_of(found)) == list(rows_of(shown))


@pytest.mark.skipif(MEASURE is None, reason="records are packed by the native codecs")
def test_records_of_large_appends_are_packed() -> None:
    with streams_in(None) as streams:
        fill(streams, [([b"%d" % at for at in range(9)], False, 1)] * 3)
        start = next(rows_of(streams.read(4, count=1)))[2]
        for same in (start, 4):
            found = streams.read(same, count=20, record_filter=S3P, measure=MEASURE)
            assert [each.count for each in found.packed] == [5, 9, 6] and found.next == 24
            found = streams.read(same, bytes_max=4, record_filter=S3P, measure=MEASURE)
            assert [each.count for each in found.packed] == [4] and found.next == 8


def test_s3p_41_what_is_trimmed_is_not_read_from_the_cache() -> None:
    with streams_in(None) as streams:
        fill(streams, [([b"%d" % n], False, 1) for n in range(20)])
        for _ in range(3):
            assert len(streams.bodies()) == 20
        streams.one(m.Trim(0, 7), m.Done)
        found = streams.read()
        assert bodies_of(found) == [b"%d" % n for n in range(7, 20)] and is_alike(found)


def test_s3p_42_a_stream_made_anew_shows_nothing_of_its_former_life() -> None:
    with streams_in(None) as streams:
        for body in (b"old", b"new"):
            streams.create()
            streams.append(body, body, ms=7)
            for _ in range(3):
                found = streams.read()
                assert bodies_of(found) == [body, body] and is_alike(found)
            streams.one(m.Delete(0), m.Done)


def test_deleted_and_filled_again_in_one_batch() -> None:
    with streams_in(None) as streams:
        fill(streams, [([b"old"], False, 0)])
        assert streams.bodies() == [b"old"]
        batch = [m.Delete(0), m.Create(1), m.Append(2, [b"new"]), read_of(0, number=3)]
        *_, found = streams.ask(*batch)
        assert isinstance(found, m.Records) and bodies_of(found) == [b"new"]
        assert streams.bodies() == [b"new"]


def test_records_of_a_batch_that_failed_are_not_shown_in_the_place_of_others() -> None:
    with streams_in(None) as streams:
        fill(streams, [([b"a"], False, 0)])
        streams.crash_on = {m.Describe}
        streams.ask(m.Append(0, [b"lost"]), read_of(0, number=1), m.Describe(2))
        streams.crash_on = set()
        streams.advance(60)
        streams.append(b"kept")
        for _ in range(3):
            assert streams.bodies() == [b"a", b"kept"]


def test_a_good_record_is_shown_whatever_its_neighbour_is() -> None:
    """Small chunks are read together; one that is damaged is the matter of who asks for it."""
    with streams_in(None) as streams:
        streams.create()
        streams.append(b"good")
        streams.advance(1)
        streams.append(b"bad")
        read = streams.store.read
        streams.store.read = lambda cell, seek: [
            each if each.first == 0 else replace(each, data=b"\xc1") for each in read(cell, seek)
        ]
        (found,) = streams.ask(read_of(0, count=1))
        assert bodies_of(found) == [b"good"]
        (refused,) = streams.ask(read_of(1, count=1))
        assert refused.code is Code.STORAGE_FAILED


def test_bytes_are_those_of_bodies_also_for_a_part() -> None:
    with streams_in(None) as streams:
        streams.create()
        streams.append(*[b"x" * 10] * 10)
        for _ in range(3):
            assert len(streams.bodies(3, bytes_max=50)) == 5
            assert len(streams.bodies(0, bytes_max=100)) == 10
            assert len(streams.bodies(3, bytes_max=1)) == 1


def test_the_cache_holds_no_more_than_its_limit() -> None:
    """Of all streams together; the oldest goes first."""
    cache = RecordCache(50_000)
    rows = [StreamCache(cache) for _ in range(20)]
    span = m.RecordColumns(0, [b"x" * 1000] * 10, 1, Position(1, 0))
    data = ChunkBuilder(0, Position(1, 0), span.bodies, 10_000, 1, None, 1).chunk()
    cached_chunks = []
    for row in rows:
        cached, after = row.cached([data], 0, {})
        assert after == 1 and cache.size <= 50_000
        assert row.cached([data], 0, {})[0] is cached
        assert len(cached.encoded(PAIRS)) > 10_000 and cache.size <= 50_000
        cached_chunks.append(cached)
    assert sum(cached.memory_bytes for cached in cached_chunks) == cache.size > 20_000
    assert [cached.memory_bytes for cached in cached_chunks[:16]] == [0] * 16
    assert rows[0].cached([data], 0, {})[0] is not cached_chunks[0]


@given(st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=5), min_size=1, max_size=5))
def test_spans_are_joined_record_by_record(parts: list[list[bytes]]) -> None:
    spans: list[m.RecordColumns] = []
    first = 3
    for at, bodies in enumerate(parts):
        spans.append(m.RecordColumns(first, bodies, 10 + at, Position(10 + at, 5)))
        first += len(bodies)
    whole = m.Records(0, [join_columns(spans)], 0, 0, 0)
    assert list(rows_of(whole)) == list(rows_of(m.Records(0, spans, 0, 0, 0)))
