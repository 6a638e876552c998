"""The discovery of partitions: the streams of a subscription, their nodes and tails.

A topic is the stream of its name, which is partition 0, or the streams `name/0`, `name/1` and so
on. Node i of the addresses has the partitions from 1000 * i on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from millpond.pipeline.client.http_client import NodeClient, StreamTail
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.options import NODE_STRIDE, Nodes, OffsetBound, Subscription
from millpond.pipeline.spark.offsets import (
    EARLIEST,
    LATEST,
    Identities,
    Offsets,
    TopicPartition,
)

TAILS_AGE_S = 0.1
"""Spark asks up to a hundred times a second."""
TAILS_AGE_OF_COST = 5.0
"""Answers that take long are good for longer, so that they take a part of the time."""
SIZES_AGE_S = 10.0


@dataclass(frozen=True)
class StreamLocation:
    """The location of a partition: the number of the node, and the stream."""

    node: int
    stream: str


StreamLocations = dict[TopicPartition, StreamLocation]


@dataclass(frozen=True)
class _Answer:
    """The answers of all nodes, as of `until` at the latest."""

    until: float
    locations: StreamLocations
    tails: dict[TopicPartition, StreamTail]


class Discovery:
    """Discovery with a short-lived cache of the nodes' answers."""

    def __init__(
        self, nodes: Nodes, subscription: Subscription, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._subscription = subscription
        self._clients = [NodeClient(nodes, index) for index in range(len(nodes.addresses))]
        self._now = now
        self._answers: dict[bool, _Answer] = {}
        """With details and without."""
        self._found: dict[int, tuple[list[str], list[tuple[TopicPartition, str]]]] = {}
        """The names of the last answer of each node, and their partitions: they rarely change."""

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.close()

    def locations(self) -> StreamLocations:
        """The locations of all partitions. Raises PipelineError."""
        return self._answer().locations

    def _answer(self, *, details: bool = False, age_s: float = 0.0) -> _Answer:
        kept = self._answers.get(details)
        began = self._now()
        if kept is not None and began < kept.until:
            return kept
        locations: StreamLocations = {}
        tails: dict[TopicPartition, StreamTail] = {}
        query = _query_of(self._subscription)
        for index, client in enumerate(self._clients):
            rows = {row.name: row for row in client.tails(query, details=details)}
            for each, stream in self._partitions(index, list(rows)):
                locations[each] = StreamLocation(index, stream)
                tails[each] = rows[stream]
        taken = self._now() - began
        until = self._now() + max(age_s, TAILS_AGE_S, TAILS_AGE_OF_COST * taken)
        self._answers[details] = found = _Answer(until, locations, tails)
        return found

    def _partitions(self, index: int, names: list[str]) -> list[tuple[TopicPartition, str]]:
        """The partitions of a node and their streams, by the names of its answer."""
        before, found = self._found.get(index, ([], []))
        if names != before:
            assigned, first = self._subscription.assigned, NODE_STRIDE * index
            by_node = _partitions_of(self._subscription, dict.fromkeys(names))
            numbered = [(TopicPartition(topic, first + at), name) for (topic, at), name in by_node]
            found = [each for each in numbered if not assigned or each[0] in assigned]
            self._found[index] = names, found
        return found

    def check_complete(self) -> None:
        """Raise PipelineError if a stream that was named does not exist."""
        found, subscription = self.locations(), self._subscription
        topics = {each.topic for each in found}
        missing = [each for each in subscription.topics if each not in topics]
        missing += [
            f"{each.topic} {each.partition}" for each in subscription.assigned if each not in found
        ]
        if missing:
            where = ", ".join(client.address for client in self._clients)
            text = f"no stream {', '.join(missing)} at {where}"
            raise PipelineError("no_stream", text, "create it, or correct the name")

    def tails(self) -> Offsets:
        """The tails of all partitions. Raises PipelineError."""
        return {each: row.tail for each, row in self._answer().tails.items()}

    def identities(self) -> Identities:
        """The identities of the streams of all partitions that have one."""
        return {
            each: row.identity for each, row in self._answer().tails.items() if row.identity != "0"
        }

    def record_bytes(self) -> dict[TopicPartition, float]:
        """The mean size of a kept record of each partition, of some seconds ago at most."""
        rows = self._answer(details=True, age_s=SIZES_AGE_S).tails
        return {each: row.bytes / max(1, row.tail - row.first) for each, row in rows.items()}

    def earliest(self) -> Offsets:
        """The sequence of the first record of each partition, or the tail."""
        self._answers.pop(True, None)
        return {each: row.first for each, row in self._answer(details=True).tails.items()}

    def at_time(self, each: TopicPartition, time_ms: int) -> int | None:
        """The sequence of the first record of that time or later; None: no such record."""
        location = self.locations()[each]
        return self._clients[location.node].at_time(location.stream, time_ms)

    def at_bound(self, bound: OffsetBound) -> Offsets:
        """The offsets of a bound. Raises PipelineError."""
        tails = self.tails()
        named = bound.offsets or bound.times
        if named and named.keys() != tails.keys():
            odd = sorted(named.keys() ^ tails.keys())[0]
            text = f"offsets are needed for exactly the existing partitions: {odd.topic!r}"
            raise BadOption(f"{text} {odd.partition}")
        return {each: self._at_bound(bound, each, tail) for each, tail in tails.items()}

    def _first(self, each: TopicPartition, tail: int) -> int:
        row = self._answer(details=True).tails.get(each)
        return tail if row is None else row.first

    def _at_bound(self, bound: OffsetBound, each: TopicPartition, tail: int) -> int:
        time_ms = bound.times.get(each) if bound.time_ms is None else bound.time_ms
        if time_ms is not None:
            found = self.at_time(each, time_ms)
            if found is None and bound.is_strict:
                text = f"{each.topic!r} {each.partition} has no record of {time_ms} ms or later"
                raise PipelineError(
                    "no_such_time", text, "startingOffsetsByTimestampStrategy=latest"
                )
            return tail if found is None else found
        offset = bound.offsets.get(each, bound.offset)
        match offset:
            case _ if offset == LATEST:
                return tail
            case _ if offset == EARLIEST:
                return self._first(each, tail)
            case _ if offset > tail:
                text = (
                    f"{each.topic!r} {each.partition} ends at {tail}, and not at {offset} or later"
                )
                raise BadOption(f"offsets: {text}")
            case _:
                return offset


_PARTITION = re.compile(r"(.+)/(0|[1-9]\d{0,2})", re.DOTALL)
_LITERAL = re.compile(r"[A-Za-z0-9_/-]*(?![*?{])")
"""The common beginning of a pattern's matches, unless it has alternatives."""


def _query_of(subscription: Subscription) -> dict[str, object]:
    """The streams to ask a node for: all that may belong to a subscription."""
    pattern = subscription.pattern
    if pattern is not None:
        literal = _LITERAL.match(pattern)
        return {"prefix": literal[0] if literal and "|" not in pattern else ""}
    return {"topics": list(_topics(subscription))}


def _topics(subscription: Subscription) -> dict[str, None]:
    return dict.fromkeys(subscription.topics or (each.topic for each in subscription.assigned))


def _partitions_of(
    subscription: Subscription, names: Collection[str]
) -> Iterator[tuple[TopicPartition, str]]:
    """The partitions of a subscription on one node, with their streams.

    A stream whose whole name is a topic, or matches, is a topic by itself, so that its name does
    not depend on other streams.
    """
    if subscription.pattern is None:
        is_topic: Callable[[str], object] = _topics(subscription).__contains__
    else:
        is_topic = re.compile(subscription.pattern).fullmatch
    for name in names:
        if is_topic(name):
            yield TopicPartition(name, 0), name
            continue
        parts = _PARTITION.fullmatch(name)
        if parts is not None and parts[1] not in names and is_topic(parts[1]):
            yield TopicPartition(parts[1], int(parts[2])), name
