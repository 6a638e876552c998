"""The plan of a query: the ranges of streams that a batch or a trigger reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import ge
from typing import Any, NoReturn, TypeVar

from millpond.pipeline.errors import DataLost, PipelineError
from millpond.pipeline.options import Nodes, SourceOptions
from millpond.pipeline.spark.direct import DirectFile, DirectPlanner
from millpond.pipeline.spark.discovery import Discovery, StreamLocation
from millpond.pipeline.spark.offsets import (
    Identities,
    Offsets,
    TopicPartition,
    end_of_batch,
    from_nested,
    identities_of,
    lag,
    to_nested,
)

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
    identity: str | None = None
    """The identity of the stream; None: not known."""
    direct: DirectFile | None = None
    """The file that has settled records of it; None: the node is read."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of a batch by pushed-down filters; None: all. Times are in milliseconds."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    time_min: int | None = None
    time_end: int | None = None

    def narrowed(self, other: Bounds) -> Bounds:
        """The bounds within both."""
        return Bounds(
            _both(self.topics, other.topics),
            _both(self.partitions, other.partitions),
            max(self.offset_min, other.offset_min),
            _least(self.offset_end, other.offset_end),
            max(_known(self.time_min, other.time_min), default=None),
            _least(self.time_end, other.time_end),
        )

    @property
    def has_times(self) -> bool:
        """Whether there is a bound of time."""
        return self.time_min is not None or self.time_end is not None

    def allows(self, each: TopicPartition) -> bool:
        """Whether the partition can have rows."""
        return (self.topics is None or each.topic in self.topics) and (
            self.partitions is None or each.partition in self.partitions
        )


EVERYTHING = Bounds()


def _known(*values: int | None) -> list[int]:
    return [each for each in values if each is not None]


def _least(*values: int | None) -> int | None:
    return min(_known(*values), default=None)


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
        locations, identities = discovery.locations(), discovery.identities()
        ranges = []
        for each in filter(bounds.allows, sorted(end.keys() & start.keys())):
            first, behind = _bounded(discovery, each, bounds, start[each], end[each])
            if first < behind:
                identity = identities.get(each)
                ranges.append(_range(options, each, locations[each], first, behind, identity))
    finally:
        discovery.close()
    ranges = split(ranges, options.partitions_min)
    if options.is_direct:
        ranges = DirectPlanner(options.nodes, options.store_options).plan(ranges)
    return ranges


def _bounded(
    discovery: Discovery, each: TopicPartition, bounds: Bounds, first: int, behind: int
) -> tuple[int, int]:
    """The range of a partition that can have rows. Times ascend in a stream, so they are a range
    of it as well."""
    first = max(first, bounds.offset_min)
    if bounds.offset_end is not None:
        behind = min(behind, bounds.offset_end)
    if bounds.time_min is not None and first < behind:
        found = discovery.at_time(each, bounds.time_min)
        first = behind if found is None else max(first, found)
    if bounds.time_end is not None and first < behind:
        found = discovery.at_time(each, bounds.time_end)
        behind = behind if found is None else min(behind, found)
    return first, behind


def _range(
    options: SourceOptions,
    each: TopicPartition,
    location: StreamLocation,
    start: int,
    end: int,
    identity: str | None,
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
        identity,
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
        self._start: dict[str, Any] = {}
        self._parsed: tuple[Offsets, Identities] = ({}, {})
        """The last end of a batch, and where the next one begins until there is one."""
        self._planned_at = now()
        self._direct: DirectPlanner | None = None
        if options.is_direct:
            self._direct = DirectPlanner(options.nodes, options.store_options)

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

    def begin(self) -> dict[str, Any]:
        """The begin of a new query, as its checkpoint has it."""
        offsets = self.initial()
        return to_nested(offsets, self._identities(offsets))

    def advance(
        self, start: dict[str, Any], rows_max: int | None, bytes_max: int | None
    ) -> dict[str, Any]:
        """The end of the next batch, as a checkpoint has it; `start` itself if there is none.

        A stream that is not the one that was read is a loss: it was deleted and made again, or it
        is another node's. Raises PipelineError.
        """
        if start != self._start:
            self._start, self._parsed = start, (from_nested(start), identities_of(start))
        offsets, known = self._parsed
        present = self._discovery.identities()
        changed: set[TopicPartition] = set()
        if known != present:
            changed = {each for each in known.keys() & present if known[each] != present[each]}
        if changed and self._options.fail_on_data_loss:
            _raise_changed(min(changed), offsets)
        begin = offsets
        if changed:
            begin = {each: offset for each, offset in offsets.items() if each not in changed}
        end = self.latest(begin, rows_max, bytes_max)
        if end == begin and not changed:
            return start
        if end is begin:  # it waits for more
            return start
        known = {**known, **self._identities(end)}
        self._start, self._parsed = to_nested(end, known), (end, known)
        return self._start

    def _identities(self, offsets: Offsets) -> Identities:
        present = self._discovery.identities()
        if offsets.keys() == present.keys():
            return present
        return {each: present[each] for each in offsets if each in present}

    def latest(self, start: Offsets, rows_max: int | None, bytes_max: int | None = None) -> Offsets:
        """The end of the next batch, or `start` if there is none. None: no limit."""
        tails = self.reached()
        if self._options.fail_on_data_loss:
            _check_kept(start, self._discovery.tails())
        end, begin = {**start, **tails}, start
        if new := tails.keys() - start.keys():
            firsts = self._discovery.earliest()
            begin = {**start, **{each: firsts.get(each, tails[each]) for each in new}}
        if self._waits_for_more(begin, end):
            return start
        self._planned_at = self._now()
        if bytes_max is None or end == start:
            return end_of_batch(begin, end, rows_max)
        return end_of_batch(begin, end, rows_max, bytes_max, self._discovery.record_bytes())

    def _waits_for_more(self, begin: Offsets, end: Offsets) -> bool:
        rows_min = self._options.rows_min
        if rows_min is None or self._target is not None or lag(begin, end) >= rows_min:
            return False
        return self._now() < self._planned_at + self._options.delay_max_ms / 1000

    def ranges(
        self,
        start: Offsets,
        end: Offsets,
        before: Mapping[TopicPartition, str] | None = None,
        identities: Mapping[TopicPartition, str] | None = None,
    ) -> list[Range]:
        """The ranges of a batch, the same with each call. The last two: the identities of the
        streams at its begin and at its end, as far as they are known."""
        locations, options, found = self._discovery.locations(), self._options, []
        before, identities = before or {}, identities or {}
        for each, behind in sorted(end.items()):
            first, is_fresh = start.get(each, 0), each not in start
            identity = identities.get(each)
            if behind < first or before.get(each, identity) != identity:
                first, is_fresh = 0, True  # the stream was deleted and created again
            if first < behind:
                location = locations.get(each) or _gone(each)
                found.append(
                    _range(options, each, location, first, behind, identity, is_fresh=is_fresh)
                )
        found = split(found, options.partitions_min)
        return found if self._direct is None else self._direct.plan(found)


def _check_kept(start: Offsets, tails: Offsets) -> None:
    if start.keys() == tails.keys() and all(map(ge, map(tails.__getitem__, start), start.values())):
        return
    for each, offset in start.items():
        if tails.get(each, 0) < offset or (each not in tails and offset):
            text = f"{each.topic!r} {each.partition} was read up to {offset}"
            raise DataLost(f"{text}, and ends at {tails.get(each, 0)} now")


def _raise_changed(each: TopicPartition, offsets: Offsets) -> NoReturn:
    text = f"{each.topic!r} {each.partition} was read up to {offsets.get(each, 0)}, and is another"
    raise DataLost(f"{text} stream now: it was made anew, or is another node's")


def _gone(each: TopicPartition) -> StreamLocation:
    raise PipelineError(
        "no_stream", f"{each.topic!r} {each.partition} was deleted before it was read"
    )
