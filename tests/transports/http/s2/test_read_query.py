"""Query parameters of reads (docs/reference/s2.md)."""

from __future__ import annotations

import pytest

from millpond.actors.positions import Seek, SeekBy
from millpond.transports.http.s2.codecs.sse import EventId
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    RangeNotSatisfiable,
    StreamPosition,
)
from millpond.transports.http.s2.read_query import Origin, ReadQuery, begin, read_query
from tests.transports.http.s2.samples import U64

TAIL, EMPTY = StreamPosition(10, 500), StreamPosition(0, 0)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], ReadQuery()),
        ([("seq_num", "0"), ("count", "5")], ReadQuery(Origin.SEQ_NUM, 0, count=5)),
        ([("timestamp", "9"), ("until", "10")], ReadQuery(Origin.TIMESTAMP, 9, until=10)),
        ([("tail_offset", "3"), ("clamp", "true")], ReadQuery(at=3, clamp=True)),
        ([("bytes", str(U64)), ("wait", "0"), ("clamp", "false")], ReadQuery(bytes=U64, wait_s=0)),
        ([("later", "x")], ReadQuery()),
    ],
)
def test_queries(pairs: list[tuple[str, str]], expected: ReadQuery) -> None:
    assert read_query(pairs) == expected


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([("seq_num", "x")], ErrorCode.BAD_QUERY),
        ([("seq_num", "-1")], ErrorCode.BAD_QUERY),
        ([("seq_num", "")], ErrorCode.BAD_QUERY),
        ([("seq_num", "٣")], ErrorCode.BAD_QUERY),
        ([("count", str(U64 + 1))], ErrorCode.BAD_QUERY),
        ([("wait", "1.5")], ErrorCode.BAD_QUERY),
        ([("clamp", "1")], ErrorCode.BAD_QUERY),
        ([("count", "1"), ("count", "2")], ErrorCode.BAD_QUERY),
        ([("seq_num", "1"), ("tail_offset", "1")], ErrorCode.INVALID),
        ([("timestamp", "10"), ("until", "10")], ErrorCode.INVALID),
    ],
)
def test_queries_that_are_refused(pairs: list[tuple[str, str]], code: ErrorCode) -> None:
    with pytest.raises(CodedError) as caught:
        read_query(pairs)
    assert caught.value.code is code


def sequence(number: int) -> Seek:
    return Seek(SeekBy.SEQUENCE, sequence=number)


@pytest.mark.parametrize(
    ("query", "tail", "expected"),
    [
        (ReadQuery(Origin.SEQ_NUM, 9), TAIL, sequence(9)),
        (ReadQuery(at=4), TAIL, sequence(6)),
        (ReadQuery(at=11), TAIL, sequence(0)),
        (ReadQuery(Origin.TIMESTAMP, 500), TAIL, Seek(SeekBy.TIMESTAMP, timestamp=500)),
        (ReadQuery(Origin.SEQ_NUM, 10), TAIL, None),
        (ReadQuery(), TAIL, None),
        (ReadQuery(Origin.SEQ_NUM, 11, clamp=True), TAIL, None),
        (ReadQuery(Origin.TIMESTAMP, 501, clamp=True), TAIL, None),
        (ReadQuery(Origin.SEQ_NUM, 0), EMPTY, None),
        (ReadQuery(Origin.TIMESTAMP, 0), EMPTY, None),
    ],
)
def test_where_a_read_begins_and_that_it_cannot_begin_at_the_tail(
    query: ReadQuery, tail: StreamPosition, expected: Seek | None
) -> None:
    """A.5 1 and 3: at the tail only a read that may follow begins."""
    if expected is None:
        with pytest.raises(RangeNotSatisfiable) as caught:
            begin(query, tail, may_follow=False)
        assert caught.value.content == {"tail": tail}
        expected = sequence(tail.seq_num)
    else:
        assert begin(query, tail, may_follow=False) == expected
    assert begin(query, tail, may_follow=True) == expected


@pytest.mark.parametrize("query", [ReadQuery(Origin.SEQ_NUM, 11), ReadQuery(Origin.TIMESTAMP, 501)])
def test_beyond_the_tail_nothing_begins(query: ReadQuery) -> None:
    """A.5 2."""
    with pytest.raises(RangeNotSatisfiable):
        begin(query, TAIL, may_follow=True)


@pytest.mark.parametrize(
    ("query", "session", "unary"),
    [
        (ReadQuery(), True, False),
        (ReadQuery(count=1), False, False),
        (ReadQuery(until=1, wait_s=1), True, True),
        (ReadQuery(bytes=1, wait_s=0), False, False),
        (ReadQuery(wait_s=0), False, False),
    ],
)
def test_who_may_follow(query: ReadQuery, session: bool, unary: bool) -> None:
    assert (query.session_may_follow, query.unary_may_follow) == (session, unary)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ReadQuery(), True),
        (ReadQuery(wait_s=0), True),
        (ReadQuery(count=5, wait_s=1), True),
        (ReadQuery(count=5), False),
        (ReadQuery(count=5, wait_s=0), False),
        (ReadQuery(until=1), False),
    ],
)
def test_s2x_76_which_sessions_begin_at_the_tail(query: ReadQuery, expected: bool) -> None:
    assert query.session_may_begin_at_tail is expected


def test_a_unary_read_has_limits_of_its_own() -> None:
    """A.5 4."""
    query = ReadQuery(count=5000, bytes=2**30, wait_s=600)
    budget = query.unary_budget()
    assert (budget.count_left, budget.bytes_left) == (1000, 2**20)
    assert query.unary_wait_s == 60 and ReadQuery().unary_wait_s == 0


def test_a_session_goes_on_where_an_event_says() -> None:
    """A.8: it begins behind the last record, and what came is taken off the limits."""
    query = ReadQuery(at=7, count=5, bytes=100, until=9, wait_s=3)
    rest = query.after(EventId(41, 2, 30))
    assert rest == ReadQuery(Origin.SEQ_NUM, 42, count=3, bytes=70, until=9, wait_s=3)
    spent = query.after(EventId(U64, 9, 300))
    assert (spent.at, spent.count, spent.bytes) == (U64, 0, 0)
    assert spent.session_budget().is_over
