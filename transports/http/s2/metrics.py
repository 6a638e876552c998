"""Metrics: what this node can tell of the account, a basin, a stream (A.2).

It keeps no history. A gauge is the value of now, an accumulation the sum since the node started,
and each is one point of time; a period that has none of it gets no points.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from millpond.actors.streams import messages as m
from millpond.transports.http.response import Response, json_response
from millpond.transports.http.s2.auto_create import describe
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, invalid
from millpond.transports.http.s2.read_query import unique
from millpond.transports.http.s2.usage import BasinUsage

CLOCKS_S = 60
"""The assumed difference between the clocks of clients and the node."""
INTERVALS = ("minute", "hour", "day")

Set = TypeVar("Set", bound=Enum)
_SECONDS = re.compile(r"\d{1,10}", re.ASCII)


class Period(msgspec.Struct, frozen=True, gc=False):
    """A period from `start` to `end`, both inclusive; None: open."""

    now_s: int
    start: int | None = None
    end: int | None = None

    @property
    def has_now(self) -> bool:
        """True if the period includes the present."""
        return self.overlaps(self.now_s)

    def overlaps(self, since_s: int) -> bool:
        """True if the period has some of the time from `since_s` to now."""
        is_begun = self.start is None or self.start <= self.now_s + CLOCKS_S
        return is_begun and (self.end is None or self.end >= since_s - CLOCKS_S)


def read_metric_query(
    pairs: Sequence[tuple[str, str]], sets: type[Set], now: float
) -> tuple[Set, Period]:
    """The set and period of a query. Raises CodedError: bad_query; invalid for an unknown set.

    An interval is accepted and makes no difference: there is one point at most.
    """
    given = unique(pairs)
    if "set" not in given:
        raise CodedError(ErrorCode.BAD_QUERY, "set: required")
    start, end = (_seconds(given, name) for name in ("start", "end"))
    if start is not None and end is not None and start > end:
        raise invalid("start: later than the end")
    if given.get("interval") not in (None, *INTERVALS):
        raise CodedError(ErrorCode.BAD_QUERY, f"interval: expected one of {', '.join(INTERVALS)}")
    found = next((each for each in sets if each.value == given["set"]), None)
    if found is None:
        known = ", ".join(str(each.value) for each in sets)
        raise invalid(f"set: expected one of {known}")
    return found, Period(int(now), start, end)


def _seconds(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if _SECONDS.fullmatch(text) is None:
        raise CodedError(ErrorCode.BAD_QUERY, f"{name}: expected seconds since 1970")
    return int(text)


STREAMS_MAX = 1000
"""The most streams of a basin that are summed up: each of them is queried."""

Metric = dict[str, object]


class AccountSet(Enum):
    """Sets of metrics of all basins together."""

    ACTIVE_BASINS = "active-basins"
    ACCOUNT_OPS = "account-ops"


class BasinSet(Enum):
    """Sets of metrics of a basin."""

    STORAGE = "storage"
    APPEND_OPS = "append-ops"
    READ_OPS = "read-ops"
    READ_THROUGHPUT = "read-throughput"
    APPEND_THROUGHPUT = "append-throughput"
    BASIN_OPS = "basin-ops"


class StreamSet(Enum):
    """Sets of metrics of a stream."""

    STORAGE = "storage"


async def account_metrics(context: S2Context) -> Response:
    """GET /v1/metrics."""
    context.require(Operation.ACCOUNT_METRICS)
    wanted, period = read_metric_query(context.request.query, AccountSet, context.services.now())
    match wanted:
        case AccountSet.ACTIVE_BASINS:
            names = _active(context) if period.has_now else ()
            return _points([{"label": {"name": wanted.value, "values": [*names]}}])
        case AccountSet.ACCOUNT_OPS:
            return _points(_sums(context, period, context.usage.operations))


def _active(context: S2Context) -> Iterable[str]:
    """Basins with a stream, those that this client may see."""
    for name, _, _ in context.services.basins.all():
        if context.sees_basin(name) and context.services.basins.streams(name).names(b"", b"", 1):
            yield name.decode()


async def basin_metrics(context: S2Context, basin: bytes) -> Response:
    """GET /v1/metrics/{basin}."""
    context.require(Operation.BASIN_METRICS, basin)
    wanted, period = read_metric_query(context.request.query, BasinSet, context.services.now())
    context.require_basin(basin)
    usage = context.usage.of(basin)
    if wanted is BasinSet.STORAGE:
        size = await _basin_bytes(context, basin) if period.has_now else 0
        return _points([_gauge(period, size)])
    else:
        return _points(_of_basin(context, wanted, period, usage))


def _of_basin(
    context: S2Context, wanted: BasinSet, period: Period, usage: BasinUsage
) -> list[Metric]:
    counts = usage.operations
    match wanted:
        case BasinSet.APPEND_OPS:
            return [_sum(context, period, "append", counts[Operation.APPEND])]
        case BasinSet.READ_OPS:
            return [_sum(context, period, "read", counts[Operation.READ])]
        case BasinSet.APPEND_THROUGHPUT:
            return [_sum(context, period, "append", usage.appended_bytes, "bytes")]
        case BasinSet.READ_THROUGHPUT:
            return [_sum(context, period, "read", usage.read_bytes, "bytes")]
        case _:
            data = (Operation.APPEND, Operation.READ, Operation.TRIM, Operation.FENCE)
            rest = {each: count for each, count in counts.items() if each not in data}
            return _sums(context, period, Counter(rest))


async def stream_metrics(context: S2Context, target: Target) -> Response:
    """GET /v1/metrics/{basin}/{stream}."""
    context.require(Operation.STREAM_METRICS, target)
    _, period = read_metric_query(context.request.query, StreamSet, context.services.now())
    with context.cell_client() as cells:
        found = await describe(context, cells, target)
    return _points([_gauge(period, found.info.bytes_kept)])


async def _basin_bytes(context: S2Context, basin: bytes) -> int:
    names = context.services.basins.streams(basin).names(b"", b"", STREAMS_MAX + 1)
    if len(names) > STREAMS_MAX:
        raise invalid(
            f"storage: not summed up for more than {STREAMS_MAX} streams; query each stream"
        )
    size = 0
    with context.cell_client() as cells:
        for name in names:
            found = await cells.request(context.target_in(basin, name).cell, m.Describe)
            if isinstance(found, m.StreamDescription):  # it may have gone since
                size += found.info.bytes_kept
    return size


def _gauge(period: Period, size: int) -> Metric:
    values = [[period.now_s, size]] if period.has_now else []
    return {"gauge": {"name": "storage", "unit": "bytes", "values": values}}


def _sums(context: S2Context, period: Period, counts: Counter[Operation]) -> list[Metric]:
    """One for each operation that there was."""
    rows = sorted((each.value, count) for each, count in counts.items() if count)
    return [_sum(context, period, name, count) for name, count in rows]


def _sum(
    context: S2Context, period: Period, name: str, amount: int, unit: str = "operations"
) -> Metric:
    started_s = int(context.usage.started)
    values = [[started_s, amount]] if period.overlaps(started_s) else []
    return {"accumulation": {"name": name, "unit": unit, "interval": None, "values": values}}


def _points(values: list[Metric]) -> Response:
    return json_response(200, {"values": values})
