"""The names of all streams and topics of a node, in memory.

Streams and the catalogue of topics tell it what they are, also when they are built anew, so what it
says is what they would say. Nothing is decided by it alone but that two of them exclude each other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import merge, nsmallest

from millpond.actors.messages import CellMessage
from millpond.actors.streams.messages import PartitionDeleted
from millpond.actors.streams.metadata import GroupProgress
from millpond.actors.streams.names import TOPICS, stream_cell

_TOPIC = re.compile(rb"[A-Za-z0-9_-]{1,255}")
_PARTITION = re.compile(rb"(0|[1-9][0-9]{0,8})")


class Directory:
    """`streams` has the names of all that were created; topics of one partition are among them."""

    __slots__ = (
        *("_tombstones", "_groups", "_removed", "_single", "_topics", "groups", "on_deleted"),
        "streams",
    )

    def __init__(self) -> None:
        self.streams: set[bytes] = set()
        self._tombstones: set[bytes] = set()
        """Those that are gone for everybody but their forks."""
        self.groups = 0
        """Consumer groups of the streams that were in use since the start."""
        self._groups: dict[bytes, tuple[int, GroupProgress]] = {}
        """How many each stream has, and how far they got."""
        self._single: list[bytes] | None = None
        """Topics of one partition by name, once somebody asked for them: a start has no use for it,
        and would bring names in any order."""
        self._topics: dict[bytes, int] = {}
        """Topics of several partitions."""
        self._removed: dict[bytes, int] = {}
        """Those that are removed, and some of whose partitions may still be there."""
        self.on_deleted: Callable[[bytes], None] = _nothing
        """Told of a stream that is not there any more."""

    # What the cells say.

    def sync_stream(
        self,
        name: bytes,
        *,
        is_created: bool,
        progress: GroupProgress | None = None,
        is_tombstone: bool = False,
    ) -> None:
        """A stream says what it is, and how far its groups got."""
        if is_tombstone != (name in self._tombstones):
            (self._tombstones.add if is_tombstone else self._tombstones.remove)(name)
        if is_created != (name in self.streams):
            self._change(name, is_created=is_created)
        count, _ = self._groups.pop(name, (0, None))
        self.groups -= count
        if progress is not None and progress.offsets:
            self._groups[name] = (len(progress.offsets), progress)
            self.groups += len(progress.offsets)

    def _change(self, name: bytes, *, is_created: bool) -> None:
        if is_created:
            self.streams.add(name)
        else:
            self.streams.remove(name)
            self.on_deleted(name)
        if self._single is None or not is_topic_name(name):
            return
        if is_created:
            insort(self._single, name)
        else:
            del self._single[bisect_left(self._single, name)]

    def sync_topics(self, topics: dict[bytes, int], removed: dict[bytes, int]) -> None:
        """The catalogue says which topics of several partitions there are, and which go."""
        self._topics = topics
        self._removed = removed

    # What the streams ask.

    def cell_of(self, name: bytes) -> bytes:
        """The cell of a stream of this name."""
        return stream_cell(name)

    def deletion_notice(self, name: bytes) -> tuple[bytes, CellMessage]:
        """A cell, and the mail that tells it that a stream is gone that was to go."""
        return TOPICS, PartitionDeleted(0, name)

    # What others ask.

    def progress(self) -> list[GroupProgress]:
        """How far the groups got, of each stream that has any and was in use since the start."""
        return [progress for _, progress in self._groups.values()]

    def partitions(self, topic: bytes) -> int | None:
        """How many partitions the topic has; None: there is no such topic."""
        count = self._topics.get(topic)
        if count is None and topic in self.streams and is_topic_name(topic):
            return 1
        return count

    def topics(self) -> Iterator[tuple[bytes, int]]:
        """Every topic with its partitions, in the order of their names; to be gone through at
        once."""
        if self._single is None:
            self._single = sorted(filter(is_topic_name, self.streams))
        several = self._topics
        single = ((name, 1) for name in self._single if name not in several)
        return merge(single, sorted(several.items()))

    def names(self, prefix: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[bytes]:
        """Streams that were created or appended to, in the order of their names."""
        streams = (each for each in self.streams if each.startswith(prefix) and each > after)
        return nsmallest(limit, streams)

    def is_created(self, name: bytes) -> bool:
        """Is there a stream of this name, be it buried, apart from unused partitions of topics?"""
        return name in self.streams or name in self._tombstones

    def has_topic(self, name: bytes) -> bool:
        """Is there a topic of several partitions of this name?"""
        return name in self._topics

    def is_partition(self, name: bytes) -> bool:
        """Is the stream one of the partitions of a topic of several?"""
        return bool(self._topics) and _is_among(name, self._topics)

    def is_being_deleted(self, name: bytes) -> bool:
        """Is the stream to go, as a partition of a topic that is removed?"""
        return bool(self._removed) and _is_among(name, self._removed)


class StagingDirectory(Directory):
    """Parts of batches that are not published yet; their names are those of their cells.

    `unwanted` are those that are being removed; `expired` counts what went by itself instead.
    """

    __slots__ = ("expired", "unwanted")

    def __init__(self) -> None:
        super().__init__()
        self.unwanted: set[bytes] = set()
        self.expired = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.streams)

    def cell_of(self, name: bytes) -> bytes:
        return name

    def _change(self, name: bytes, *, is_created: bool) -> None:
        super()._change(name, is_created=is_created)
        if not is_created and name not in self.unwanted:
            self.expired += 1


def is_topic_name(name: bytes) -> bool:
    """May a topic have this name (RL-29)?"""
    return _TOPIC.fullmatch(name) is not None


def partition_name(topic: bytes, partition: int) -> bytes:
    """The stream of a partition of a topic of several."""
    return b"%b/%d" % (topic, partition)


def partition_of(name: bytes) -> tuple[bytes, int] | None:
    """The topic of several and its partition that have a stream of this name."""
    topic, _, number = name.rpartition(b"/")
    return (topic, int(number)) if _PARTITION.fullmatch(number) and topic else None


def _is_among(name: bytes, topics: dict[bytes, int]) -> bool:
    found = partition_of(name)
    return found is not None and found[1] < topics.get(found[0], 0)


def _nothing(name: bytes) -> None:
    """Nobody wants to know."""
