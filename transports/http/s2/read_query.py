"""Queries of reads (A.5), and the position where a read begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import assert_never

import msgspec

from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams.messages import U64_MAX
from millpond.transports.http.s2.codecs.sse import EventId
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    RangeNotSatisfiable,
    StreamPosition,
    invalid,
)
from millpond.transports.http.s2.model import METERED_MAX, RECORDS_MAX
from millpond.transports.http.s2.read_limits import ReadBudget

UNARY_WAIT_S_MAX = 60

_NUMBER = re.compile(r"\d{1,20}", re.ASCII)
_TRUTHS = {"true": True, "false": False}


class Origin(Enum):
    """The unit of the start of a read."""

    SEQ_NUM = "seq_num"
    TIMESTAMP = "timestamp"
    TAIL_OFFSET = "tail_offset"


class ReadQuery(msgspec.Struct, frozen=True, gc=False):
    """A query: the start `at`, counted as `origin` says; `until` is exclusive, in milliseconds;
    None: not given."""

    origin: Origin = Origin.TAIL_OFFSET
    at: int = 0
    clamp: bool = False
    count: int | None = None
    bytes: int | None = None
    until: int | None = None
    wait_s: int | None = None

    @property
    def is_bounded(self) -> bool:
        """True if a session ends by itself."""
        return self.count is not None or self.bytes is not None or self.until is not None

    @property
    def session_may_follow(self) -> bool:
        """True if a session waits at the tail for new records."""
        return not self.is_bounded if self.wait_s is None else self.wait_s > 0

    @property
    def session_may_begin_at_tail(self) -> bool:
        """False if a session at the tail is refused with 416; one with `wait=0` and no limit ends
        there without records (S2X-76)."""
        return not self.is_bounded or bool(self.wait_s)

    @property
    def unary_may_follow(self) -> bool:
        """A unary read is bounded always."""
        return bool(self.wait_s)

    @property
    def unary_wait_s(self) -> int:
        """The time that a unary read waits for a first record."""
        return min(self.wait_s or 0, UNARY_WAIT_S_MAX)

    def unary_budget(self) -> ReadBudget:
        """The limits of a unary read: those of one batch, if they are not less."""
        count = RECORDS_MAX if self.count is None else min(self.count, RECORDS_MAX)
        size = METERED_MAX if self.bytes is None else min(self.bytes, METERED_MAX)
        return ReadBudget(count, size, self.until)

    def session_budget(self, records_max: int = RECORDS_MAX) -> ReadBudget:
        """The limits of a session with so many records in a batch."""
        return ReadBudget(self.count, self.bytes, self.until, records_max)

    def after(self, event: EventId) -> ReadQuery:
        """The rest of a session that got as far as `event` (A.8)."""
        return ReadQuery(
            Origin.SEQ_NUM,
            min(event.last + 1, U64_MAX),
            self.clamp,
            None if self.count is None else max(self.count - event.count, 0),
            None if self.bytes is None else max(self.bytes - event.metered, 0),
            self.until,
            self.wait_s,
        )


def read_query(pairs: Sequence[tuple[str, str]]) -> ReadQuery:
    """The query of a read; unknown names are ignored.

    Raises CodedError: bad_query for a value that is no number or given twice, invalid for one that
    is out of range.
    """
    given = unique(pairs)
    starts = [each for each in Origin if each.value in given]
    if len(starts) > 1:
        raise invalid("at most one of seq_num, timestamp and tail_offset")
    origin = starts[0] if starts else Origin.TAIL_OFFSET
    query = ReadQuery(
        origin,
        _number(given, origin.value) or 0,
        _boolean(given, "clamp"),
        _number(given, "count"),
        _number(given, "bytes"),
        _number(given, "until"),
        _number(given, "wait"),
    )
    if origin is Origin.TIMESTAMP and query.until is not None and query.at >= query.until:
        raise invalid("until: must be above the timestamp at which the read begins")
    return query


def unique(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """A query by its names. Raises CodedError (bad_query) where one is there twice."""
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _bad_query(f"{twice[:40]}: given more than once")
    return given


def _number(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or (number := int(text)) > U64_MAX:
        raise _bad_query(f"{name}: expected a number, 0 to 2^64 - 1")
    return number


def _boolean(given: dict[str, str], name: str) -> bool:
    found = _TRUTHS.get(given.get(name, "false"))
    if found is None:
        raise _bad_query(f"{name}: expected 'true' or 'false'")
    return found


def _bad_query(text: str) -> CodedError:
    return CodedError(ErrorCode.BAD_QUERY, text)


def begin(query: ReadQuery, tail: StreamPosition, *, may_follow: bool) -> Seek:
    """The start of a read in a stream with this tail (A.5 1-3). Raises RangeNotSatisfiable."""
    sequence = query.at
    match query.origin:
        case Origin.SEQ_NUM:
            is_beyond = sequence > tail.seq_num
        case Origin.TIMESTAMP:
            is_beyond = sequence > tail.timestamp
            if not is_beyond and tail.seq_num > 0:
                return Seek(SeekBy.TIMESTAMP, timestamp=sequence)
            sequence = tail.seq_num
        case Origin.TAIL_OFFSET:
            is_beyond = False
            sequence = max(tail.seq_num - sequence, 0)
        case _:
            assert_never(query.origin)
    if is_beyond:
        if not query.clamp:
            raise RangeNotSatisfiable(tail)
        sequence = tail.seq_num
    if sequence == tail.seq_num and not may_follow:
        raise RangeNotSatisfiable(tail)
    return Seek(SeekBy.SEQUENCE, sequence=sequence)
