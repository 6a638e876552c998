"""The discovery of partitions: the streams of a subscription, their nodes and tails.

A topic is the stream of its name, which is partition 0, or the streams `name/0`, `name/1` and so
on. Node i of the addresses has the partitions from 1000 * i on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millpond.pipeline.client.http_client import NodeClient, NoSuchStream
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.options import NODE_STRIDE, Nodes, OffsetBound, Subscription
from millpond.pipeline.spark.offsets import EARLIEST, LATEST, Offsets, TopicPartition

NAMES_AGE_S = 2.0
TAILS_AGE_S = 0.1
"""Spark asks up to a hundred times a second."""


@dataclass(frozen=True)
class StreamLocation:
    """The location of a partition: the number of the node, and the stream."""

    node: int
    stream: str


StreamLocations = dict[TopicPartition, StreamLocation]


class Discovery:
    """Discovery with a short-lived cache of the nodes' answers."""

    def __init__(
        self, nodes: Nodes, subscription: Subscription, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._subscription = subscription
        self._clients = [NodeClient(nodes, index) for index in range(len(nodes.addresses))]
        self._now = now
        self._locations: tuple[float, StreamLocations] | None = None
        self._tails: tuple[float, Offsets] | None = None

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.close()

    def locations(self) -> StreamLocations:
        """The locations of all partitions. Raises PipelineError."""
        if self._locations is not None and self._now() < self._locations[0] + NAMES_AGE_S:
            return self._locations[1]
        found: StreamLocations = {}
        for index, client in enumerate(self._clients):
            for each, stream in _partitions_of(self._subscription, client.names):
                numbered = TopicPartition(each.topic, each.partition + NODE_STRIDE * index)
                found[numbered] = StreamLocation(index, stream)
        assigned = self._subscription.assigned
        if assigned:
            found = {each: location for each, location in found.items() if each in assigned}
        self._locations = (self._now(), found)
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
        """The tails of all partitions, without streams that were deleted meanwhile."""
        if self._tails is not None and self._now() < self._tails[0] + TAILS_AGE_S:
            return self._tails[1]
        found: Offsets = {}
        for each, location in self.locations().items():
            try:
                found[each] = self._clients[location.node].tail(location.stream)
            except NoSuchStream:
                self._locations = None
        self._tails = (self._now(), found)
        return found

    def earliest(self, each: TopicPartition) -> int:
        """The sequence of the first record, or the tail."""
        location = self.locations()[each]
        return self._clients[location.node].earliest(location.stream)

    def at_bound(self, bound: OffsetBound) -> Offsets:
        """The offsets of a bound. Raises PipelineError."""
        tails = self.tails()
        named = bound.offsets or bound.times
        if named and named.keys() != tails.keys():
            odd = sorted(named.keys() ^ tails.keys())[0]
            text = f"offsets are needed for exactly the existing partitions: {odd.topic!r}"
            raise BadOption(f"{text} {odd.partition}")
        return {each: self._at_bound(bound, each, tail) for each, tail in tails.items()}

    def _at_bound(self, bound: OffsetBound, each: TopicPartition, tail: int) -> int:
        time_ms = bound.times.get(each) if bound.time_ms is None else bound.time_ms
        if time_ms is not None:
            location = self.locations()[each]
            found = self._clients[location.node].at_time(location.stream, time_ms)
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
                return self.earliest(each)
            case _ if offset > tail:
                text = (
                    f"{each.topic!r} {each.partition} ends at {tail}, and not at {offset} or later"
                )
                raise BadOption(f"offsets: {text}")
            case _:
                return offset


Names = Callable[[str], list[str]]
_PARTITION = re.compile(r"(.+)/(0|[1-9]\d{0,2})", re.DOTALL)


def _partitions_of(
    subscription: Subscription, names: Names
) -> Iterator[tuple[TopicPartition, str]]:
    """The partitions of a subscription on one node, with their streams."""
    if subscription.pattern is not None:
        yield from _matching(re.compile(subscription.pattern), names(""))
        return
    for topic in subscription.topics or dict.fromkeys(each.topic for each in subscription.assigned):
        found = names(topic)
        if topic in found:
            yield TopicPartition(topic, 0), topic
            continue
        for name in found:
            parts = _PARTITION.fullmatch(name)
            if parts is not None and parts[1] == topic:
                yield TopicPartition(topic, int(parts[2])), name


def _matching(pattern: re.Pattern[str], names: list[str]) -> Iterator[tuple[TopicPartition, str]]:
    """The partitions whose stream or topic a pattern matches.

    A stream that matches as a whole is a topic by itself, so that its name does not depend on other
    streams.
    """
    for name in names:
        if pattern.fullmatch(name):
            yield TopicPartition(name, 0), name
            continue
        parts = _PARTITION.fullmatch(name)
        if parts is not None and pattern.fullmatch(parts[1]) and parts[1] not in names:
            yield TopicPartition(parts[1], int(parts[2])), name
