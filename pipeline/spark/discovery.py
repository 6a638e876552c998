"""Which partitions a subscription has now, on which nodes, and how far they reach.

A topic is the stream of its name, which is partition 0, or the streams `name/0`, `name/1` and so
on. What stands at place i of the addresses has its partitions from 1000 * i on.
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
"""Spark asks a hundred times a second where nothing else holds it back."""


@dataclass(frozen=True)
class StreamLocation:
    """Where a partition is: the node's place among the addresses, and the stream."""

    node: int
    stream: str


StreamLocations = dict[TopicPartition, StreamLocation]


class Discovery:
    """Asks the nodes; what it was told is good for a moment."""

    def __init__(
        self, nodes: Nodes, subscription: Subscription, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._subscription = subscription
        self._wires = [NodeClient(nodes, index) for index in range(len(nodes.addresses))]
        self._now = now
        self._places: tuple[float, StreamLocations] | None = None
        self._tails: tuple[float, Offsets] | None = None

    def close(self) -> None:
        """Let go of all connections."""
        for wire in self._wires:
            wire.close()

    def places(self) -> StreamLocations:
        """Every partition there is. Raises PipelineError."""
        if self._places is not None and self._now() < self._places[0] + NAMES_AGE_S:
            return self._places[1]
        found: StreamLocations = {}
        for index, wire in enumerate(self._wires):
            for each, stream in _sorted_out(self._subscription, wire.names):
                placed = TopicPartition(each.topic, each.partition + NODE_STRIDE * index)
                found[placed] = StreamLocation(index, stream)
        assigned = self._subscription.assigned
        if assigned:
            found = {each: place for each, place in found.items() if each in assigned}
        self._places = (self._now(), found)
        return found

    def check_complete(self) -> None:
        """Raises PipelineError where something that was asked for by name is not there."""
        found, asked = self.places(), self._subscription
        topics = {each.topic for each in found}
        missing = [each for each in asked.topics if each not in topics]
        missing += [
            f"{each.topic} {each.partition}" for each in asked.assigned if each not in found
        ]
        if missing:
            where = ", ".join(wire.address for wire in self._wires)
            text = f"there is no stream {', '.join(missing)} at {where}"
            raise PipelineError("no_stream", text, "create it, or mend the name")

    def tails(self) -> Offsets:
        """How far every partition reaches; what was deleted meanwhile is not among them."""
        if self._tails is not None and self._now() < self._tails[0] + TAILS_AGE_S:
            return self._tails[1]
        found: Offsets = {}
        for each, place in self.places().items():
            try:
                found[each] = self._wires[place.node].tail(place.stream)
            except NoSuchStream:
                self._places = None
        self._tails = (self._now(), found)
        return found

    def earliest(self, each: TopicPartition) -> int:
        """The first record that is left, or the tail."""
        place = self.places()[each]
        return self._wires[place.node].earliest(place.stream)

    def at_edge(self, edge: OffsetBound) -> Offsets:
        """Where a query begins or ends. Raises PipelineError."""
        tails = self.tails()
        named = edge.offsets or edge.times
        if named and named.keys() != tails.keys():
            odd = sorted(named.keys() ^ tails.keys())[0]
            text = f"offsets are to be given for exactly the partitions there are: {odd.topic!r}"
            raise BadOption(f"{text} {odd.partition}")
        return {each: self._at_edge(edge, each, tail) for each, tail in tails.items()}

    def _at_edge(self, edge: OffsetBound, each: TopicPartition, tail: int) -> int:
        time_ms = edge.times.get(each) if edge.time_ms is None else edge.time_ms
        if time_ms is not None:
            place = self.places()[each]
            found = self._wires[place.node].at_time(place.stream, time_ms)
            if found is None and edge.is_strict:
                text = f"{each.topic!r} {each.partition} has no record of {time_ms} ms or later"
                raise PipelineError(
                    "no_such_time", text, "startingOffsetsByTimestampStrategy=latest"
                )
            return tail if found is None else found
        offset = edge.offsets.get(each, edge.offset)
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


def _sorted_out(asked: Subscription, names: Names) -> Iterator[tuple[TopicPartition, str]]:
    """The streams of a node that a subscription means."""
    if asked.pattern is not None:
        yield from _matching(re.compile(asked.pattern), names(""))
        return
    for topic in asked.topics or dict.fromkeys(each.topic for each in asked.assigned):
        found = names(topic)
        if topic in found:
            yield TopicPartition(topic, 0), topic
            continue
        for name in found:
            parts = _PARTITION.fullmatch(name)
            if parts is not None and parts[1] == topic:
                yield TopicPartition(topic, int(parts[2])), name


def _matching(pattern: re.Pattern[str], names: list[str]) -> Iterator[tuple[TopicPartition, str]]:
    """What the pattern names as a whole is a topic of its own; else its topic may be meant. So
    what a stream is called does not hang on which others there are."""
    for name in names:
        if pattern.fullmatch(name):
            yield TopicPartition(name, 0), name
            continue
        parts = _PARTITION.fullmatch(name)
        if parts is not None and pattern.fullmatch(parts[1]) and parts[1] not in names:
            yield TopicPartition(parts[1], int(parts[2])), name
