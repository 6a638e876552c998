"""The plan of a query: the ranges of streams that a batch or a trigger reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from millpond.pipeline.errors import DataLost, PipelineError
from millpond.pipeline.options import Nodes, SourceOptions
from millpond.pipeline.spark.discovery import Discovery, StreamLocation
from millpond.pipeline.spark.offsets import Offsets, TopicPartition, end_of_batch, lag

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The range of one task: the records of a stream from `start` to before `end`.

    `is_fresh`: it starts at the first record of the stream, which trimming may have moved.
    """

    nodes: Nodes
    location: StreamLocation
    topic: str
    partition: int
    start: int
    end: int
    is_fresh: bool = False
    is_strict: bool = True
    with_headers: bool = False
    fetch_rows: int = 10_000
    fetch_bytes: int = 8 * 2**20


@dataclass(frozen=True)
class Bounds:
    """The bounds of a batch by pushed-down filters; None: all."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None

    def narrowed(self, other: Bounds) -> Bounds:
        """The bounds within both."""
        ends = [each for each in (self.offset_end, other.offset_end) if each is not None]
        return Bounds(
            _both(self.topics, other.topics),
            _both(self.partitions, other.partitions),
            max(self.offset_min, other.offset_min),
            min(ends, default=None),
        )

    def allows(self, each: TopicPartition) -> bool:
        """Whether the partition can have rows."""
        return (self.topics is None or each.topic in self.topics) and (
            self.partitions is None or each.partition in self.partitions
        )


EVERYTHING = Bounds()


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def batch_ranges(options: SourceOptions, bounds: Bounds = EVERYTHING) -> list[Range]:
    """The ranges of a batch query. Raises PipelineError."""
    discovery = Discovery(options.nodes, options.subscription)
    try:
        discovery.check_complete()
        start, end = discovery.at_bound(options.start), discovery.at_bound(options.end)
        locations = discovery.locations()
    finally:
        discovery.close()
    ranges = []
    for each in sorted(end.keys() & start.keys()):
        first = max(start[each], bounds.offset_min)
        behind = end[each] if bounds.offset_end is None else min(end[each], bounds.offset_end)
        if first < behind and bounds.allows(each):
            ranges.append(_range(options, each, locations[each], first, behind))
    return split(ranges, options.partitions_min)


def _range(
    options: SourceOptions,
    each: TopicPartition,
    location: StreamLocation,
    start: int,
    end: int,
    *,
    is_fresh: bool = False,
) -> Range:
    return Range(
        options.nodes,
        location,
        each.topic,
        each.partition,
        start,
        end,
        is_fresh,
        options.fail_on_data_loss,
        options.with_headers,
        options.fetch_rows,
        options.fetch_bytes,
    )


def split(ranges: list[Range], count_min: int | None) -> list[Range]:
    """About `count_min` ranges at least: long ones are cut into more pieces."""
    total = sum(each.end - each.start for each in ranges)
    if not count_min or len(ranges) >= count_min or not total:
        return ranges
    found = []
    for each in ranges:
        size = each.end - each.start
        pieces = max(1, min(size, round(count_min * size / total)))
        cuts = [each.start + size * i // pieces for i in range(pieces + 1)]
        found += [replace(each, start=cuts[i], end=cuts[i + 1]) for i in range(pieces)]
    return found


class StreamPlan:
    """The plan of a streaming query, trigger by trigger, for as long as it runs."""

    def __init__(
        self,
        options: SourceOptions,
        discovery: Discovery | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._discovery = discovery or Discovery(options.nodes, options.subscription)
        self._now = now
        self._target: Offsets | None = None
        self._planned_at = now()

    def close(self) -> None:
        """Close all connections."""
        self._discovery.close()

    def initial(self) -> Offsets:
        """The begin of a new query."""
        self._discovery.check_complete()
        return self._discovery.at_bound(self._options.start)

    def prepare_available_now(self) -> None:
        """Let this run read up to the present tails."""
        self._target = dict(self._discovery.tails())

    def reached(self) -> Offsets:
        """The tails, from which Spark computes the lag."""
        return self._discovery.tails() if self._target is None else self._target

    def latest(self, start: Offsets, rows_max: int | None) -> Offsets:
        """The end of the next batch, or `start` if there is none. `rows_max` None: no limit."""
        tails = self.reached()
        if self._options.fail_on_data_loss:
            _check_kept(start, self._discovery.tails())
        end = {**start, **tails}
        new = [each for each in tails if each not in start]
        begin = {**start, **{each: self._discovery.earliest(each) for each in new}}
        if self._waits_for_more(lag(begin, end)):
            return start
        self._planned_at = self._now()
        return end if rows_max is None else end_of_batch(begin, end, rows_max)

    def _waits_for_more(self, rows: int) -> bool:
        rows_min = self._options.rows_min
        if rows_min is None or self._target is not None or rows >= rows_min:
            return False
        return self._now() < self._planned_at + self._options.delay_max_ms / 1000

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The ranges of a batch, the same with each call."""
        locations, options, found = self._discovery.locations(), self._options, []
        for each, behind in sorted(end.items()):
            first, is_fresh = start.get(each, 0), each not in start
            if behind < first:  # the stream was deleted and created again
                first, is_fresh = 0, True
            if first < behind:
                location = locations.get(each) or _gone(each)
                found.append(_range(options, each, location, first, behind, is_fresh=is_fresh))
        return split(found, options.partitions_min)


def _check_kept(start: Offsets, tails: Offsets) -> None:
    for each, offset in start.items():
        if tails.get(each, 0) < offset or (each not in tails and offset):
            text = f"{each.topic!r} {each.partition} was read up to {offset}"
            raise DataLost(f"{text}, and ends at {tails.get(each, 0)} now")


def _gone(each: TopicPartition) -> StreamLocation:
    raise PipelineError(
        "no_stream", f"{each.topic!r} {each.partition} was deleted before it was read"
    )
