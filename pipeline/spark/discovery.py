"""The discovery of partitions: the streams of a subscription, their nodes and tails.

A topic is the stream of its name, which is partition 0, or the streams `name/0`, `name/1` and so
on. Node i of the addresses has the partitions from 1000 * i on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

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
TAILS_AGE_MAX_S = 0.5
"""No answer is good for longer: one that waited for a node to come back cost nothing."""
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
    rows: dict[TopicPartition, StreamTail]
    tails: Offsets
    identities: Identities


class _Partitions(NamedTuple):
    """The names in an answer of a node, the partitions that they are, and where these stand in it.
    They rarely change."""

    names: list[str]
    partitions: list[TopicPartition]
    at: list[int]


_NAME_OF, _IDENTITY_OF, _TAIL_OF = (attrgetter(name) for name in ("name", "identity", "tail"))
_UNUSED = "0"
"""The identity of a topic's partition without records."""


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
        self._found: dict[int, _Partitions] = {}
        """The partitions in the last answer of each node."""
        self._locations: StreamLocations = {}
        self._identities: Identities = {}

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
        rows: dict[TopicPartition, StreamTail] = {}
        query, is_same = _query_of(self._subscription), True
        for index, client in enumerate(self._clients):
            answer = client.tails(query, details=details)
            names = list(map(_NAME_OF, answer))
            if index not in self._found or self._found[index].names != names:
                self._found[index] = self._partitions(index, names)
                is_same = False
            found = self._found[index]
            rows.update(zip(found.partitions, map(answer.__getitem__, found.at), strict=True))
        if not is_same:
            self._locations = {
                each: StreamLocation(index, found.names[at])
                for index, found in self._found.items()
                for each, at in zip(found.partitions, found.at, strict=True)
            }
        tails = dict(zip(rows, map(_TAIL_OF, rows.values()), strict=True))
        identities = dict(zip(rows, map(_IDENTITY_OF, rows.values()), strict=True))
        if _UNUSED in identities.values():
            identities = {each: found for each, found in identities.items() if found != _UNUSED}
        if identities != self._identities:  # the same object for the same ones: quickly compared
            self._identities = identities
        taken = self._now() - began
        tails_age_s = min(max(TAILS_AGE_S, TAILS_AGE_OF_COST * taken), TAILS_AGE_MAX_S)
        until = self._now() + max(age_s, tails_age_s)
        found_ = _Answer(until, self._locations, rows, tails, self._identities)
        self._answers[details] = found_
        return found_

    def _partitions(self, index: int, names: list[str]) -> _Partitions:
        """The partitions of a node, by the names of its answer."""
        assigned, first = self._subscription.assigned, NODE_STRIDE * index
        found = _Partitions(names, [], [])
        places = {name: at for at, name in enumerate(names)}
        for (topic, number), name in _partitions_of(self._subscription, places):
            partition = TopicPartition(topic, first + number)
            if not assigned or partition in assigned:
                found.partitions.append(partition)
                found.at.append(places[name])
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
        return self._answer().tails

    def identities(self) -> Identities:
        """The identities of the streams of all partitions that have one."""
        return self._answer().identities

    def record_bytes(self) -> dict[TopicPartition, float]:
        """The mean size of a kept record of each partition, of some seconds ago at most."""
        rows = self._answer(details=True, age_s=SIZES_AGE_S).rows
        return {each: row.bytes / max(1, row.tail - row.first) for each, row in rows.items()}

    def earliest(self) -> Offsets:
        """The sequence of the first record of each partition, or the tail."""
        self._answers.pop(True, None)
        return {each: row.first for each, row in self._answer(details=True).rows.items()}

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
        row = self._answer(details=True).rows.get(each)
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
