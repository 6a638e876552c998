"""Metrics: the usage of the account and of basins, and the bytes that are stored (A.2).

Usage is kept by minute for a day and by hour for a month, in memory (`usage`); of the bytes stored
the node knows those of now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial

import msgspec

from millpond.actors.streams import messages as m
from millpond.transports.http.response import Response, json_response
from millpond.transports.http.s2.auto_create import describe
from millpond.transports.http.s2.codecs.config import SYSTEM, StorageClass
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, invalid
from millpond.transports.http.s2.metadata import basin_config, decode_basin_metadata
from millpond.transports.http.s2.read_query import unique
from millpond.transports.http.s2.usage import ACCOUNT, BasinUsage

AHEAD_S = 300
"""A period may end so much later than now: clocks differ."""
PERIOD_S = 30 * 86_400
STREAMS_MAX = 1000
"""The most streams of a basin that are summed up: each of them is queried."""
U32_MAX = 2**32 - 1
_SECONDS = re.compile(r"\d{1,10}", re.ASCII)

Metric = dict[str, object]


class Interval(Enum):
    """The time that one point stands for."""

    MINUTE = "minute", 60
    HOUR = "hour", 3600
    DAY = "day", 86_400

    @property
    def word(self) -> str:
        """The interval on the wire."""
        return self.value[0]

    @property
    def seconds(self) -> int:
        return self.value[1]


_INTERVALS = {each.word: each for each in Interval}
_MINUTES_AT_FIRST = (Interval.MINUTE, Interval.HOUR, Interval.DAY)
_HOURS_AT_FIRST = (Interval.HOUR, Interval.MINUTE, Interval.DAY)

Sets = Mapping[str, Sequence[Interval]]
"""Sets of metrics, each with its intervals, the default first; none: one given is ignored."""

ACCOUNT_SETS: Sets = {
    "active-basins": (),
    "account-ops": _HOURS_AT_FIRST,
    "estimated-billable-usage": (Interval.HOUR, Interval.DAY),
}
BASIN_SETS: Sets = {
    "storage": (Interval.HOUR,),
    "append-ops": _MINUTES_AT_FIRST,
    "read-ops": _MINUTES_AT_FIRST,
    "append-throughput": _MINUTES_AT_FIRST,
    "read-throughput": _MINUTES_AT_FIRST,
    "basin-ops": _HOURS_AT_FIRST,
}
STREAM_SETS: Sets = {"storage": (Interval.MINUTE,)}
_DATA_OPERATIONS = (Operation.APPEND, Operation.READ, Operation.TRIM, Operation.FENCE)


class MetricQuery(msgspec.Struct, frozen=True, gc=False):
    """A set of metrics for the time from `start` to `end`, both inclusive, in seconds."""

    set: str
    start: int
    end: int
    interval: Interval

    def has(self, begin: int) -> bool:
        """True if the period has some of the interval that begins then."""
        return begin <= self.end and begin + self.interval.seconds > self.start

    def begin_of(self, now: float) -> int:
        """The second at which the interval of now begins."""
        return int(now) // self.interval.seconds * self.interval.seconds


def read_metric_query(pairs: Sequence[tuple[str, str]], sets: Sets, now: float) -> MetricQuery:
    """The query of a request. Raises CodedError: bad_query for what cannot be read; invalid for a
    period that is open or impossible, and for an interval that the set does not have."""
    given = unique(pairs)
    intervals = sets.get(given.get("set", ""))
    if intervals is None:
        raise CodedError(ErrorCode.BAD_QUERY, f"set: expected one of {', '.join(sets)}")
    start, end = (_seconds(given, name) for name in ("start", "end"))
    word = given.get("interval")
    if word is not None and word not in _INTERVALS:
        raise CodedError(ErrorCode.BAD_QUERY, f"interval: expected one of {', '.join(_INTERVALS)}")
    if start is None or end is None:
        raise invalid("start and end: both are required")
    if start > end:
        raise invalid("start: later than the end")
    if end > now + AHEAD_S:
        raise invalid("end: in the future")
    if end - start > PERIOD_S:
        raise invalid("end: more than 30 days after the start")
    if not intervals:
        return MetricQuery(given["set"], start, end, Interval.HOUR)
    interval = intervals[0] if word is None else _INTERVALS[word]
    if interval not in intervals:
        known = ", ".join(each.word for each in intervals)
        raise invalid(f"interval: {given['set']} has only {known}")
    return MetricQuery(given["set"], start, end, interval)


def _seconds(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if _SECONDS.fullmatch(text) is None or int(text) > U32_MAX:
        raise CodedError(ErrorCode.BAD_QUERY, f"{name}: expected seconds since 1970")
    return int(text)


async def account_metrics(context: S2Context) -> Response:
    """GET /v1/metrics."""
    context.check_known()
    query = read_metric_query(context.request.query, ACCOUNT_SETS, context.services.now())
    context.require(Operation.ACCOUNT_METRICS)
    match query.set:
        case "active-basins":
            has_now = query.has(query.begin_of(context.services.now()))
            names = _active(context) if has_now else ()
            return _answer([{"label": {"name": query.set, "values": [*names]}}])
        case "estimated-billable-usage":
            return _answer([_accumulation(query, "total", [], "usd")])
        case _:
            return _answer(_operations(context, query, ACCOUNT, ()))


def _active(context: S2Context) -> Iterable[str]:
    """Basins with a stream, those that this client may see."""
    for name, _, _ in context.services.basins.all():
        if context.sees_basin(name) and context.services.basins.streams(name).names(b"", b"", 1):
            yield name.decode()


async def basin_metrics(context: S2Context, basin: bytes) -> Response:
    """GET /v1/metrics/{basin}."""
    query = read_metric_query(context.request.query, BASIN_SETS, context.services.now())
    context.require(Operation.BASIN_METRICS, basin)
    row = context.require_basin(basin)
    match query.set:
        case "storage":
            size = await _basin_bytes(context, basin)
            return _answer([_gauge(context, query, size)])
        case "basin-ops":
            return _answer(_operations(context, query, basin, _DATA_OPERATIONS))
        case "read-ops":
            sums = [
                _sum(context, query, basin, "unary", lambda usage: usage.unary_reads),
                _sum(context, query, basin, "streaming", lambda usage: usage.streaming_reads),
            ]
        case "read-throughput":
            sums = [_sum(context, query, basin, "read", lambda usage: usage.read_bytes, "bytes")]
        case "append-ops":
            default = _storage_class(row.metadata)
            sums = [
                _sum(context, query, basin, each.value, partial(_appends_of, each, default))
                for each in StorageClass
            ]
        case _:
            sums = [
                _sum(context, query, basin, each.value, partial(_appended_to, each), "bytes")
                for each in StorageClass
            ]
    return _answer([each for each in sums if each is not None])


def _storage_class(metadata: bytes) -> StorageClass:
    """That of the basin's new streams."""
    streams = basin_config(decode_basin_metadata(metadata)).default_stream_config
    return streams.storage_class or SYSTEM.storage_class


def _appends_of(storage_class: StorageClass, default: StorageClass, usage: BasinUsage) -> int:
    """Appends to streams of a class; those that were refused count as the basin's."""
    refused = usage.appends[None] if storage_class is default else 0
    return usage.appends[storage_class] + refused


def _appended_to(storage_class: StorageClass, usage: BasinUsage) -> int:
    return usage.appended_bytes[storage_class]


async def stream_metrics(context: S2Context, target: S2Target) -> Response:
    """GET /v1/metrics/{basin}/{stream}."""
    query = read_metric_query(context.request.query, STREAM_SETS, context.services.now())
    context.require(Operation.STREAM_METRICS, target)
    with context.cell_client() as cells:
        found = await describe(context, cells, target)
    return _answer([_gauge(context, query, found.info.bytes_kept)])


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


def _gauge(context: S2Context, query: MetricQuery, size: int) -> Metric:
    """The bytes of now."""
    begin = query.begin_of(context.services.now())
    values = [[begin, size]] if query.has(begin) else []
    return {"gauge": {"name": "storage", "unit": "bytes", "values": values}}


def _operations(
    context: S2Context, query: MetricQuery, basin: bytes, but: Sequence[Operation]
) -> list[Metric]:
    """One sum for each operation that there was."""
    counted = sorted(set(Operation) - set(but), key=lambda each: each.value)
    sums = [_sum(context, query, basin, each.value, partial(_count_of, each)) for each in counted]
    return [each for each in sums if each is not None]


def _count_of(operation: Operation, usage: BasinUsage) -> int:
    return usage.operations[operation]


def _sum(
    context: S2Context,
    query: MetricQuery,
    basin: bytes,
    name: str,
    amount_of: Callable[[BasinUsage], int],
    unit: str = "operations",
) -> Metric | None:
    """The amounts by interval, the unfinished one as well; None: there are none."""
    found = context.usage.intervals(basin, query.interval.seconds)
    amounts = [[begin, amount_of(usage)] for begin, usage in found if query.has(begin)]
    values = [each for each in amounts if each[1]]
    return _accumulation(query, name, values, unit) if values else None


def _accumulation(query: MetricQuery, name: str, values: list[list[int]], unit: str) -> Metric:
    interval = query.interval.word
    return {"accumulation": {"name": name, "unit": unit, "interval": interval, "values": values}}


def _answer(values: list[Metric]) -> Response:
    return json_response(200, {"values": values})
